"""The records that the application was given last, and how many of them it has finished (pure).

After ``poll``, the application is done with the records when it polls again. During an iteration, it has one record at
a time. The records before this record are done. The records behind it were not given yet, and may be put back.
"""

from dataclasses import dataclass, field

from milena.consuming.feed import Feed
from milena.records import ConsumedRecord


@dataclass(slots=True)
class PolledRecords:
    """Records by feed, in the order in which they were taken.

    ``is_iterated`` says whether the application takes the records one by one. If so, ``current`` is the record that it
    has now, or None before the first one. Otherwise ``current`` is None, and the application was given all records.
    """

    runs: list[tuple[Feed, list[ConsumedRecord]]] = field(default_factory=list)
    is_iterated: bool = False
    current: ConsumedRecord | None = None

    def reached(self, feed: Feed) -> int | None:
        """Return the offset after the last record of this feed that the application was given."""
        records = self._of(feed)
        if not self.is_iterated or records is None:
            return feed.position
        if self.current is None:
            return records[0].offset
        if self.current is records[-1]:
            return feed.position
        return self.current.offset + 1

    def done(self, feed: Feed) -> int | None:
        """Return the offset of the first record of this feed that the application has not finished."""
        records = self._of(feed)
        if records is None:
            return feed.position
        if self.is_iterated and self.current is not None:
            return self.current.offset
        return records[0].offset

    def settle(self, *, is_done: bool) -> None:
        """Forget all records. Put those back into their feeds that the application was not given.

        If ``is_done`` is False, the records that it was given are put back too.
        """
        for feed, records in reversed(self.runs):
            feed.put_back(records[self._given(records, is_done=is_done) :])
        self.clear()

    def drop(self, feed: Feed) -> None:
        """Drop the records of this feed."""
        self.runs = [run for run in self.runs if run[0] is not feed]

    def clear(self) -> None:
        """Drop all records."""
        self.runs = []
        self.is_iterated = False
        self.current = None

    def _given(self, records: list[ConsumedRecord], *, is_done: bool) -> int:
        """Return how many of these records are not put back."""
        if not self.is_iterated:
            return len(records) if is_done else 0
        if self.current is None:
            return 0
        offset = self.current.offset + (1 if is_done else 0)
        return sum(record.offset < offset for record in records)

    def _of(self, feed: Feed) -> list[ConsumedRecord] | None:
        return next((records for other, records in self.runs if other is feed and records), None)
