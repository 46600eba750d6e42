"""The interface of the metadata quorum, independent of the library that does consensus.

A ``Quorum`` has its own thread and event loop, so that its syncs never delay produce and fetch requests. Its coroutines
may be awaited from any loop. It calls the state machine and the listener on its own thread.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol


@unique
class Role(StrEnum):
    """The Raft role of this node.

    An observer follows without a vote. A learner is a voter that lost its directory and has not caught up yet.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """The state of the quorum, as far as this node knows. ``leader_id``: the Raft leader's node id, None if unknown."""

    role: Role
    leader_id: int | None
    term: int
    commit_index: int
    applied_index: int


class StateMachine(Protocol):
    """The state that the log's commands change. Called on the quorum's thread only."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply one committed command; return the response for the caller that proposed it.

        If it raises, the process stops.
        """

    def publish(self) -> None:
        """Make the applied or restored state visible to readers. The commands' responses were delivered before."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Freeze the present state; return a function that packs it into chunks later, on any thread."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the whole state by that of a snapshot.

        Raises:
            CorruptLogError: the chunks are not a whole snapshot; the process must stop.
        """


class Quorum(Protocol):
    """The metadata quorum."""

    def status(self) -> QuorumStatus:
        """Return the last known state of the quorum; safe from any thread."""

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """Have the cluster commit a command, from any node; return the response of ``StateMachine.apply``.

        Raises:
            NoQuorumError: the command was not applied and will not be.
            FateUnknownError: the command may have been applied, or may still be applied later.
            RequestTooLargeError: the command is above 1 MiB.
        """

    async def barrier(self, *, timeout_ms: int) -> int:
        """Wait until this node has applied every command committed before the call; return the applied index.

        Raises:
            NoQuorumError: no majority responded in time.
        """

    def last_contact_ms(self, node_id: int) -> int | None:
        """Return when a message of the voter last arrived, in monotonic ms; None for never. Safe from any thread."""

    def start_obstacle(self) -> str:
        """Return a sentence that says why this node has not joined the quorum yet; empty if no reason is known."""
