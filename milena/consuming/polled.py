"""Records that the application was given last, and how far it is with them (pure).

It is done with all of them when it comes back for more, and not before. Iterating, it has one record at a time: those
before it are done, those behind it were not given yet and may be put back.
"""

from dataclasses import dataclass, field

from milena.consuming.feed import Feed
from milena.records import ConsumedRecord


@dataclass(slots=True)
class PolledRecords:
    """Records by feed, in the order in which they were taken.

    ``current``: the one that the application is at when it iterates; None: it was given all of them at once.
    ``is_iterated`` with a current of None: it was given none yet.
    """

    runs: list[tuple[Feed, list[ConsumedRecord]]] = field(default_factory=list)
    is_iterated: bool = False
    current: ConsumedRecord | None = None

    def reached(self, feed: Feed) -> int | None:
        """The offset after the last record of this feed that was given."""
        records = self._of(feed)
        if not self.is_iterated or records is None:
            return feed.position
        if self.current is None:
            return records[0].offset
        if self.current is records[-1]:
            return feed.position
        return self.current.offset + 1

    def done(self, feed: Feed) -> int | None:
        """The offset of the first record of this feed that the application has not finished with."""
        records = self._of(feed)
        if records is None:
            return feed.position
        if self.is_iterated and self.current is not None:
            return self.current.offset
        return records[0].offset

    def settle(self, *, is_done: bool) -> None:
        """Let go of all: what was not given goes back, and so does, unless ``is_done``, what was."""
        for feed, records in reversed(self.runs):
            feed.put_back(records[self._given(records, is_done=is_done) :])
        self.clear()

    def drop(self, feed: Feed) -> None:
        """Nothing of this feed counts any more."""
        self.runs = [run for run in self.runs if run[0] is not feed]

    def clear(self) -> None:
        """Hold nothing any more."""
        self.runs = []
        self.is_iterated = False
        self.current = None

    def _given(self, records: list[ConsumedRecord], *, is_done: bool) -> int:
        """How many of these count as finished."""
        if not self.is_iterated:
            return len(records) if is_done else 0
        if self.current is None:
            return 0
        offset = self.current.offset + (1 if is_done else 0)
        return sum(record.offset < offset for record in records)

    def _of(self, feed: Feed) -> list[ConsumedRecord] | None:
        return next((records for other, records in self.runs if other is feed and records), None)
