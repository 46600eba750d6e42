"""Ranges against a partition on paper: records of every range, whatever holes the log has, and data that is lost."""

import asyncio
from itertools import combinations_with_replacement
from types import SimpleNamespace

import pytest

from milena.errors import (
    AnswerError,
    NotNowError,
    OutOfRangeError,
    ServerFailedError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.model.batch.encode import encode_filler
from milena.model.errors import MilenaError
from milena.reading.chunk_records import records_of
from milena.reading.cursor import ReadPlan
from milena.reading.reader import PartitionReader
from milena.records import StartAt, TopicPartition
from spark_ext.errors import DataLossError, StalledReadError
from spark_ext.options.parsing import Fetching
from spark_ext.reading import range_fetch
from spark_ext.reading.planner import PlannedRange
from tests.support.fakes.partition import FakePartition, InstantClock, stored


def filler(base, last):
    """A batch that covers offsets of which no record is left."""
    return encode_filler(
        base_offset=base, last_offset=last, leader_epoch=3, append_time_ms=1, timestamp_ms=1
    )


def values(*offsets):
    return [b"%d" % offset for offset in offsets]


LOGS = {
    "no hole": [stored(0, *values(0, 1, 2)), stored(3, *values(3, 4)), stored(5, *values(5))],
    "a hole without a batch": [stored(0, *values(0)), stored(4, *values(4, 5))],
    "a hole at the start": [stored(4, *values(4, 5))],
    "a filler": [stored(0, *values(0)), filler(1, 3), stored(4, *values(4, 5))],
    "a filler at the start": [filler(0, 3), stored(4, *values(4, 5))],
    "a filler at the end": [stored(0, *values(0, 1)), filler(2, 5)],
    "nothing but a filler": [filler(0, 5)],
    "batches that compaction thinned": [
        stored(0, *values(0, 1, 2), keep=[2]),
        stored(3, *values(3, 4, 5), keep=[0]),
    ],
    "markers of transactions": [
        stored(0, *values(0)),
        stored(1, b"marker", is_control=True),
        filler(2, 3),
        stored(4, b"marker", is_control=True),
        stored(5, *values(5)),
    ],
}
"""Logs of the offsets 0 to 5."""
KEPT = {
    "no hole": {0, 1, 2, 3, 4, 5},
    "a hole without a batch": {0, 4, 5},
    "a hole at the start": {4, 5},
    "a filler": {0, 4, 5},
    "a filler at the start": {4, 5},
    "a filler at the end": {0, 1},
    "nothing but a filler": set(),
    "batches that compaction thinned": {2, 3},
    "markers of transactions": {0, 5},
}
END = 6


@pytest.fixture
def fetch(monkeypatch):
    """``fetch(partition, start, end)``: the offsets of the records that come."""
    clock = InstantClock()

    class PaperClient:
        def __init__(self, partition):
            self.partition = partition
            self.metadata = self

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def topic(self, _):
            return SimpleNamespace(topic_id="id")

        def mark_stale(self, _=None):
            pass

        def reader(self, topic, partition, *, start, end, **limits):
            return PartitionReader(
                ReadPlan(topic=topic, partition=partition, start=start, end=end),
                transport=self.partition,
                metadata=self.partition,
                clock=clock,
                **limits,
            )

    async def offsets(partition, ranges, *, is_strict):
        monkeypatch.setattr(range_fetch, "Client", lambda *_, **__: PaperClient(partition))
        monkeypatch.setattr(range_fetch, "PausedClock", lambda: clock)
        planned = [
            PlannedRange(partition=TopicPartition("t", 0), topic_id="id", start=start, end=end)
            for start, end in ranges
        ]
        fetching = Fetching(urls=("http://a:1",), fail_on_data_loss=is_strict)
        return [
            record.offset
            async for chunk in range_fetch.fetch_ranges(planned, fetching)
            for record in records_of(chunk)
        ]

    return lambda partition, *ranges, is_strict=True: asyncio.run(
        offsets(partition, ranges, is_strict=is_strict)
    )


@pytest.mark.parametrize("per_answer", [1, 2, 99])
@pytest.mark.parametrize("log", LOGS)
def test_every_range_has_its_records_whatever_holes_the_log_has(fetch, log, per_answer):
    for start, end in combinations_with_replacement(range(END + 1), 2):
        partition = FakePartition(*LOGS[log], per_answer=per_answer)
        wanted = [offset for offset in range(start, end) if offset in KEPT[log]]
        assert fetch(partition, (start, end)) == wanted, (start, end)


@pytest.mark.parametrize("log", LOGS)
def test_ranges_side_by_side_have_each_record_once(fetch, log):
    for cut in range(END + 1):
        partition = FakePartition(*LOGS[log])
        assert fetch(partition, (0, cut), (cut, END)) == sorted(KEPT[log]), cut


@pytest.mark.parametrize("log", LOGS)
def test_what_is_deleted_or_above_the_end_is_lost_however_the_log_looks(fetch, log):
    for log_start, (start, end) in (
        (first, each)
        for first in range(1, END + 1)
        for each in combinations_with_replacement(range(END + 1), 2)
        if each[0] < each[1] and each[0] < first
    ):
        partition = FakePartition(*LOGS[log], log_start_offset=log_start)
        with pytest.raises(DataLossError, match=f"offset {start} was deleted"):
            fetch(partition, (start, end))
        wanted = [o for o in range(max(start, log_start), end) if o in KEPT[log]]
        assert fetch(partition, (start, end), is_strict=False) == wanted, (log_start, start, end)
    for start in range(END + 1):
        with pytest.raises(DataLossError, match="t-0 ends at offset 6; records up to 9 were there"):
            fetch(FakePartition(*LOGS[log]), (start, 9))


def leaves(kind):
    """Each error of the tree that may be raised."""
    below = [leaf for child in kind.__subclasses__() for leaf in leaves(child)]
    return [kind, *below]


REFUSALS = [kind("the node says why", status=503, error_code=50399) for kind in leaves(AnswerError)]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
def test_each_refusal_of_a_fetch_names_itself(fetch, refusal):
    class RefusingPartition(FakePartition):
        async def fetch(self, topic, partition, *, offset, **limits):
            if offset is StartAt.LATEST:
                return await super().fetch(topic, partition, offset=offset, **limits)
            raise refusal

    with pytest.raises(MilenaError) as caught:
        fetch(RefusingPartition(*LOGS["no hole"]), (0, 3))
    error = caught.value
    match refusal:
        case TargetNotFoundError():
            assert error.message.startswith("t-0 does not exist any more")
        case OutOfRangeError():
            assert "offset 0 cannot be read, although nodes say that it is there" in error.message
        case NotNowError() | ServerFailedError() | UnknownResultError():
            assert error.message == (
                "t-0, offset 0: refused for 120000 ms (kafkaConsumer.pollTimeoutMs), status 503, error 50399: "
                "the node says why"
            )
            assert isinstance(error, StalledReadError)
        case _:
            assert error is refusal


def test_nodes_that_do_not_answer_are_told_from_nodes_that_refuse(fetch):
    class SilentPartition(FakePartition):
        async def fetch(self, topic, partition, **limits):
            raise UnreachableError("cannot reach http://a:1")

    with pytest.raises(StalledReadError, match=r"t-0, offset 0: no answer for 120000 ms .* cannot"):
        fetch(SilentPartition(*LOGS["no hole"]), (0, 3))


def test_a_batch_that_stays_damaged_names_itself(fetch):
    damaged = bytearray(stored(0, *values(0, 1)))
    damaged[-1] ^= 1
    with pytest.raises(UnexpectedAnswerError, match=r"t-0: damaged answers: .*checksum"):
        fetch(FakePartition(bytes(damaged)), (0, 2))
