"""The reference model: what clients sent, which responses they got, and what readers must and may see after that.

The model predicts no offset. It learns offsets from responses. For each record it has the time from which readers must
see it, and the time from which they may. All times are from one clock of the judge.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOREVER = float("inf")
UID = re.compile(r"w(\d+)x")


class Fate(Enum):
    """The client's knowledge of a write."""

    OPEN = "open"
    ACKED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Number:
    """A JSON number, as the digits that were written."""

    text: str


def parse_json(text: str | bytes) -> Any:
    """Parse JSON and keep the digits of numbers. A ValueError says that it is not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse)


def is_json(data: bytes) -> bool:
    """Tell whether bytes are JSON in UTF-8."""
    try:
        parse_json(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class Datum:
    """A key or a value: its bytes, or JSON whose white space and escapes may differ when it is stored."""

    data: bytes | None
    is_loose: bool = False

    def allows(self, shown: Shown) -> bool:
        """Return whether a reader may get this key or value."""
        if self.data is None or shown.is_null:
            return (self.data is None or self.data == b"null") == shown.is_null and (
                shown.is_parsed or (self.data is None) == (shown.raw is None)
            )
        if shown.is_parsed:
            return is_json(self.data) and bool(parse_json(self.data) == shown.parsed)
        if self.is_loose:
            return is_json(shown.raw or b"") and bool(
                parse_json(self.data) == parse_json(shown.raw or b"")
            )
        return self.data == shown.raw


@dataclass(frozen=True)
class Shown:
    """A key or a value as a path shows it: bytes, or parsed JSON."""

    raw: bytes | None = None
    parsed: Any = None
    is_parsed: bool = False

    @property
    def is_null(self) -> bool:
        """Tell whether nothing is shown, or a JSON null."""
        return self.parsed is None if self.is_parsed else self.raw is None

    def text(self) -> str:
        """Return the text in which to search for a record's id."""
        return repr(self.parsed) if self.is_parsed else (self.raw or b"").decode("utf-8", "replace")


@dataclass
class Transaction:
    """A transaction. From `visible` on every reader must see its records; from `may_show` on a reader may."""

    name: str
    began: float
    low: dict[Partition, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    fate: Fate = Fate.OPEN
    may_show: float = FOREVER
    visible: float = FOREVER
    ended: float = FOREVER
    over: float = FOREVER  # when its end was answered
    is_heard: bool = False  # every leader knows its end

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Sent:
    """A record that a client sent."""

    uid: int
    topic: Topic
    key: Datum
    value: Datum
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int | None
    partition: int | None
    began: float
    path: str = ""
    fate: Fate = Fate.OPEN
    ended: float = FOREVER
    offset: int | None = None
    transaction: Transaction | None = None

    @property
    def visible(self) -> float:
        """Return the time from which every reader must see the record."""
        if self.fate is not Fate.ACKED or self.offset is None:
            return FOREVER
        return self.ended if self.transaction is None else max(self.ended, self.transaction.visible)

    @property
    def may_show(self) -> float:
        """Return the earliest time at which a reader may see the record."""
        return self.began if self.transaction is None else self.transaction.may_show


@dataclass
class Seen:
    """A record that a reader got at an offset."""

    uid: int
    key: Shown
    value: Shown
    timestamp: int | None
    at: float
    path: str


@dataclass
class Deletion:
    """A deletion of the records below an offset; `ended` is infinite while its fate is unknown."""

    began: float
    before: int
    ended: float = FOREVER


@dataclass
class Partition:
    """A partition of a topic, with all knowledge about its offsets."""

    topic: Topic
    number: int
    acked: dict[int, Sent] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    uids: dict[int, int] = field(default_factory=dict)
    deletions: list[Deletion] = field(default_factory=list)
    has_markers: bool = False
    is_doubled: bool = False  # a record is at two offsets, which is a separate finding
    busy: int = 0
    _end_times: list[float] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    @property
    def name(self) -> str:
        """Return topic and number."""
        return f"{self.topic.name}-{self.number}"

    def told_end(self, at: float, end: int) -> None:
        """Note that the partition's end was not below this offset at this time."""
        place = bisect_right(self._end_times, at)
        floor = self._ends[place - 1] if place else 0
        if end <= floor:
            return
        self._end_times.insert(place, at)
        self._ends.insert(place, end)
        for later in range(place + 1, len(self._ends)):
            self._ends[later] = max(self._ends[later], end)

    def end_floor(self, at: float) -> int:
        """Return the least end offset that a later response may report."""
        place = bisect_right(self._end_times, at)
        return self._ends[place - 1] if place else 0

    def start_range(self, began: float, ended: float) -> tuple[int, int]:
        """Return the least and the greatest first offset that were possible during a question."""
        sure = max((d.before for d in self.deletions if d.ended <= began), default=0)
        maybe = max((d.before for d in self.deletions if d.began <= ended), default=0)
        return sure, max(sure, maybe)

    def first(self, at: float) -> int:
        """Return an offset at which a reader may start at that time."""
        return min(self.start_range(at, at)[1], self.end_floor(at))

    def stable_floor(self, at: float) -> float:
        """Return the least offset that a transaction may hold up, if it may have been open at that time."""
        held = [t.low[self] for t in self.topic.transactions if self in t.low and t.ended > at]
        return min(held, default=FOREVER)

    def must_show(
        self, began: float, ended: float, start: int, *, uncommitted: bool = False
    ) -> list[int]:
        """Return the offsets that a response must have, for a question between these times."""
        stable = FOREVER if uncommitted else self.stable_floor(began)
        _, deleted = self.start_range(began, ended)
        least = max(start, deleted)
        return sorted(
            o for o, s in self.acked.items() if least <= o < stable and s.visible <= began
        )

    def is_quiet(self, began: float) -> bool:
        """Return whether no write, transaction or deletion was in progress since then, and none has an unknown fate."""
        return (
            not self.busy
            and not self.is_doubled
            and not any(self.topic.sent_to(uid, self.number) for uid in self.topic.unknown)
            and all(t.ended <= began for t in self.topic.transactions if self in t.low)
            and all(d.ended <= began for d in self.deletions)
            and self.topic.changed <= began
        )


@dataclass
class Topic:
    """A topic from its creation to its deletion."""

    name: str
    partitions: list[Partition]
    transactions: list[Transaction] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)  # records whose fate is open
    changed: float = 0.0
    key_places: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    places: dict[int, int | None] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    def sent_to(self, uid: int, number: int) -> bool:
        """Tell whether a record may be in a partition."""
        return self.places.get(uid) in (None, number)


