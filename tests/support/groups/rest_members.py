"""A client of a REST consumer that follows the rules, for simulated and real nodes.

It subscribes, reads, processes, and then commits what was delivered, with calls that may go to any node. If the
response to a call for records is lost, it cannot know what was delivered. It then seeks to the group's committed
offsets. It never commits explicit offsets: meanwhile another consumer may have owned the partition and committed higher
ones.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.support.groups.history import Commit, Fate, GroupHistory, Processed
from tests.support.groups.members import Clock, FencedError, Habits, RefusedError, UnknownError


class GoneError(RefusedError):
    """The consumer does not exist."""


class RestApi(Protocol):
    """REST consumers of one group and one topic. The implementation chooses a node for each call."""

    async def create(self, name: str) -> None:
        """Create the consumer, or accept an existing one."""

    async def subscribe(self, name: str) -> None:
        """Subscribe to the topic."""

    async def delete(self, name: str) -> None:
        """Delete the consumer."""

    async def records(self, name: str) -> list[tuple[int, int, str]]:
        """Return (partition, offset, value) of the next records."""

    async def assignments(self, name: str) -> frozenset[int]:
        """Return the partitions that it reads from."""

    async def seek(self, name: str, offsets: dict[int, int]) -> None:
        """Set the positions."""

    async def commit(self, name: str) -> None:
        """Commit the delivered records."""

    async def committed(self) -> dict[int, int]:
        """Return all committed offsets of the group."""


@dataclass(eq=False, slots=True)
class RestMember:
    """A sequence of consumers, one after the other; each has its own name."""

    place: str
    api: RestApi
    history: GroupHistory
    clock: Clock
    rng: Random
    habits: Habits = field(default_factory=Habits)
    is_calm: bool = False
    is_over: bool = False
    harms: list[str] = field(default_factory=list)
    name: str = ""
    is_ready: bool = False
    is_lost: bool = False
    """Whether a response was lost, so that the last delivered records are unknown."""
    _lives: int = 0

    async def run(self) -> None:
        """Create a consumer, work, and break down, until the run is over."""
        self._be_born()
        while not self.is_over:
            await self.clock.sleep(self.habits.turn_s * self.rng.uniform(0.5, 1.5))
            if not self.is_calm and self.rng.random() < self.habits.harm_chance:
                await self.rng.choice((self._leave, self._pause, self._subscribe_again))()
            try:
                await self.turn()
            except GoneError:
                self._be_born()
            except (RefusedError, UnknownError):
                continue

    def _be_born(self) -> None:
        self._lives += 1
        self.name = f"{self.place}-{self._lives}"
        self.is_ready = self.is_lost = False

    async def turn(self) -> None:
        """Do one round of work."""
        if not self.is_ready:
            await self.api.create(self.name)
            await self.api.subscribe(self.name)
            self.is_ready = True
        if self.is_lost:
            await self._find_its_place()
        await self._read()
        if self.rng.random() < self.habits.commit_chance:
            await self._commit()

    async def _find_its_place(self) -> None:
        """Seek to the committed offsets, so that no record is skipped."""
        assigned = await self.api.assignments(self.name)
        committed = await self.look()
        if assigned:
            await self.api.seek(self.name, {p: committed.get(p, 0) for p in assigned})
        self.is_lost = False

    async def _read(self) -> None:
        self.is_lost = True
        try:
            records = await self.api.records(self.name)
        except RefusedError:
            # The request had no effect, so no delivery is lost.
            self.is_lost = False
            raise
        self.is_lost = False
        runs: dict[int, tuple[int, list[str]]] = {}
        for partition, offset, value in records:
            first, values = runs.setdefault(partition, (offset, []))
            assert offset == first + len(values), f"{self.name}: {partition}/{offset} after a gap"
            values.append(value)
        for partition, (first, values) in runs.items():
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

    async def _commit(self) -> None:
        sent_s, name = self.clock.now_s(), self.name
        fate = Fate.OK
        try:
            await self.api.commit(name)
        except FencedError:
            fate = Fate.FENCED
        except GoneError:
            fate = Fate.REFUSED
            self._be_born()
        except RefusedError:
            fate = Fate.REFUSED
        except UnknownError:
            fate = Fate.UNKNOWN
        self.history.add(
            Commit(
                sent_s=sent_s, at_s=self.clock.now_s(), member=name, epoch=-1, offsets=(), fate=fate
            )
        )

    # Breakdowns.

    def _note(self, what: str) -> None:
        self.harms.append(f"{self.clock.now_s():.3f} {self.name} {what}")

    async def _leave(self) -> None:
        self._note("is deleted")
        try:
            await self.api.delete(self.name)
        except UnknownError:
            # Continue as this consumer: if it still exists and is not used, its partitions are not read.
            self._note("may still be there")
            return
        except RefusedError:
            return
        await self.clock.sleep(self.rng.uniform(*self.habits.away_s))
        self._be_born()

    async def _pause(self) -> None:
        self._note("stands still")
        await self.clock.sleep(self.rng.uniform(*self.habits.pause_s))

    async def _subscribe_again(self) -> None:
        self._note("subscribes again")
        self.is_ready = False
