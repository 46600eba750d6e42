"""The events of a consumer group's members, as one list in the order of time.

Times are seconds of one clock that all members share. ``checker`` judges the list, and needs nothing else.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum, unique


@unique
class Fate(StrEnum):
    """The fate of a commit, as far as its sender knows."""

    OK = "ok"
    FENCED = "fenced"
    REFUSED = "refused"
    """The commit certainly did not take effect, for another reason than fencing."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A heartbeat was answered. The member works on ``assignment`` from now until ``valid_until_s`` at the latest.

    ``valid_until_s`` is the time at which the heartbeat was sent, plus the session timeout.
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
    """The member stopped working on these partitions, because it was asked to, or leaves, dies or is fenced."""

    at_s: float
    member: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The member was told that it is not a member any more under this epoch."""

    at_s: float
    member: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The member got the records [first, end) of a partition, and has processed them."""

    at_s: float
    member: str
    partition: int
    first: int
    values: tuple[str, ...]

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.first + len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An attempt to commit; ``at_s`` is the time at which it ended."""

    sent_s: float
    at_s: float
    member: str
    epoch: int
    offsets: tuple[tuple[int, int], ...]
    """Pairs (partition, offset of the next record)."""
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A read of the committed offsets; partitions without a commit are left out."""

    sent_s: float
    at_s: float
    offsets: tuple[tuple[int, int], ...]


Event = Answered | LetGo | Fenced | Processed | Commit | Looked


@dataclass(slots=True)
class GroupHistory:
    """The history of one group and one topic; ``ends`` has the topic's log ends after the last write."""

    events: list[Event] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    is_drained: bool = False
    """Whether all members had enough time at the end, without faults, to read all records."""
    survivors: tuple[str, ...] = ()
    """The members that are alive at the end."""

    def add(self, event: Event) -> None:
        """Add an event that happens now."""
        self.events.append(event)

    async def look(
        self, committed: Callable[[], Awaitable[dict[int, int]]], now_s: Callable[[], float]
    ) -> dict[int, int]:
        """Read the committed offsets; note them with the times before and after the read."""
        sent_s = now_s()
        found = await committed()
        self.add(Looked(sent_s=sent_s, at_s=now_s(), offsets=tuple(sorted(found.items()))))
        return found

    def of(self, kind: type) -> Iterable[Event]:
        """Return the events of a class."""
        return (event for event in self.events if isinstance(event, kind))
