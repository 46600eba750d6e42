"""The cluster's time on one node: its own clock within the bound, the others' beyond it."""

import logging

import pytest

from node.process.cluster_clock import ClusterClock
from tests.support.time.fake_clock import WALL_START_MS, FakeClock

BOUND_MS = 2_000
DAY_MS = 24 * 3_600_000
CONTROLLER_MS = 500_000


class Heard:
    """A clock that was told the time by a controller whose monotonic clock began at another moment."""

    def __init__(self, wrong_ms: int = 0, *, round_trip_ms: int = 0) -> None:
        self.machine = FakeClock(wall_ms=WALL_START_MS + wrong_ms)
        self.clock = ClusterClock(
            self.machine, skew_ms_max=BOUND_MS, has_company=True, floor_ms=lambda: WALL_START_MS - 5
        )
        self.begin_ms = self.machine.now_ms()
        self.hear(round_trip_ms=round_trip_ms)

    @property
    def true_ms(self) -> int:
        return WALL_START_MS + self.machine.now_ms() - self.begin_ms

    def hear(self, *, round_trip_ms: int = 0, is_agreed: bool = True) -> None:
        sent_ms = self.machine.now_ms()
        self.machine.jump(round_trip_ms / 2)
        controller_ms = CONTROLLER_MS + self.machine.now_ms()
        cluster_ms = self.true_ms - controller_ms if is_agreed else None
        self.machine.jump(round_trip_ms / 2)
        self.clock.hear(sent_ms, controller_ms, cluster_ms)


@pytest.mark.parametrize("wrong_ms", [0, 1, -1, BOUND_MS, -BOUND_MS])
def test_within_the_bound_its_own_clock_counts(wrong_ms: int) -> None:
    heard = Heard(wrong_ms)
    assert heard.clock.wall_ms() == heard.machine.wall_ms()
    assert heard.clock.expiry_ms() == heard.machine.wall_ms()
    assert (heard.clock.offset_ms, heard.clock.is_out_of_bounds) == (wrong_ms, False)


@pytest.mark.parametrize("wrong_ms", [BOUND_MS + 1, -BOUND_MS - 1, 8 * DAY_MS, -WALL_START_MS])
def test_beyond_it_the_time_of_the_others_does_and_goes_on(wrong_ms: int) -> None:
    heard = Heard(wrong_ms)
    for _ in range(3):
        assert heard.clock.wall_ms() == heard.clock.expiry_ms() == heard.true_ms
        heard.machine.jump(60_000)
    assert (heard.clock.offset_ms, heard.clock.is_out_of_bounds) == (wrong_ms, True)


def test_a_jump_between_two_answers_changes_nothing() -> None:
    heard = Heard()
    heard.machine.set_wall(WALL_START_MS + 30 * DAY_MS)
    assert heard.clock.wall_ms() == heard.true_ms
    heard.machine.set_wall(0)
    assert heard.clock.wall_ms() == heard.true_ms


def test_its_reading_is_its_own_clock_whatever_it_goes_by() -> None:
    heard = Heard(8 * DAY_MS)
    reading = heard.clock.reading_ms
    assert reading is not None
    assert reading + CONTROLLER_MS + heard.machine.now_ms() == heard.machine.wall_ms()
    heard.machine.jump(1_000)
    assert heard.clock.reading_ms == reading
    heard.clock.part()
    assert heard.clock.reading_ms is None


def test_a_slow_answer_tells_nothing() -> None:
    heard = Heard(round_trip_ms=BOUND_MS)
    assert not heard.clock.is_known
    assert heard.clock.reading_ms is None
    heard.hear(round_trip_ms=BOUND_MS // 2)
    assert heard.clock.is_known
    heard.hear(round_trip_ms=BOUND_MS)
    assert heard.clock.is_known, "what was told goes on"
    assert heard.clock.reading_ms is None


def test_where_no_majority_agrees_what_was_told_goes_on() -> None:
    heard = Heard(8 * DAY_MS)
    heard.hear(is_agreed=False)
    assert heard.clock.wall_ms() == heard.true_ms


def test_before_it_is_told_nothing_is_over_and_records_are_not_dated_before_the_applied_time() -> (
    None
):
    machine = FakeClock(wall_ms=0)
    clock = ClusterClock(machine, skew_ms_max=BOUND_MS, has_company=True, floor_ms=lambda: 77)
    assert (clock.expiry_ms(), clock.wall_ms(), clock.offset_ms) == (0, 77, None)
    machine.set_wall(100)
    assert (clock.expiry_ms(), clock.wall_ms()) == (0, 100)


def test_a_lone_clock_is_trusted() -> None:
    clock = ClusterClock(FakeClock(wall_ms=5), skew_ms_max=1, has_company=False, floor_ms=lambda: 9)
    assert (clock.expiry_ms(), clock.wall_ms()) == (5, 5)


def test_a_release_that_does_not_compare_clocks_has_each_trust_its_own() -> None:
    machine = FakeClock(wall_ms=5)
    clock = ClusterClock(machine, skew_ms_max=1, has_company=True)
    clock.hear(machine.now_ms(), None, None)
    assert clock.expiry_ms() == 5
    clock.hear(machine.now_ms(), CONTROLLER_MS, None)
    assert clock.expiry_ms() == 0, "the cluster compares them now"


def test_each_change_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heard = Heard()
    for wrong_ms in (3_000, 3_100, 1_500, 2_500, 900, 800):
        heard.machine.set_wall(heard.true_ms + wrong_ms)
        heard.hear()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "clock out of bounds offset_ms=3000 bound_ms=2000",
        "clock within bounds again offset_ms=900",
    ]