@dataclass
class Model:
    """All knowledge about a cluster."""

    now: Callable[[], float]
    step: Callable[[], str] = lambda: ""
    topics: dict[str, Topic] = field(default_factory=dict)
    sent: dict[int, Sent] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _uids: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 60)))

    def create(self, name: str, partitions: int, *, is_shared: bool = True) -> Topic:
        """Note a created topic; other steps use it only if it is shared."""
        with self.lock:
            topic = Topic(name, [], changed=self.now())
            topic.partitions.extend(Partition(topic, number) for number in range(partitions))
            if is_shared:
                self.topics[name] = topic
            return topic

    def next_uid(self) -> int:
        """Return the id of the next record, which is also a part of the record."""
        with self.lock:
            return next(self._uids)

    def begin(self, records: list[Sent], transaction: Transaction | None = None) -> None:
        """Note that records are about to be sent."""
        with self.lock:
            for sent in records:
                sent.path += self.step()
                self.sent[sent.uid] = sent
                sent.topic.places[sent.uid] = sent.partition
                sent.began = self.now()
                for partition in sent.topic.partitions:
                    if sent.partition in (None, partition.number):
                        partition.busy += 1
                        if transaction is not None:
                            transaction.low.setdefault(partition, partition.end_floor(self.now()))
                            partition.has_markers = True
                if transaction is not None:
                    sent.transaction = transaction
                    transaction.sent.append(sent)
                    if transaction not in sent.topic.transactions:
                        sent.topic.transactions.append(transaction)

    def settle(
        self, sent: Sent, fate: Fate, partition: int | None = None, offset: int | None = None
    ) -> None:
        """Note the fate of a record."""
        with self.lock:
            now = self.now()
            for place in sent.topic.partitions:
                if sent.partition in (None, place.number):
                    place.busy -= 1
            sent.fate, sent.ended = fate, now
            if fate is Fate.UNKNOWN:
                sent.topic.unknown.add(sent.uid)
            sent.topic.changed = now
            if fate is Fate.ACKED and partition is not None:
                sent.partition, sent.offset = partition, offset
                if offset is not None and partition < len(sent.topic.partitions):
                    place = sent.topic.partitions[partition]
                    place.acked[offset] = sent
                    place.uids[sent.uid] = offset
                    place.told_end(now, offset + 1)

    def appeared(self, sent: Sent, partition: Partition, offset: int, at: float) -> None:
        """Note that a record of unknown fate was read: from now on every reader must see it."""
        if sent.fate is not Fate.UNKNOWN or sent.transaction is not None:
            return
        sent.fate, sent.ended, sent.partition, sent.offset = (
            Fate.ACKED,
            at,
            partition.number,
            offset,
        )
        sent.topic.unknown.discard(sent.uid)
        sent.topic.changed = self.now()
        partition.acked.setdefault(offset, sent)

    def end(self, transaction: Transaction, fate: Fate, *, after_s: float = 0.0) -> None:
        """Note how a transaction ended, and the time after which it no longer holds up readers."""
        with self.lock:
            transaction.fate, transaction.over = fate, self.now()
            if fate is not Fate.UNKNOWN:
                transaction.ended = self.now() + after_s
            if fate is Fate.ACKED:
                transaction.visible = transaction.ended
            for topic in {sent.topic for sent in transaction.sent}:
                topic.changed = self.now()
