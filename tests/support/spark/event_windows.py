"""Count windows and sessions of event time in plain Python, for comparison with Spark's stateful jobs."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

E = TypeVar("E")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Windows(Generic[E]):
    """Tumbling windows of ``window_s`` seconds; a window closes when an event is ``late_s`` seconds later than its end.

    ``time_of`` and ``key_of`` return the time and the key of an event. Attributes: ``closed`` and ``opened`` have the
    events of closed and open windows, by window start and key; ``late`` has events of windows that were already closed.
    """

    window_s: int
    late_s: int
    time_of: Callable[[E], datetime]
    key_of: Callable[[E], Hashable]
    opened: dict[tuple[datetime, Hashable], list[E]] = field(
        default_factory=lambda: defaultdict(list)
    )
    closed: dict[tuple[datetime, Hashable], list[E]] = field(default_factory=dict)
    late: list[E] = field(default_factory=list)
    watermark: datetime | None = None

    def run(self, events: Iterable[E]) -> None:
        """Process these events as one batch."""
        latest = self.watermark
        for event in events:
            time = self.time_of(event)
            seconds = (time - EPOCH) // timedelta(seconds=1)
            start = EPOCH + timedelta(seconds=seconds - seconds % self.window_s)
            if self.watermark is not None and self._end(start) <= self.watermark:
                self.late.append(event)
                continue
            self.opened[start, self.key_of(event)].append(event)
            mark = time - timedelta(seconds=self.late_s)
            latest = mark if latest is None else max(latest, mark)
        self.watermark = latest
        for place in [p for p in self.opened if latest is not None and self._end(p[0]) <= latest]:
            self.closed[place] = self.opened.pop(place)

    def _end(self, start: datetime) -> datetime:
        return start + timedelta(seconds=self.window_s)


@dataclass
class Sessions(Generic[E]):
    """Sessions: events of one key with pauses of at most ``gap_s`` seconds.

    A session closes ``gap_s + late_s`` after its last event. ``time_of`` and ``key_of`` return the time and the key of
    an event. Attributes: ``closed`` and ``opened`` have closed and open sessions, each with its key and its events by
    time; ``late`` has events that came too late.
    """

    gap_s: int
    late_s: int
    time_of: Callable[[E], datetime]
    key_of: Callable[[E], Hashable]
    opened: list[tuple[Hashable, list[E]]] = field(default_factory=list)
    closed: list[tuple[Hashable, list[E]]] = field(default_factory=list)
    late: list[E] = field(default_factory=list)
    watermark: datetime | None = None

    def run(self, events: Iterable[E]) -> None:
        """Process these events as one batch."""
        gap, lateness = timedelta(seconds=self.gap_s), timedelta(seconds=self.late_s)
        by_key: dict[Hashable, list[E]] = defaultdict(list)
        for key, old in self.opened:
            by_key[key] += old
        latest = self.watermark
        for event in events:
            time = self.time_of(event)
            if self.watermark is not None and time + gap <= self.watermark:
                self.late.append(event)
                continue
            by_key[self.key_of(event)].append(event)
            latest = time - lateness if latest is None else max(latest, time - lateness)
        self.watermark = latest
        self.opened = []
        for key, found in by_key.items():
            for session in self._split(sorted(found, key=self.time_of), gap):
                is_over = latest is not None and self.time_of(session[-1]) + gap <= latest
                (self.closed if is_over else self.opened).append((key, session))

    def _split(self, events: list[E], gap: timedelta) -> list[list[E]]:
        sessions: list[list[E]] = []
        for event in events:
            if sessions and self.time_of(event) - self.time_of(sessions[-1][-1]) <= gap:
                sessions[-1].append(event)
            else:
                sessions.append([event])
        return sessions
