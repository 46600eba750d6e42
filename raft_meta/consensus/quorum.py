"""The quorum as the rest of a node sees it, whatever library does consensus.

A ``Quorum`` owns a thread with an event loop of its own, so that its syncs never stall the data path. Its coroutines
may be awaited from any loop. The state machine and the listener are called on the quorum's thread.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol


@unique
class Role(StrEnum):
    """Raft role of this node. An observer follows without a vote; a learner is a voter that lost its directory."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """Where the quorum stands, as far as this node knows. ``leader_id``: node id of the Raft leader, or None."""

    role: Role
    leader_id: int | None
    term: int
    commit_index: int
    applied_index: int


class StateMachine(Protocol):
    """Target of the log; called on the quorum's thread only."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply one committed command; returns the response for whoever proposed it.

        May raise nothing but what must stop the process.
        """

    def publish(self) -> None:
        """What was applied, or restored, may be shown: whoever waits for an answer of it has been handed that."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """A frozen view of the state now. The callable packs it in chunks, on any thread, later."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the whole state.

        Raises:
            CorruptLogError: the chunks are not a whole snapshot; the process must stop.
        """


class Quorum(Protocol):
    """The metadata quorum."""

    def status(self) -> QuorumStatus:
        """A recent view; safe from any thread."""

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """Commit a command; returns ``StateMachine.apply``'s response, from any node.

        Raises:
            NoQuorumError: it was certainly not applied.
            FateUnknownError: it may have been, or may yet be, applied.
            RequestTooLargeError: above 1 MiB.
        """

    async def barrier(self, *, timeout_ms: int) -> int:
        """Wait until this node has applied all that was committed when it was called; returns that index.

        Raises:
            NoQuorumError: no majority answered in time.
        """

    async def transfer_leadership(self, *, timeout_ms: int) -> bool:
        """Hand Raft leadership to an up-to-date voter; True when this node does not lead any more."""

    def accept(self, connection: socket.socket) -> None:
        """Take over an accepted socket of which the preface (channel kind Raft) has been read. Any thread."""

    def last_contact_ms(self, node_id: int) -> int | None:
        """Monotonic ms when the voter was last heard of on the Raft channel; None: never. Any thread."""

    async def stop(self) -> None:
        """Sync, close and end the thread."""
