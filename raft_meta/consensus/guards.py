"""The faults of the library with the guard against each, and the pure part of those guards that have one.

The library's election and replication core is used, but not as it comes: simulation and reading found these faults.
Each guard has its name, the module of this folder where it stands, what it does, and what goes wrong without it. The
row ``raft-NAME`` of ``tests/sim/mutations/guards/consensus.py`` takes it out of the source, and says what fails then.

The disk:

    sync (outbox)
        The log is synced before a vote, a campaign or an acknowledgement leaves. Else: two leaders in a term.
    ownsync (core)
        A leader counts its own copy only once synced; its appends leave before, so that both disks work at once.
        Else: an entry counts as committed that a power cut takes away.
    snapsync (installer, snapshot)
        A snapshot is synced before it replaces the old one, and before it is acknowledged. Else: a power cut leaves
        neither the snapshot nor the log that it stands for.
    align (installer)
        At boot the log's head is aligned with the snapshot. Else: a mismatch clears the log, tail included.

Messages:

    oneconn (transport)
        One live connection a pair: what an older one still delivers is ignored. Else: messages are reordered.
    ackterm (core)
        Acknowledgements carry the term. Else: one of an earlier term counts for entries of this one.
    trim (core)
        Entries that are there already are skipped: a follower truncates on conflict only. Else: a late append cuts
        off what was acknowledged.
    cap (core)
        A follower commits no further than what the message at hand has verified. Else: it commits a tail that the
        leader may not have.
    chunkcommit (installer)
        Snapshot pieces commit nothing: they verify nothing. Else: as without cap.
    hint (core)
        A follower that does not match says where to go on. Else: one entry a round trip, or never.
    nextback (core)
        A late acknowledgement does not move the leader's pipeline back. Else: entries that are on their way are sent
        again.

Elections:

    prevote (core, PreVote)
        A node campaigns only after a majority said that it would vote. Else: a half-cut node drives the term up.
    stepdown (core)
        A stale leader is told the newer term. Else: with pre-votes, a node of a higher term stays out for good.
    votes (core, VoteBook)
        Votes are counted by node, not by message. Else: one node's repeated vote makes a leader.
    learner (core)
        A voter that lost its directory neither votes nor counts until it holds a fresh entry of its own. Else: it may
        vote twice in a term, and counts for what it has lost.

Commands:

    lost (core)
        When the leader's connection drops, what was forwarded to it has an unknown fate. Else: it hangs.
    orphans (core)
        Commands whose entry was truncated or skipped by a snapshot are answered "unknown". Else: they hang.
    reqid (core)
        Ids of forwarded commands start at the incarnation. Else: an answer to a former life's request counts.

Snapshots:

    snapback (installer)
        A snapshot older than what is committed here is ignored. Else: the node goes backwards.
    suffix (installer)
        Installing a snapshot keeps a log suffix that continues it: it may have been acknowledged. Else: it is lost.
    suffixcap (installer)
        After an installation the commit index is the snapshot's; the suffix is not verified by it. Else: as without
        cap.
    chunks (installer)
        Pieces carry a transfer id and an offset. Else: two transfers are spliced.
    chunkack (installer)
        Pieces are answered. Else: a leader that sends a long snapshot believes that it lost its majority.
    crc (installer)
        A received snapshot is verified as a whole. Else: a bad one is swallowed and acknowledged.
    cancel (core)
        A transfer ends with its connection and its term. Else: it goes on behind pieces that were lost.
    serrace (snapshotter)
        A local snapshot that finishes after a newer one was installed is thrown away. Else: it replaces the newer
        one.
    busy (replicator)
        The leader sends a bounded number of unanswered pieces, and does not spin for more. Else: a whole snapshot is
        in memory at once.
    tail (snapshotter)
        No compaction while a snapshot is being sent. Else: a slow follower chases snapshots for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft_meta.consensus.messages import Entry


@dataclass(slots=True)
class VoteBook:
    """Which nodes' votes were counted, for one term at a time."""

    term: int = 0
    voters: set[int] = field(default_factory=set)

    def is_new(self, term: int, node_id: int) -> bool:
        """Note a vote; False when it was counted before."""
        if term != self.term:
            self.term, self.voters = term, set()
        if node_id in self.voters:
            return False
        self.voters.add(node_id)
        return True


@dataclass(slots=True)
class PreVote:
    """The node's intention to campaign: the library sees its deadline only once a majority approved.

    ``deadline``: when to ask. ``is_approved``: a majority would vote.
    """

    deadline: float = 0.0
    is_approved: bool = False
    round: int = 0
    supporters: set[int] | None = None

    def reset(self, deadline: float) -> None:
        """A leader was heard, a vote was given, or a campaign began: start over."""
        self.deadline, self.is_approved, self.supporters = deadline, False, None

    def begin(self, node_id: int, deadline: float, majority: int) -> None:
        """Ask again; the next time at ``deadline``."""
        self.deadline = deadline
        self.round += 1
        self.supporters = {node_id}
        self.is_approved = majority <= 1

    def on_support(self, node_id: int, number: int, majority: int) -> None:
        """A node would vote; counts for the round at hand only."""
        if self.supporters is not None and number == self.round:
            self.supporters.add(node_id)
            self.is_approved = len(self.supporters) >= majority


def matching_count(entries: Sequence[Entry], log: Sequence[Entry]) -> int:
    """How many of the leading ``entries`` the log holds already, or has compacted away."""
    first = log[0][1]
    count = 0
    for _, index, term in entries:
        position = index - first
        if position >= len(log) or (position >= 0 and log[position][2] != term):
            break
        count += 1
    return count
