"""Rules of putting small writes together: what shares a batch, who waits, and whose failure is whose."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from immutables import Map

from milena.model.batch.decode import decode_columns
from milena.model.batch.header import decode_header
from milena.model.columns import RecordColumns
from milena.model.errors import NotLeaderError
from milena.model.pending import Pending, in_a_task
from milena.model.requests import Acks, ProduceReceipt, Receipts
from milena.model.types import WallMs
from node.metadata.topic_settings import topic_settings
from node.services.encoding import EncodedPiece
from node.services.gather import HOLD_MS, MEMBER_BYTES_MAX, WriteGatherer
from node.services.record_batches import Appended, PartitionBatch, size_of_columns
from raft_meta.machine.image import Topic
from tests.support.time.virtual_time import after, settle, virtual

TOPIC = Topic(
    topic_id="0" * 32,
    name="t",
    partition_count=2,
    replication_factor=1,
    configs=Map(),
    created_ms=WallMs(0),
)
SETTINGS = topic_settings(TOPIC)


def part(
    *values: bytes | None, partition: int = 0, base: int = 100, keys: Sequence[bytes] | None = None
) -> PartitionBatch:
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None if keys is None else list(keys),
        values=list(values),
        headers=None,
    )
    return PartitionBatch(partition, range(len(values)), columns, base)


class Appends:
    """Stands for ``ToLeader``: offsets from 10 on, when ``gate`` is open; at once when ``is_here``."""

    def __init__(self) -> None:
        self.batches: list[RecordColumns] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.next_offset = 10
        self.is_here = False
        self.under_way: list[Pending[Appended]] = []
        self.gatherer = WriteGatherer(self)  # type: ignore[arg-type]  # the one method that it calls
        self.tasks: set[asyncio.Task[object]] = set()

    def append(
        self,
        topic: Topic,
        partition: int,
        pieces: Sequence[EncodedPiece],
        *,
        acks: Acks,
        timeout_ms: int,
    ) -> Pending[Appended]:
        (piece,) = pieces
        self.batches.append(decode_columns(piece.batch, decode_header(piece.batch)))
        if not self.is_here:
            return in_a_task(self.bring(piece.record_count), self.tasks)
        if self.error is not None:
            raise self.error
        offsets: Pending[Appended] = Pending()
        self.under_way.append(offsets)
        return offsets

    async def bring(self, count: int) -> Appended:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        first = self.next_offset
        self.next_offset += count
        return Appended(range(first, self.next_offset))

    def complete(self) -> None:
        count = len(self.batches[-1].values)
        self.under_way.pop().set_result(Appended(range(10, 10 + count)))

    def submit(
        self, part: PartitionBatch, acks: Acks = Acks.ALL, timeout_ms: int = 1_000
    ) -> Pending[Sequence[ProduceReceipt]]:
        return self.gatherer.submit(
            TOPIC,
            SETTINGS,
            part,
            size=size_of_columns(part.columns),
            acks=acks,
            timeout_ms=timeout_ms,
        )


def offsets(receipts: Sequence[ProduceReceipt]) -> Sequence[int | None]:
    assert isinstance(receipts, Receipts)
    assert not receipts.errors
    return receipts.offsets


@virtual
async def test_writes_of_one_turn_are_one_batch_and_each_gets_its_own_offsets() -> None:
    appends = Appends()
    first = appends.submit(part(b"a", b"b"))
    second = appends.submit(part(b"c", base=103, keys=[b"k"]))
    assert (offsets(await first), offsets(await second)) == (range(10, 12), range(12, 13))
    (batch,) = appends.batches
    assert batch.values == [b"a", b"b", b"c"]
    assert batch.keys == [None, None, b"k"]
    assert batch.timestamp_deltas == [0, 0, 3]


@virtual
async def test_partitions_acks_and_time_limits_are_not_mixed() -> None:
    appends = Appends()
    writes = [
        appends.submit(part(b"a")),
        appends.submit(part(b"b", partition=1)),
        appends.submit(part(b"c"), acks=Acks.LEADER),
        appends.submit(part(b"d"), timeout_ms=2_000),
    ]
    await asyncio.gather(*writes)
    assert len(appends.batches) == 4


@virtual
async def test_what_arrives_while_a_batch_is_under_way_is_the_next_one() -> None:
    appends = Appends()
    appends.gate.clear()
    first = appends.submit(part(b"a"))
    await settle()
    later = [appends.submit(part(b"b")), appends.submit(part(b"c"))]
    await settle()
    assert len(appends.batches) == 1
    appends.gate.set()
    await asyncio.gather(first, *later)
    assert [b.values for b in appends.batches] == [[b"a"], [b"b", b"c"]]


@virtual
async def test_a_batch_that_is_stuck_holds_nobody_up() -> None:
    appends = Appends()
    appends.gate.clear()
    appends.submit(part(b"a"))
    await settle()
    appends.submit(part(b"b"))
    await after(HOLD_MS + 1)
    assert len(appends.batches) == 2
    appends.gate.set()


@virtual
async def test_a_batch_is_bounded() -> None:
    appends = Appends()
    writes = [appends.submit(part(b"x" * MEMBER_BYTES_MAX)) for _ in range(20)]
    await asyncio.gather(*writes)
    assert len(appends.batches) == 2
    assert len(appends.batches[0].values) == 16


@virtual
async def test_a_failure_is_that_of_all_in_the_batch_and_of_nobody_else() -> None:
    appends = Appends()
    appends.error = NotLeaderError("gone; nothing was written")
    writes = [appends.submit(part(b"a")), appends.submit(part(b"b"))]
    for write in writes:
        [receipt] = await write
        assert receipt.error is appends.error
    appends.error = None
    assert offsets(await appends.submit(part(b"c"))) == range(10, 11)


@virtual
async def test_a_broken_invariant_reaches_who_waits() -> None:
    appends = Appends()
    appends.error = AssertionError("a bug")
    with pytest.raises(AssertionError):
        await appends.submit(part(b"a"))


@virtual
async def test_one_who_gives_up_leaves_the_others_their_answers() -> None:
    appends = Appends()
    appends.gate.clear()
    first, second = appends.submit(part(b"a")), appends.submit(part(b"b"))
    await settle()
    first.cancel()
    appends.gate.set()
    assert offsets(await second) == range(11, 12)


def test_only_what_cannot_be_refused_for_its_content_shares_a_batch() -> None:
    small = part(b"a")
    assert WriteGatherer.takes(small, 1, SETTINGS, Acks.LEADER)
    assert not WriteGatherer.takes(small, 1, SETTINGS, Acks.NONE)
    assert not WriteGatherer.takes(small, MEMBER_BYTES_MAX + 1, SETTINGS, Acks.ALL)
    assert not WriteGatherer.takes(small, 300, replace(SETTINGS, max_message_bytes=1_000), Acks.ALL)
    headed = part(b"a")
    headed.columns.headers = [[("h", b"v")]]
    assert not WriteGatherer.takes(headed, 1, SETTINGS, Acks.ALL)
    timed = part(b"a", b"b")
    timed.columns.timestamp_deltas = [0, 5]
    assert not WriteGatherer.takes(timed, 2, SETTINGS, Acks.ALL)


@virtual
async def test_a_batch_that_can_be_written_at_once_takes_no_task() -> None:
    leader = Appends()
    leader.is_here = True
    tasks = asyncio.all_tasks()
    first, second = leader.submit(part(b"a")), leader.submit(part(b"b"))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    leader.complete()
    assert (offsets(first.result()), offsets(second.result())) == (range(10, 11), range(11, 12))


@virtual
async def test_what_waits_behind_a_batch_is_not_begun_from_within_its_end() -> None:
    leader = Appends()
    leader.is_here = True
    leader.submit(part(b"a"))
    await asyncio.sleep(0)
    leader.submit(part(b"b"))
    await settle()
    leader.complete()
    assert len(leader.batches) == 1
    await asyncio.sleep(0)
    assert len(leader.batches) == 2


@virtual
async def test_what_goes_wrong_at_once_is_the_affair_of_who_waits() -> None:
    leader = Appends()
    leader.is_here = True
    leader.error = AssertionError("a bug")
    with pytest.raises(AssertionError):
        await leader.submit(part(b"b"))
    leader.error, leader.is_here = None, False
    assert offsets(await leader.submit(part(b"c"))) == range(10, 11)


@virtual
async def test_a_broken_invariant_that_nobody_waits_for_reaches_the_loop() -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    leader = Appends()
    leader.is_here = True
    write = leader.submit(part(b"a"))
    await asyncio.sleep(0)
    write.cancel()
    bug = AssertionError("a bug")
    leader.under_way[0].set_exception(bug)
    assert reported == [bug]
