"""Counts of what happened on a node: plain integers that hot paths add to, on the data loop and without a lock."""

from bisect import bisect_left
from dataclasses import dataclass, field

from milena.model.contained import ContainedErrors

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


@dataclass(slots=True)
class PartitionCounts:
    """Traffic of one replica since the node started; its runner adds to it."""

    records_in: int = 0
    """Appended as leader."""
    bytes_in: int = 0
    """Appended as leader, as stored."""
    records_out: int = 0
    """Read by clients: of the batches in ``bytes_out``, all from the offset on that was asked for."""
    bytes_out: int = 0
    """Read by clients, as stored."""
    replicated_bytes_in: int = 0
    """Appended as follower."""
    replicated_bytes_out: int = 0
    """Sent to followers."""
    _taken: tuple[int, int, int, int] = (0, 0, 0, 0)

    def take(self) -> tuple[int, int, int, int] | None:
        """Records in, bytes in, bytes out and records out since one part last called this; None: nothing."""
        now = (self.records_in, self.bytes_in, self.bytes_out, self.records_out)
        if now == self._taken:
            return None
        before, self._taken = self._taken, now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3]


@dataclass(slots=True)
class LatencyCounts:
    """A histogram of milliseconds: one bisect and three additions an observation."""

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
    """Read and written."""
    saved_bytes: int = 0
    removed_records: int = 0
    dirty_bytes: int = 0
    """In closed segments of compacted topics, not compacted when last looked at."""
    last_run_ms: int = 0
    """Wall clock at the end of the last one."""


@dataclass(slots=True)
class ScrubCounts:
    """The scrub of stored segments on this node since it started."""

    checked_bytes: int = 0
    damages: int = 0
    """Segments in which damage was found."""
    held: int = 0
    """Damaged copies that are the last in sync, now."""
    passes: int = 0
    last_pass_ms: int = 0
    """Wall clock at the end of the last one that went through everything."""


@dataclass(slots=True)
class GroupCounts:
    """Groups that this node coordinates, since it started."""

    heartbeats: int = 0
    rebalances: int = 0
    """Times that partitions were shared out anew."""
    expired_members: int = 0
    commits: int = 0
    """Commits of members and tools that were accepted."""
    committed_offsets: int = 0
    commit_commands: int = 0
    """Commands that carried them to the quorum."""
    expired_offsets: int = 0
    groups: int = 0
    """Coordinated here, now; those with members."""
    members: int = 0
    """Of these groups, now."""


@dataclass(slots=True)
class TransactionCounts:
    """Transactions that this node ended for clients, and what it does of them as a leader, since it started."""

    committed: int = 0
    """In one request, or for a client's session."""
    aborted: int = 0
    """Asked for, or since a part of it failed."""
    expired: int = 0
    """Aborted as a leader: their time was over, or their broker gone."""
    lost: int = 0
    """Committed ones of which a partition that is led here has no record."""
    open: int = 0
    """In partitions that are led here, now."""
    late: int = 0
    """Of them, those that are open for longer than they may be."""


@dataclass(slots=True)
class NodeCounts:
    """Events of this node since it started."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    leaders_taken: int = 0
    """Partitions that this node began to lead."""
    truncations: int = 0
    """Times that a follower cut its log to the leader's."""
    syncs: int = 0
    short_syncs: int = 0
    """Of them, those of little data, which is what writers mostly wait for."""
    forwarded_requests: int = 0
    """Produce requests that another node leads."""
    produce_refused: int = 0
    """Appends refused with nothing written."""
    fate_unknown: int = 0
    """Appends whose result was not known in time."""
    contained: ContainedErrors = field(default_factory=ContainedErrors)
    """Errors that the code did not expect, and that the node survived."""
    commit_ms: LatencyCounts = field(default_factory=LatencyCounts)
    """From the append to the high watermark, of acks=all."""
    sync_ms: LatencyCounts = field(default_factory=LatencyCounts)
    """One sync of a log to the disk."""
    compaction: CompactionCounts = field(default_factory=CompactionCounts)
    groups: GroupCounts = field(default_factory=GroupCounts)
    scrub: ScrubCounts = field(default_factory=ScrubCounts)
    transactions: TransactionCounts = field(default_factory=TransactionCounts)
