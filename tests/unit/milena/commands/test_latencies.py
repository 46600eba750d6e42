"""Durations and how they are told."""

from random import Random

from milena.commands.benchmarks.latencies import Latencies


def of(*durations, **options):
    found = Latencies(Random(1), **options)
    for ms in durations:
        found.add(ms)
    return found


def test_a_percentile_is_the_least_that_so_many_do_not_exceed():
    told = of(*range(1, 101)).as_json()
    assert (told["p50"], told["p90"], told["p99"], told["p99.9"]) == (50, 90, 99, 100)
    assert (told["max"], told["mean"], told["count"]) == (100, 50.5, 100)


def test_every_duration_is_in_one_bucket_bounds_included():
    buckets = of(0.2, 1, 1.1, 2, 20_000).as_json()["histogram"]
    assert [b for b in buckets if b["count"]] == [
        {"up_to_ms": 1, "count": 2},
        {"up_to_ms": 2, "count": 2},
        {"up_to_ms": None, "count": 1},
    ]


def test_of_many_some_are_kept_and_all_are_counted():
    found = of(*range(1000), kept_max=10)
    told = found.as_json()
    assert (told["count"], told["kept"], told["max"]) == (1000, 10, 999)
    assert "percentiles of 10 of 1000, taken by chance" in found.text("latency")


def test_people_see_percentiles_and_a_histogram_from_the_first_bucket_used_to_the_last():
    lines = of(1.5, 1.5, 1.5, 15).text("write latency").splitlines()
    assert lines[0] == (
        "write latency in ms: p50 1.50, p90 15.00, p99 15.00, p99.9 15.00, max 15.00, mean 4.88"
    )
    assert [line.split()[:5] for line in lines[3:]] == [
        ["<=", "2", "3", "75.0", "%"],
        ["<=", "5", "0", "0.0", "%"],
        ["<=", "10", "0", "0.0", "%"],
        ["<=", "20", "1", "25.0", "%"],
    ]


def test_nothing_measured_is_said_to_be_nothing():
    assert of().text("write latency") == "write latency: nothing was measured"
    assert of().as_json()["p50"] is None
