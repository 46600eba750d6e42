"""How the records of a request become batches of partitions, and receipts again. Pure."""

import pytest
from immutables import Map

from milena.model.batch.timestamps import AFTER_MS, ANY_TIMESTAMP, USUAL_TIMESTAMPS, TimestampBounds
from milena.model.errors import (
    InvalidRecordError,
    MilenaError,
    NoLeaderError,
    PartitionNotFoundError,
)
from milena.model.partitioner import partition_for_key
from milena.model.requests import Acks, IdempotencyKey, ProduceReceipt, ProduceRequest, Records
from node.services.record_batches import (
    Appended,
    PartitionBatch,
    halve,
    receipts_of,
    receipts_of_one,
    size_of,
    split_request,
)
from raft_meta.machine.image import Topic

NOW = 5_000
TOPIC = Topic(
    topic_id="1" * 32,
    name="t",
    partition_count=4,
    replication_factor=1,
    configs=Map(),
    created_ms=0,  # type: ignore[arg-type]
)


def split(
    records: Records,
    *,
    partition: int | None = None,
    key: bytes | None = None,
    sticky: int = 2,
    wants_times: bool = False,
    expected_end: int | None = None,
    timestamps: TimestampBounds = USUAL_TIMESTAMPS,
) -> tuple[list[PartitionBatch], dict[int, MilenaError]]:
    request = ProduceRequest(
        topic="t",
        records=records,
        acks=Acks.ALL,
        timeout_ms=1,
        partition=partition,
        idempotency=None if key is None else IdempotencyKey(key_hash=key, body_hash=b"8" * 8),
        wants_times=wants_times,
        expected_end=expected_end,
    )
    return split_request(TOPIC, request, sticky=sticky, now_ms=NOW, timestamps=timestamps)


HOUR_AHEAD = NOW + AFTER_MS


@pytest.mark.parametrize("partition", [None, 3])
@pytest.mark.parametrize("keys", [None, [b"k"] * 4])
def test_a_record_more_than_an_hour_ahead_is_refused_and_its_neighbours_are_not(
    partition: int | None, keys: list[bytes | None] | None
) -> None:
    times = [HOUR_AHEAD, HOUR_AHEAD + 1, None, 0]
    records = Records(keys=keys, values=[b"a", b"b", b"c", b"d"], timestamps=times)
    [part], errors = split(records, partition=partition)
    assert (list(part.places), part.columns.values) == ([0, 2, 3], [b"a", b"c", b"d"])
    assert [(place, type(error)) for place, error in errors.items()] == [(1, InvalidRecordError)]
    assert "too far ahead of the node's clock" in str(errors[1])


def test_a_late_record_refuses_all_of_an_idempotency_key_or_a_condition() -> None:
    records = Records(keys=None, values=[b"a", b"b"], timestamps=[NOW, HOUR_AHEAD + 1])
    with pytest.raises(InvalidRecordError, match="too far ahead"):
        split(records, key=b"k" * 16)
    with pytest.raises(InvalidRecordError, match="too far ahead"):
        split(records, partition=3, expected_end=7)


