"""Metrics of a node in Prometheus' format. The API counts its requests itself.

Frequent operations increment plain integers (``node.metrics.counts``). All other values are read at each scrape. Each
node has its own registry, and there is no global one. So a test may run several nodes in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from heapq import nlargest
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from milena.model.errors import DiskFailedError
from milena.model.types import MonotonicMs
from node.metrics.counts import (
    LATENCY_BOUNDS_MS,
    CountMetric,
    KafkaCounts,
    LatencyCounts,
    NodeCounts,
    PartitionCounts,
)
from node.process.cluster_clock import ClusterClock
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.machine import cluster
from raft_meta.machine.image import Image
from raft_meta.machine.topics.configs import min_insync

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RATE_WINDOW_MS = 10_000
"""Window of rates in ms. A rate covers the last one or two windows. If the last reading is older, it covers the time
since then."""
PARTITION_LABELS = ("topic", "partition")
GROUP_LABELS = ("group", *PARTITION_LABELS)
GROUP_PARTITIONS_MAX = 10_000
"""Largest number of lags that a node exports for single partitions; the largest lags come first. Sums contain all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """The present values of one local replica."""

    topic: str
    partition: int
    is_leader: bool
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    stored_bytes: int
    counts: PartitionCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """The committed offset of a group in a partition that this node leads, at the last sample."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    lag: int | None
    """None: unknown."""
    lag_ms: float | None
    """How long the first unread record has been committed, in ms; None if this or the lag is unknown."""


class DiskSpace(Protocol):
    """The file system of the data directory. Both methods may raise ``DiskFailedError``."""

    def free_bytes(self) -> int:
        """Return the space that the node may still use."""

    def total_bytes(self) -> int:
        """Return the size of the file system."""


class NodeMetrics:
    """The metrics of one node."""

    def __init__(
        self,
        *,
        node_id: int,
        clock: ClusterClock,
        counts: NodeCounts,
        image: Callable[[], Image],
        quorum: Callable[[], QuorumStatus],
        replicas: Callable[[], Iterable[ReplicaSample]],
        groups: Callable[[], Sequence[GroupSample]],
        is_ready: Callable[[], bool],
        directory: DiskSpace,
        certificate_expiry_s: Callable[[], Mapping[str, float]],
        has_process: bool = True,
    ) -> None:
        rates = Rates()
        collectors: list[Collector] = [
            _Part(lambda: _of_image(image(), node_id, is_ready=is_ready())),
            _Part(lambda: _of_quorum(quorum())),
            _Part(lambda: _of_counts(counts)),
            _Part(lambda: _of_kafka(counts.kafka)),
            _Part(lambda: _of_disk(directory)),
            _Part(lambda: _of_certificates(certificate_expiry_s())),
            _Part(lambda: _of_clock(clock)),
            _Part(lambda: _sums_of_groups(groups())),
        ]
        if has_process:
            collectors.append(ProcessCollector(registry=None))
        details = [
            _Part(lambda: _of_replicas(replicas(), rates, clock.now_ms())),
            _Part(lambda: _of_groups(groups())),
        ]
        self._brief = CollectorRegistry(auto_describe=False)
        self._whole = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._brief.register(collector)
        for collector in (*collectors, *details):
            self._whole.register(collector)

    def render(self, has_partitions: bool = True) -> bytes:
        """Return the metrics in Prometheus' text format.

        ``has_partitions``: include the metrics of each replica, and of each group in each partition.
        """
        return generate_latest(self._whole if has_partitions else self._brief)


@dataclass(frozen=True, slots=True, eq=False)
class _Part(Collector):
    """The metrics that a function yields at each scrape."""

    read: Callable[[], Iterator[Metric]]

    def collect(self) -> Iterator[Metric]:
        return self.read()


def _gauges(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Yield gauges without labels: name, description and value of each."""
    for name, doc, value in rows:
        yield GaugeMetricFamily(f"milena_{name}", doc, value=value)


