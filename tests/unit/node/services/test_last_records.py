"""Rules of "the last N records": those that the reader may see, whatever else has an offset, for bounded work."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from milena.model.batch.decode import iterate_headers
from milena.model.batch.encode import stamp_batch
from milena.model.batch.header import STAMP_BYTES, decode_header
from milena.model.requests import FetchRequest
from node.services.last_records import LastRecords
from storage.state.transactions import AbortedRange, Identity
from tests.support.clusters.compacted_cluster import CONFIGS, compact, update
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.runners import values_of
from tests.support.clusters.transacting import send, to, transact
from tests.support.disk.stored_batches import filler, stored
from tests.support.disk.transactions import marker, transactional
from tests.support.time.virtual_time import after, virtual


@dataclass
class Written:
    """A log of batches of every kind; ``visible``: offsets of the records that a committed reader sees."""

    batches: list[bytes] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    uncommitted: list[int] = field(default_factory=list)
    aborted: dict[Identity, AbortedRange] = field(default_factory=dict)
    end: int = 0
    reads: int = 0

    def add(self, batch: bytes, *, visible: Sequence[int] = (), raw: Sequence[int] = ()) -> None:
        self.batches.append(batch)
        self.visible += visible
        self.uncommitted += visible or raw
        self.end = decode_header(batch).next_offset

    def stamped(self, batch: bytes) -> bytes:
        stamp = stamp_batch(batch, base_offset=self.end, leader_epoch=1, append_time_ms=1)
        return stamp + batch[STAMP_BYTES:]

    async def read(self, offset: int, end: int) -> bytes:
        self.reads += 1
        found = [b for b in self.batches if decode_header(b).next_offset > offset]
        found = [b for b in found if decode_header(b).base_offset < end]
        assert found
        return b"".join(found[:3])


def dense(log: Written, rng: random.Random) -> None:
    count = rng.randint(1, 5)
    log.add(stored(log.end, [b"v"] * count), visible=range(log.end, log.end + count))


def thinned_out(log: Written, rng: random.Random) -> None:
    kept = sorted(rng.sample(range(8), rng.randint(1, 7)))
    base = log.end
    log.add(stored(base, [b"v"] * len(kept), deltas=kept), visible=[base + delta for delta in kept])


def removed(log: Written, rng: random.Random) -> None:
    log.add(filler(log.end, rng.choice([1, 3, 40, 9_000])))


def committed(log: Written, rng: random.Random) -> None:
    identity = (len(log.batches), 0)
    base, count = log.end, rng.randint(1, 4)
    pairs = [(None, b"v")] * count
    log.add(log.stamped(transactional(*identity, *pairs)), visible=range(base, base + count))
    log.add(log.stamped(marker(*identity, base, commit=log.end)))


def aborted(log: Written, rng: random.Random) -> None:
    identity = (len(log.batches), 0)
    base, count = log.end, rng.randint(1, 4)
    batch = log.stamped(transactional(*identity, *[(None, b"v")] * count))
    log.add(batch, raw=range(base, base + count))
    log.aborted[identity] = AbortedRange(base, log.end)
    log.add(log.stamped(marker(*identity, base)))


KINDS: list[Callable[[Written, random.Random], None]] = [
    dense,
    thinned_out,
    removed,
    committed,
    aborted,
]


def search(
    log: Written, start: int, *, is_uncommitted: bool = False, **options: int
) -> LastRecords:
    return LastRecords(
        read=log.read,
        start=start,
        end=log.end,
        aborted={} if is_uncommitted else log.aborted,
        **options,
    )


@pytest.mark.parametrize("seed", range(25))
async def test_it_is_the_offset_of_the_nth_visible_record_from_the_end(seed: int) -> None:
    rng = random.Random(seed)
    log = Written()
    for _ in range(rng.randint(1, 30)):
        rng.choice(KINDS)(log, rng)
    start = rng.choice([0, 0, rng.randint(0, log.end)])
    for is_uncommitted in (False, True):
        offsets = log.uncommitted if is_uncommitted else log.visible
        seen = [offset for offset in offsets if offset >= start]
        for count in (*range(1, len(seen) + 1), len(seen) + 1, 10_000):
            found = await search(log, start, is_uncommitted=is_uncommitted).find(count)
            assert found == (seen[-count] if count <= len(seen) else start), count


async def test_beyond_its_bound_every_offset_counts_as_a_record() -> None:
    log = Written()
    for _ in range(2_000):
        committed(log, random.Random(1))
    found = await search(log, 0, bytes_left=40_000).find(10_000)
    assert 0 <= found < log.end
    assert log.reads <= 10
    assert await search(log, 0, bytes_left=0).find(10) == log.end - 10
    assert await search(log, 0, bytes_left=1).find(100_000) == 0


async def test_what_is_wanted_near_the_end_reads_little() -> None:
    log = Written()
    for _ in range(1_000):
        dense(log, random.Random(1))
    assert await search(log, 0).find(1) == log.end - 1
    spans = [decode_header(batch).next_offset for batch in log.batches]
    assert log.reads <= len([next_ for next_ in spans if next_ > log.end - 40])


async def read_last(
    cluster: Cluster, node_id: int, count: int, *, is_uncommitted: bool = False
) -> list[str]:
    result = await cluster.nodes[node_id].reads.fetch(
        FetchRequest(
            topic="t",
            partition=0,
            offset=-count,
            timestamp_ms=None,
            max_bytes=1 << 20,
            timeout_ms=0,
            is_local=False,
            is_uncommitted=is_uncommitted,
        )
    )
    found: list[str] = []
    for position, header in iterate_headers(result.batches):
        batch = result.batches[position : position + header.batch_bytes]
        if not header.is_control:
            values = values_of(batch)
            skipped = max(0, result.start_offset - header.base_offset)
            found += values[skipped:]
    return found


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_neither_markers_nor_aborted_nor_open_transactions_count(asked: int) -> None:
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        await cluster.create("t", (1, 2))
        await cluster.nodes[1].write("t", "a")
        await transact(cluster, 1, to("t", 0, "b"))
        await transact(cluster, 1, to("t", 0, "c", "d"))
        service = cluster.nodes[1].transactions
        one = await service.begin("me", timeout_ms=30_000)
        await send(cluster, 1, one, "t", "never")
        await service.abort(one, timeout_ms=1_000)
        await cluster.until(lambda: not cluster.runner(1, "t").log.writers.transactions.open)
        await cluster.nodes[1].write("t", "e")
        two = await service.begin("you", timeout_ms=30_000)
        await send(cluster, 1, two, "t", "open")
        await after(50)
        seen = ["a", "b", "c", "d", "e"]
        for count in range(1, 9):
            assert await read_last(cluster, asked, count) == seen[-count:]
        raw = ["a", "b", "c", "d", "never", "e", "open"]
        for count in range(1, 9):
            assert await read_last(cluster, asked, count, is_uncommitted=True) == raw[-count:]


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_a_time_is_that_of_a_record_which_the_reader_may_see(asked: int) -> None:
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        await cluster.create("t", (1, 2))
        service = cluster.nodes[1].transactions
        one = await service.begin("me", timeout_ms=30_000)
        await send(cluster, 1, one, "t", "never")
        await service.abort(one, timeout_ms=1_000)
        await cluster.until(lambda: not cluster.runner(1, "t").log.writers.transactions.open)
        await cluster.nodes[1].write("t", "a")
        for is_uncommitted, first in ((False, 2), (True, 0)):
            result = await cluster.nodes[asked].reads.fetch(
                FetchRequest(
                    topic="t",
                    partition=0,
                    offset=0,
                    timestamp_ms=1,
                    max_bytes=1 << 20,
                    timeout_ms=0,
                    is_local=False,
                    is_uncommitted=is_uncommitted,
                )
            )
            assert result.start_offset == first


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_neither_what_compaction_nor_what_a_deletion_took_counts(asked: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2), **CONFIGS)
        await update(cluster, 20)
        await compact(cluster, 1, 2)
        left = ["19", "19", "19", "19"]
        for count in range(1, 9):
            assert await read_last(cluster, asked, count) == left[-count:]
        await cluster.nodes[1].delete_records("t", 78)
        for count in range(1, 9):
            assert await read_last(cluster, asked, count) == left[2:][-count:]
