"""Outgoing messages, and the rule that promises wait for the disk.

Nothing leaves while the core works; ``flush`` sends the messages that it produced. A vote, a campaign or an
acknowledgement promises that something is on disk, so the log is synced before it leaves. One sync serves all inputs
that arrived together. A leader's appends promise nothing. They leave before its own sync, so that its disk and the
followers' disks work at the same time. The core syncs before it counts its own copy.
"""

from typing import Final, Protocol

from raft_meta.consensus.messages import Message
from raft_meta.consensus.wal import Wal

_PROMISES: Final = frozenset({"request_vote", "response_vote", "next_node_idx"})


class MessageSender(Protocol):
    """The live connections."""

    def send(self, node_id: int, message: Message) -> None:
        """Send the message, or drop it if there is no connection."""

    def is_congested(self, node_id: int) -> bool:
        """Whether so many bytes wait for this node that it should get heartbeats only."""


class Outbox:
    """Holds messages until ``flush``, in order."""

    def __init__(self, sender: MessageSender, wal: Wal) -> None:
        self._sender = sender
        self._wal = wal
        self._messages: list[tuple[int, Message]] = []

    def put(self, node_id: int, message: Message) -> None:
        """Queue a message for the next flush."""
        self._messages.append((node_id, message))

    def forget(self, node_id: int) -> None:
        """Drop the messages for a node whose connection changed."""
        self._messages = [item for item in self._messages if item[0] != node_id]

    def flush(self) -> None:
        """Sync the log if any message promises that it is synced, then send all messages."""
        if not self._messages:
            return
        messages, self._messages = self._messages, []
        if any(message["type"] in _PROMISES for _, message in messages):
            self._wal.sync()
        for node_id, message in messages:
            self._sender.send(node_id, message)
