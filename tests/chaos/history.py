"""The events of a run: typed, one JSON line each.

Times are in seconds from the start of the run, from one monotonic clock. The checkers use nothing else.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum, unique
from pathlib import Path
from types import TracebackType
from typing import Self


@unique
class Outcome(StrEnum):
    """The client's knowledge about a write."""

    OK = "ok"
    FAILED = "failed"
    """The write certainly had no effect."""
    UNKNOWN = "unknown"


ANY_NODE = 0
"""The node of an event whose client chooses its nodes itself."""


@unique
class Phase(StrEnum):
    """The phase of a read: while faults are active, or after everything was healed."""

    RUN = "run"
    FINAL = "final"


@unique
class View(StrEnum):
    """The log that a write or a page belongs to."""

    PLAIN = "plain"
    """The topic without transactions; ``partition`` is its partition."""
    COMMITTED = "committed"
    """The topics of transactions; ``partition`` is an index into ``setup.PLACES``."""
    UNCOMMITTED = "uncommitted"
    """The partitions, as ``isolation=read_uncommitted`` shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """The goals of a run beyond safety. Times are in s; None means no goal."""

    recovery_s: float | None = None
    """The longest write gap of the faulted partition between a fault and the next, while a quorum exists."""
    after_heal_s: float | None = None
    """The longest wait for the first write to any partition after a heal."""
    success_share: float = 0.0
    is_strict: bool = False
    """Whether a failed write that is in the log is a violation."""
    is_contiguous: bool = False
    """Whether a gap in the offsets is a violation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The parameters of the run."""

    at_s: float
    scenario: str
    seed: int
    has_quorum: bool
    is_idempotent: bool
    goals: Goals


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The cluster is up; writers and readers start."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Writers and readers have ended; the final heal and the final read follow."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The write of one record, from its first attempt (``sent_s``) to the last response (``at_s``)."""

    at_s: float
    sent_s: float
    record: str
    """"key:sequence", unique in the run."""
    partition: int
    node: int
    acks: str
    outcome: Outcome
    offset: int | None
    error: str | None = None
    view: View = View.PLAIN
    is_once: bool = False
    """Whether the producer's protocol promises that the record has one offset, however often it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionTried:
    """One transaction, from its start (``sent_s``) to the last response about its end (``at_s``).

    ``outcome``: OK means committed. FAILED means aborted: no reader may ever see its records. Its consumed records were
    read before its first write was sent.
    """

    at_s: float
    sent_s: float
    name: str
    node: int
    """The node that responded last."""
    outcome: Outcome
    writes: tuple[tuple[int, str, int | None], ...]
    """The writes as (place, record, offset if known), in the order of writing within each place."""
    consumed: tuple[tuple[int, int, str], ...] = ()
    """The consumed records from which the writes were made, as (place, offset, record)."""
    moved: tuple[tuple[int, int, int], ...] = ()
    """The group's move as (place, from, to): the commit moves the group's offset from ``from`` to ``to``."""
    again: Outcome | None = None
    """The outcome that a node reported when the end, or the opposite end, was requested again; None if it was not."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """The group's committed offset at the end, as a node reports it; None if there is no commit."""

    at_s: float
    place: int
    node: int
    next_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One page: (offset, record) pairs, in the order in which they came."""

    at_s: float
    reader: str
    partition: int
    node: int
    from_offset: int
    records: tuple[tuple[int, str], ...]
    phase: Phase
    view: View = View.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed:
    """A read that returned no page."""

    at_s: float
    reader: str
    partition: int
    node: int
    error: str
    view: View = View.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One step of a fault, from ``began_s`` to ``at_s``. ``partition`` is the one whose leader was looked up."""

    at_s: float
    began_s: float
    operation: str
    target: str
    partition: int
    nodes: tuple[int, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """All faults were undone. ``crashed`` has the nodes that had exited by themselves, with their exit codes."""

    at_s: float
    crashed: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead:
    """A partition was read from one node's own replica up to ``end_offset``; if complete, past its marker."""

    at_s: float
    partition: int
    node: int
    is_complete: bool
    end_offset: int
    view: View = View.PLAIN


Event = (
    Meta | Started | Ended | Write | TransactionTried | GroupPosition | Read | ReadFailed | Fault | Heal | FinalRead
)  # fmt: skip
EVENTS: tuple[type[Event], ...] = (
    Meta, Started, Ended, Write, TransactionTried, GroupPosition, Read, ReadFailed, Fault, Heal, FinalRead,
)  # fmt: skip
_BY_NAME = {kind.__name__: kind for kind in EVENTS}


class History:
    """Events in memory and in a file, line by line: a killed run leaves all earlier events."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.events: list[Event] = []
        self._file = path.open("w")
        self._clock = clock
        self._start = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def now_s(self) -> float:
        """Return the seconds since the start of the run."""
        return round(self._clock() - self._start, 4)

    def add(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)
        self._file.write(encode_event(event) + "\n")


def encode_event(event: Event) -> str:
    """Return an event as one line."""
    return json.dumps({"type": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def decode_event(line: str) -> Event:
    """Return the event of one line."""
    values = json.loads(line)
    kind = _BY_NAME[values.pop("type")]
    for name, restore in _RESTORED.items():
        if name in values and any(f.name == name for f in fields(kind)):
            values[name] = restore(values[name])
    return kind(**values)


_RESTORED: dict[str, Callable[..., object]] = {
    "goals": lambda value: Goals(**value),
    "outcome": Outcome,
    "again": lambda value: None if value is None else Outcome(value),
    "phase": Phase,
    "view": View,
    "nodes": tuple,
    **dict.fromkeys(
        ("records", "writes", "consumed", "moved"), lambda rows: tuple(map(tuple, rows))
    ),
}


def load(lines: Iterable[str]) -> list[Event]:
    """Return all events of a history; an incomplete last line is ignored."""
    return [decode_event(line) for line in lines if line.endswith("\n")]
