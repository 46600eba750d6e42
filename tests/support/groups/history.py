"""Observations and actions of a consumer group's members, as one list of events in the order of their times.

Times are seconds of one clock that all members share. ``group_checker`` judges; it needs no other knowledge.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum, unique


@unique
class Fate(StrEnum):
    """How a commit ended, as far as its sender knows."""

    OK = "ok"
    FENCED = "fenced"
    REFUSED = "refused"
    """Certainly not committed, for another reason than fencing."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A heartbeat was answered: from now until ``valid_until_s`` at the latest the member works on ``assignment``.

    ``valid_until_s``: the time at which the heartbeat was sent, and a session from then on.
    """

    at_s: float
    member: str
    epoch: int
    generation: int
    assignment: frozenset[int]
    pending: frozenset[int]
    valid_until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """The member works on these no more: asked to give them back, or leaving, dying, fenced."""

    at_s: float
    member: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The member was told that it is none any more, under this epoch."""

    at_s: float
    member: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The member got records [first, end) of a partition, and is done with them."""

    at_s: float
    member: str
    partition: int
    first: int
    values: tuple[str, ...]

    @property
    def end(self) -> int:
        """Behind the last."""
        return self.first + len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An attempt to commit. ``at_s``: when it ended."""

    sent_s: float
    at_s: float
    member: str
    epoch: int
    offsets: tuple[tuple[int, int], ...]
    """(partition, offset of the next record)"""
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Somebody asked what is committed; partitions without a commit are left out."""

    sent_s: float
    at_s: float
    offsets: tuple[tuple[int, int], ...]


Event = Answered | LetGo | Fenced | Processed | Commit | Looked


@dataclass(slots=True)
class GroupHistory:
    """The history of one group and one topic. ``ends``: the topic's log ends after the last write."""

    events: list[Event] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    is_drained: bool = False
    """Everybody had all the time that they may need, without faults: what is not read now never will be."""
    survivors: tuple[str, ...] = ()
    """Members that live to the end."""

    def add(self, event: Event) -> None:
        """It happened now."""
        self.events.append(event)

    async def look(
        self, committed: Callable[[], Awaitable[dict[int, int]]], now_s: Callable[[], float]
    ) -> dict[int, int]:
        """Ask what is committed, and note the answer with both its times."""
        sent_s = now_s()
        found = await committed()
        self.add(Looked(sent_s=sent_s, at_s=now_s(), offsets=tuple(sorted(found.items()))))
        return found

    def of(self, kind: type) -> Iterable[Event]:
        """Events of one kind."""
        return (event for event in self.events if isinstance(event, kind))
