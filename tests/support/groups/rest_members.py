"""A client of a REST consumer that keeps to the rules: for simulated and real nodes.

It subscribes, reads, processes, and then commits what was delivered to it, all by calls that may go to any node. After
a call for records whose answer it never got it cannot know what was delivered: it goes back to the group's commit. It
never says which offsets to commit: a partition may have been somebody else's in between, who came further.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.support.groups.history import Commit, Fate, GroupHistory, Processed
from tests.support.groups.members import Clock, FencedError, Habits, RefusedError, UnknownError


class GoneError(RefusedError):
    """There is no such consumer."""


class RestApi(Protocol):
    """REST consumers of one group and one topic; the implementation picks a node for each call."""

    async def create(self, name: str) -> None:
        """Make it; one that is there already is fine."""

    async def subscribe(self, name: str) -> None:
        """To the topic."""

    async def delete(self, name: str) -> None:
        """It goes."""

    async def records(self, name: str) -> list[tuple[int, int, str]]:
        """(partition, offset, value) of what comes next."""

    async def assignments(self, name: str) -> frozenset[int]:
        """Return the partitions that it reads from."""

    async def seek(self, name: str, offsets: dict[int, int]) -> None:
        """Go on from there."""

    async def commit(self, name: str) -> None:
        """Commit what was delivered."""

    async def committed(self) -> dict[int, int]:
        """All of the group."""


@dataclass(eq=False, slots=True)
class RestMember:
    """One consumer after another in the same place: each life has a name of its own."""

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
    """It does not know what was delivered last."""
    _lives: int = 0

    async def run(self) -> None:
        """Live until it is over."""
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
        """One round of work."""
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
        """Back to what is committed, so that nothing is passed over."""
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
            # Nothing was delivered.
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
            # The group must not wait for it for ever.
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
