"""What happened in a run: typed events, one JSON line each.

Times are seconds since the start of the run, from one monotonic clock. The judgement uses nothing else.
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
    """What the client knows of a write."""

    OK = "ok"
    FAILED = "failed"
    """It certainly did not happen."""
    UNKNOWN = "unknown"


@unique
class Phase(StrEnum):
    """When a read was made: while things break, or after all was healed."""

    RUN = "run"
    FINAL = "final"


@unique
class View(StrEnum):
    """Of which log a write or a page is."""

    PLAIN = "plain"
    """The topic without transactions; ``partition`` is its partition."""
    COMMITTED = "committed"
    """The topics of transactions; ``partition`` counts through ``setup.PLACES``."""
    UNCOMMITTED = "uncommitted"
    """The same places, as ``isolation=read_uncommitted`` shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What a run must reach beyond safety. Seconds; None: no goal."""

    recovery_s: float | None = None
    """Longest write gap of the faulted partition between a fault and the next, while a quorum is left."""
    after_heal_s: float | None = None
    """Longest wait for the first write to any partition after a heal."""
    success_share: float = 0.0
    is_strict: bool = False
    """A write reported as failed that is visible is a violation."""
    is_contiguous: bool = False
    """A gap in the offsets is a violation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The run itself."""

    at_s: float
    scenario: str
    seed: int
    has_quorum: bool
    is_idempotent: bool
    goals: Goals


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The cluster is up; writers and readers begin."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Writers and readers have ended; what follows is healing and the final read."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One record's write, from the first attempt (``sent_s``) to the last answer (``at_s``)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionTried:
    """One transaction, from its beginning (``sent_s``) to the last answer about its end (``at_s``).

    ``outcome``: OK is committed, FAILED is aborted: nothing of it may ever be read. What was consumed was read before
    the first of its writes was sent.
    """

    at_s: float
    sent_s: float
    name: str
    node: int
    """That answered last."""
    outcome: Outcome
    writes: tuple[tuple[int, str, int | None], ...]
    """(place, record, offset if it was told), in the order of writing within each place."""
    consumed: tuple[tuple[int, int, str], ...] = ()
    """(place, offset, record) that its writes were made of."""
    moved: tuple[tuple[int, int, int], ...] = ()
    """(place, from, to): its commit lets the group go on at ``to``, where it stood at ``from`` before."""
    again: Outcome | None = None
    """What the end was said to be when it was asked for again, or for the other one."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """From which offset the group of all that consume goes on, as a node says in the end. None: it never committed."""

    at_s: float
    place: int
    node: int
    next_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One page that was read: (offset, record) pairs in the order they came."""

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
    """A page that could not be read."""

    at_s: float
    reader: str
    partition: int
    node: int
    error: str
    view: View = View.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One step of a fault, from ``began_s`` to ``at_s``. ``partition``: the one whose leader was looked up."""

    at_s: float
    began_s: float
    operation: str
    target: str
    partition: int
    nodes: tuple[int, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """Everything was mended. ``crashed``: nodes that had exited by themselves, with their exit codes."""

    at_s: float
    crashed: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead:
    """One partition was read from one node's own replica up to ``end_offset``; complete: past its marker."""

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
    """Events in memory and, line by line, in a file: a run that is killed leaves what it saw."""

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
        """Seconds since the start of the run."""
        return round(self._clock() - self._start, 4)

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)
        self._file.write(encode_event(event) + "\n")


def encode_event(event: Event) -> str:
    """One line of history."""
    return json.dumps({"type": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def decode_event(line: str) -> Event:
    """The event of one line."""
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
    """All events of a history; the last line may be cut short."""
    return [decode_event(line) for line in lines if line.endswith("\n")]
