"""Metrics of a source from the offsets of a query's progress."""

import json

import pytest

from milena.records import TopicPartition
from spark_ext import source_metrics
from spark_ext.options.bounds import Edge
from spark_ext.reading.planner import PlannedRange
from spark_ext.streaming.offsets import (
    TaskHints,
    ends_json,
    initial_symbol,
    offset_after,
    offset_json,
)

HINTS = TaskHints(target_records=1000, tasks_min=None, records_max=None)
NOTHING = {
    "minOffsetsBehindLatest": 0,
    "maxOffsetsBehindLatest": 0,
    "avgOffsetsBehindLatest": 0.0,
    "offsetsBehindLatest": {},
}


def end_of(**ends):
    """The offset of a batch that ends there; ``a0`` is partition 0 of topic a."""
    ranges = [
        PlannedRange(
            partition=TopicPartition(name[0], int(name[1:])), topic_id="i", start=0, end=end
        )
        for name, end in ends.items()
    ]
    return offset_json(offset_after(None, ranges, HINTS))


def latest(**ends):
    return ends_json({TopicPartition(name[0], int(name[1:])): end for name, end in ends.items()})


@pytest.mark.parametrize("as_spark_has_it", [json.dumps, lambda offset: offset])
def test_metrics_are_those_of_kafkas_source_and_the_lag_of_each_topic(as_spark_has_it):
    source = {
        "endOffset": as_spark_has_it(end_of(a0=5, a1=7, b0=2, c0=9)),
        "latestOffset": as_spark_has_it(latest(a0=15, a1=7, b0=4, d0=50)),
    }
    assert source_metrics(source) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 10,
        "avgOffsetsBehindLatest": 4.0,
        "offsetsBehindLatest": {"a": 10, "b": 2},
    }


@pytest.mark.parametrize("end", [None, json.dumps(initial_symbol(Edge.LATEST))])
@pytest.mark.parametrize("now", [None, json.dumps(latest(a0=5))])
def test_a_query_that_has_not_begun_is_behind_nothing(end, now):
    assert source_metrics({"endOffset": end, "latestOffset": now}) == NOTHING
    assert source_metrics({}) == NOTHING


def test_an_end_that_was_seen_earlier_is_no_lag_below_zero():
    source = {"endOffset": end_of(a0=9), "latestOffset": latest(a0=5)}
    assert source_metrics(source)["minOffsetsBehindLatest"] == 0
