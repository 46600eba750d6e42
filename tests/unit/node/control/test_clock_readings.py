"""The time on which a majority of the voters agrees."""

import itertools

import pytest

from node.control.clock_readings import ClockReadings

BOUND_MS = 2_000
DAY_MS = 24 * 3_600_000
TRUE_MS = 1_700_000_000_000


def of(*readings: int | None) -> ClockReadings:
    found = ClockReadings(range(1, len(readings) + 1), BOUND_MS)
    for voter, reading in enumerate(readings, 1):
        found.take(voter, None if reading is None else TRUE_MS + reading)
    return found


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ((0,), 0),
        ((0, 100), 50),
        ((0, 10, 20), 10),
        ((0, 8 * DAY_MS, 100), 50),
        ((0, -8 * DAY_MS, 100), 50),
        ((-1_900, 0, 1_900), 0),
        ((0, 2_000, None), 1_000),
        ((0, 10, 20, 9 * DAY_MS, -9 * DAY_MS), 10),
        ((0, 10, 20, DAY_MS, DAY_MS), 10),
        ((0, 10, 20, None, None), 10),
    ],
)
def test_a_majority_within_the_bound_has_the_time(
    readings: tuple[int | None, ...], expected: int
) -> None:
    for order in set(itertools.permutations(readings)):
        assert of(*order).cluster_ms() == TRUE_MS + expected


@pytest.mark.parametrize(
    "readings",
    [
        (None,),
        (0, None),
        (0, 2_001),
        (0, None, None),
        (0, None, 8 * DAY_MS),
        (0, DAY_MS, 2 * DAY_MS),
        (0, 10, None, None, None),
        (0, 10, DAY_MS, DAY_MS, None),
    ],
)
def test_without_a_majority_there_is_none(readings: tuple[int | None, ...]) -> None:
    for order in set(itertools.permutations(readings)):
        assert of(*order).cluster_ms() is None


def test_clocks_of_observers_do_not_count() -> None:
    readings = of(0, DAY_MS, None)
    readings.take(9, TRUE_MS + DAY_MS)
    assert readings.cluster_ms() is None


def test_a_voter_that_cannot_tell_is_believed_as_before() -> None:
    readings = of(0, 10, DAY_MS)
    readings.take(1, None)
    assert readings.cluster_ms() == TRUE_MS + 5