def _labelled(
    kind: Callable[..., GaugeMetricFamily | CounterMetricFamily],
    name: str,
    doc: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """Return a metric with labels: the labels' values and the value of each row."""
    family = kind(f"milena_{name}", doc, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _metrics_of(counts: "DataclassInstance") -> Iterator[Metric]:
    """Yield the metrics of the fields that have one (``node.metrics.counts``)."""
    for item in fields(counts):
        metric: CountMetric | None = item.metadata.get("metric")
        if metric is not None:
            of_kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
            value = getattr(counts, item.name) / metric.per
            yield of_kind(f"milena_{metric.name}", metric.doc, value=value)


def _of_image(image: Image, node_id: int, *, is_ready: bool) -> Iterator[Metric]:
    """Yield metrics of the replicated state, from this node's image."""
    led = under_replicated = under_min = leaderless = 0
    for key, partition in image.partitions.items():
        leaderless += partition.leader is None
        if partition.leader != node_id:
            continue
        led += 1
        under_replicated += len(partition.isr) < len(partition.replicas)
        topic = image.topics.get(key[0])
        under_min += topic is not None and len(partition.isr) < min_insync(topic)
    brokers = list(image.brokers.values())
    is_upgrade_pending = cluster.supported_level(image) > image.feature_level
    yield from _gauges(
        ("ready", "1: rejoined, caught up and not draining.", is_ready),
        ("metadata_index", "Index of the last command in this node's image.", image.index),
        ("topics", "Topics in the cluster.", len(image.topics)),
        ("partitions", "Partitions in the cluster.", len(image.partitions)),
        ("partitions_leaderless", "Partitions in the cluster without a leader.", leaderless),
        ("partitions_led", "Partitions that this node leads.", led),
        (
            "partitions_under_replicated",
            "Partitions led here whose in-sync replicas are fewer than their replicas.",
            under_replicated,
        ),
        (
            "partitions_under_min_isr",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
            under_min,
        ),
        ("brokers", "Registered brokers.", len(brokers)),
        (
            "brokers_fenced",
            "Registered brokers that are fenced.",
            sum(b.is_fenced for b in brokers),
        ),
        ("raft_voters", "Voters of the metadata quorum.", len(image.voters)),
        ("feature_level", "Feature level of the cluster.", image.feature_level),
        (
            "upgrade_pending",
            "1: all nodes support a higher feature level than the cluster has.",
            is_upgrade_pending,
        ),
        ("controller", "1: this node is the controller.", image.controller_id == node_id),
    )


def _of_quorum(status: QuorumStatus) -> Iterator[Metric]:
    """Yield metrics of the metadata quorum as this node sees it."""
    roles = (([role.value], status.role is role) for role in Role)
    yield _labelled(GaugeMetricFamily, "raft_role", "1 for the role of this node.", ["role"], roles)
    has_leader = status.leader_id is not None
    yield from _gauges(
        ("raft_has_leader", "1: this node knows a Raft leader.", has_leader),
        ("raft_term", "Raft term.", status.term),
        ("raft_commit_index", "Last committed index.", status.commit_index),
        ("raft_applied_index", "Last applied index.", status.applied_index),
    )


_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[ReplicaSample], float]], ...] = (
    ("leader", "1: this node leads the partition.", lambda r: r.is_leader),
    ("log_start_offset", "First readable offset.", lambda r: r.log_start_offset),
    ("log_end_offset", "Next offset to be written.", lambda r: r.log_end_offset),
    ("high_watermark", "First offset that is not committed.", lambda r: r.high_watermark),
    ("stored_bytes", "Bytes of the log on the disk.", lambda r: r.stored_bytes),
)
_REPLICA_COUNTERS: tuple[tuple[str, str, Callable[[PartitionCounts], int]], ...] = (
    ("records_in", "Records appended here as leader", lambda c: c.records_in),
    ("bytes_in", "Bytes appended here as leader", lambda c: c.bytes_in),
    ("records_out", "Records read here by clients", lambda c: c.records_out),
    ("bytes_out", "Bytes read here by clients", lambda c: c.bytes_out),
    ("replicated_bytes_in", "Bytes appended here as follower", lambda c: c.replicated_bytes_in),
    ("replicated_bytes_out", "Bytes sent from here to followers", lambda c: c.replicated_bytes_out),
)


