"""Run a few seeds of consumer groups in a simulated cluster; ``python -m tests.sim.groups`` runs any number.

``seeds.txt`` has seeds that once found a fault, one per line: the number, and the fault.
"""

from pathlib import Path

import pytest

from tests.sim.groups.world import GroupOptions, run_group_world
from tests.sim.seeds import found, seeds
from tests.support.groups.history import Answered, Commit, Fate, Processed

FOUND = Path(__file__).with_name("seeds.txt")
SHORT = GroupOptions(seconds=8.0)


@pytest.mark.parametrize("seed", seeds(2, quick=1))
def test_groups_keep_their_promises_under_faults(seed: int) -> None:
    world = run_group_world(seed, SHORT)
    assert world.problems == [], [*world.lines, SHORT.command(seed)]
    for troop in world.clients.troops:
        processed = [e for e in troop.history.of(Processed) if isinstance(e, Processed)]
        assert sum(len(e.values) for e in processed) >= sum(troop.history.ends.values()) > 0
        commits = [e for e in troop.history.of(Commit) if isinstance(e, Commit)]
        assert any(e.fate is Fate.OK for e in commits)


@pytest.mark.parametrize("seed", seeds(2, quick=1))
def test_members_by_http_and_by_kafka_share_a_group_under_faults(seed: int) -> None:
    options = GroupOptions(seconds=8.0, members=1, kafka=3, consumers=0)
    world = run_group_world(seed, options)
    assert world.problems == [], [*world.lines, options.command(seed)]
    history = world.clients.troops[0].history
    answered = {e.member[:2] for e in history.of(Answered) if isinstance(e, Answered)}
    assert answered == {"m0", "k0", "k1", "k2"}


@pytest.mark.parametrize(("seed", "why"), found(FOUND))
def test_what_was_found_once_stays_fixed(seed: int, why: str) -> None:
    assert run_group_world(seed).problems == [], why


def test_a_seed_repeats_itself() -> None:
    options = GroupOptions(seconds=3.0)
    one, two = (run_group_world(5, options) for _ in range(2))
    assert one.digest == two.digest
    assert [t.history for t in one.clients.troops] == [t.history for t in two.clients.troops]


def test_a_failure_names_the_command_that_replays_it() -> None:
    options = GroupOptions(members=6, consumers=0, seconds=4, kinds=("kill",))
    words = (
        "python -m tests.sim.groups --seed 7 --seconds 4 --members 6 --consumers 0 --faults kill"
    )
    assert options.command(7) == words
