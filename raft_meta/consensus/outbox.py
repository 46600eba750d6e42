"""Messages on their way out, and the rule that the disk comes first.

Nothing leaves while the core works; ``flush`` sends what it left behind. A vote, a campaign or an acknowledgement
promises what is on disk, so the log is synced before they leave: one sync for all that came in together.
A leader's appends promise nothing: they leave before its own sync, so that its disk and the followers' work at
the same time; the core syncs before it counts itself.
"""

from typing import Final, Protocol

from raft_meta.consensus.messages import Message
from raft_meta.consensus.wal import Wal

_PROMISES: Final = frozenset({"request_vote", "response_vote", "next_node_idx"})


class MessageSender(Protocol):
    """The live connections."""

    def send(self, node_id: int, message: Message) -> None:
        """Send, or drop when there is no connection."""

    def is_congested(self, node_id: int) -> bool:
        """Whether more should not be sent to this node for now."""


class Outbox:
    """Holds messages until ``flush``, in order."""

    def __init__(self, sender: MessageSender, wal: Wal) -> None:
        self._sender = sender
        self._wal = wal
        self._messages: list[tuple[int, Message]] = []

    def put(self, node_id: int, message: Message) -> None:
        """Send at the next flush."""
        self._messages.append((node_id, message))

    def forget(self, node_id: int) -> None:
        """Drop what waits for a node whose connection changed."""
        self._messages = [item for item in self._messages if item[0] != node_id]

    def flush(self) -> None:
        """Sync if anything promises to have been, and send."""
        if not self._messages:
            return
        messages, self._messages = self._messages, []
        if any(message["type"] in _PROMISES for _, message in messages):
            self._wal.sync()
        for node_id, message in messages:
            self._sender.send(node_id, message)
