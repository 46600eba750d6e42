"""Time limits that are not options: waits for the quorum, a leader or another node, and pauses before retries.

All are in milliseconds. A time that belongs to one algorithm, such as a tick, is declared in that module.
"""

# How long a command may take to commit.

CONTROLLER_PROPOSE_MS = 3_000
"""For the controller. It decides again at its next tick, so a command that hangs must not delay it for long."""
PROPOSE_MS = 5_000
"""For a change of a group, a consumer or a transaction. An election of the quorum takes a second or two."""
LONG_PROPOSE_MS = 10_000
"""For a change by an administrator, or a step of a node's start. After a timeout, a person has to find out its fate."""
BARRIER_MS = 3_000
"""How long a read waits for an image that a majority confirms. This is longer than an election of the quorum."""
PRODUCER_BARRIER_MS = 2_000
"""As ``BARRIER_MS``, for a write of a producer that this node does not know. It is shorter, because a client waits."""

# How long a request waits for a leader or a coordinator.

READ_LEADER_WAIT_MS = 300
"""How long a read waits for a replica that is being created or is taking over. Afterwards the caller may ask again."""
WRITE_LEADER_WAIT_MS = 1_000
"""How long a write or a deletion waits for another leader before it is refused, while nothing of it was done.

This is enough for a planned change of leader and for most failovers. It is short enough to count as "at once".
"""
TAKEOVER_WAIT_MS = 5_000
"""How long a write or a deletion waits at the leader until its replica is open and has taken over. The quorum has
chosen this node, so only its disk can still need time, for example while it creates a topic's first files."""
COORDINATOR_WAIT_MS = 5_000
"""How long a call waits for a coordinator of its group. A dead broker is fenced within about two seconds. Its successor
coordinates the group as soon as it has applied the command that fenced the broker."""

# How long another node's response may take.

ANSWER_MS = 2_000
"""For a question that the other node can answer without waiting. If it takes longer, it counts as silent."""
SEQUENCES_ANSWER_MS = 1_500
"""For a producer's last sequences. The other node waits up to 1 s for an image with the producer's epoch."""
COORDINATOR_ANSWER_MS = 8_000
"""For a call of a group, in addition to its own wait. It is longer than ``PROPOSE_MS``, for which the coordinator
waits."""
WRITE_ANSWER_MARGIN_MS = 500
"""How much longer than the leader the sender of a write or a deletion waits, so that the leader's response at its
timeout still arrives. So a request may take this much longer than its client's timeout, plus ``ABORT_MS``."""
ABORT_MS = 300
"""How long a request waits, after its timeout, for the quorum to abort its transaction. Otherwise leaders abort it
later."""
ANSWER_MARGIN_MS = 1_000
"""How much longer than its agreed wait a follower's fetch may take before the leader's node counts as dead."""
READ_ANSWER_MARGIN_MS = 2_000
"""As ``ANSWER_MARGIN_MS``, for reads of clients. If the node is silent, only this read fails."""

# Pauses before the next attempt.

SHORT_RETRY_MS = 20
"""For a retry that probably succeeds: this node's image was too old, or the quorum has just elected a leader."""
RETRY_MS = 50
"""For a retry after a leader or coordinator could not answer. Often a new one is there a moment later."""
UNREACHABLE_RETRY_MS_MAX = 200
"""The longest pause before the next attempt to reach a node that refuses connections. The pauses double up to it.

After a restart, a node rejoins the in-sync replicas only after such a pause, and a rolling restart waits for this. With
a pause of 1 s, one of three nodes took 1 to 2 s longer.
"""
REFUSED_RETRY_MS = 100
"""For a retry after the quorum, or the kernel's accept, has refused. Each attempt costs a log entry, a new image or a
turn, so it must not become a busy loop."""
READ_RETRY_MS = 250
READ_RETRY_MS_MAX = 2_000
"""For a retry after a consumer's partition could not be read. The pause doubles each time, up to the maximum."""
BACKGROUND_RETRY_MS = 500
"""For a retry of work for which no request waits."""
LASTING_RETRY_MS = 1_000
"""For a retry after a failure that usually lasts: a full disk, a damaged batch, or an unexpected error that the same
input causes again."""
SCRUB_RETRY_MS = 5_000
"""For a retry to give up a damaged copy that was the last one in sync. It has to wait for another replica."""
