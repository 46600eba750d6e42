"""The follower's side of a snapshot: it writes the pieces to a file, checks the file, and installs it.

The leader sends pieces as append messages. The library gets each of them as a heartbeat without content. After the
last piece, the steps have a fixed order: verify the whole file → sync it → rename it over the old snapshot → restore
the state → align the log → acknowledge.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from milena.model.errors import CorruptLogError, DiskFullError
from raft_meta.consensus.messages import Chunk, Entry, Message
from raft_meta.consensus.parts import CoreParts

if TYPE_CHECKING:
    from raft_meta.consensus.snapshot import IncomingTransfer

_FIRST: Final = 1


class Acknowledge(Protocol):
    """The function that responds to the leader."""

    def __call__(self, node_id: int, *, reset: bool, next_index: int | None, success: bool) -> None:
        """Send an acknowledgement with these fields; see ``Hooks.on_acknowledge``."""


class Installer:
    """Receives and loads snapshots. Owned by the core."""

    def __init__(
        self, parts: CoreParts, *, acknowledge: Acknowledge, on_installed: Callable[[], None]
    ) -> None:
        self._library = parts.library
        self._wal = parts.wal
        self._snapshots = parts.snapshots
        self._machine = parts.machine
        self._acknowledge = acknowledge
        self._on_installed = on_installed
        self._incoming: IncomingTransfer | None = None

    def on_piece(self, node_id: int, message: Message) -> None:
        """Take an append message whose field ``serialized`` is a piece, or None if the leader has none to send now."""
        # Guard "chunkcommit": a piece matches no entry of this log, so the library must not move the commit index.
        self._library.receive(node_id, {**message, "serialized": None, "commit_index": 0})
        piece = message["serialized"]
        if piece is None:
            self._answer_progress(node_id)
        elif self._take(node_id, piece):  # type: ignore[arg-type]  # the codec checked its shape
            self._finish(node_id)

    def load(self) -> None:
        """Restore the state from the current snapshot and align the log with it.

        Raises:
            CorruptLogError: the snapshot is damaged. The process must stop, so that it does not run with no state.
        """
        meta, chunks = self._snapshots.read()
        self._machine.restore(chunks)
        position = self._wal.position_of(meta.last)
        if position is None:
            self._wal.restart_with([meta.previous, meta.last])
        elif position != 1:
            self._drop_head(position, [meta.previous, *self._wal.entries[position:]])
        self._library.applied_index = meta.index

    def _drop_head(self, position: int, kept: list[Entry]) -> None:
        if position > 1:
            self._wal.drop_before(kept[0][1])
        else:
            self._wal.restart_with(kept)

    def _take(self, node_id: int, piece: Chunk) -> bool:
        """Store a piece; return True if it was the last one of a transfer."""
        data, is_first, is_last, transfer_id, offset = piece
        if is_first:
            self._drop_incoming()
            self._incoming = self._snapshots.open_incoming(node_id, transfer_id)
        incoming = self._incoming
        if incoming is None:
            return False
        position = (incoming.node_id, incoming.transfer_id, incoming.received_bytes)
        if position != (node_id, transfer_id, offset):
            self._drop_incoming()
            return False
        try:
            incoming.write(data)
        except DiskFullError:
            self._drop_incoming()
            return False
        if not is_last:
            self._answer_progress(node_id)
        return is_last

    def _answer_progress(self, node_id: int) -> None:
        received = self._incoming.received_bytes if self._incoming is not None else 0
        self._acknowledge(node_id, reset=False, next_index=received + _FIRST, success=False)

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    def _finish(self, node_id: int) -> None:
        incoming = self._incoming
        assert incoming is not None, "a finished transfer exists"
        try:
            meta = self._snapshots.verify_incoming()
        except CorruptLogError:
            self._drop_incoming()
            return
        if meta.index <= self._library.commit_index:
            # Guard "snapback": this node's state must not go back in time. Entries committed here are in the log of
            # every later leader, so the leader may continue right behind this node's commit index.
            self._drop_incoming()
            next_index = self._library.commit_index + 1
            self._acknowledge(node_id, reset=False, next_index=next_index, success=True)
            return
        incoming.sync()
        self._drop_incoming()
        self._snapshots.adopt(self._snapshots.incoming_path)
        self.load()
        self._library.commit_index = meta.index
        self._acknowledge(node_id, reset=False, next_index=meta.index + 1, success=True)
        self._on_installed()
