"""The verdict on a load: the kinds of anomalies, and how many of each were found (pure values).

The names are Jepsen's if it has one:

    lost-write            acknowledged, and not in the topic
    duplicate             one write at two offsets
    nonmonotonic-send     a writer's records are in another order than it sent them, one after the other
    inconsistent-offsets  two records for one offset, in the topic, an acknowledgement or a page
    aborted-read          refused ("nothing was written"), and in the topic
    read-then-lost        in a page, and no longer in the topic
    nonmonotonic-poll     a reader's page starts before the end of its last page
    poll-skip             a page omits a record of the topic
    corrupt-record        other bytes than were written
    foreign-record        no writer of the run wrote it
    offset-gap            offsets that do not follow each other
    lost-unsafe           lost or moved with ``acks`` 1 or 0, which promise nothing else: counted, no fault
    reordered-unsafe      out of order with ``acks=0``, where writers do not wait for offsets: counted, no fault
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique

EXAMPLES_MAX = 10
"""The number of example sentences kept of each anomaly; further ones are only counted."""


@unique
class Anomaly(StrEnum):
    """The kinds of anomalies; the module's docstring describes each."""

    LOST_WRITE = "lost-write"
    DUPLICATE = "duplicate"
    NONMONOTONIC_SEND = "nonmonotonic-send"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    ABORTED_READ = "aborted-read"
    READ_THEN_LOST = "read-then-lost"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    POLL_SKIP = "poll-skip"
    CORRUPT_RECORD = "corrupt-record"
    FOREIGN_RECORD = "foreign-record"
    OFFSET_GAP = "offset-gap"
    LOST_UNSAFE = "lost-unsafe"
    REORDERED_UNSAFE = "reordered-unsafe"

    @property
    def is_fault(self) -> bool:
        """Return whether the anomaly breaks a promise."""
        return self not in (Anomaly.LOST_UNSAFE, Anomaly.REORDERED_UNSAFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The counts of records and of anomalies."""

    sent: int
    acknowledged: int
    refused: int
    unknown: int
    unknown_found: int
    """Records of unknown fate that are in the topic."""
    read: int
    polled: int
    """Records in the pages of readers."""
    found: Mapping[Anomaly, int]
    examples: Mapping[Anomaly, tuple[str, ...]]
    unread: tuple[str, ...]
    """A sentence for each partition that could not be judged."""

    @property
    def faults(self) -> int:
        """Return the number of broken promises."""
        return sum(count for anomaly, count in self.found.items() if anomaly.is_fault)

    @property
    def is_conclusive(self) -> bool:
        """Return whether a record was acknowledged, and every partition was read to its end."""
        return bool(self.acknowledged) and not self.unread


@dataclass(slots=True)
class Findings:
    """Collects anomalies while the checker finds them."""

    counts: Counter[Anomaly] = field(default_factory=Counter)
    _examples: defaultdict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, anomaly: Anomaly, text: str) -> None:
        """Add one anomaly."""
        self.counts[anomaly] += 1
        if len(self._examples[anomaly]) < EXAMPLES_MAX:
            self._examples[anomaly].append(text)

    def examples(self) -> dict[Anomaly, tuple[str, ...]]:
        """Return the first example sentences of each anomaly."""
        return {anomaly: tuple(texts) for anomaly, texts in self._examples.items()}
