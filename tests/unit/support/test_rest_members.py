"""Clients of REST consumers against a group made of one object: whatever answers are lost, nothing is passed over."""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.groups.checker import findings, violations
from tests.support.groups.history import Commit, Fate, GroupHistory
from tests.support.groups.members import Clock, Habits, RefusedError, UnknownError
from tests.support.groups.rest_members import GoneError, RestMember
from tests.support.time.virtual_time import run_virtual

PARTITIONS = 4


@dataclass
class OneObjectConsumers:
    """All consumers of a group; answers are lost now and then, after what was asked for was done."""

    rng: Random
    bug: str = ""
    consumers: dict[str, dict[int, int]] = field(default_factory=dict)
    """Name → partition → the next offset to deliver."""
    offsets: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    is_reliable: bool = False

    async def _answer(self, name: str | None = None) -> dict[int, int]:
        await asyncio.sleep(0.001)
        if not self.is_reliable and self.rng.random() < 0.05:
            raise RefusedError("not now")
        if name is None:
            return {}
        if name not in self.consumers:
            raise GoneError(name)
        return self.consumers[name]

    def _maybe_lose(self) -> None:
        if not self.is_reliable and self.rng.random() < 0.1:
            raise UnknownError("the answer was lost")

    def _share_out(self) -> None:
        names = sorted(self.consumers)
        for number, name in enumerate(names):
            before = self.consumers[name]
            self.consumers[name] = {
                p: before.get(p, self.offsets.get(p, 0))
                for p in range(number, PARTITIONS, len(names))
            }

    async def create(self, name: str) -> None:
        await self._answer()
        self.consumers.setdefault(name, {})
        self._maybe_lose()

    async def subscribe(self, name: str) -> None:
        await self._answer(name)
        self._share_out()
        self._maybe_lose()

    async def delete(self, name: str) -> None:
        await self._answer(name)
        del self.consumers[name]
        self._share_out()
        self._maybe_lose()

    async def records(self, name: str) -> list[tuple[int, int, str]]:
        positions = await self._answer(name)
        found = []
        for partition, first in positions.items():
            end = min(first + 5, self.ends[partition])
            found += [(partition, offset, f"{partition}/{offset}") for offset in range(first, end)]
            positions[partition] = end
        self._maybe_lose()
        return found

    async def assignments(self, name: str) -> frozenset[int]:
        return frozenset(await self._answer(name))

    async def seek(self, name: str, offsets: dict[int, int]) -> None:
        positions = await self._answer(name)
        if not offsets.keys() <= positions.keys():
            raise RefusedError("not assigned")
        if self.bug != "does-not-seek":
            positions.update(offsets)
        self._maybe_lose()

    async def commit(self, name: str) -> None:
        self.offsets.update(await self._answer(name))
        if self.bug == "commits-ahead":
            self.offsets = {p: min(o + 1, self.ends[p]) for p, o in self.offsets.items()}
        self._maybe_lose()

    async def committed(self) -> dict[int, int]:
        await self._answer()
        return dict(self.offsets)


async def live(bug: str, seed: int) -> GroupHistory:
    rng, history = Random(seed), GroupHistory()
    group = OneObjectConsumers(rng, bug)
    clock = Clock(asyncio.get_running_loop().time, asyncio.sleep)
    members = [
        RestMember(f"r{n}", group, history, clock, Random(rng.random()), Habits(harm_chance=0.02))
        for n in range(3)
    ]
    tasks = [asyncio.create_task(member.run()) for member in members]
    for _ in range(300):
        await asyncio.sleep(0.1)
        group.ends[rng.randrange(PARTITIONS)] += 1
    group.is_reliable = True
    for member in members:
        member.is_calm = True
    await asyncio.sleep(10)
    for member in members:
        member.is_over = True
    await asyncio.gather(*tasks)
    await members[0].look()
    history.ends, history.is_drained = group.ends, True
    return history


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_group_satisfies_the_judge(seed: int) -> None:
    history = run_virtual(live("", seed))
    assert violations(history) == []
    fates = {event.fate for event in history.of(Commit)}
    assert fates >= {Fate.OK, Fate.UNKNOWN}


@pytest.mark.parametrize(
    ("bug", "finding"), [("does-not-seek", "lost-record"), ("commits-ahead", "lost-record")]
)
def test_an_unsound_group_is_found_out(bug: str, finding: str) -> None:
    found = {name for seed in range(5) for name, _ in findings(run_virtual(live(bug, seed)))}
    assert finding in found
