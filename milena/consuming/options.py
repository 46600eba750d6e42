"""How a consumer behaves, and who hears what becomes of its partitions: frozen values, checked as a whole (pure)."""

import re
from collections.abc import Awaitable, Set
from dataclasses import dataclass
from typing import Literal, TypedDict

from milena.reading.cursor import OnOutOfRange
from milena.records import Position, StartAt, TopicPartition, check_position

Assignor = Literal["sticky", "range", "roundrobin"]
"""How a group's partitions are shared out: moving as few as possible, side by side over topics, or in turn."""

ASSIGNORS: tuple[Assignor, ...] = ("sticky", "range", "roundrobin")


class RebalanceListener:
    """Hears of partitions that come and go; a subclass overrides what it wants to hear, with or without ``async``.

    Called from within ``poll`` (or the iteration, or the end of the consumer), never beside the application's work on
    records: everything that was given out before counts as done. ``commit`` and ``seek`` may be called; ``poll`` not.
    What a method raises, ``poll`` raises; the partitions come or go all the same.
    """

    def on_assigned(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are this consumer's from now on; nothing was read of them yet, so that a ``seek`` comes in time."""

    def on_revoked(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are to be given back. They are still this consumer's, and may be committed, until this returns."""

    def on_lost(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These went to others already: the group gave this member up. What was not committed is read again there."""


class ConsumerKeywords(TypedDict, total=False):
    """The fields of ``ConsumerOptions`` as keywords."""

    group: str | None
    start: Position
    auto_commit: bool
    auto_commit_interval_ms: float
    max_poll_records: int
    max_poll_interval_ms: float
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignor: Assignor
    instance_id: str | None
    client_id: str
    listener: RebalanceListener | None
    on_out_of_range: OnOutOfRange
    fetch_bytes: int
    buffer_bytes: int
    fetch_wait_ms: int
    patience_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Defaults suit a program that handles every record at least once."""

    group: str | None = None
    """Whose offsets are used and committed. Without one, all partitions are read, and nothing is committed."""

    start: Position = StartAt.EARLIEST
    """Where to begin in a partition of which the group has no committed offset. Not a number: offsets are each
    partition's own."""

    auto_commit: bool = True
    """Commit what the application is done with: what was given out before it came back for more."""

    auto_commit_interval_ms: float = 5_000
    """How often; and always before partitions are given back, and at the end."""

    max_poll_records: int = 500
    """The most that one ``poll`` gives when it is not told."""

    max_poll_interval_ms: float = 300_000
    """An application that does not come back for more within this is taken to hang: its partitions go to others."""

    session_timeout_ms: int = 45_000
    """Without a heartbeat for so long, the group gives this member up; 1,000 to 300,000."""

    rebalance_timeout_ms: int = 60_000
    """How long the application may take to come back when partitions are to be given back, before they are taken."""

    assignor: Assignor = "sticky"

    instance_id: str | None = None
    """Names this member across restarts: whoever comes back under it within the session takes over its partitions."""

    client_id: str = "milena"
    """What ``milena groups describe`` shows of this program."""

    listener: RebalanceListener | None = None

    on_out_of_range: OnOutOfRange = OnOutOfRange.EARLIEST
    """Where to go on when the next record was deleted before it was read; what was skipped is logged."""

    fetch_bytes: int = 1 << 20
    """The most that one request fetches; one batch is fetched however large it is."""

    buffer_bytes: int = 64 << 20
    """What all partitions together may hold: with many, each fetches less, and less far ahead."""

    fetch_wait_ms: int = 5_000
    """How long a node may wait for records before it answers that there are none."""

    patience_ms: float = 60_000
    """How long failures are waited out before ``poll`` raises; the next ``poll`` begins anew."""

    def __post_init__(self) -> None:
        check_position(self.start)
        if self.group is not None and not self.group:
            raise ValueError("group='' is no name of a group")
        if self.assignor not in ASSIGNORS:
            raise ValueError(f"assignor={self.assignor!r}: use {', '.join(ASSIGNORS)}")
        _check_range("auto_commit_interval_ms", self.auto_commit_interval_ms, 10, 86_400_000)
        _check_range("max_poll_records", self.max_poll_records, 1, 1 << 30)
        _check_range("max_poll_interval_ms", self.max_poll_interval_ms, 1_000, 86_400_000)
        _check_range("session_timeout_ms", self.session_timeout_ms, 1_000, 300_000)
        _check_range("rebalance_timeout_ms", self.rebalance_timeout_ms, 1_000, 86_400_000)
        _check_range("fetch_bytes", self.fetch_bytes, 1, 1 << 30)
        _check_range("buffer_bytes", self.buffer_bytes, self.fetch_bytes, 1 << 40)
        _check_range("fetch_wait_ms", self.fetch_wait_ms, 0, 300_000)
        _check_range("patience_ms", self.patience_ms, 0, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A consumer's subscription: topics by name, or all whose whole names match a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        names: tuple[object, ...] = self.topics
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"{name!r} is no topic: give the names of topics one by one, as consumer('orders', 'payments')"
                )
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("subscribe either to topics or to a pattern")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(
                    f"pattern={self.pattern!r} is no regular expression: {error}"
                ) from error


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}={value:.15g} must be between {least:.15g} and {most:.15g}")
