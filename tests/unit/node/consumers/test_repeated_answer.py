"""An answer that is read again holds what it held, or is no answer."""

from types import SimpleNamespace

import pytest

from http_api.ports.groups import Reset
from milena.model.batch.decode import records_in
from milena.model.errors import NotReadyError, OffsetOutOfRangeError, ReplicaDamagedError
from milena.model.requests import Doubt, FetchResult
from node.consumers.cursor import GivenExtent
from node.consumers.repeated_answer import read_again
from raft_meta.machine.image import PartitionKey
from tests.support.disk.stored_batches import stored
from tests.support.time.virtual_time import virtual

A: PartitionKey = ("a" * 32, 0)
EXTENT = GivenExtent(A, 2, 5)


class Partition:
    """What ``StartPositions`` reads of one: batches of two records, one at a time."""

    def __init__(self, *, end: int = 10, start: int = 0) -> None:
        self.end, self.start = end, start
        self.batches = {
            base: stored(base, [b"%d" % base, b"%d" % (base + 1)]) for base in range(0, 10, 2)
        }

    async def fetch(self, key: PartitionKey, offset: int, *, max_bytes: int) -> FetchResult:
        assert key == A
        if offset < self.start:
            raise OffsetOutOfRangeError(f"the first one is {self.start}")
        batch = self.batches[offset // 2 * 2] if offset < self.end else b""
        return FetchResult(
            start_offset=offset,
            high_watermark=self.end,
            log_start_offset=self.start,
            leader_epoch=7,
            batches=batch,
            broker_id=3,
        )

    async def offset_of(self, key: PartitionKey, where: Reset) -> int:
        assert where is Reset.EARLIEST
        return self.start


async def read(partition: Partition) -> tuple[list[str], list[Doubt]]:
    doubts: list[Doubt] = []

    async def report(doubt: Doubt) -> None:
        doubts.append(doubt)

    view = SimpleNamespace(
        image=SimpleNamespace(topics={A[0]: SimpleNamespace(name="t")}), name=lambda key: "t-0"
    )
    session = SimpleNamespace(positions=partition, view=view)
    try:
        rows = await read_again(session, EXTENT, report)  # type: ignore[arg-type]
    except ReplicaDamagedError:
        return [], doubts
    return [
        (record[3] or b"").decode()
        for row in rows
        for record in records_in(row.batches.data, row.start_offset, row.end_offset)
    ], doubts


@virtual
async def test_in_as_many_reads_as_it_takes_and_no_further() -> None:
    assert await read(Partition()) == (["2", "3", "4"], [])


@virtual
@pytest.mark.parametrize(("start", "left"), [(3, ["3", "4"]), (5, []), (9, [])])
async def test_what_was_deleted_meanwhile_is_gone(start: int, left: list[str]) -> None:
    assert await read(Partition(start=start)) == (left, [])


@virtual
async def test_a_copy_that_is_behind_gives_no_half_of_it() -> None:
    with pytest.raises(NotReadyError, match="t-0 cannot be read at offset 4 yet"):
        await read(Partition(end=4))


@virtual
async def test_what_came_damaged_is_told_and_no_answer() -> None:
    partition = Partition()
    partition.batches[4] = partition.batches[4][:-1] + b"!"
    assert await read(partition) == (
        [],
        [Doubt(topic="t", partition=0, offset=4, broker_id=3)],
    )


@virtual
async def test_an_offset_above_the_end_is_an_error_as_ever() -> None:
    class Cut(Partition):
        async def fetch(self, key: PartitionKey, offset: int, *, max_bytes: int) -> FetchResult:
            raise OffsetOutOfRangeError(f"offset {offset} is above its end")

    with pytest.raises(OffsetOutOfRangeError):
        await read(Cut())
