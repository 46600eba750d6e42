"""Counts of events on a node: plain integers that frequent operations increment, on the data loop without a lock."""

from bisect import bisect_left
from dataclasses import dataclass, field

from milena.model.contained import ContainedErrors

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


@dataclass(slots=True)
class PartitionCounts:
    """Traffic of one replica since the node started. The replica's runner counts it."""

    records_in: int = 0
    """Records appended as leader."""
    bytes_in: int = 0
    """Bytes appended as leader, as stored."""
    records_out: int = 0
    """Records read by clients: the records of the batches in ``bytes_out``, from the requested offset on."""
    bytes_out: int = 0
    """Bytes read by clients, as stored."""
    replicated_bytes_in: int = 0
    """Bytes appended as follower."""
    replicated_bytes_out: int = 0
    """Bytes sent to followers."""
    _taken: tuple[int, int, int, int] = (0, 0, 0, 0)

    def take(self) -> tuple[int, int, int, int] | None:
        """Return records in, bytes in, bytes out and records out since the last call; None if all are 0.

        Each value is returned once, so only one part of the node may call this.
        """
        now = (self.records_in, self.bytes_in, self.bytes_out, self.records_out)
        if now == self._taken:
            return None
        before, self._taken = self._taken, now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3]


@dataclass(slots=True)
class LatencyCounts:
    """A histogram of milliseconds. An observation takes one bisect and three additions."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    sum_ms: float = 0.0

    def observe(self, ms: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(LATENCY_BOUNDS_MS, ms)] += 1
        self.sum_ms += ms


@dataclass(slots=True)
class CompactionCounts:
    """Compaction on this node since it started."""

    runs: int = 0
    failures: int = 0
    worked_bytes: int = 0
    """Bytes read and written."""
    saved_bytes: int = 0
    removed_records: int = 0
    dirty_bytes: int = 0
    """Bytes in closed segments of compacted topics that were not compacted at the last check."""
    last_run_ms: int = 0
    """Wall clock in ms at the end of the last run."""


@dataclass(slots=True)
class ScrubCounts:
    """The scrub of stored segments on this node since it started."""

    checked_bytes: int = 0
    damages: int = 0
    """Segments in which damage was found."""
    held: int = 0
    """Number of damaged copies that are still in service, because no other copy is in sync."""
    passes: int = 0
    last_pass_ms: int = 0
    """Wall clock in ms at the end of the last complete pass."""


@dataclass(slots=True)
class GroupCounts:
    """Events of the groups that this node coordinates, since it started."""

    heartbeats: int = 0
    rebalances: int = 0
    """New assignments of partitions to members."""
    expired_members: int = 0
    commits: int = 0
    """Accepted commits, of members and of tools."""
    committed_offsets: int = 0
    commit_commands: int = 0
    """Commands that brought these commits to the quorum."""
    expired_offsets: int = 0
    groups: int = 0
    """Present number of groups with members that this node coordinates."""
    members: int = 0
    """Present number of members of these groups."""


@dataclass(slots=True)
class TransactionCounts:
    """Transactions since this node started: those that it ended for clients, and those in partitions that it leads."""

    committed: int = 0
    """Commits, of single requests and of sessions."""
    aborted: int = 0
    """Aborts, because a client requested it or a part failed."""
    expired: int = 0
    """Aborts by this node as a leader, because the timeout has passed or the broker is gone."""
    lost: int = 0
    """Committed transactions of which a partition that this node leads lacks the records."""
    open: int = 0
    """Present number of open transactions in partitions that this node leads."""
    late: int = 0
    """Present number of open transactions whose timeout has passed."""


@dataclass(slots=True)
class KafkaCounts:
    """The Kafka interface of this node since it started."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    """Requests by API and by the first error code of the response; 0: no error."""
    listeners: int = 0
    """Addresses at which this node listens for Kafka clients."""
    connections: int = 0
    """Connections that are open now."""
    refused_frames: int = 0
    """Connections that were closed because their bytes were no request that is served."""
    forwarded: int = 0
    """Requests that this node passed on to the broker that the client meant, behind one address for all."""


@dataclass(slots=True)
class NodeCounts:
    """Events of this node since it started."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    leaders_taken: int = 0
    """How often this node became the leader of a partition."""
    truncations: int = 0
    """How often a follower's log was truncated, because it diverged from the leader's."""
    syncs: int = 0
    short_syncs: int = 0
    """Syncs of little data. Usually writers wait for these."""
    forwarded_requests: int = 0
    """Produce requests that this node forwarded to the leader's node."""
    produce_refused: int = 0
    """Appends that were refused; nothing was written."""
    fate_unknown: int = 0
    """Appends whose outcome was not known in time."""
    contained: ContainedErrors = field(default_factory=ContainedErrors)
    """Unexpected errors that the node survived."""
    commit_ms: LatencyCounts = field(default_factory=LatencyCounts)
    """Time in ms from the append of a batch with acks=all until the high watermark passes it."""
    sync_ms: LatencyCounts = field(default_factory=LatencyCounts)
    """Time in ms of one sync of a log to the disk."""
    compaction: CompactionCounts = field(default_factory=CompactionCounts)
    groups: GroupCounts = field(default_factory=GroupCounts)
    kafka: KafkaCounts = field(default_factory=KafkaCounts)
    scrub: ScrubCounts = field(default_factory=ScrubCounts)
    transactions: TransactionCounts = field(default_factory=TransactionCounts)
