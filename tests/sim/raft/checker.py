"""The invariants that must hold after every event of the simulation, and at its end.

- A term has at most one Raft leader, which has every entry that was committed in an earlier term.
- There is one committed log: an entry that was applied on one node is the same on all nodes, for ever.
- The committed and the applied index of a running node never fall; its state is that of its applied index.
- A reported success is true: the log has this entry at this index, once. A command with a definite failure was never
  applied. A barrier is not older than what was acknowledged before it started. Each callback runs exactly once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raft_meta.consensus.library import COMMAND, Failure

if TYPE_CHECKING:
    from raft_meta.consensus.core import RaftCore
    from raft_meta.consensus.messages import Entry
    from tests.sim.raft.world import Peer


class ViolationError(Exception):
    """An invariant is broken: (kind, details)."""


def fail(kind: str, *details: object) -> None:
    """Raise a broken invariant."""
    raise ViolationError(kind, " ".join(map(str, details)))


def chained(digest: bytes, entry: bytes) -> bytes:
    """Return the state after one more command; a no-op does not change it."""
    if entry[:1] != COMMAND:
        return digest
    return hashlib.blake2b(digest + entry, digest_size=16).digest()


START = bytes(16)


@dataclass(slots=True)
class Operation:
    """One command of a client. ``outcome`` is "open", None for success, or the failure."""

    entry: bytes
    peer_id: int
    incarnation: int
    acknowledged_before: int
    started_at: float
    outcome: Failure | str | None = "open"


class Checker:
    """Has the one committed log; ``log[i]`` is the (term, command) at index ``i + 2``."""

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.digests = [START]
        self.committed_in_term: list[int] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        self.operations: dict[bytes, Operation] = {}
        self.acknowledged_index = 1
        self.stats: Counter[str] = Counter()

    @property
    def last_index(self) -> int:
        """Return the highest index that any node applied."""
        return len(self.log) + 1

    def digest_at(self, index: int) -> bytes:
        """Return the state at an index."""
        return self.digests[index - 1]

    def on_apply(self, node_id: int, node_term: int, entry: Entry) -> None:
        """Check an entry that a node applies."""
        command, index, term = entry
        if index == self.last_index + 1:
            self.log.append((term, command))
            self.committed_in_term.append(node_term)
            self.digests.append(chained(self.digests[-1], command))
        elif index > self.last_index or self.log[index - 2] != (term, command):
            expected = self.log[index - 2] if index <= self.last_index else "nothing yet"
            fail("diverged", "node", node_id, "applied", entry, "but there is", expected)

    def on_restore(self, node_id: int, index: int, digest: bytes) -> None:
        """Check a snapshot that a node loaded."""
        self.stats["restores"] += 1
        if index > self.last_index or digest != self.digest_at(index):
            fail("bad-state", "node", node_id, "restored index", index)

    def on_success(self, operation: Operation, index: int) -> None:
        """Check a success that a client got, with the index of its entry; for a barrier, with the applied index."""
        is_command = operation.entry[:1] == COMMAND
        if index > self.last_index:
            fail("false-success", operation, "at", index)
        if is_command and self.log[index - 2][1] != operation.entry:
            fail("false-success", operation, "at", index)
        if not is_command and index < operation.acknowledged_before:
            fail("stale-barrier", operation, "at", index)
        self.acknowledged_index = max(self.acknowledged_index, index)
        self.stats["acknowledged"] += 1

    def check_peer(self, peer: Peer, core: RaftCore) -> None:
        """Check a peer after each of its events."""
        library = core.library
        applied, committed = library.applied_index, library.commit_index
        if applied < peer.applied_seen:
            fail("applied-back", peer.id, peer.applied_seen, applied)
        if committed < peer.committed_seen:
            fail("commit-back", peer.id, peer.committed_seen, committed)
        peer.applied_seen, peer.committed_seen = applied, committed
        if peer.machine.digest != self.digest_at(applied):
            fail("state-out-of-step", peer.id, applied)
        if library.is_leader and not peer.led_before:
            self._check_leader(peer, core)
        peer.led_before = library.is_leader

    def _check_leader(self, peer: Peer, core: RaftCore) -> None:
        self.stats["elections"] += 1
        term, me = core.library.term, (peer.id, peer.incarnation)
        if self.leaders.setdefault(term, me) != me:
            fail("two-leaders", "term", term, me, self.leaders[term])
        entries = core.wal.entries
        first = entries[0][1]
        for index in range(max(2, first), self.last_index + 1):
            if self.committed_in_term[index - 2] >= term:
                break  # a late winner need not hold what a later term committed
            position = index - first
            held = entries[position][2::-2] if position < len(entries) else None
            if held != self.log[index - 2]:
                fail("leader-incomplete", peer.id, "term", term, "index", index)

    def check_end(self) -> None:
        """Check the final state, after all faults have ended."""
        counts = Counter(command for _, command in self.log)
        for operation in self.operations.values():
            count = counts[operation.entry]
            is_command = operation.entry[:1] == COMMAND
            if is_command and operation.outcome is None and count != 1:
                fail("lost-or-doubled", operation, count)
            if isinstance(operation.outcome, Failure) and operation.outcome.is_definite and count:
                fail("failed-yet-applied", operation, count)
            if operation.outcome == "withdrawn" and count:
                fail("withdrawn-yet-applied", operation, count)
            if count > 1:
                fail("doubled", operation, count)
