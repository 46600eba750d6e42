"""Counts of events on a node: plain integers that frequent operations increment, on the data loop without a lock.

A field that is exported has its metric's name and description as metadata, from which ``node.metrics.exposition``
makes the metric.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from milena.model.contained import ContainedErrors

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)


@dataclass(frozen=True, slots=True)
class CountMetric:
    """The metric of a count, as Prometheus sees it: ``milena_`` and the name; its value is the count over ``per``."""

    name: str
    doc: str
    is_gauge: bool
    per: int = 1


def counter(name: str, doc: str) -> Any:  # noqa: ANN401  (as ``dataclasses.field``)
    """Return a field that only grows, from 0."""
    return field(default=0, metadata={"metric": CountMetric(name, doc, is_gauge=False)})


def gauge(name: str, doc: str, per: int = 1) -> Any:  # noqa: ANN401  (as ``dataclasses.field``)
    """Return a field that may also fall, from 0."""
    return field(default=0, metadata={"metric": CountMetric(name, doc, is_gauge=True, per=per)})


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

    runs: int = counter("compaction_runs", "Logs compacted.")
    failures: int = counter("compaction_failures", "Compactions that failed.")
    worked_bytes: int = counter("compaction_worked_bytes", "Bytes that compaction read and wrote.")
    saved_bytes: int = counter("compaction_saved_bytes", "Bytes that compaction removed.")
    removed_records: int = counter("compaction_removed_records", "Records that compaction removed.")
    dirty_bytes: int = gauge(
        "compaction_dirty_bytes",
        "Bytes in closed segments of compacted topics that are not compacted yet.",
    )
    last_run_ms: int = gauge(
        "compaction_last_run_timestamp_seconds",
        "When the last compaction ended; 0: none yet.",
        per=1000,
    )


@dataclass(slots=True)
class ScrubCounts:
    """The scrub of stored segments on this node since it started."""

    checked_bytes: int = counter("scrub_bytes", "Bytes of stored segments that were checked.")
    damages: int = counter("scrub_damage", "Segments in which damage was found.")
    held: int = gauge(
        "scrub_damaged_replicas", "Damaged replicas that are kept because no other one is in sync."
    )
    passes: int = counter("scrub_passes", "Times that every stored segment was checked.")
    last_pass_ms: int = gauge(
        "scrub_last_pass_timestamp_seconds", "When the last of these ended; 0: none yet.", per=1000
    )


@dataclass(slots=True)
class GroupCounts:
    """Events of the groups that this node coordinates, since it started."""

    groups: int = gauge("groups", "Consumer groups with members that this node coordinates.")
    members: int = gauge("group_members", "Members of these groups.")
    heartbeats: int = counter("group_heartbeats", "Heartbeats of members.")
    rebalances: int = counter("group_rebalances", "Times that partitions were assigned again.")
    expired_members: int = counter(
        "group_members_expired",
        "Members removed because they were silent, or kept what they were to give back.",
    )
    commits: int = counter("group_commits", "Commits of offsets that were accepted.")
    committed_offsets: int = counter("group_committed_offsets", "Offsets in these commits.")
    commit_commands: int = counter(
        "group_commit_commands", "Commands that carried these commits to the quorum."
    )
    expired_offsets: int = counter(
        "group_offsets_expired", "Offsets that no client asked for again."
    )


@dataclass(slots=True)
class TransactionCounts:
    """Transactions since this node started: those that it ended for clients, and those in partitions that it leads."""

    committed: int = counter("transactions_committed", "Transactions committed by this node.")
    aborted: int = counter("transactions_aborted", "Transactions aborted by this node.")
    expired: int = counter(
        "transactions_expired", "Transactions aborted by a leader because no client ended them."
    )
    lost: int = counter(
        "transactions_lost",
        "Committed transactions without a record in a partition that is led here.",
    )
    open: int = gauge("transactions_open", "Open in partitions that are led here.")
    late: int = gauge("transactions_late", "Of them, those that are open longer than they may be.")


@dataclass(slots=True)
class KafkaCounts:
    """The Kafka interface of this node since it started."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    """Requests by API and by the first error code of the response; 0: no error."""
    listeners: int = gauge(
        "kafka_listeners",
        "Addresses at which the node listens for Kafka clients; 0: it has no Kafka interface.",
    )
    equal_addresses: int = gauge(
        "kafka_equal_addresses",
        "Addresses of the node for Kafka clients that another node has, too, without kafka_one_address.",
    )
    connections: int = gauge("kafka_connections", "Open connections of Kafka clients.")
    refused_frames: int = counter(
        "kafka_refused_frames",
        "Connections of Kafka clients that were closed because their bytes were no request that is served.",
    )
    forwarded: int = counter(
        "kafka_forwarded_requests",
        "Requests of Kafka clients that this node passed on, because all nodes have one address.",
    )


@dataclass(slots=True)
class NodeCounts:
    """Events of this node since it started."""

    isr_shrinks: int = counter("isr_shrinks", "Followers that left the in-sync replicas.")
    isr_expands: int = counter("isr_expands", "Followers that came back in sync.")
    leaders_taken: int = counter("leaders_taken", "Partitions that this node began to lead.")
    truncations: int = counter("truncations", "Logs cut to the leader's.")
    syncs: int = counter("syncs", "Syncs of logs to the disk.")
    short_syncs: int = 0
    """Syncs of little data. Usually writers wait for these."""
    forwarded_requests: int = counter(
        "forwarded_requests", "Produce requests passed on to a leader."
    )
    produce_refused: int = counter("produce_refused", "Appends refused with nothing written.")
    fate_unknown: int = counter(
        "produce_fate_unknown", "Appends whose result was not known in time."
    )
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
