"""The faults of a run, and their times. A scenario has cycles; a cycle has steps, a time to hold, and a heal.

The schedule depends only on the scenario, the duration and the seed. A target such as "leader" is looked up when its
step is carried out, and is noted.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, unique

from tests.chaos.setup import DiskKind, NetworkKind


@unique
class Needs(StrEnum):
    """The disks and networks that a scenario needs."""

    NOTHING = ""
    SMALL_DISK = "a small disk"
    POWER = "disks that lose power"
    NETWORK = "a network of our own"
    POWER_AND_NETWORK = "disks that lose power and a network of our own"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on some nodes."""

    operation: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A choice of cycles. ``has_quorum``: during a cycle, a quorum and enough in-sync replicas remain.

    ``cycle_count``: this many cycles, spread evenly over a run of any length. ``is_in_storm``: cycles may be mixed with
    those of other scenarios. A cycle that empties a directory may not: a second fault could then destroy the last good
    copy.
    """

    name: str
    cycles: tuple[tuple[Step, ...], ...]
    needs: Needs = Needs.NOTHING
    hold_s: tuple[float, float] = (3.0, 7.0)
    has_quorum: bool = True
    cycle_count: int | None = None
    is_in_storm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One planned cycle."""

    at_s: float
    steps: tuple[Step, ...]
    hold_s: float


def _cycle(text: str) -> tuple[Step, ...]:
    """Parse steps such as ``"kill leader, torn dead"``."""
    return tuple(Step(*part.split()) for part in text.split(","))


def _scenario(
    name: str,
    *cycles: str,
    needs: Needs = Needs.NOTHING,
    hold_s: tuple[float, float] = (3.0, 7.0),
    has_quorum: bool = True,
    cycle_count: int | None = None,
    is_in_storm: bool = True,
) -> Scenario:
    return Scenario(
        name=name,
        cycles=tuple(map(_cycle, cycles)),
        needs=needs,
        hold_s=hold_s,
        has_quorum=has_quorum,
        cycle_count=cycle_count,
        is_in_storm=is_in_storm,
    )


NONE = "none"
STORM = "storm"
BRIEF = (0.5, 2.0)

_EVERY = (
    _scenario(NONE, is_in_storm=False),
    _scenario("kill-leader", "kill leader"),
    _scenario("kill-follower", "kill follower"),
    _scenario("kill-majority", "kill leader, kill follower", has_quorum=False),
    _scenario("kill-all", "kill all", hold_s=BRIEF, has_quorum=False),
    _scenario(
        "kill-all-ten", "flow all, kill all", hold_s=(0.1, 0.5), has_quorum=False, cycle_count=10,
        is_in_storm=False,
    ),
    _scenario("stop-leader", "stop leader"),
    _scenario("rolling-restart", "roll all", hold_s=(0.5, 1.0)),
    _scenario("pause-leader", "pause leader"),
    _scenario("pause-follower", "pause follower"),
    _scenario("pause-blink", "blink leader", hold_s=(0.2, 0.5)),
    _scenario("torn-tail", "kill follower, torn dead", "kill leader, torn dead"),
    _scenario("bit-flip", "kill follower, flip dead", "kill leader, flip dead"),
    _scenario(
        "last-standing",
        "stop follower, stop follower, crash leader, start first-dead, start second-dead",
        hold_s=(5.0, 8.0), has_quorum=False, is_in_storm=False,
    ),
    _scenario(
        "emptied-directory",
        "settle all, kill follower, wipe dead, start dead",
        "settle all, kill leader, wipe dead, start dead",
        is_in_storm=False,
    ),
    # A voter that lost its directory must not help a minority to elect or commit while the leader is away.
    _scenario(
        "lost-voter", "settle all, kill follower, wipe dead, start first-dead, kill leader",
        has_quorum=False, is_in_storm=False,
    ),
    _scenario("power-leader", "power leader", needs=Needs.POWER),
    _scenario("power-follower", "power follower", needs=Needs.POWER),
    _scenario("power-all", "power all", needs=Needs.POWER, hold_s=BRIEF, has_quorum=False),
    _scenario(
        "power-pause", "pause follower, power leader", needs=Needs.POWER, has_quorum=False
    ),
    _scenario(
        "power-split", "isolate follower, power leader", needs=Needs.POWER_AND_NETWORK,
        has_quorum=False,
    ),
    _scenario(
        "disk-full", "fill leader", "fill follower", "fill all", needs=Needs.SMALL_DISK,
        has_quorum=False,
    ),
    _scenario("isolate-leader", "isolate leader", needs=Needs.NETWORK),
    _scenario("isolate-follower", "isolate follower", needs=Needs.NETWORK),
    _scenario("split-leader", "split leader", needs=Needs.NETWORK),
    _scenario("halves", "halves all", needs=Needs.NETWORK),
    _scenario("one-way", "mute leader", "deafen leader", needs=Needs.NETWORK),
    _scenario("flaky-net", "loss all", "delay all", "double all", needs=Needs.NETWORK),
)  # fmt: skip
SCENARIOS = {scenario.name: scenario for scenario in _EVERY}

