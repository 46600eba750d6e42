"""Flushing: which part of a log is not durable yet, and when it is synced.

A strict log (``flush.messages=1``) syncs every append before the append is acknowledged. Appends that arrive during a
sync wait for the next sync. A relaxed log syncs after a number of records, or after a time.
"""

from storage.log.state import LogState
from storage.log.tickets import SyncTicket
from storage.replica.folder import ReplicaFiles
from storage.segments.segment import Segment


class Flushing:
    """The unsynced part of a log.

    Invariants:
        - everything below ``synced_end`` is durable;
        - every segment that reaches above ``synced_end`` is in ``_unsynced`` or in the ticket in flight;
        - at most one ticket is in flight.
    """

    __slots__ = (
        "_data_bytes",
        "_has_names",
        "_records",
        "_replica",
        "_since_ms",
        "_state",
        "_ticket",
        "_unsynced",
        "synced_end",
    )

    def __init__(self, replica: ReplicaFiles, state: LogState) -> None:
        """Take the log's parts. Recovery has synced the whole log."""
        self._replica = replica
        self._state = state
        self._ticket: SyncTicket | None = None
        self.synced_end = state.end_offset
        self._reset()

    def _reset(self) -> None:
        self._unsynced: list[Segment] = []
        self._has_names = False
        self._records = self._data_bytes = 0
        self._since_ms: int | None = None

    def note_append(self, segment: Segment, records: int, data_bytes: int) -> None:
        """Note that batches of ``data_bytes`` bytes were written into ``segment``."""
        if segment not in self._unsynced:
            self._unsynced.append(segment)
        self._records += records
        self._data_bytes += data_bytes

    def note_name(self) -> None:
        """Note that a segment file was created or removed. The next ticket also syncs the folder."""
        self._has_names = True

    def is_due(self, now_ms: int) -> bool:
        """Whether a sync is due: for a strict log whenever something is unsynced, for others by count or time."""
        if not self._unsynced and not self._has_names:
            return False
        config = self._state.config
        if config.is_strict:
            return True
        if self._since_ms is None:
            self._since_ms = now_ms
        flush_ms = config.flush_ms
        return self._records >= config.flush_messages or (
            flush_ms is not None and now_ms - self._since_ms >= flush_ms
        )

    def begin(self) -> SyncTicket | None:
        """Return a ticket for everything unsynced; None if all is synced or another ticket is in flight."""
        if self._ticket is not None or not (self._unsynced or self._has_names):
            return None
        self._ticket = SyncTicket(
            self._replica,
            self._unsynced,
            self._state.end_offset,
            data_bytes=self._data_bytes,
            has_names=self._has_names,
        )
        self._reset()
        return self._ticket

    def finish(self, ticket: SyncTicket) -> None:
        """Raise ``synced_end`` by a ticket that has run, and release its pins."""
        ticket.release()
        if ticket is self._ticket:
            self._ticket = None
            self.synced_end = max(self.synced_end, ticket.end_offset)

    def ticket_for_all(self) -> SyncTicket:
        """Return a ticket for everything above ``synced_end``, including what a ticket in flight may be syncing."""
        unsynced = self._state.table.above(self.synced_end)
        return SyncTicket(self._replica, unsynced, self._state.end_offset, has_names=True)

    def sync_all(self) -> None:
        """Sync everything now, on this thread. A ticket in flight stays valid: another thread may be running it.

        Raises:
            DiskFailedError: stop the process.
        """
        ticket = self.ticket_for_all()
        try:
            ticket.run()
        finally:
            ticket.release()
        self.synced_end = ticket.end_offset
        self._reset()

    def note_synced(self, end_offset: int) -> None:
        """Note that a checkpoint synced everything below ``end_offset``; the folder may be unsynced."""
        self.synced_end = max(self.synced_end, end_offset)
        self._unsynced = [
            segment for segment in self._unsynced if segment.next_offset > self.synced_end
        ]

    def note_truncation(self, end_offset: int) -> None:
        """Note that the log now ends at ``end_offset``, and lower the end of a ticket in flight to it."""
        self.synced_end = min(self.synced_end, end_offset)
        if self._ticket is not None:
            self._ticket.end_offset = min(self._ticket.end_offset, end_offset)
        kept = self._state.table.segments
        self._unsynced = [segment for segment in self._unsynced if segment in kept]

    def note_restart(self, offset: int) -> None:
        """Note that the log restarted empty at ``offset``, durably."""
        if self._ticket is not None:
            self._ticket.end_offset = offset
        self.synced_end = offset
        self._reset()
