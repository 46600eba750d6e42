"""Verdict of the judge of a load: the anomalies it knows, and what it found of each (pure values).

The names are Jepsen's where it has one:

    lost-write            acknowledged, and not there
    duplicate             one write at two offsets
    nonmonotonic-send     a writer's records stand in another order than it sent them, one after the other
    inconsistent-offsets  an offset shows two records: read back, in an acknowledgement or in a page
    aborted-read          refused ("nothing was written"), and there
    read-then-lost        in a page, and no longer there
    nonmonotonic-poll     a page goes back
    poll-skip             a page leaves out what is there
    corrupt-record        not what was written
    foreign-record        no writer wrote it
    offset-gap            offsets that do not follow each other
    lost-unsafe           lost or moved, where ``acks`` 1 or 0 did not promise that it stays: counted, no fault
    reordered-unsafe      out of order, where ``acks=0`` answered before the record had a place: counted, no fault
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique

EXAMPLES_MAX = 10
"""Sentences kept of each anomaly; the rest is counted."""


@unique
class Anomaly(StrEnum):
    """Kinds of faults; see above."""

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
        """A promise was broken."""
        return self not in (Anomaly.LOST_UNSAFE, Anomaly.REORDERED_UNSAFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts of records, and what was found."""

    sent: int
    acknowledged: int
    refused: int
    unknown: int
    unknown_found: int
    """Records of unknown fate that are in the topic."""
    read: int
    polled: int
    """In the pages of readers."""
    found: Mapping[Anomaly, int]
    examples: Mapping[Anomaly, tuple[str, ...]]
    unread: tuple[str, ...]
    """Why a partition could not be judged, a sentence each."""

    @property
    def faults(self) -> int:
        """Broken promises."""
        return sum(count for anomaly, count in self.found.items() if anomaly.is_fault)

    @property
    def is_conclusive(self) -> bool:
        """Something was acknowledged, and every partition was read to its end."""
        return bool(self.acknowledged) and not self.unread


@dataclass(slots=True)
class Findings:
    """Anomalies as they are found."""

    counts: Counter[Anomaly] = field(default_factory=Counter)
    _examples: defaultdict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, anomaly: Anomaly, text: str) -> None:
        """One more."""
        self.counts[anomaly] += 1
        if len(self._examples[anomaly]) < EXAMPLES_MAX:
            self._examples[anomaly].append(text)

    def examples(self) -> dict[Anomaly, tuple[str, ...]]:
        """The first of each."""
        return {anomaly: tuple(texts) for anomaly, texts in self._examples.items()}
