"""Outgoing messages, and the rule that some of them must wait for the disk.

The core queues messages while it works, and ``flush`` sends them. A vote, a request for votes or an acknowledgement
promises that something is on disk. So the outbox syncs the log before it sends such a message. One sync serves all
inputs that arrived together. An append of a leader promises nothing about the leader's disk. It is sent before the
leader's own sync, so that the leader's disk and the followers' disks work at the same time. The core syncs before it
counts the leader's own copy.
"""

from typing import Final, Protocol

from raft_meta.consensus.messages import Message
from raft_meta.consensus.wal import Wal

_PROMISES: Final = frozenset({"request_vote", "response_vote", "next_node_idx"})


class MessageSender(Protocol):
    """Sends messages on the live connections."""

    def send(self, node_id: int, message: Message) -> None:
        """Send the message; drop it if there is no connection."""

    def is_congested(self, node_id: int) -> bool:
        """Whether so many bytes wait to be sent to this node that it should get heartbeats only."""


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
