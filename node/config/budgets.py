"""Time budgets that are not options: waits for the quorum, a leader or another node, and pauses before retries.

All are in milliseconds. A tick or a probe that belongs to one algorithm is declared there.
"""

# How long a command may take to commit.

CONTROLLER_PROPOSE_MS = 3_000
"""The controller decides again at its next tick, so a command that hangs must not hold up the next decision."""
PROPOSE_MS = 5_000
"""A change of a group, a consumer or a transaction. An election of the quorum takes a second or two."""
LONG_PROPOSE_MS = 10_000
"""A change by an administrator, or a step of a node's start. After a timeout, its fate must be looked up by hand."""
BARRIER_MS = 3_000
"""How long a read waits for the image that a majority confirms; it outlasts an election of the quorum."""
PRODUCER_BARRIER_MS = 2_000
"""``BARRIER_MS`` for a write whose producer this node does not know. It is shorter, because a client waits."""

# How long a request waits for a leader or a coordinator.

READ_LEADER_WAIT_MS = 300
"""A read waits for a replica that is being created or is taking over. The caller asks again for free."""
WRITE_LEADER_WAIT_MS = 1_000
"""A write or a deletion waits for the image to name another leader before it is refused, while nothing of it was done.

This is enough for a planned change of leader and for most failovers. It is short enough to count as "at once".
"""
COORDINATOR_WAIT_MS = 5_000
"""A call waits for a coordinator of its group. A broker is fenced within about two seconds, and its successor
coordinates as soon as it has applied the fence."""

# How long another node's response may take.

ANSWER_MS = 2_000
"""A question that costs the other node no wait. A node that needs longer counts as silent."""
SEQUENCES_ANSWER_MS = 1_500
"""A producer's last sequences. The other node waits up to 1 s for the image that has the producer's epoch."""
COORDINATOR_ANSWER_MS = 8_000
"""A call of a group, besides its own wait. It is longer than ``PROPOSE_MS``, which the coordinator waits."""
WRITE_ANSWER_MARGIN_MS = 500
"""How much longer the sender of a write or a deletion waits than the leader, whose own response at its timeout is to
arrive. A request may take this much longer than its client's timeout, and ``ABORT_MS`` besides."""
ABORT_MS = 300
"""How long a request whose time is up still waits for the quorum to abort its transaction. Leaders abort it later
anyway."""
ANSWER_MARGIN_MS = 1_000
"""How much longer than its agreed wait a fetch of a follower may take, before its node counts as dead."""
READ_ANSWER_MARGIN_MS = 2_000
"""``ANSWER_MARGIN_MS`` for reads of clients, where a silent node fails only this read."""

# Pauses before the next attempt.

SHORT_RETRY_MS = 20
"""The next attempt probably succeeds: this node's image is behind, or the quorum has just elected a leader."""
RETRY_MS = 50
"""A leader or coordinator could not answer. A new one is often only a moment behind."""
UNREACHABLE_RETRY_MS_MAX = 200
"""The longest pause before a node that refuses connections is tried again; the pauses double up to it.

A node that is back rejoins the in-sync sets only after the pause, and a rolling restart waits for that. With a pause of
1 s, one of three nodes took 1 to 2 s longer.
"""
REFUSED_RETRY_MS = 100
"""The quorum, or the kernel's accept, refused. Each attempt costs a log entry, a new image or a turn: no busy loop."""
READ_RETRY_MS = 250
READ_RETRY_MS_MAX = 2_000
"""A consumer's partition could not be read. The pause doubles each time, up to the bound."""
BACKGROUND_RETRY_MS = 500
"""Work that no request waits for."""
LASTING_RETRY_MS = 1_000
"""A failure that usually lasts: a full disk, a damaged batch, an unexpected error that the same input causes again."""
SCRUB_RETRY_MS = 5_000
"""A damaged copy that was the last in sync could not be given up. It has to wait for another replica."""
