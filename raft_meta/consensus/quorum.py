"""The quorum as the rest of a node sees it, independent of the library that does consensus.

A ``Quorum`` owns a separate thread and event loop, so that its syncs never stall the data path. Its coroutines may be
awaited from any loop. The state machine and the listener are called on the quorum's thread.
"""

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
    """The state of the quorum, as far as this node knows. ``leader_id``: node id of the Raft leader, or None."""

    role: Role
    leader_id: int | None
    term: int
    commit_index: int
    applied_index: int


class StateMachine(Protocol):
    """Target of the log; called on the quorum's thread only."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply one committed command; return the response for its proposer.

        Any exception must stop the process.
        """

    def publish(self) -> None:
        """Show the applied or restored state to readers. The responses of its commands were delivered before."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Freeze the present state. The returned callable packs it in chunks later, on any thread."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the whole state.

        Raises:
            CorruptLogError: the chunks are not a whole snapshot; the process must stop.
        """


class Quorum(Protocol):
    """The metadata quorum."""

    def status(self) -> QuorumStatus:
        """Return a recent view; safe from any thread."""

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """Commit a command, from any node; return the response of ``StateMachine.apply``.

        Raises:
            NoQuorumError: the command was certainly not applied.
            FateUnknownError: the command may have been applied, or may still be applied later.
            RequestTooLargeError: above 1 MiB.
        """

    async def barrier(self, *, timeout_ms: int) -> int:
        """Wait until this node has applied every command committed before the call; return the applied index.

        Raises:
            NoQuorumError: no majority responded in time.
        """

    def last_contact_ms(self, node_id: int) -> int | None:
        """Return when the voter was last heard on the Raft channel, in monotonic ms; None for never. Any thread."""

    def start_obstacle(self) -> str:
        """Return what keeps this node from its first contact with the quorum, as a sentence; empty: nothing known."""
