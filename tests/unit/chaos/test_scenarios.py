"""Plans follow from their seeds, leave the end quiet, and use only what nemesis, disks and network can do."""

from itertools import pairwise

import pytest

from tests.chaos.nemesis import Nemesis
from tests.chaos.scenarios import (
    BETWEEN_STEPS_S,
    SCENARIOS,
    STORM,
    Needs,
    UnknownScenarioError,
    available,
    has_quorum,
    plan,
)
from tests.chaos.setup import RECOVERY_S_OF, DiskKind, NetworkKind, Setup

EVERYTHING = (DiskKind.LOOP, NetworkKind.NETNS)
TARGETS = {"leader", "follower", "all", "dead", "first-dead", "second-dead"}


@pytest.mark.parametrize("name", [*SCENARIOS, STORM])
def test_a_plan_follows_from_its_seed(name):
    assert plan(name, 60, 7, *EVERYTHING) == plan(name, 60, 7, *EVERYTHING)


@pytest.mark.parametrize("name", [n for n in SCENARIOS if SCENARIOS[n].cycles] + [STORM])
def test_another_seed_makes_another_plan(name):
    assert len({str(plan(name, 60, seed, *EVERYTHING)) for seed in range(5)}) == 5


@pytest.mark.parametrize("name", [n for n in SCENARIOS if SCENARIOS[n].cycles] + [STORM])
@pytest.mark.parametrize("seed", range(5))
def test_the_end_of_a_run_is_quiet(name, seed):
    cycles = plan(name, 120, seed, *EVERYTHING)
    assert cycles
    last = cycles[-1]
    between_s = BETWEEN_STEPS_S * (len(last.steps) - 1)
    assert last.at_s + between_s + last.hold_s <= 108 + 1e-6


def test_a_short_run_has_one_cycle_at_least():
    assert len(plan("kill-leader", 8, 1, *EVERYTHING)) == 1


def test_the_whole_cluster_is_killed_ten_times_however_long_the_run():
    for seconds in (30, 60, 120):
        cycles = plan("kill-all-ten", seconds, 3, *EVERYTHING)
        assert len(cycles) == 10
        rests = [b.at_s - a.at_s - a.hold_s for a, b in pairwise(cycles)]
        assert min(rests) > 0.5


def test_every_operation_and_target_is_known():
    nemesis = Nemesis(Setup(scenario="none", seconds=1, seed=1), None, None, None)
    steps = {step for s in SCENARIOS.values() for cycle in s.cycles for step in cycle}
    assert {s.operation for s in steps} == nemesis.operations
    assert {s.target for s in steps} == TARGETS


def test_plain_disks_and_no_network_allow_what_needs_nothing():
    names = available(DiskKind.DIR, NetworkKind.NONE)
    assert "kill-leader" in names
    assert STORM in names
    assert not {"disk-full", "power-all", "halves", "power-split"} & set(names)


def test_everything_is_possible_somewhere():
    assert set(available(*EVERYTHING)) == {*SCENARIOS, STORM}
    assert "power-split" not in available(DiskKind.LOOP, NetworkKind.NONE)
    assert "disk-full" in available(DiskKind.TMPFS, NetworkKind.NONE)
    assert "power-all" not in available(DiskKind.TMPFS, NetworkKind.NONE)


@pytest.mark.parametrize("name", ["no-such", "halves"])
def test_what_is_not_possible_here_is_refused_with_the_list(name):
    with pytest.raises(UnknownScenarioError, match="kill-leader"):
        plan(name, 60, 1, DiskKind.DIR, NetworkKind.NONE)


def test_a_storm_empties_no_directory():
    for seed in range(50):
        for cycle in plan(STORM, 600, seed, *EVERYTHING):
            assert "wipe" not in {step.operation for step in cycle.steps}


def test_goals_name_scenarios_that_keep_a_quorum():
    assert set(RECOVERY_S_OF) <= set(SCENARIOS)
    assert all(has_quorum(name) for name in RECOVERY_S_OF)
    assert not has_quorum(STORM)


def test_needs_are_all_used():
    assert {s.needs for s in SCENARIOS.values()} == set(Needs)
