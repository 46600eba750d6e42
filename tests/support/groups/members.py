"""A member of a consumer group that follows the rules, with random breakdowns, for simulated and real nodes.

It reads each record at least once. It processes records and then commits them. It starts at the group's committed
offsets. It works only on partitions that its last heartbeat assigned, and only within its session. It stops working on
a partition before it reports that partition as released.

Its breakdowns are those of real members. It leaves; it dies without a message; it pauses and then continues as if
nothing had happened; it is disconnected. It notes all events in a ``GroupHistory``. It reaches a cluster through a
``GroupApi``, and gets its clock and its random numbers from the caller.
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
    """The request certainly had no effect."""


class FencedError(RefusedError):
    """The sender is not a member any more, under this id and epoch."""


class UnknownError(Exception):
    """The request may have taken effect, or may still do so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat; ``topics`` and the timeouts are sent when joining."""

    member: str
    epoch: int
    owned: frozenset[int]
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The response to a heartbeat."""

    epoch: int
    generation: int
    interval_ms: int
    assignment: frozenset[int]
    pending: frozenset[int]


class GroupApi(Protocol):
    """One group and one topic of a cluster. The implementation chooses a node for each call."""

    async def heartbeat(self, beat: Beat) -> Assigned:
        """Join (epoch 0), stay, or leave (epoch -1)."""

    async def commit(self, member: str, epoch: int, offsets: dict[int, int]) -> None:
        """Commit offsets as a member."""

    async def committed(self) -> dict[int, int]:
        """Return all committed offsets."""

    async def fetch(self, partition: int, offset: int) -> list[str]:
        """Return records from an offset on, without gaps; an empty list at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The rates of a member's actions. Times are in s; chances are per turn of the member's loop."""

    session_s: float = 3.0
    turn_s: float = 0.05
    commit_chance: float = 0.3
    harm_chance: float = 0.01
    pause_s: tuple[float, float] = (0.5, 8.0)
    away_s: tuple[float, float] = (0.1, 3.0)
    cut_s: tuple[float, float] = (0.5, 6.0)


@dataclass(slots=True)
class Clock:
    """A clock in seconds, and a function that waits."""

    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Member:
    """A sequence of members with the same name, one after the other; each has its own id."""

    place: str
    api: GroupApi
    history: GroupHistory
    clock: Clock
    rng: Random
    habits: Habits = field(default_factory=Habits)
    is_calm: bool = False
    """If true, the member has no more breakdowns of its own."""
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
        """Join, work, and break down, until the run is over."""
        self._be_born()
        while not self.is_over:
            await self.clock.sleep(self.habits.turn_s * self.rng.uniform(0.5, 1.5))
            if not self.is_calm and self.rng.random() < self.habits.harm_chance:
                await self.rng.choice((self._leave, self._die, self._pause, self._be_cut_off))()
            await self.turn()

    async def turn(self) -> None:
        """Do one round of work."""
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
        """Send a heartbeat with the owned partitions; take new partitions, and release those that are asked for."""
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
        """Fail if the member is disconnected: neither requests nor responses pass then."""
        if self.clock.now_s() < self.cut_until_s:
            raise UnknownError("cut off")

    async def _on_answer(self, answer: Assigned, valid_until_s: float) -> None:
        now_s = self.clock.now_s()
        if now_s >= valid_until_s:
            # The response is older than the session; wait for the next heartbeat.
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
        """Read on, at first from the group's committed offset."""
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
        """Commit the positions in these partitions."""
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
            # Send a heartbeat next. If only the member's epoch has risen, the response has the new epoch, and nothing
            # is lost.
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
        """Die without a message; another member starts later."""
        self._note("dies")
        self._drop(self.owned)
        await self.clock.sleep(self.rng.uniform(*self.habits.away_s))
        self._be_born()

    async def _pause(self) -> None:
        """Pause without noticing; then first commit, as a process does after a long stop."""
        self._note("stands still")
        await self.clock.sleep(self.rng.uniform(*self.habits.pause_s))
        await self.commit(self.owned)

    async def _be_cut_off(self) -> None:
        self._note("is cut off")
        self.cut_until_s = self.clock.now_s() + self.rng.uniform(*self.habits.cut_s)