def _of_replicas(
    replicas: Iterable[ReplicaSample], rates: "Rates", now_ms: MonotonicMs
) -> Iterator[Metric]:
    """Yield metrics of local replicas: their positions, their traffic, and rates of the traffic."""
    samples = [((r.topic, str(r.partition)), r) for r in replicas]
    for name, doc, value_of in _REPLICA_GAUGES:
        values = ((labels, value_of(sample)) for labels, sample in samples)
        yield _labelled(GaugeMetricFamily, f"partition_{name}", doc, PARTITION_LABELS, values)
    rates.keep({labels for labels, _ in samples})
    for name, doc, count_of in _REPLICA_COUNTERS:
        counted = [(labels, count_of(sample.counts)) for labels, sample in samples]
        yield _labelled(
            CounterMetricFamily, f"partition_{name}", f"{doc}.", PARTITION_LABELS, counted
        )
        yield _labelled(
            GaugeMetricFamily,
            f"partition_{name}_per_second",
            f"{doc}, a second.",
            PARTITION_LABELS,
            ((labels, rates.observe(labels, name, count, now_ms)) for labels, count in counted),
        )


def _sums_of_groups(samples: Sequence[GroupSample]) -> Iterator[Metric]:
    """Yield the lag of each group, summed up over the partitions that this node leads."""
    sums: dict[str, float] = {}
    longest: dict[str, float] = {}
    unknown: dict[str, float] = {}
    for sample in samples:
        group = sample.group
        sums[group] = sums.get(group, 0) + (sample.lag or 0)
        unknown[group] = unknown.get(group, 0) + (sample.lag is None or sample.lag_ms is None)
        if sample.lag_ms is not None:
            longest[group] = max(longest.get(group, 0), sample.lag_ms / 1000)
    for name, doc, values in (
        ("lag_sum", "Records that the group has not committed, in partitions led here.", sums),
        (
            "lag_seconds_max",
            "The largest of the group's milena_group_lag_seconds in partitions led here.",
            longest,
        ),
        ("lag_unknown", "Partitions led here in which the group's lag is not known.", unknown),
    ):
        rows = (([group], value) for group, value in values.items())
        yield _labelled(GaugeMetricFamily, f"group_{name}", doc, ["group"], rows)


def _of_groups(samples: Sequence[GroupSample]) -> Iterator[Metric]:
    """Yield lag and committed offset of each group in each partition that this node leads, the largest lags first."""
    if len(samples) > GROUP_PARTITIONS_MAX:
        samples = nlargest(GROUP_PARTITIONS_MAX, samples, key=lambda one: one.lag or 0)
    found = [((s.group, s.topic, str(s.partition)), s) for s in samples]
    for name, doc, rows in (
        (
            "lag",
            "Records that the group has not committed.",
            [(labels, s.lag) for labels, s in found if s.lag is not None],
        ),
        (
            "lag_seconds",
            "How long the first record that the group has not committed has been there.",
            [(labels, s.lag_ms / 1000) for labels, s in found if s.lag_ms is not None],
        ),
        (
            "committed_offset",
            "Next offset that the group will read.",
            [(labels, s.committed_offset) for labels, s in found],
        ),
    ):
        yield _labelled(GaugeMetricFamily, f"group_{name}", doc, GROUP_LABELS, rows)


