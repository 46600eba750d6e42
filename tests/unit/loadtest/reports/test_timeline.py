"""Rates, latencies and gaps are those of the events, in whatever order ledgers give them."""

import math
import random

import pytest

from loadtest.judging.ledger import Failed, Incident, Stopping
from loadtest.records.receipts import Fate
from loadtest.reports.timeline import Direction, Gap, Timeline, percentile, timeline_of
from tests.support.spark.load_runs import JSON_ENDPOINT, LoadRun

BATCH = "produce batch json"


def run_with_a_pause():
    """Ten writes of 0.1 s, a kill, nothing for two seconds, ten more."""
    run = LoadRun()
    for _ in range(10):
        run.write(2, 0, seconds=0.1)
    run.events.append(Incident(at_s=run.now_s, text="killed node 1"))
    run.write(4, 1, seconds=2.0, count=5, endpoint=BATCH)
    for _ in range(10):
        run.write(2, 0, seconds=0.1)
    run.poll(1, 0, run.logs[0])
    return run


@pytest.fixture
def timeline():
    events = run_with_a_pause().events
    random.Random(3).shuffle(events)
    return timeline_of(events)


def test_an_endpoint_sums_what_succeeded(timeline):
    batch, one = (r for r in timeline.endpoints() if r.direction is Direction.PRODUCE)
    assert (batch.name, batch.requests, batch.records) == (BATCH, 1, 5)
    assert (one.name, one.requests, one.records) == (JSON_ENDPOINT, 20, 20)
    assert one.latency_ms[50.0] == pytest.approx(100)
    assert batch.latency_ms[100.0] == pytest.approx(2000)
    assert one.value_bytes > 20 * 50
    (fetch,) = (r for r in timeline.endpoints() if r.direction is Direction.FETCH)
    assert (fetch.requests, fetch.records) == (1, 20)


def test_the_longest_gap_is_between_two_successes(timeline):
    one = next(r for r in timeline.endpoints() if r.name == JSON_ENDPOINT)
    assert one.gap.seconds == pytest.approx(2.1)
    assert one.gap.at_s == pytest.approx(1.0)
    assert timeline.partition_gaps()[0].seconds == pytest.approx(2.1)


def test_a_partition_that_never_comes_back_is_a_gap_to_the_end(timeline):
    assert timeline.partition_gaps()[1].seconds == pytest.approx(3.0)


def test_the_gap_after_a_kill_is_that_of_the_partition_that_waited_longest(timeline):
    ((at_s, text),) = timeline.incidents()
    assert (at_s, text) == (pytest.approx(1.0), "killed node 1")
    partition, gap = timeline.gap_after(at_s)
    assert partition == 0
    assert gap.seconds == pytest.approx(2.1)


def test_a_gap_that_begins_later_has_another_cause():
    run = LoadRun(partitions=1)
    for seconds in (0.1, 0.1, 3.0, 0.1, 5.0):
        run.write(2, 0, seconds=seconds)
    timeline = timeline_of(run.events)
    assert timeline.gap_after(0.15) == (0, Gap(seconds=pytest.approx(3.0), at_s=pytest.approx(0.2)))


def test_users_that_were_told_to_stop_leave_no_gap():
    run = LoadRun(partitions=1)
    for seconds in (0.1, 0.1, 0.1, 4.0):
        run.write(2, 0, seconds=seconds)
    assert timeline_of(run.events).partition_gaps()[0].seconds == pytest.approx(4.0)
    run.events.append(Stopping(at_s=0.5))
    timeline = timeline_of(run.events)
    assert timeline.partition_gaps()[0].seconds == pytest.approx(0.2)
    assert timeline.seconds == pytest.approx(4.3)


def test_series_have_one_value_for_each_bucket(timeline):
    times = timeline.times_s()
    assert times == [0.25 + 0.5 * at for at in range(9)]
    records = timeline.records_per_s(Direction.PRODUCE)
    assert len(records) == len(times)
    assert sum(records) * timeline.bucket_s == 25
    assert sum(timeline.requests_per_s(JSON_ENDPOINT)) * timeline.bucket_s == 20
    assert math.isnan(timeline.latency_ms(Direction.PRODUCE, 50.0)[4])
    assert timeline.latency_ms(Direction.PRODUCE, 50.0)[0] == pytest.approx(100)


def test_failed_attempts_are_counted_by_reason():
    timeline = Timeline()
    for reason in ("a", "b", "b"):
        timeline.note(Failed(at_s=1.0, endpoint="fetch pages", node="http://n", reason=reason))
    assert timeline.failures() == [(2, "fetch pages", "b"), (1, "fetch pages", "a")]
    assert timeline.endpoints()[0].failed_attempts == 3


def test_a_refused_write_is_no_success():
    run = LoadRun()
    run.write(2, 0, fate=Fate.REFUSED, is_stored=False)
    (report,) = timeline_of(run.events).endpoints()
    assert report.requests == 0
    assert math.isnan(report.latency_ms[99.0])


def test_percentiles_are_by_nearest_rank():
    ordered = [float(n) for n in range(1, 11)]
    assert [percentile(ordered, p) for p in (0, 10, 50, 95, 99, 100)] == [1, 1, 5, 10, 10, 10]
    assert math.isnan(percentile([], 50))
