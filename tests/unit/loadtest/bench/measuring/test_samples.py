"""Rounds of contenders: ratios are taken within a round, and failed turns are nobody's."""

import pytest

from loadtest.bench.measuring.samples import Quantity, Rounds, Sample, Spread, percentile, sample_of


def _rate(value: float) -> Sample:
    return Sample(figures={Quantity.RATE: value})


def _rounds(**samples: list[Sample | None]) -> Rounds:
    rounds = Rounds()
    for name, turns in samples.items():
        for turn in turns:
            rounds.note(name, turn)
    return rounds


def test_a_ratio_is_of_figures_of_one_round():
    rounds = _rounds(ours=[_rate(10), _rate(90)], theirs=[_rate(5), _rate(30)])
    assert rounds.ratios("ours", "theirs", Quantity.RATE) == [2.0, 3.0]


def test_a_round_with_a_failed_turn_has_no_ratio():
    rounds = _rounds(ours=[None, _rate(90), _rate(4)], theirs=[_rate(5), None, _rate(2)])
    assert rounds.ratios("ours", "theirs", Quantity.RATE) == [2.0]


def test_who_never_took_a_turn_has_neither_figures_nor_ratios():
    rounds = _rounds(ours=[_rate(1)])
    assert rounds.figures("theirs", Quantity.RATE) == []
    assert rounds.ratios("ours", "theirs", Quantity.RATE) == []
    assert rounds.ratios("ours", "ours", Quantity.P50) == []


def test_a_peer_that_did_nothing_gives_no_ratio():
    rounds = _rounds(ours=[_rate(1)], theirs=[_rate(0)])
    assert rounds.ratios("ours", "theirs", Quantity.RATE) == []


def test_a_spread_reaches_from_the_least_to_the_greatest():
    assert Spread.of([3, 1, 2, 9]) == Spread(median=2.5, least=1, greatest=9, count=4)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5], 50, 5), ([1, 2], 50, 1), ([3, 1, 2], 50, 2), (range(1, 101), 99, 99), ([1, 2], 100, 2)],
)
def test_a_percentile_is_one_of_the_values(values, percent, expected):
    assert percentile(values, percent) == expected


def test_a_sample_says_what_was_done_and_what_it_cost():
    latencies_s = [0.001] * 98 + [0.002, 0.5]
    sample = sample_of(latencies_s, units=1000, seconds=2, client_cpu_s=0.5, servers_cpu_s=1.5)
    assert sample.figures == {Quantity.RATE: 500, Quantity.P50: 1, Quantity.P99: 2}
    assert (sample.client_cpu, sample.servers_cpu) == (0.25, 0.75)


def test_the_processor_of_a_unit_is_what_the_servers_used_over_the_rate():
    rounds = _rounds(
        ours=[Sample(figures={Quantity.RATE: 1_000}, servers_cpu=0.5), _rate(0), None],
        theirs=[Sample(figures={Quantity.RATE: 2_000}, servers_cpu=0.5)] * 3,
    )
    assert rounds.figures("ours", Quantity.CPU_PER_UNIT) == [500.0]
    assert rounds.ratios("ours", "theirs", Quantity.CPU_PER_UNIT) == [2.0]


@pytest.mark.parametrize(
    ("count", "greatest"), [(1, None), (10, 90), (99, 95), (100, 99), (1000, 99.9), (50_000, 99.9)]
)
def test_a_distribution_goes_as_far_as_its_calls_can_tell(count, greatest):
    latencies_s = [number / 1000 for number in range(1, count + 1)]
    sample = sample_of(latencies_s, units=1, seconds=1, client_cpu_s=0, servers_cpu_s=0)
    # Of one call no percentile is known, of a hundred none beyond the one that the slowest exceeds.
    assert max(sample.percentiles, default=None) == greatest
    for percent, latency_ms in sample.percentiles.items():
        assert latency_ms == pytest.approx(count * percent / 100, abs=1)
