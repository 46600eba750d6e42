"""Offsets of a stream: what the checkpoint keeps is all that a batch depends on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milena.records import TopicPartition
from spark_ext.errors import OffsetError
from spark_ext.options.bounds import Edge, GlobalTimestamp
from spark_ext.reading.planner import PlannedRange
from spark_ext.streaming.offsets import (
    StreamOffset,
    TaskHints,
    ends_json,
    initial_symbol,
    offset_after,
    offset_json,
    parse_offset,
    ranges_between,
    tasks_between,
)

HINTS = TaskHints(target_records=1000, tasks_min=None, records_max=None)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def range_of(partition, start, end, topic_id="id"):
    return PlannedRange(partition=partition, topic_id=topic_id, start=start, end=end)


def through_a_checkpoint(offset: StreamOffset) -> StreamOffset:
    read = parse_offset(json.loads(json.dumps(offset_json(offset))))
    assert read == offset
    return read


def test_the_checkpoint_shows_where_batch_0_begins_and_what_cuts_its_tasks():
    hints = TaskHints(target_records=1000, tasks_min=8, records_max=50)
    end = offset_after(None, [range_of(T0, 7, 23), range_of(T1, 0, 0)], hints)
    assert offset_json(end) == {
        "version": 1,
        "topics": {
            "t": {
                "id": "id",
                "partitions": {"0": {"from": 7, "next": 23}, "1": {"from": 0, "next": 0}},
            }
        },
        "tasks": {"target": 1000, "min": 8, "max": 50},
    }
    assert through_a_checkpoint(end).hints == hints


def test_a_later_batch_says_only_where_it_does_not_go_on():
    first = offset_after(None, [range_of(T0, 7, 23)], HINTS)
    later = offset_after(first, [range_of(T0, 23, 30), range_of(T1, 4, 5)], HINTS)
    assert later.begins == {T1: 4}
    jumped = offset_after(later, [range_of(T0, 40, 41), range_of(T1, 5, 5)], HINTS)
    assert jumped.begins == {T0: 40}


def test_nothing_new_is_no_offset():
    first = offset_after(None, [range_of(T0, 7, 7)], HINTS)
    assert first is not None, "batch 0 pins the start, even of nothing"
    assert offset_after(first, [range_of(T0, 7, 7)], HINTS) is None
    other = TaskHints(target_records=5, tasks_min=None, records_max=None)
    assert offset_after(first, [range_of(T0, 7, 7)], other) is None
    assert offset_after(first, [range_of(T0, 7, 7), range_of(T1, 0, 0)], HINTS) is not None
    assert offset_after(first, [], HINTS) is not None
    assert offset_after(first, [range_of(T0, 7, 7, "another")], HINTS) is not None


@st.composite
def batches(draw):
    """Ranges of successive batches, as a stream makes them: going on, jumping, partitions new and gone."""
    positions: dict[TopicPartition, int] = {}
    found = []
    for _ in range(draw(st.integers(1, 5))):
        ranges = []
        for number in sorted(draw(st.sets(st.integers(0, 3)))):
            partition = TopicPartition(draw(st.sampled_from("ab")), number)
            jump = draw(st.sampled_from([0, 0, 0, 5]))
            start = positions.get(partition, 3) + jump
            positions[partition] = start + draw(st.integers(0, 9))
            ranges.append(range_of(partition, start, positions[partition], partition.topic))
        found.append(sorted(ranges, key=lambda r: r.partition))
    return found


@given(batches())
def test_two_offsets_give_back_the_ranges_of_their_batch(found):
    last = None
    for ranges in found:
        end = offset_after(last, ranges, HINTS)
        if end is None:
            assert all(r.record_count == 0 for r in ranges)
            continue
        end = through_a_checkpoint(end)
        assert list(ranges_between(last, end)) == ranges
        last = end


def test_tasks_are_cut_by_the_hints_of_the_checkpoint():
    hints = TaskHints(target_records=1000, tasks_min=4, records_max=None)
    end = through_a_checkpoint(offset_after(None, [range_of(T0, 0, 8)], hints))
    assert [[(r.start, r.end) for r in task] for task in tasks_between(None, end)] == [
        [(0, 2)],
        [(2, 4)],
        [(4, 6)],
        [(6, 8)],
    ]


def test_the_symbol_says_how_the_start_is_found():
    assert initial_symbol(Edge.LATEST) == {"version": 1, "at": "latest"}
    assert initial_symbol(GlobalTimestamp(5)) == {"version": 1, "at": "startingTimestamp"}
    assert parse_offset(initial_symbol(Edge.EARLIEST)) is None


def test_ends_are_shown_as_offsets_are():
    assert ends_json({T1: 5, T0: 2}) == {
        "version": 1,
        "topics": {"t": {"partitions": {"0": {"next": 2}, "1": {"next": 5}}}},
    }


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ({}, "offsets of version None; this release reads 1"),
        ({"version": 2, "at": "latest"}, "offsets of version 2"),
        ({"version": 1}, "checkpoint.tasks: expected a JSON object"),
        ({"version": 1, "tasks": {}, "topics": {"t": 3}}, "checkpoint.topics.t: expected a JSON"),
        (
            {"version": 1, "tasks": {}, "topics": {"t": {"partitions": {"x": {"next": 1}}}}},
            "'x' is not a partition of t",
        ),
        (
            {"version": 1, "tasks": {}, "topics": {"t": {"partitions": {"0": {"next": "1"}}}}},
            "checkpoint.topics.t.partitions.0.next: expected an integer, got str '1'",
        ),
    ],
)
def test_what_is_no_offset_is_told_in_a_line(offset, words):
    with pytest.raises(OffsetError, match=words) as caught:
        parse_offset(offset)
    assert "\n" not in caught.value.message


def test_offsets_that_do_not_belong_together_are_refused():
    end = StreamOffset(topic_ids={"t": "id"}, ends={T0: 4}, begins={}, hints=HINTS)
    with pytest.raises(OffsetError, match="t-0 ends at 4 and begins at None"):
        ranges_between(None, end)
    start = StreamOffset(topic_ids={"t": "id"}, ends={T0: 5}, begins={}, hints=HINTS)
    with pytest.raises(OffsetError, match="t-0 ends at 4 and begins at 5"):
        ranges_between(start, end)
