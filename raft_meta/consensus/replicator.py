"""The leader's side of replication: entries, or a snapshot for a node that needs entries that the log has dropped.

It replaces the library's own sender. That one spins while a snapshot is being made, has no flow control, and cuts long
entries with pickle. Entries are pipelined: ``next_index`` moves forward when entries are sent, and back when the
follower reports a mismatch. A snapshot is sent in pieces, of which only a window may be unacknowledged.
"""

from dataclasses import dataclass
from typing import Final

from raft_meta.consensus.messages import Entry
from raft_meta.consensus.outbox import MessageSender
from raft_meta.consensus.parts import CoreParts
from raft_meta.consensus.snapshot import OutgoingTransfer

BATCHES_A_ROUND: Final = 4
"""Most batches that one node gets before the next node gets its own."""

_STALL_SECONDS: Final = 2.0
"""A transfer that made no progress for this long starts again."""


@dataclass(slots=True)
class _Sending:
    transfer: OutgoingTransfer
    index: int
    progress_at: float
    answered_bytes: int = 0
    unanswered: int = 0


class Replicator:
    """Decides which messages each connected node gets. Owned by the core."""

    def __init__(self, parts: CoreParts, sender: MessageSender) -> None:
        self._config = parts.config
        self._clock = parts.clock
        self._library = parts.library
        self._wal = parts.wal
        self._snapshots = parts.snapshots
        self._outbox = parts.outbox
        self._sender = sender
        self._sending: dict[int, _Sending] = {}
        self._serial = 0

    @property
    def is_sending_snapshot(self) -> bool:
        """Whether any node is being sent a snapshot."""
        return bool(self._sending)

    def send_all(self) -> None:
        """Send every connected node entries, snapshot pieces or a heartbeat."""
        for node_id in self._library.connected_ids():
            if self._library.next_index(node_id) <= self._wal.entries[0][1]:
                self._send_pieces(node_id)
            else:
                self._send_entries(node_id)

    def on_answer(self, node_id: int, received_bytes: int) -> None:
        """Note a response of the node. ``received_bytes``: how much of its snapshot it has; 0 if it does not say."""
        sending = self._sending.get(node_id)
        if sending is not None and received_bytes > sending.answered_bytes:
            sending.answered_bytes = received_bytes
            sending.unanswered = max(0, sending.unanswered - 1)
            sending.progress_at = self._clock()
        if self._is_behind(node_id):
            self._library.send_soon()

    def cancel(self, node_id: int) -> None:
        """Stop sending this node a snapshot."""
        sending = self._sending.pop(node_id, None)
        if sending is not None:
            sending.transfer.close()

    def cancel_all(self) -> None:
        """Stop all transfers."""
        for node_id in list(self._sending):
            self.cancel(node_id)

    def _is_behind(self, node_id: int) -> bool:
        return self._library.next_index(node_id) <= self._wal.entries[-1][1]

    # -- entries

    def _send_entries(self, node_id: int) -> None:
        log = self._wal.entries
        first, last = log[0][1], log[-1][1]
        next_index = min(self._library.next_index(node_id), last + 1)
        for _ in range(BATCHES_A_ROUND):
            _, previous_index, previous_term = log[next_index - 1 - first]
            batch = [] if self._sender.is_congested(node_id) else self._batch(next_index - first)
            self._outbox.put(
                node_id,
                {
                    "type": "append_entries",
                    "term": self._library.term,
                    "commit_index": self._library.commit_index,
                    "entries": batch,
                    "prevLogIdx": previous_index,
                    "prevLogTerm": previous_term,
                },
            )
            if batch:
                next_index = batch[-1][1] + 1
                self._library.set_next_index(node_id, next_index)
            if not batch or next_index > last:
                break

    def _batch(self, position: int) -> list[Entry]:
        log = self._wal.entries
        end, size = position, 0
        while end < len(log) and size < self._config.batch_bytes:
            size += len(log[end][0])
            end += 1
        return log[position:end]

    # -- snapshots

    def _send_pieces(self, node_id: int) -> None:
        sending = self._current(node_id)
        sent = 0
        while sending is not None and self._may_send(node_id, sending, sent):
            piece = sending.transfer.next_piece()
            self._put_piece(node_id, piece)
            sending.unanswered += 1
            sent += 1
            if piece[2]:
                self._library.set_next_index(node_id, sending.index + 1)
                self.cancel(node_id)
                break
        if not sent:
            self._put_piece(node_id, None)

    def _may_send(self, node_id: int, sending: _Sending, sent: int) -> bool:
        window_open = max(sending.unanswered, sent) < self._config.window_pieces
        return window_open and not self._sender.is_congested(node_id)

    def _current(self, node_id: int) -> _Sending | None:
        now = self._clock()
        sending = self._sending.get(node_id)
        if sending is not None and now - sending.progress_at <= _STALL_SECONDS:
            return sending
        self.cancel(node_id)
        self._serial += 1
        transfer = self._snapshots.open_outgoing((self._config.incarnation, self._serial))
        if transfer is None or self._snapshots.meta is None:
            return None
        sending = _Sending(transfer, self._snapshots.meta.index, now)
        self._sending[node_id] = sending
        return sending

    def _put_piece(self, node_id: int, piece: object) -> None:
        self._outbox.put(
            node_id,
            {
                "type": "append_entries",
                "term": self._library.term,
                "commit_index": self._library.commit_index,
                "serialized": piece,
            },
        )
