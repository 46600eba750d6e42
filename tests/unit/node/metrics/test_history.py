"""The last hour of a node: rates, latencies, lag, and the bytes that all of it may take."""

import gc
import math
import tracemalloc

import pytest

from node.metrics.counts import NodeCounts, PartitionCounts
from node.metrics.history import BUSIEST_MAX, BYTES_MAX, NODE, History, NodeLook, PartitionTraffic


def look_of(traffic=(), **lags: int | None) -> NodeLook:
    look = NodeLook()
    for key, bytes_in in dict(traffic).items():
        look.add_traffic(key, PartitionTraffic(bytes_in=bytes_in))
    for group, lag in lags.items():
        look.add_lag(group, lag)
    return look


def last(told, name):
    return told.series[name][-1]


def test_rates_are_of_the_time_that_really_went_by():
    history, counts = History(NodeCounts()), PartitionCounts()
    for slot, elapsed_ms in ((1, 10_000), (2, 5_000)):
        counts.records_in += 100
        counts.bytes_out += 50
        counts.records_out += 25
        look = NodeLook(disk_free_bytes=1000)
        look.add_replica(("t", 0), counts, 7)
        history.add(slot, look, elapsed_ms)
    told = history.of_topic("t")
    assert list(told.series["records_in_per_second"][-2:]) == [10, 20]
    assert list(told.series["bytes_out_per_second"][-2:]) == [5, 10]
    assert list(told.series["records_out_per_second"][-2:]) == [2.5, 5]
    assert last(history.of_node(), "stored_bytes") == 7
    assert last(history.of_node(), "disk_free_bytes") == 1000
    # Of the last minute, of which there were 15 s.
    ((key, traffic),) = told.busiest
    assert (key, traffic.records_in) == (("t", 0), pytest.approx(200 / 15))


def test_a_topic_is_the_sum_of_its_partitions_and_other_topics_are_not_in_it():
    history = History(NodeCounts())
    look = look_of({("t", 0): 10, ("t", 1): 20, ("u", 0): 40})
    history.add(1, look, 1_000)
    assert last(history.of_topic("t"), "bytes_in_per_second") == 30
    assert [key for key, _ in history.of_topic("t").busiest] == [("t", 0), ("t", 1)]
    assert last(history.of_node(), "bytes_in_per_second") == 70


def test_quiet_is_zero_and_not_looked_is_not_known():
    history = History(NodeCounts())
    history.add(1, look_of({("t", 0): 10}), 1_000)
    history.add(4, look_of(), 3_000)
    column = history.of_topic("t").series["bytes_in_per_second"]
    assert [str(value) for value in column[-5:]] == ["nan", "10.0", "nan", "nan", "0.0"]
    never = history.of_topic("never").series["bytes_in_per_second"]
    assert [str(value) for value in never[-4:]] == ["0.0", "nan", "nan", "0.0"]


def test_a_groups_lag_is_what_it_is_behind_now():
    history = History(NodeCounts())
    for slot, lag in enumerate((5, 0, None, 8), 1):
        history.add(slot, look_of(g=lag), 1_000)
    assert list(history.of_group("g").series["lag"][-4:]) == [5, 0, math.inf, 8]
    assert list(history.of_group("other").series["lag"][-4:]) == [0, 0, 0, 0]


def test_latencies_are_those_since_the_last_look():
    counts = NodeCounts()
    history = History(counts)
    history.add(1, look_of(), 1_000)
    assert math.isnan(last(history.of_node(), "commit_ms_p99"))
    for _ in range(100):
        counts.commit_ms.observe(7)
    history.add(2, look_of(), 1_000)
    assert last(history.of_node(), "commit_ms_p99") == pytest.approx(5 + 5 * 0.99)
    counts.commit_ms.observe(60_000)
    history.add(3, look_of(), 1_000)
    assert last(history.of_node(), "commit_ms_p99") == 30_000


def test_a_clock_that_is_set_back_makes_a_gap_and_nothing_else():
    history = History(NodeCounts())
    history.add(9, look_of(g=1), 1_000)
    history.add(9, look_of(g=2), 1_000)
    history.add(3, look_of(g=3), 1_000)
    history.add(10, look_of(g=4), 1_000)
    assert list(history.of_group("g").series["lag"][-2:]) == [1, 4]


def test_a_clock_that_was_days_ahead_begins_another_history_when_it_is_repaired():
    history = History(NodeCounts())
    history.add(70_000, look_of({("t", 0): 10}), 1_000)
    history.add(1_000, look_of({("t", 0): 20}), 1_000)
    history.add(1_001, look_of({("t", 0): 30}), 1_000)
    assert history.of_node().end_slot == 1_001
    assert list(history.of_topic("t").series["bytes_in_per_second"][-2:]) == [20, 30]


def test_before_the_first_look_there_is_nothing():
    history = History(NodeCounts())
    assert history.of_node().series == history.of_topic("t").series == {}


def test_a_flood_of_topics_groups_and_partitions_stays_within_the_bound():
    gc.collect()
    tracemalloc.start()
    try:
        history = History(NodeCounts())
        for slot in range(1, 14):
            look = NodeLook()
            for number in range(2_500):
                # New ones all the time, with names as long as they may be, and all of them with traffic.
                name = f"{slot}-{number}".rjust(249, "n")
                look.add_traffic((name, 0), PartitionTraffic(number, number, 2_500 - number))
                look.add_lag(f"g{name}", 1)
            history.add(slot, look, 10_000)
            del look, name
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < BYTES_MAX
    finally:
        tracemalloc.stop()
    told = history.of_node()
    assert len(told.series) == len(NODE)
    assert told.left_out > 0
    assert BUSIEST_MAX <= len(told.busiest) <= 12 * BUSIEST_MAX
