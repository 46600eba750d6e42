"""A member of a consumer group that keeps to the rules, until it is told to break down: for simulated and real nodes.

It reads each record at least once: it processes, then commits; goes on where the group's commit stands; works on what
its last heartbeat allowed, and no longer than its session lasts; gives back what it is asked to before it says so. Its
breakdowns are those of real ones: it leaves, it dies without a word, it stands still and then goes on as if nothing had
happened, it is cut off. All that it sees goes to a ``GroupHistory``.

How it reaches a cluster is a ``GroupApi``; time and chance are given.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.support.groups.history import (
    Answered,
    Commit,
    Fate,
    Fenced,
    GroupHistory,
    LetGo,
    Processed,
)


class RefusedError(Exception):
    """Certainly nothing happened."""


class FencedError(RefusedError):
    """Not a member any more, under this id and epoch."""


class UnknownError(Exception):
    """It may have happened, or may yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat. ``topics`` and timeouts are said when joining."""

    member: str
    epoch: int
    owned: frozenset[int]
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Its answer."""

    epoch: int
    generation: int
    interval_ms: int
    assignment: frozenset[int]
    pending: frozenset[int]


class GroupApi(Protocol):
    """One group and one topic of a cluster; the implementation picks a node for each call."""

    async def heartbeat(self, beat: Beat) -> Assigned:
        """Join (epoch 0), stay, or leave (-1)."""

    async def commit(self, member: str, epoch: int, offsets: dict[int, int]) -> None:
        """Commit as a member."""

    async def committed(self) -> dict[int, int]:
        """All committed offsets."""

    async def fetch(self, partition: int, offset: int) -> list[str]:
        """Records from an offset on, without gaps; empty at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How members live. Seconds; chances per turn of a member's loop."""

    session_s: float = 3.0
    turn_s: float = 0.05
    commit_chance: float = 0.3
    harm_chance: float = 0.01
    pause_s: tuple[float, float] = (0.5, 8.0)
    away_s: tuple[float, float] = (0.1, 3.0)
    cut_s: tuple[float, float] = (0.5, 6.0)


