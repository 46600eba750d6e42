"""Members against a group made of one object: a sound one satisfies the judge, and each way to be unsound is found."""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.groups.checker import findings
from tests.support.groups.history import Commit, Fate, Fenced, GroupHistory
from tests.support.groups.members import Assigned, Beat, Clock, FencedError, Habits, Member
from tests.support.time.virtual_time import run_virtual

PARTITIONS = 6
MEMBERS = 4
SESSION_S = 2.0


@dataclass
class Person:
    """A member as the group sees it."""

    session_ends_s: float
    epoch: int
    held: frozenset[int] = frozenset()
    target: frozenset[int] = frozenset()


@dataclass
class OneObjectGroup:
    """A whole cluster's worth of group management; ``bug``: what is wrong with it."""

    bug: str
    generation: int = 0
    people: dict[str, Person] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _rebalance(self) -> None:
        self.generation += 1
        names = sorted(self.people)
        for number, name in enumerate(names):
            person = self.people[name]
            person.target = frozenset(range(number, PARTITIONS, len(names)))
            if self.bug == "targets-meet":
                person.target |= {0}
            if self.bug == "forgets-a-member" and number == 0 and len(names) > 1:
                person.target = frozenset()

    def _expire(self) -> None:
        gone = [n for n, person in self.people.items() if person.session_ends_s < self._now()]
        for name in gone:
            del self.people[name]
        if gone:
            self._rebalance()

    async def heartbeat(self, beat: Beat) -> Assigned:
        await asyncio.sleep(0.002)
        self._expire()
        person = self.people.get(beat.member)
        if beat.epoch == -1:
            if self.people.pop(beat.member, None):
                self._rebalance()
            return Assigned(
                epoch=-1, generation=0, interval_ms=0, assignment=frozenset(), pending=frozenset()
            )
        if person is None and beat.epoch > 0:
            raise FencedError(beat.member)
        if person is None:
            person = self.people[beat.member] = Person(0.0, 0)
            self._rebalance()
        session_s = SESSION_S / 5 if self.bug == "short-sessions" else SESSION_S
        person.session_ends_s = self._now() + session_s
        self._reconcile(person, beat.owned)
        given = person.held & person.target
        return Assigned(
            epoch=person.epoch, generation=self.generation, interval_ms=300, assignment=given,
            pending=person.target - given,
        )  # fmt: skip

    def _reconcile(self, person: Person, owned: frozenset[int]) -> None:
        person.held &= owned | person.target
        others = frozenset().union(*(p.held for p in self.people.values() if p is not person))
        if self.bug == "gives-too-early":
            others = frozenset()
        person.held |= person.target - others
        if person.held <= person.target:
            person.epoch = self.generation

    async def commit(self, member: str, epoch: int, offsets: dict[int, int]) -> None:
        await asyncio.sleep(0.002)
        self._expire()
        person = self.people.get(member)
        is_owner = person is not None and person.epoch == epoch and person.held >= set(offsets)
        if not is_owner and self.bug != "no-fencing":
            raise FencedError(member)
        if self.bug == "forgets-commits" and self.generation % 5 == 0:
            return
        if self.bug == "commits-ahead":
            offsets = {p: min(offset + 2, self.ends[p]) for p, offset in offsets.items()}
        self.offsets.update(offsets)

    async def committed(self) -> dict[int, int]:
        await asyncio.sleep(0.001)
        return dict(self.offsets)

    async def fetch(self, partition: int, offset: int) -> list[str]:
        await asyncio.sleep(0.001)
        if self.bug == "a-partition-is-silent" and partition == 3:
            return []
        return [f"{partition}/{n}" for n in range(offset, min(offset + 10, self.ends[partition]))]


async def live(bug: str, seed: int) -> tuple[GroupHistory, list[Member]]:
    group, history, rng = OneObjectGroup(bug), GroupHistory(), Random(seed)
    clock = Clock(asyncio.get_running_loop().time, asyncio.sleep)
    habits = Habits(session_s=SESSION_S, harm_chance=0.03, pause_s=(0.5, 4.0))
    members = [
        Member(f"m{n}", group, history, clock, Random(rng.random()), habits) for n in range(MEMBERS)
    ]
    tasks = [asyncio.create_task(member.run()) for member in members]
    for _ in range(300):
        await asyncio.sleep(0.1)
        group.ends[rng.randrange(PARTITIONS)] += 1
    for member in members:
        member.is_calm = True
    await asyncio.sleep(20)
    for member in members:
        member.is_over = True
    await asyncio.gather(*tasks)
    await members[0].look()
    history.ends, history.is_drained = group.ends, True
    history.survivors = tuple(member.name for member in members)
    return history, members


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_group_satisfies_the_judge(seed: int) -> None:
    history, members = run_virtual(live("", seed))
    assert findings(history) == []
    assert sum(len(member.harms) for member in members) > 10
    fates = {event.fate for event in history.of(Commit)}
    assert fates >= {Fate.OK, Fate.FENCED, Fate.UNKNOWN}
    assert any(history.of(Fenced))


@pytest.mark.parametrize(
    ("bug", "finding"),
    [
        ("targets-meet", "owned-twice"),
        ("gives-too-early", "owned-at-once"),
        ("short-sessions", "owned-at-once"),
        ("no-fencing", "fenced-commit"),
        ("forgets-commits", "commit-went-back"),
        ("commits-ahead", "lost-record"),
        ("a-partition-is-silent", "starved-partition"),
        ("forgets-a-member", "starved-member"),
    ],
)
def test_an_unsound_group_is_found_out(bug: str, finding: str) -> None:
    found = {name for seed in range(3) for name, _ in findings(run_virtual(live(bug, seed))[0])}
    assert finding in found
