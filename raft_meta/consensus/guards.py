"""The faults of the library with the guard against each, and the guards that are pure functions or values.

Milena uses the library's election and replication core with guards: simulation and reading found these faults. The
list has each guard's name, its module in this folder, its effect, and what goes wrong without it. The row
``raft-NAME`` of ``tests/sim/mutations/guards/consensus.py`` removes a guard from the source and names what then fails.

The disk:

    sync (outbox)
        The log is synced before a vote, a campaign or an acknowledgement leaves. Else: two leaders in a term.
    ownsync (core)
        A leader counts its own copy only once it is synced. Its appends leave before, so that both disks work at the
        same time. Else: an entry counts as committed, and a power cut removes it.
    snapsync (installer, snapshot)
        A snapshot is synced before it replaces the old one, and before it is acknowledged. Else: a power cut leaves
        neither the snapshot nor the log that it replaces.
    align (installer)
        At boot the log's head is aligned with the snapshot. Else: a mismatch clears the log, tail included.

Messages:

    oneconn (transport)
        Each pair has one live connection; messages of an older one are ignored. Else: messages are reordered.
    ackterm (core)
        Acknowledgements carry the term. Else: an acknowledgement of an earlier term counts for entries of this term.
    trim (core)
        Entries that the log has already are skipped: a follower truncates on conflict only. Else: a late append cuts
        off acknowledged entries.
    cap (core)
        A follower commits no further than the present message has verified. Else: it commits a tail that the leader
        may not have.
    chunkcommit (installer)
        Snapshot pieces commit nothing: they verify nothing. Else: as without cap.
    hint (core)
        A follower whose log does not match says where to continue. Else: one entry a round trip, or never.
    nextback (core)
        A late acknowledgement does not move the leader's pipeline back. Else: entries in flight are sent again.

Elections:

    prevote (core, PreVote)
        A node campaigns only after a majority said that it would vote. Else: a partly isolated node raises the term.
    stepdown (core)
        A stale leader is told the newer term. Else: with pre-votes, a node of a higher term stays out for good.
    votes (core, VoteBook)
        Votes are counted by node, not by message. Else: one node's repeated vote makes a leader.
    learner (core)
        A voter that lost its directory neither votes nor counts until it holds a fresh entry of its own. Else: it may
        vote twice in a term, and counts for entries that it has lost.

Commands:

    lost (core)
        When the leader's connection drops, commands forwarded to it fail with an unknown fate. Else: they hang.
    orphans (core)
        Commands whose entry was truncated or skipped by a snapshot fail as "unknown". Else: they hang.
    reqid (core)
        Ids of forwarded commands start at the incarnation. Else: a response to a request of the former process counts.

Snapshots:

    snapback (installer)
        A snapshot older than what is committed here is ignored. Else: the node goes backwards.
    suffix (installer)
        Installing a snapshot keeps a log suffix that continues it: it may have been acknowledged. Else: it is lost.
    suffixcap (installer)
        After an installation the commit index is the snapshot's, which does not verify the suffix. Else: as without
        cap.
    chunks (installer)
        Pieces carry a transfer id and an offset. Else: pieces of two transfers are joined.
    chunkack (installer)
        Pieces are acknowledged. Else: a leader that sends a long snapshot believes that it lost its majority.
    crc (installer)
        A received snapshot is verified as a whole. Else: a bad one is installed and acknowledged.
    cancel (core)
        A transfer ends with its connection and its term. Else: it continues behind pieces that were lost.
    serrace (snapshotter)
        A local snapshot that finishes after a newer one was installed is removed. Else: it replaces the newer one.
    busy (replicator)
        The leader sends a bounded number of unacknowledged pieces, and does not spin for more. Else: a whole snapshot
        is in memory at once.
    tail (snapshotter)
        No compaction while a snapshot is being sent. Else: a slow follower needs one snapshot after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft_meta.consensus.messages import Entry


@dataclass(slots=True)
class VoteBook:
    """The nodes whose votes were counted, for one term at a time."""

    term: int = 0
    voters: set[int] = field(default_factory=set)

    def is_new(self, term: int, node_id: int) -> bool:
        """Note a vote; return False if this node's vote was counted before."""
        if term != self.term:
            self.term, self.voters = term, set()
        if node_id in self.voters:
            return False
        self.voters.add(node_id)
        return True


@dataclass(slots=True)
class PreVote:
    """The node's intention to campaign. The library sees its deadline only once a majority approved.

    ``deadline``: when to ask the others. ``is_approved``: a majority would vote for this node.
    """

    deadline: float = 0.0
    is_approved: bool = False
    round: int = 0
    supporters: set[int] | None = None

    def reset(self, deadline: float) -> None:
        """Start over: a leader was heard, a vote was given, or a campaign began."""
        self.deadline, self.is_approved, self.supporters = deadline, False, None

    def begin(self, node_id: int, deadline: float, majority: int) -> None:
        """Start a new round; the next one is due at ``deadline``."""
        self.deadline = deadline
        self.round += 1
        self.supporters = {node_id}
        self.is_approved = majority <= 1

    def on_support(self, node_id: int, number: int, majority: int) -> None:
        """Note that a node would vote. Replies to an earlier round are ignored."""
        if self.supporters is not None and number == self.round:
            self.supporters.add(node_id)
            self.is_approved = len(self.supporters) >= majority


def matching_count(entries: Sequence[Entry], log: Sequence[Entry]) -> int:
    """Count the leading ``entries`` that the log holds already, or has compacted away."""
    first = log[0][1]
    count = 0
    for _, index, term in entries:
        position = index - first
        if position >= len(log) or (position >= 0 and log[position][2] != term):
            break
        count += 1
    return count
