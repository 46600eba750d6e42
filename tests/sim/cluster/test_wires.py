"""A connection on which an end sends nothing: the simulated network must still report that the other end is gone."""

import pytest

from tests.sim.cluster.threads import Process, Scheduler
from tests.sim.cluster.wires import GIVE_UP_S, KEEPALIVE_S, End, Wires


class Pair:
    """A connection between two machines; the near end sends nothing."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.wires = Wires(self.scheduler)
        self.director = Process(self.scheduler, "director").loop()
        self.far_process = Process(self.scheduler, "far")
        self.near = End(self.wires, Process(self.scheduler, "near"), "host1")
        self.far = End(self.wires, self.far_process, "host2")
        self.near.other, self.far.other = self.far, self.near
        self.wires.ends[self.near] = self.wires.ends[self.far] = None

    def run(self, seconds: float) -> None:
        self.director.call_later(seconds, self.scheduler.stop)
        self.scheduler.run()

    def kill_far(self) -> None:
        self.far_process.is_dead = True
        self.wires.kill(self.far_process)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_killed_process_resets_its_connections(pair: Pair) -> None:
    pair.kill_far()
    pair.run(0.5)
    assert pair.near.is_broken


def test_who_says_nothing_learns_late_that_the_other_machine_has_no_power(pair: Pair) -> None:
    pair.wires.down.add("host2")
    pair.kill_far()
    pair.director.call_later(KEEPALIVE_S - 0.1, pair.scheduler.stop)
    pair.scheduler.run()
    assert not pair.near.is_broken


def test_who_says_nothing_learns_it_in_the_end(pair: Pair) -> None:
    pair.wires.down.add("host2")
    pair.kill_far()
    pair.run(KEEPALIVE_S + 0.1)
    assert pair.near.is_broken


def test_a_reset_that_the_power_cut_swallows_is_made_good_by_a_probe(pair: Pair) -> None:
    pair.kill_far()
    pair.wires.down.add("host2")
    pair.run(KEEPALIVE_S + 0.5)
    assert pair.near.is_broken


def test_who_is_not_told_that_the_other_kernel_gave_up_learns_it_by_a_probe(pair: Pair) -> None:
    pair.wires.cuts = {("host1", "host2"), ("host2", "host1")}
    pair.far.send(b"unheard")
    pair.run(GIVE_UP_S + KEEPALIVE_S + 0.1)
    assert pair.far.is_broken
    assert pair.near.is_broken


def test_who_hangs_up_behind_a_cut_is_found_gone_by_a_probe(pair: Pair) -> None:
    pair.wires.cuts = {("host1", "host2"), ("host2", "host1")}
    pair.far.abort()
    pair.kill_far()
    pair.wires.cuts = set()
    pair.run(KEEPALIVE_S + 0.1)
    assert pair.near.is_broken