class Rates:
    """Rates of counters that several readers may read at any time.

    Two readings are kept for each counter. The older one is at least a window old once two windows have passed.
    """

    def __init__(self) -> None:
        self._readings: dict[
            tuple[str, str], dict[str, tuple[MonotonicMs, int, MonotonicMs, int]]
        ] = {}

    def keep(self, keys: set[tuple[str, str]]) -> None:
        """Forget all keys except these."""
        for key in self._readings.keys() - keys:
            del self._readings[key]

    def observe(self, key: tuple[str, str], name: str, count: int, now_ms: MonotonicMs) -> float:
        """Take a reading; return the increase per second since an older reading."""
        readings = self._readings.setdefault(key, {})
        old_ms, old, new_ms, new = readings.get(name, (now_ms, count, now_ms, count))
        if count < new:
            # If a counter fell, the replica was closed and opened again.
            old_ms, old, new_ms, new = now_ms, count, now_ms, count
        if now_ms - new_ms >= RATE_WINDOW_MS:
            old_ms, old, new_ms, new = new_ms, new, now_ms, count
        readings[name] = (old_ms, old, new_ms, new)
        return (count - old) * 1000 / (now_ms - old_ms) if now_ms > old_ms else 0.0


def _of_disk(directory: DiskSpace) -> Iterator[Metric]:
    """Yield size and free space of the disk; nothing while they are unknown."""
    try:
        free_bytes, total_bytes = directory.free_bytes(), directory.total_bytes()
    except DiskFailedError:
        return
    yield from _gauges(
        ("disk_free_bytes", "Space left on the file system of the data directory.", free_bytes),
        ("disk_size_bytes", "Size of that file system.", total_bytes),
    )


def _of_certificates(expiry_s: Mapping[str, float]) -> Iterator[Metric]:
    """Yield when the certificates in use expire; no samples without TLS."""
    yield _labelled(
        GaugeMetricFamily,
        "tls_certificate_expiry_timestamp_seconds",
        "When the first certificate of a file in use expires, as unix time.",
        ["file"],
        (([name], at_s) for name, at_s in expiry_s.items()),
    )


def _of_kafka(counts: KafkaCounts) -> Iterator[Metric]:
    """Yield metrics of the Kafka interface; no sample of requests before the first one."""
    yield _labelled(
        CounterMetricFamily,
        "kafka_requests",
        "Requests of Kafka clients, by API and the first error code of the response; 0: no error.",
        ["api", "code"],
        (([api, str(code)], count) for (api, code), count in sorted(counts.requests.items())),
    )
    yield from _metrics_of(counts)


def _of_clock(clock: ClusterClock) -> Iterator[Metric]:
    """Yield how the machine's wall clock compares with the cluster's time."""
    yield from _gauges(
        (
            "clock_known",
            "1: this node knows the cluster's time. 0: it deletes, forgets and aborts nothing by time.",
            clock.is_known,
        ),
        (
            "clock_out_of_bounds",
            "1: the machine's wall clock is more than clock_skew_ms_max off the cluster's time, which counts instead.",
            clock.is_out_of_bounds,
        ),
    )
    offset_ms = clock.offset_ms
    if offset_ms is not None:
        doc = "How far the machine's wall clock is ahead of the cluster's time."
        yield from _gauges(("clock_offset_ms", doc, offset_ms))


def _of_counts(counts: NodeCounts) -> Iterator[Metric]:
    """Yield metrics from the counts of this node."""
    yield from _metrics_of(counts)
    yield _labelled(
        CounterMetricFamily,
        "contained_errors",
        "Unexpected errors that the node survived, by where they were caught: each is a bug.",
        ["entry"],
        (([entry.value], count) for entry, count in counts.contained.counts.items()),
    )
    yield _histogram("commit_seconds", "From append to commit, of acks=all.", counts.commit_ms)
    yield _histogram("sync_seconds", "One sync of a log to the disk.", counts.sync_ms)
    for part in (counts.compaction, counts.groups, counts.scrub, counts.transactions):
        yield from _metrics_of(part)


def _histogram(name: str, doc: str, latency: LatencyCounts) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound_ms, count in zip(LATENCY_BOUNDS_MS, latency.buckets, strict=False):
        total += count
        buckets.append((str(bound_ms / 1000), total))
    buckets.append(("+Inf", total + latency.buckets[-1]))
    return HistogramMetricFamily(
        f"milena_{name}", doc, buckets=buckets, sum_value=latency.sum_ms / 1000
    )