def test_a_record_that_is_too_old_is_refused_and_its_neighbours_are_not() -> None:
    times = [NOW - 1_000, NOW - 1_001, None, NOW // 1_000]
    records = Records(keys=None, values=[b"a", b"b", b"c", b"d"], timestamps=times)
    [part], errors = split(records, partition=0, timestamps=TimestampBounds(before_ms=1_000))
    assert list(part.places) == [0, 2]
    assert {place: type(error) for place, error in errors.items()} == {
        1: InvalidRecordError,
        3: InvalidRecordError,
    }
    assert "before.max.ms=1000" in str(errors[1])
    assert "seconds" not in str(errors[1])
    assert str(errors[3]).endswith("it looks like seconds: send milliseconds")


@pytest.mark.parametrize("time", [HOUR_AHEAD + 1, -1, 1 << 63, 1 << 80, -(1 << 80)])
def test_a_topic_of_append_times_takes_any_time(time: int) -> None:
    records = Records(keys=None, values=[b"a"], timestamps=[time])
    [part], errors = split(records, timestamps=ANY_TIMESTAMP)
    assert (list(part.places), errors) == ([0], {})
    assert part.columns.timestamp_deltas is None


IN_2026_MS = 1_795_900_801_043


def test_a_year_far_ahead_does_not_look_like_another_unit() -> None:
    for time in (4_102_444_800_000, 253_402_300_799_999):
        assert "looks like" not in str(USUAL_TIMESTAMPS.refusal(time, IN_2026_MS))


@pytest.mark.parametrize(
    ("time", "bounds", "sentence"),
    [
        (-1, USUAL_TIMESTAMPS, "is not between 0 and 253402300799999"),
        (1 << 80, TimestampBounds(None, None), "is not between 0 and"),
        (IN_2026_MS * 1_000, USUAL_TIMESTAMPS, "it looks like microseconds: send milliseconds"),
        (IN_2026_MS * 1_000_000, USUAL_TIMESTAMPS, "it looks like nanoseconds: send milliseconds"),
    ],
)
def test_a_time_in_no_range_or_another_unit_is_refused_by_itself(
    time: int, bounds: TimestampBounds, sentence: str
) -> None:
    records = Records(keys=None, values=[b"a", b"b"], timestamps=[None, time])
    request = ProduceRequest(topic="t", records=records, acks=Acks.ALL, timeout_ms=1, partition=0)
    [part], errors = split_request(TOPIC, request, sticky=0, now_ms=IN_2026_MS, timestamps=bounds)
    assert list(part.places) == [0]
    assert sentence in str(errors[1])


def test_a_negative_partition_is_refused_by_itself() -> None:
    records = Records(keys=None, values=[b"a", b"b"], partitions=[-1, 1])
    [part], errors = split(records)
    assert list(part.places) == [1]
    assert isinstance(errors[0], PartitionNotFoundError)


def test_a_partition_of_the_path_takes_all() -> None:
    [part], errors = split(Records(keys=[b"k", None], values=[b"a", b"b"]), partition=3)
    assert (part.partition, list(part.places), part.columns.values) == (3, [0, 1], [b"a", b"b"])
    assert errors == {}


def test_a_records_own_partition_wins_over_its_key() -> None:
    [part], _ = split(Records(keys=[b"k"], values=[b"a"], partitions=[1]))
    assert part.partition == 1


def test_a_key_names_its_partition() -> None:
    parts, _ = split(Records(keys=[b"k1", b"k2", b"k1"], values=[b"a", b"b", b"c"]))
    placed = {place: part.partition for part in parts for place in part.places}
    assert placed[0] == placed[2] == partition_for_key(b"k1", 4)
    assert placed[1] == partition_for_key(b"k2", 4)


def test_an_empty_key_is_a_key() -> None:
    [part], _ = split(Records(keys=[b""], values=[b"a"]))
    assert part.partition == partition_for_key(b"", 4)


def test_what_says_nothing_sticks_to_one_partition() -> None:
    [part], _ = split(Records(keys=None, values=[b"a", b"b"]))
    assert (part.partition, len(part.places)) == (2, 2)


def test_an_idempotency_key_places_keyless_records_by_itself() -> None:
    records = Records(keys=None, values=[b"%d" % i for i in range(50)])
    placed = [
        {place: part.partition for part in split(records, key=b"k" * 16, sticky=s)[0] for place in part.places}
        for s in (0, 3)
    ]  # fmt: skip
    assert placed[0] == placed[1]
    assert set(placed[0].values()) == {0, 1, 2, 3}


def test_a_partition_that_is_not_there_is_an_error_of_that_record_alone() -> None:
    parts, errors = split(Records(keys=None, values=[b"a", b"b", b"c"], partitions=[0, 4, -1]))
    assert [part.partition for part in parts] == [0]
    assert sorted(errors) == [1, 2]
    assert all(isinstance(error, PartitionNotFoundError) for error in errors.values())


def test_records_without_a_time_were_made_now() -> None:
    [part], _ = split(Records(keys=None, values=[b"a", b"b"], timestamps=[None, None]))
    assert (part.base_timestamp_ms, part.columns.timestamp_deltas) == (NOW, None)
    [part], _ = split(Records(keys=None, values=[b"a", b"b", b"c"], timestamps=[7, None, 3]))
    assert (part.base_timestamp_ms, part.columns.timestamp_deltas) == (7, [0, NOW - 7, -4])


def test_columns_follow_their_records() -> None:
    headers: list[list[tuple[str, bytes | None]] | None] = [[("h", b"1")], None, [("h", b"3")]]
    parts, _ = split(
        Records(
            keys=[b"x", b"y", b"z"],
            values=[b"a", b"b", b"c"],
            headers=headers,
            timestamps=[1, 2, 3],
            partitions=[0, 1, 0],
        )
    )
    first = next(part for part in parts if part.partition == 0)
    assert first.columns.keys == [b"x", b"z"]
    assert first.columns.values == [b"a", b"c"]
    assert first.columns.headers == [headers[0], headers[2]]
    assert (first.base_timestamp_ms, first.columns.timestamp_deltas) == (1, [0, 2])


def test_halves_are_the_whole_in_order() -> None:
    [part], _ = split(
        Records(keys=[b"k"] * 5, values=[b"%d" % i for i in range(5)], timestamps=[1, 2, 3, 4, 5]),
        partition=0,
    )
    left, right = halve(part)
    assert left.columns.values + right.columns.values == part.columns.values
    assert [*left.places, *right.places] == list(range(5))
    assert (right.base_timestamp_ms, right.columns.timestamp_deltas) == (1, [2, 3, 4])


def test_size_counts_keys_and_values() -> None:
    assert size_of(Records(keys=[b"kk", None], values=[b"vvv", None])) == 5


def test_receipts_stand_in_the_order_of_the_request() -> None:
    parts, errors = split(
        Records(keys=None, values=[b"a", b"b", b"c", b"d"], partitions=[1, 9, 0, 1])
    )
    outcomes = [Appended(range(10, 12)), NoLeaderError("none")]
    receipts = receipts_of(4, parts, outcomes, dict(errors))
    assert receipts[0] == ProduceReceipt(partition=1, offset=10)
    assert receipts[1].error is errors[1]
    assert isinstance(receipts[2].error, NoLeaderError)
    assert receipts[3] == ProduceReceipt(partition=1, offset=11)


def test_receipts_of_one_partition() -> None:
    [part], _ = split(Records(keys=None, values=[b"a", b"b"]), partition=3)
    assert [r.offset for r in receipts_of_one(part, Appended(range(4, 6)))] == [4, 5]
    assert all(r.error for r in receipts_of_one(part, NoLeaderError("none")))


def test_receipts_have_times_only_where_the_request_asks_for_them() -> None:
    records = Records(keys=None, values=[b"a", b"b"], timestamps=[7, None], partitions=[1, 0])
    parts, _ = split(records)
    receipts = receipts_of(2, parts, [Appended([1]), Appended([2])], {})
    assert [r.timestamp_ms for r in receipts] == [None, None]
    parts, _ = split(records, wants_times=True)
    receipts = receipts_of(2, parts, [Appended([1]), Appended([2])], {})
    assert [r.timestamp_ms for r in receipts] == [7, NOW], "own times, else those of the request"
    receipts = receipts_of(2, parts, [Appended([1], [9]), Appended([None], [None])], {})
    assert [r.timestamp_ms for r in receipts] == [9, None], "the appends' where those count"
