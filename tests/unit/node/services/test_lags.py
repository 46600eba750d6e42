"""Rules of lag: 0 if and only if there is nothing more to read, unknown where it is not known, the same everywhere."""

from collections.abc import Awaitable, Callable

import pytest

from http_api.formats.selection import select
from milena.model.requests import PartitionOffsets
from node.services.history import _Dates
from tests.support.clusters.compacted_cluster import CONFIGS, compact, update, write
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.transacting import send, to, transact
from tests.support.time.virtual_time import after, virtual


@pytest.mark.parametrize(
    ("start", "end", "records_end", "position", "lag"),
    [
        pytest.param(0, 10, 10, 4, 6, id="records"),
        pytest.param(0, 10, 10, 10, 0, id="at-the-end"),
        pytest.param(0, 10, 8, 8, 0, id="before-markers"),
        pytest.param(0, 10, 8, 9, 0, id="among-markers"),
        pytest.param(0, 10, 8, 4, 4, id="markers-at-the-end-do-not-count"),
        pytest.param(6, 10, 10, 4, 4, id="deleted-ones-do-not-count"),
        pytest.param(10, 10, 10, 4, 0, id="all-deleted"),
        pytest.param(0, 10, 10, 11, None, id="behind-the-end"),
        pytest.param(0, 0, 0, 0, 0, id="empty"),
        pytest.param(
            0, 10, None, 8, 2, id="an-earlier-release-does-not-say-where-the-last-record-is"
        ),
    ],
)
def test_lag_of_a_position(
    start: int, end: int, records_end: int | None, position: int, lag: int | None
) -> None:
    offsets = PartitionOffsets(log_start_offset=start, high_watermark=end, records_end=records_end)
    assert offsets.lag_of(position) == lag


async def records(cluster: Cluster) -> None:
    await cluster.nodes[1].write("t", "a", "b")


async def a_transaction(cluster: Cluster) -> None:
    await transact(cluster, 1, to("t", 0, "a", "b"))


async def an_aborted_one(cluster: Cluster) -> None:
    await cluster.nodes[1].write("t", "a")
    service = cluster.nodes[1].transactions
    one = await service.begin("me", timeout_ms=30_000)
    await send(cluster, 1, one, "t", "never", "never")
    await service.abort(one, timeout_ms=1_000)
    await cluster.until(lambda: not cluster.runner(1, "t").log.writers.transactions.open)


async def an_open_one(cluster: Cluster) -> None:
    await cluster.nodes[1].write("t", "a")
    one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
    await send(cluster, 1, one, "t", "perhaps")


async def a_deletion(cluster: Cluster) -> None:
    await cluster.nodes[1].write("t", "a", "b", "c")
    await cluster.nodes[1].delete_records("t", 2)


async def a_deletion_of_all(cluster: Cluster) -> None:
    await cluster.nodes[1].write("t", "a", "b", "c")
    await cluster.nodes[1].delete_records("t", None)


async def a_compaction(cluster: Cluster) -> None:
    await update(cluster, 20)
    await compact(cluster, 1, 2)


async def a_tombstone_that_is_gone(cluster: Cluster) -> None:
    await write(cluster, ("a", "1"))
    await write(cluster, ("a", None))
    await after(1_100)
    for _ in range(8):
        await compact(cluster, 1, 2)


async def nothing(cluster: Cluster) -> None:
    del cluster


WRITES: list[Callable[[Cluster], Awaitable[None]]] = [
    records,
    a_transaction,
    an_aborted_one,
    an_open_one,
    a_deletion,
    a_deletion_of_all,
    a_compaction,
    a_tombstone_that_is_gone,
    nothing,
]


async def offsets_seen(node: SimNode) -> tuple[list[int], int]:
    """Offsets of all records that a committed reader gets, and where it stands then."""
    found: list[int] = []
    at = (await node.fetch("t", "earliest")).start_offset
    while True:
        result = await node.fetch("t", at)
        selection = select(result, count=None, bytes_max=1 << 20)
        found += [offset for piece in selection.slices for offset in piece.offsets]
        if selection.next_offset == at:
            return found, at
        at = selection.next_offset


@virtual
@pytest.mark.parametrize("write_all", WRITES)
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_lag_is_0_exactly_where_nothing_more_is_to_be_read(
    asked: int, write_all: Callable[[Cluster], Awaitable[None]]
) -> None:
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        is_compacted = write_all in (a_compaction, a_tombstone_that_is_gone)
        await cluster.create("t", (1, 2), **(CONFIGS if is_compacted else {}))
        await write_all(cluster)
        await after(50)
        node = cluster.nodes[asked]
        seen, stands_at = await offsets_seen(node)
        offsets = await node.reads.offsets("t", 0, wants_records_end=True)
        history = cluster.nodes[1].history
        runner = cluster.runner(1, "t")
        for position in range(offsets.high_watermark + 1):
            is_left = any(offset >= position for offset in seen)
            assert (offsets.lag_of(position) == 0) is not is_left, position
            assert await history._lag(runner, position) == offsets.lag_of(position)
            # Wherever there is a record to be read, it has an age.
            age_ms = await history._age_ms(runner, position, _Dates(before={}))
            assert age_ms is not None or not is_left, position
        assert offsets.lag_of(stands_at) == 0
        assert offsets.lag_of(offsets.high_watermark + 1) is None