@dataclass(slots=True)
class Clock:
    """Seconds since whenever, and a way to let some pass."""

    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Member:
    """One member after another in the same place: each life has an id of its own."""

    place: str
    api: GroupApi
    history: GroupHistory
    clock: Clock
    rng: Random
    habits: Habits = field(default_factory=Habits)
    is_calm: bool = False
    """No breakdowns of its own from now on."""
    is_over: bool = False
    harms: list[str] = field(default_factory=list)
    name: str = ""
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    positions: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    valid_until_s: float = 0.0
    next_beat_s: float = 0.0
    cut_until_s: float = 0.0
    _lives: int = 0

    async def run(self) -> None:
        """Live until it is over."""
        self._be_born()
        while not self.is_over:
            await self.clock.sleep(self.habits.turn_s * self.rng.uniform(0.5, 1.5))
            if not self.is_calm and self.rng.random() < self.habits.harm_chance:
                await self.rng.choice((self._leave, self._die, self._pause, self._be_cut_off))()
            await self.turn()

    async def turn(self) -> None:
        """One round of work."""
        now_s = self.clock.now_s()
        if self.owned and now_s >= self.valid_until_s:
            self._drop(self.owned)
        if now_s >= self.next_beat_s:
            await self.beat()
        for partition in sorted(self.owned):
            await self._work_on(partition)
        if self.rng.random() < self.habits.commit_chance:
            await self.commit(self.owned)

    # Membership.

    def _be_born(self) -> None:
        self._lives += 1
        self.name = f"{self.place}-{self._lives}"
        self.epoch = 0
        self.next_beat_s = 0.0

    async def beat(self, wait_ms: int = 0) -> None:
        """Say that it lives and what it owns; take what is given, give back what is asked for."""
        sent_s = self.clock.now_s()
        self.next_beat_s = sent_s + self.habits.session_s / 6
        beat = Beat(member=self.name, epoch=self.epoch, owned=self.owned, wait_ms=wait_ms)
        try:
            self._check_line()
            answer = await self.api.heartbeat(beat)
            self._check_line()
        except FencedError:
            self._on_fenced()
            return
        except (RefusedError, UnknownError):
            return
        self.next_beat_s = sent_s + min(answer.interval_ms / 1000, self.habits.session_s / 3)
        await self._on_answer(answer, sent_s + self.habits.session_s)

    def _check_line(self) -> None:
        """Neither requests nor answers pass while it is cut off."""
        if self.clock.now_s() < self.cut_until_s:
            raise UnknownError("cut off")

    async def _on_answer(self, answer: Assigned, valid_until_s: float) -> None:
        now_s = self.clock.now_s()
        if now_s >= valid_until_s:
            # Too late to rely on; the next heartbeat says what holds.
            return
        asked_back = self.owned - answer.assignment
        if asked_back:
            if self.rng.random() < 0.7:
                await self.commit(asked_back)
            self._drop(asked_back)
            self.next_beat_s = 0.0
        self.epoch, self.valid_until_s = answer.epoch, valid_until_s
        self.owned = answer.assignment
        self.history.add(
            Answered(
                at_s=self.clock.now_s(),
                member=self.name,
                epoch=answer.epoch,
                generation=answer.generation,
                assignment=answer.assignment,
                pending=answer.pending,
                valid_until_s=valid_until_s,
            )
        )

    def _on_fenced(self) -> None:
        self.history.add(Fenced(at_s=self.clock.now_s(), member=self.name, epoch=self.epoch))
        self._drop(self.owned)
        self._be_born()

    def _drop(self, partitions: frozenset[int]) -> None:
        self.history.add(LetGo(at_s=self.clock.now_s(), member=self.name, partitions=partitions))
        self.owned -= partitions
        for partition in partitions:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    # Work.

    async def _work_on(self, partition: int) -> None:
        """Read on, from the group's commit at first."""
        try:
            self._check_line()
            if partition not in self.positions:
                found = await self.look()
                self._check_line()
                self.positions[partition] = found.get(partition, 0)
                self.committed[partition] = self.positions[partition]
            first = self.positions[partition]
            values = await self.api.fetch(partition, first)
            self._check_line()
        except (RefusedError, UnknownError):
            return
        is_mine = partition in self.owned and self.clock.now_s() < self.valid_until_s
        if values and is_mine:
            self.positions[partition] = first + len(values)
            self.history.add(
                Processed(
                    at_s=self.clock.now_s(),
                    member=self.name,
                    partition=partition,
                    first=first,
                    values=tuple(values),
                )
            )

    async def look(self) -> dict[int, int]:
        """Return the committed offsets."""
        return await self.history.look(self.api.committed, self.clock.now_s)

    async def commit(self, partitions: frozenset[int]) -> None:
        """Commit how far it has come in these."""
        offsets = {
            partition: self.positions[partition]
            for partition in sorted(partitions)
            if self.positions.get(partition, 0) > self.committed.get(partition, 0)
        }
        if not offsets:
            return
        sent_s = self.clock.now_s()
        name, epoch = self.name, self.epoch
        fate = Fate.OK
        try:
            self._check_line()
            await self.api.commit(name, epoch, offsets)
            self._check_line()
        except FencedError:
            fate = Fate.FENCED
        except RefusedError:
            fate = Fate.REFUSED
        except UnknownError:
            fate = Fate.UNKNOWN
        self.history.add(
            Commit(
                sent_s=sent_s,
                at_s=self.clock.now_s(),
                member=name,
                epoch=epoch,
                offsets=tuple(offsets.items()),
                fate=fate,
            )
        )
        if fate is Fate.OK:
            self.committed.update(offsets)
        elif fate is Fate.FENCED:
            # A heartbeat settles it: an epoch that has just risen is no reason to give up.
            self.next_beat_s = 0.0

    # Breakdowns.

    def _note(self, what: str) -> None:
        self.harms.append(f"{self.clock.now_s():.3f} {self.name} {what}")

    async def _leave(self) -> None:
        self._note("leaves")
        await self.commit(self.owned)
        self._drop(self.owned)
        try:
            self._check_line()
            await self.api.heartbeat(Beat(member=self.name, epoch=-1, owned=frozenset()))
        except (RefusedError, UnknownError):
            pass
        await self.clock.sleep(self.rng.uniform(*self.habits.away_s))
        self._be_born()

    async def _die(self) -> None:
        """Somebody else starts in its place, later; the group is not told."""
        self._note("dies")
        self._drop(self.owned)
        await self.clock.sleep(self.rng.uniform(*self.habits.away_s))
        self._be_born()

    async def _pause(self) -> None:
        """It stands still, and does not know: the first thing it does then is to commit."""
        self._note("stands still")
        await self.clock.sleep(self.rng.uniform(*self.habits.pause_s))
        await self.commit(self.owned)

    async def _be_cut_off(self) -> None:
        self._note("is cut off")
        self.cut_until_s = self.clock.now_s() + self.rng.uniform(*self.habits.cut_s)
