"""The options of a consumer, and the listener of its partitions: frozen values, checked as a whole (pure)."""

import re
from collections.abc import Awaitable, Set
from dataclasses import dataclass
from typing import Literal, TypedDict

from milena.reading.cursor import OnOutOfRange
from milena.records import Position, StartAt, TopicPartition, check_position, check_range

Assignor = Literal["sticky", "range", "roundrobin"]
"""The rule that assigns a group's partitions to its members.

``sticky`` moves as few partitions as possible. ``range`` gives a member the same partition numbers of all topics.
``roundrobin`` gives the partitions to the members in turn.
"""

ASSIGNORS: tuple[Assignor, ...] = ("sticky", "range", "roundrobin")


class RebalanceListener:
    """A listener for changes of a consumer's partitions.

    A subclass overrides the methods that it needs, with or without ``async``.

    The methods are called from within ``poll`` (or the iteration, or the end of the consumer), never while the
    application works on records. All records that were given out before count as done. A method may call ``commit`` and
    ``seek``, but not ``poll``. If a method raises, ``poll`` raises that error; the change of partitions happens anyway.
    """

    def on_assigned(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """Called with the partitions that this consumer gets, before it reads them.

        A ``seek`` in this method sets where the consumer begins.
        """

    def on_revoked(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """Called with the partitions that this consumer must give up.

        Until this method returns, the consumer has the partitions and may commit their offsets.
        """

    def on_lost(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """Called with the partitions that other members may have already, because the group removed this member.

        Those members read all records again whose offsets were not committed.
        """


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
    """The options of a consumer. The defaults suit a program that handles every record at least once."""

    group: str | None = None
    """The group whose offsets are used and committed.

    Without a group, the consumer reads all partitions and commits nothing.
    """

    start: Position = StartAt.EARLIEST
    """Where to begin in a partition without a committed offset.

    Do not use a number: the same offset would be used for every partition.
    """

    auto_commit: bool = True
    """Whether to commit automatically. Records are committed after the application has asked for the next ones."""

    auto_commit_interval_ms: float = 5_000
    """The interval of automatic commits, in ms. They also happen before partitions are given up, and at the end."""

    max_poll_records: int = 500
    """The most records that one ``poll`` returns by default."""

    max_poll_interval_ms: float = 300_000
    """If the application does not poll within this time (ms), it counts as hanging, and others get its partitions."""

    session_timeout_ms: int = 45_000
    """Without a heartbeat for this long, the group removes this member; 1,000 to 300,000 ms."""

    rebalance_timeout_ms: int = 60_000
    """If partitions must be given up and the application does not poll in this time (ms), the group takes them."""

    assignor: Assignor = "sticky"

    instance_id: str | None = None
    """A name of this member across restarts: a process that joins with it in time keeps the partitions.

    The limit is ``session_timeout_ms``.
    """

    client_id: str = "milena"
    """The name of this program in ``milena groups describe``."""

    listener: RebalanceListener | None = None

    on_out_of_range: OnOutOfRange = OnOutOfRange.EARLIEST
    """Where to continue if the next record was deleted before it was read. Skipped records are logged."""

    fetch_bytes: int = 1 << 20
    """The most bytes that one request fetches. A larger batch is fetched whole."""

    buffer_bytes: int = 64 << 20
    """The most bytes that all partitions together hold. With many partitions, each fetches less, and less far ahead."""

    fetch_wait_ms: int = 5_000
    """How long in ms a node may wait for records before it responds that there are none."""

    patience_ms: float = 60_000
    """How long in ms failures are retried before ``poll`` raises. The next ``poll`` starts again."""

    def __post_init__(self) -> None:
        check_position(self.start)
        check_group(self.group)
        if self.assignor not in ASSIGNORS:
            raise ValueError(f"assignor={self.assignor!r}: use {', '.join(ASSIGNORS)}")
        check_range("auto_commit_interval_ms", self.auto_commit_interval_ms, 10, 86_400_000)
        check_range("max_poll_records", self.max_poll_records, 1, 1 << 30)
        check_range("max_poll_interval_ms", self.max_poll_interval_ms, 1_000, 86_400_000)
        check_range("session_timeout_ms", self.session_timeout_ms, 1_000, 300_000)
        check_range("rebalance_timeout_ms", self.rebalance_timeout_ms, 1_000, 86_400_000)
        check_range("fetch_bytes", self.fetch_bytes, 1, 1 << 30)
        check_range("buffer_bytes", self.buffer_bytes, self.fetch_bytes, 1 << 40)
        check_range("fetch_wait_ms", self.fetch_wait_ms, 0, 300_000)
        check_range("patience_ms", self.patience_ms, 0, 86_400_000)


def check_group(group: object) -> None:
    """Refuse a value that is no name of a group; None stands for no group.

    Raises:
        ValueError: the value is empty, or no text.
    """
    if group is not None and (not isinstance(group, str) or not group):
        raise ValueError(f"group={group!r} is not the name of a group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics to read: by name, or all topics whose whole name matches a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        names: tuple[object, ...] = self.topics
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"{name!r} is not a topic: give the names of topics one by one, as consumer('orders', 'payments')"
                )
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("subscribe either to topics or to a pattern")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(
                    f"pattern={self.pattern!r} is not a regular expression: {error}"
                ) from error
