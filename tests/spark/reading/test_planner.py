"""Ranges and tasks: what is pinned, what is lost, and that every offset is read exactly once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds
from spark_ext.errors import DataLossError, OffsetError
from spark_ext.options.parsing import parse_read_options
from spark_ext.reading.planner import (
    RANGE_COST_RECORDS,
    PlannedRange,
    plan_tasks,
    resolve,
    time_queries,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = PartitionEnds(log_start_offset=10, high_watermark=50)


def options(**given):
    return parse_read_options({"url": "a", "subscribe": "t", **given})


def pinned(found=None, ends=ENDS, **given):
    """The one range that these options come to, and the losses."""
    ranges, losses = resolve(options(**given), {T0: ends}, {"t": "id"}, found or {})
    assert ranges[0].partition == T0
    assert ranges[0].topic_id == "id"
    return (ranges[0].start, ranges[0].end), losses


# -- resolve ---------------------------------------------------------------------------------------


def test_everything_is_from_the_first_readable_offset_to_the_high_watermark():
    assert pinned() == ((10, 50), ())


def test_named_offsets_are_taken_as_they_are():
    given = {"startingOffsets": '{"t":{"0":12}}', "endingOffsets": '{"t":{"0":40}}'}
    assert pinned(**given) == ((12, 40), ())


def test_edges_in_json_are_edges():
    given = {"startingOffsets": '{"t":{"0":-2}}', "endingOffsets": '{"t":{"0":-1}}'}
    assert pinned(**given) == ((10, 50), ())


@pytest.mark.parametrize(
    ("given", "words", "instead"),
    [
        ({"startingOffsets": '{"t":{"0":9}}'}, "offset 9 is gone, the first that can be", (10, 50)),
        ({"startingOffsets": '{"t":{"0":51}}'}, "offset 51 does not exist", (50, 50)),
        ({"endingOffsets": '{"t":{"0":51}}'}, "the end is 50", (10, 50)),
        ({"endingOffsets": '{"t":{"0":4}}'}, "offset 4 is gone", (10, 10)),
    ],
)
def test_an_offset_outside_of_the_partition_is_lost_data(given, words, instead):
    with pytest.raises(DataLossError, match=words) as caught:
        pinned(**given)
    assert "set failOnDataLoss to false" in caught.value.message
    found, losses = pinned(failOnDataLoss="false", **given)
    assert found == instead
    assert len(losses) == 1
    assert words in losses[0]


def test_times_are_looked_up_for_every_partition():
    given = options(startingTimestamp="5", endingOffsetsByTimestamp='{"t":{"0":8,"1":9}}')
    assert time_queries((given.start, given.end), (T0, T1)) == {
        (T0, 5),
        (T1, 5),
        (T0, 8),
        (T1, 9),
    }


def test_a_time_is_the_offset_that_was_found():
    found = {(T0, 5): 20, (T0, 8): 30}
    assert pinned(found, startingTimestamp="5", endingTimestamp="8") == ((20, 30), ())


def test_a_time_found_before_retention_went_on_is_what_is_left():
    assert pinned({(T0, 5): 7}, startingTimestamp="5") == ((10, 50), ())


def test_no_record_after_the_starting_time_is_an_error():
    with pytest.raises(OffsetError, match="t-0: no record is at or after the starting time"):
        pinned({(T0, 5): None}, startingTimestamp="5")


def test_no_record_after_the_starting_time_reads_nothing_under_strategy_latest():
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    assert pinned({(T0, 5): None}, **given) == ((50, 50), ())
    given["endingOffsets"] = '{"t":{"0":20}}'
    assert pinned({(T0, 5): None}, **given) == ((20, 20), ())


def test_no_record_after_the_ending_time_reads_to_the_end():
    assert pinned({(T0, 5): None}, endingTimestamp="5") == ((10, 50), ())


def test_a_query_that_ends_before_it_begins_is_an_error():
    with pytest.raises(OffsetError, match="t-0: the query begins at offset 30 and ends at 20"):
        pinned({(T0, 8): 30, (T0, 5): 20}, startingTimestamp="8", endingTimestamp="5")


def test_json_must_name_every_partition_that_is_read_and_no_other():
    bound = options(startingOffsets='{"t":{"0":1}}').start
    with pytest.raises(OffsetError, match=r"every partition that is read must be named.*t-1"):
        time_queries((bound,), (T0, T1))
    with pytest.raises(OffsetError, match="names partitions that are not read: t-0"):
        time_queries((bound,), ())


# -- plan_tasks ------------------------------------------------------------------------------------


def ranges_of(*counts, start=0):
    return [
        PlannedRange(
            partition=TopicPartition("t", n), topic_id=None, start=start, end=start + count
        )
        for n, count in enumerate(counts)
    ]


def sizes(tasks):
    return [sum(r.record_count for r in task) for task in tasks]


def test_nothing_to_read_is_no_task():
    assert plan_tasks([], target_records=5) == []
    assert plan_tasks(ranges_of(0, 0), target_records=5, tasks_min=3) == []


def test_small_ranges_share_a_task():
    tasks = plan_tasks(ranges_of(*[1000] * 8), target_records=100_000)
    assert len(tasks) == 1
    assert len(tasks[0]) == 8


def test_large_ranges_are_split_evenly():
    tasks = plan_tasks(ranges_of(1_000_000), target_records=250_500)
    assert len(tasks) == 4
    assert max(sizes(tasks)) - min(sizes(tasks)) <= RANGE_COST_RECORDS


def test_two_million_records_of_sixteen_partitions_are_two_tasks_by_default():
    tasks = plan_tasks(ranges_of(*[125_000] * 16), target_records=options().target_records_per_task)
    assert len(tasks) == 2


def test_many_tiny_ranges_do_not_become_one_long_task():
    tasks = plan_tasks(ranges_of(*[1] * 10_000), target_records=500_000)
    assert max(map(len, tasks)) <= 2 * 500_000 // RANGE_COST_RECORDS


def test_a_thousand_small_partitions_are_three_tasks_at_most():
    """A batch of a stream whose topic has many partitions with a little new in each."""
    target = options().target_records_per_task
    for records in (1, 10, 1000):
        tasks = plan_tasks(ranges_of(*[records] * 1000), target_records=target)
        assert 1 <= len(tasks) <= 3
        assert sum(sizes(tasks)) == 1000 * records


def test_min_partitions_are_made_if_there_are_as_many_records():
    assert len(plan_tasks(ranges_of(10, 10), target_records=500, tasks_min=7)) == 7
    assert len(plan_tasks(ranges_of(2, 1), target_records=500, tasks_min=7)) == 3


@pytest.mark.deep
@given(
    counts=st.lists(st.integers(0, 5000), max_size=12),
    start=st.integers(0, 10),
    target=st.integers(1, 10_000),
    tasks_min=st.none() | st.integers(1, 50),
    records_max=st.none() | st.integers(1, 3000),
)
def test_every_offset_is_in_exactly_one_task(counts, start, target, tasks_min, records_max):
    ranges = ranges_of(*counts, start=start)
    tasks = plan_tasks(ranges, target_records=target, tasks_min=tasks_min, records_max=records_max)
    read = Counter()
    for task in tasks:
        assert task
        for r in task:
            assert r.record_count > 0
            read.update((r.partition, offset) for offset in range(r.start, r.end))
    wanted = {(r.partition, offset) for r in ranges for offset in range(r.start, r.end)}
    assert set(read) == wanted
    assert read.total() == len(wanted)
    flat = [r for task in tasks for r in task]
    assert flat == sorted(flat, key=lambda r: (r.partition, r.start))
    if records_max is not None:
        assert max(sizes(tasks), default=0) <= records_max
    if tasks_min is not None:
        assert len(tasks) >= min(tasks_min, len(wanted))