FIRST_FAULT_S = (3.0, 5.0)
BETWEEN_STEPS_S = 1.5
"""The longest pause between two steps of a cycle, in s."""
REST_S = (4.0, 7.0)
"""The time from a heal to the next cycle, in s."""
QUIET_S_MAX = 12.0
"""The time without faults at the end of a run, in s; a short run has a quarter of its duration."""
SECOND_FAULT_SHARE = 0.3


class UnknownScenarioError(Exception):
    """The scenario does not exist, or cannot run with these disks and this network."""


def available(disk: DiskKind, network: NetworkKind) -> list[str]:
    """Return the scenarios that these disks and this network allow, including the storm."""
    has_network = network is NetworkKind.NETNS
    offered = {
        Needs.NOTHING: True,
        Needs.SMALL_DISK: disk is not DiskKind.DIR,
        Needs.POWER: disk is DiskKind.LOOP,
        Needs.NETWORK: has_network,
        Needs.POWER_AND_NETWORK: disk is DiskKind.LOOP and has_network,
    }
    return [name for name, s in SCENARIOS.items() if offered[s.needs]] + [STORM]


def has_quorum(name: str) -> bool:
    """Return whether writes must succeed during the scenario's faults."""
    return name != STORM and SCENARIOS[name].has_quorum


def plan(name: str, seconds: float, seed: int, disk: DiskKind, network: NetworkKind) -> list[Cycle]:
    """Return the cycles of a run.

    Raises:
        UnknownScenarioError: the scenario cannot run here.
    """
    possible = available(disk, network)
    if name not in possible:
        raise UnknownScenarioError(f"no scenario {name!r} here; there are: {', '.join(possible)}")
    rng = random.Random(f"{seed}/{name}")
    busy_s = seconds - min(QUIET_S_MAX, seconds / 4)
    if name == STORM:
        return _storm(rng, busy_s, [SCENARIOS[n] for n in possible if n != STORM])
    scenario = SCENARIOS[name]
    if not scenario.cycles:
        return []
    if scenario.cycle_count is not None:
        return _evenly(rng, busy_s, scenario, scenario.cycle_count)
    return _one_after_another(rng, busy_s, (scenario,))


def _storm(rng: random.Random, busy_s: float, allowed: Iterable[Scenario]) -> list[Cycle]:
    pool = tuple(s for s in allowed if s.is_in_storm)
    return _one_after_another(rng, busy_s, pool, second_fault_share=SECOND_FAULT_SHARE)


def _one_after_another(
    rng: random.Random,
    busy_s: float,
    pool: tuple[Scenario, ...],
    *,
    second_fault_share: float = 0.0,
) -> list[Cycle]:
    cycles: list[Cycle] = []
    at_s = rng.uniform(*FIRST_FAULT_S)
    while True:
        scenario = rng.choice(pool)
        steps = rng.choice(scenario.cycles)
        if rng.random() < second_fault_share:
            steps += rng.choice(rng.choice(pool).cycles)
        hold_s = rng.uniform(*scenario.hold_s)
        length_s = hold_s + BETWEEN_STEPS_S * len(steps) + rng.uniform(*REST_S)
        if cycles and at_s + length_s > busy_s:
            return cycles
        cycles.append(Cycle(at_s=round(at_s, 2), steps=steps, hold_s=round(hold_s, 2)))
        at_s += length_s


def _evenly(rng: random.Random, busy_s: float, scenario: Scenario, count: int) -> list[Cycle]:
    first_s = FIRST_FAULT_S[0]
    between_s = (busy_s - first_s) / count
    return [
        Cycle(
            at_s=round(first_s + (i + rng.uniform(0, 0.2)) * between_s, 2),
            steps=rng.choice(scenario.cycles),
            hold_s=round(rng.uniform(*scenario.hold_s), 2),
        )
        for i in range(count)
    ]
