"""Where a stream goes on, what is lost, and how a limit is shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds
from spark_ext.options.selection import Assign, Subscribe, SubscribePattern
from spark_ext.reading.planner import PlannedRange
from spark_ext.streaming.offsets import StreamOffset, TaskHints
from spark_ext.streaming.plan import Sighting, admit, offsets_within, resume

HINTS = TaskHints(target_records=1000, tasks_min=None, records_max=None)
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def start_at(ends, **topic_ids):
    ids = {p.topic: "1" for p in ends} | topic_ids
    return StreamOffset(topic_ids=ids, ends=ends, begins={}, hints=HINTS)


def seen(ends, **topic_ids):
    """``ends``: (log start, high watermark) by partition."""
    return Sighting(
        ends={p: PartitionEnds(log_start_offset=a, high_watermark=b) for p, (a, b) in ends.items()},
        topic_ids={p.topic: "1" for p in ends} | topic_ids,
    )


def resumed(start, sighting, selection=Subscribe(("t",))):  # noqa: B008
    """Start and end by partition; losses; doubts."""
    found = resume(start, sighting, selection)
    return {r.partition: (r.start, r.end) for r in found.ranges}, found.losses, found.doubts


def test_partitions_go_on_where_they_ended():
    assert resumed(start_at({T0: 5, T1: 0}), seen({T0: (0, 9), T1: (0, 0)})) == (
        {T0: (5, 9), T1: (0, 0)},
        (),
        (),
    )


def test_a_partition_that_was_added_begins_at_its_first_record():
    assert resumed(start_at({T0: 5}), seen({T0: (0, 5), T1: (2, 3)})) == (
        {T0: (5, 5), T1: (2, 3)},
        (),
        (),
    )


def test_records_that_retention_took_are_passed_over_and_certainly_lost():
    assert resumed(start_at({T0: 5}), seen({T0: (7, 9)})) == (
        {T0: (7, 9)},
        ("t-0: offset 5 is gone, the first that can be read is 7",),
        (),
    )


def test_a_log_that_is_shorter_than_it_was_is_doubted():
    assert resumed(start_at({T0: 5}), seen({T0: (0, 3)})) == (
        {T0: (3, 3)},
        (),
        ("t-0: offset 5 does not exist, the end is 3",),
    )


def test_a_topic_that_was_made_again_is_read_from_its_first_record():
    ranges, losses, doubts = resumed(start_at({T0: 5, T1: 1}), seen({T0: (0, 9)}, t="2"))
    assert (ranges, losses) == ({T0: (0, 9)}, ())
    assert doubts == ("topic t was deleted and made again",)
    assert resume(start_at({T0: 5}), seen({T0: (0, 9)}, t="2"), Subscribe(("t",))).ranges[
        0
    ].topic_id == ("2")


def test_an_id_that_is_not_known_yet_is_no_other_one():
    found = resume(start_at({T0: 5}), seen({T0: (0, 9)}, t=None), Subscribe(("t",)))
    assert [(r.start, r.topic_id) for r in found.ranges] == [(5, "1")]
    assert found.doubts == ()


def test_a_topic_that_is_gone_is_doubted_once():
    assert resumed(start_at({T0: 5, T1: 4}), seen({})) == ({}, (), ("topic t was deleted",))


def test_a_partition_that_is_gone_is_doubted():
    """A node that is behind may know of fewer than there are."""
    assert resumed(start_at({T0: 5, T1: 4}), seen({T0: (0, 5)})) == (
        {T0: (5, 5)},
        (),
        ("t-1 does not exist any more",),
    )


def test_what_is_not_selected_any_more_is_dropped_without_a_word():
    start = start_at({T0: 5, U0: 1})
    assert resumed(start, seen({T0: (0, 5)})) == ({T0: (5, 5)}, (), ())
    assert resumed(start, seen({T0: (0, 5)}), Assign((T0,))) == ({T0: (5, 5)}, (), ())


@pytest.mark.parametrize(
    ("selection", "doubts"),
    [
        (Subscribe(("t", "u")), ("no such topic: u",)),
        (Assign((T0, T1)), ("no such partition: t-1",)),
        (SubscribePattern(".*"), ()),
    ],
)
def test_what_is_named_and_never_was_is_told(selection, doubts):
    assert resumed(start_at({T0: 5}), seen({T0: (0, 5)}), selection)[2] == doubts


# -- limits ----------------------------------------------------------------------------------------


def ranges_of(*lags):
    return [
        PlannedRange(partition=TopicPartition("t", n), topic_id=None, start=10, end=10 + lag)
        for n, lag in enumerate(lags)
    ]


def shares(lags, offsets_max):
    found = admit(ranges_of(*lags), offsets_max)
    assert [(r.partition.partition, r.start) for r in found] == [(n, 10) for n in range(len(lags))]
    return [r.record_count for r in found]


@pytest.mark.parametrize(
    ("lags", "sizes", "bytes_max", "offsets_max"),
    [
        ([10, 0, 20], [100, 0, 100], 1_500, 15),
        ([10, 10], [10, 190], 1_000, 10),
        ([10], [100], 1_000, 10),
        ([10], [100], 999, 9),
        ([10], [1e9], 1, 1),
        ([10, 5], [0, 0], 1, 15),
        ([], [], 1, 1),
    ],
)
def test_a_limit_in_bytes_is_one_in_offsets_by_how_large_they_are(
    lags, sizes, bytes_max, offsets_max
):
    assert offsets_within(ranges_of(*lags), sizes, bytes_max) == offsets_max


def test_no_limit_admits_all():
    assert shares([3, 0, 5], None) == [3, 0, 5]
    assert shares([3, 0, 5], 8) == [3, 0, 5]


def test_a_limit_is_shared_by_lag_and_nobody_starves():
    assert shares([1, 0, 1000], 101) == [1, 0, 100]
    assert shares([500, 500], 10) == [5, 5]


def test_where_there_is_not_one_for_each_the_longest_get_one():
    assert shares([5, 9, 0, 7], 2) == [0, 1, 0, 1]


@given(st.lists(st.integers(0, 2000), max_size=12), st.integers(1, 5000))
def test_a_limit_is_kept_and_used_up(lags, offsets_max):
    found = shares(lags, offsets_max)
    assert sum(found) == min(sum(lags), offsets_max)
    assert all(0 <= share <= lag for share, lag in zip(found, lags, strict=True))
    if sum(lag > 0 for lag in lags) <= offsets_max:
        assert all(share > 0 for share, lag in zip(found, lags, strict=True) if lag)
