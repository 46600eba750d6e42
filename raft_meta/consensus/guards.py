"""The faults of the library and the guard against each. Guards that are pure functions or values are in this module.

Milena uses the election and replication core of the library pysyncobj. Simulation and reading found the faults below.
Each item has the guard's name, the module that contains it, and its effect. After "Else:" stands what goes wrong
without it. The row ``raft-NAME`` of ``tests/sim/mutations/guards/consensus.py`` removes a guard from the source and
names the test that then fails.

The disk:

    sync (outbox)
        The log is synced before a vote, a request for votes or an acknowledgement is sent. Else: two leaders in a term.
    ownsync (core)
        A leader counts its own copy of an entry only after the entry is synced. It sends the entry before, so that its
        disk and the followers' disks work at the same time. Else: an entry counts as committed, and a power cut
        removes it.
    snapsync (installer, snapshot)
        A snapshot is synced before it replaces the old one, and before it is acknowledged. Else: a power cut leaves
        neither the snapshot nor the log that it replaces.
    align (installer)
        At boot the log's first entries are made to match the snapshot. Else: the library clears the whole log on a
        mismatch, including entries behind the snapshot.

Messages:

    oneconn (transport)
        Each pair of nodes has one live connection. Messages that arrive on an older connection are ignored. Else:
        messages are reordered.
    ackterm (core)
        Acknowledgements carry the term. Else: an acknowledgement of an earlier term counts for entries of this term.
    trim (core)
        A follower skips entries that its log has already, and truncates its log only on a conflict. Else: a late
        append cuts off acknowledged entries.
    cap (core)
        A follower moves its commit index only up to the last entry that the present message has matched. Else: it
        commits later entries of its log, and the leader may not have these.
    chunkcommit (installer)
        Pieces of a snapshot do not move the commit index, because they match no entry of the log. Else: as without
        cap.
    hint (core)
        A follower whose log does not match tells the leader where to continue. Else: the leader steps back by one
        entry each round trip, or never finds the place.
    nextback (core)
        A late acknowledgement does not move the leader's next index back. Else: entries in flight are sent again.

Elections:

    prevote (core, PreVote)
        A node campaigns only after a majority said that it would vote for it. Else: a node that hears no leader raises
        its term again and again, and deposes a working leader when it is connected again.
    stepdown (core)
        A stale leader gets the newer term in a response. Else: with pre-votes, a node of a higher term never rejoins.
    votes (core, VoteBook)
        Votes are counted by node, not by message. Else: one node's repeated vote makes a leader.
    learner (core)
        A voter that lost its directory neither votes nor counts until it has applied an entry that it proposed after
        the loss. Else: it may vote twice in a term, and counts for entries that it has lost.

Commands:

    lost (core)
        When the connection to the leader breaks, commands forwarded to it fail with an unknown fate. Else: their
        callers wait for ever.
    orphans (core)
        Commands whose entry was truncated or skipped by a snapshot fail as "unknown". Else: their callers wait for
        ever.
    reqid (core)
        The ids of forwarded commands start at a number derived from the incarnation. Else: a response to a command of
        the former process is taken for a response to another command.

Snapshots:

    snapback (installer)
        A snapshot older than this node's commit index is ignored. Else: the node's state goes back in time.
    suffix (installer)
        If the log has entries behind the snapshot, they are kept when the snapshot is installed: they may have been
        acknowledged. Else: acknowledged entries are lost.
    suffixcap (installer)
        After an installation the commit index is the snapshot's index. The snapshot matches no later entry of the log.
        Else: as without cap.
    chunks (installer)
        Pieces carry a transfer id and an offset. Else: pieces of two transfers are joined.
    chunkack (installer)
        Pieces are acknowledged. Else: a leader that sends a long snapshot hears nothing, and steps down.
    crc (installer)
        A received snapshot is verified as a whole. Else: a bad one is installed and acknowledged.
    cancel (core)
        A transfer ends with its connection and its term. Else: it continues behind pieces that were lost.
    serrace (snapshotter)
        If a newer snapshot was installed while a local one was written, the local one is removed. Else: it replaces
        the newer one.
    busy (replicator)
        The leader sends a bounded number of unacknowledged pieces, and waits without spinning. Else: a whole snapshot
        is in memory at once.
    tail (snapshotter)
        The log is not shortened while a snapshot is being sent. Else: when a slow follower has the snapshot, the log
        has already dropped the next entries, and the follower needs another snapshot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft_meta.consensus.messages import Entry


@dataclass(slots=True)
class VoteBook:
    """The ids of the nodes whose votes were counted in ``term``. A newer term replaces the set."""

    term: int = 0
    voters: set[int] = field(default_factory=set)

    def is_new(self, term: int, node_id: int) -> bool:
        """Add a vote; return False if this node's vote in this term was counted before."""
        if term != self.term:
            self.term, self.voters = term, set()
        if node_id in self.voters:
            return False
        self.voters.add(node_id)
        return True


@dataclass(slots=True)
class PreVote:
    """The pre-vote of a node that wants to campaign. The library sees its election deadline only after approval.

    ``deadline``: when to ask the other voters, in seconds of the core's clock. ``is_approved``: a majority would vote
    for this node. ``supporters``: the nodes that would; None if no round is open.
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
        """Note that a node would vote for this one. A reply to an earlier round is ignored."""
        if self.supporters is not None and number == self.round:
            self.supporters.add(node_id)
            self.is_approved = len(self.supporters) >= majority


def matching_count(entries: Sequence[Entry], log: Sequence[Entry]) -> int:
    """Return how many of the first ``entries`` the log holds already, or has compacted away."""
    first = log[0][1]
    count = 0
    for _, index, term in entries:
        position = index - first
        if position >= len(log) or (position >= 0 and log[position][2] != term):
            break
        count += 1
    return count
