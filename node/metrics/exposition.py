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

from milena.model.clock import Clock
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
        collectors = [
            _ImageCollector(node_id, image, is_ready),
            _QuorumCollector(quorum),
            _CountsCollector(counts),
            _KafkaCollector(counts.kafka),
            _DiskCollector(directory),
            _CertificateCollector(certificate_expiry_s),
            _ClockCollector(clock),
            _GroupSumCollector(groups),
        ]
        if has_process:
            collectors.append(ProcessCollector(registry=None))
        self._brief = CollectorRegistry(auto_describe=False)
        self._whole = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._brief.register(collector)
        for collector in (*collectors, _ReplicaCollector(replicas, clock), _GroupCollector(groups)):
            self._whole.register(collector)

    def render(self, has_partitions: bool = True) -> bytes:
        """Return the metrics in Prometheus' text format.

        ``has_partitions``: include the metrics of each replica, and of each group in each partition.
        """
        return generate_latest(self._whole if has_partitions else self._brief)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"milena_{name}", doc, value=value)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"milena_{name}", doc, value=value)


def _metrics_of(counts: "DataclassInstance") -> Iterator[Metric]:
    """Yield the metrics of the fields that have one (``node.metrics.counts``)."""
    for item in fields(counts):
        metric: CountMetric | None = item.metadata.get("metric")
        if metric is not None:
            of_kind = _gauge if metric.is_gauge else _counter
            yield of_kind(metric.name, metric.doc, getattr(counts, item.name) / metric.per)


class _ImageCollector(Collector):
    """Metrics of the replicated state, from this node's image."""

    def __init__(
        self, node_id: int, image: Callable[[], Image], is_ready: Callable[[], bool]
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._is_ready = is_ready

    def collect(self) -> Iterator[Metric]:
        image = self._image()
        led = under_replicated = under_min = leaderless = 0
        for key, partition in image.partitions.items():
            leaderless += partition.leader is None
            if partition.leader != self._node_id:
                continue
            led += 1
            under_replicated += len(partition.isr) < len(partition.replicas)
            topic = image.topics.get(key[0])
            under_min += topic is not None and len(partition.isr) < min_insync(topic)
        brokers = list(image.brokers.values())
        yield _gauge("ready", "1: rejoined, caught up and not draining.", self._is_ready())
        yield _gauge(
            "metadata_index", "Index of the last command in this node's image.", image.index
        )
        yield _gauge("topics", "Topics in the cluster.", len(image.topics))
        yield _gauge("partitions", "Partitions in the cluster.", len(image.partitions))
        yield _gauge(
            "partitions_leaderless", "Partitions in the cluster without a leader.", leaderless
        )
        yield _gauge("partitions_led", "Partitions that this node leads.", led)
        yield _gauge(
            "partitions_under_replicated",
            "Partitions led here whose in-sync replicas are fewer than their replicas.",
            under_replicated,
        )
        yield _gauge(
            "partitions_under_min_isr",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
            under_min,
        )
        yield _gauge("brokers", "Registered brokers.", len(brokers))
        yield _gauge(
            "brokers_fenced",
            "Registered brokers that are fenced.",
            sum(b.is_fenced for b in brokers),
        )
        yield _gauge("raft_voters", "Voters of the metadata quorum.", len(image.voters))
        yield _gauge("feature_level", "Feature level of the cluster.", image.feature_level)
        yield _gauge(
            "upgrade_pending",
            "1: all nodes support a higher feature level than the cluster has.",
            cluster.supported_level(image) > image.feature_level,
        )
        yield _gauge(
            "controller", "1: this node is the controller.", image.controller_id == self._node_id
        )


class _QuorumCollector(Collector):
    """Metrics of the metadata quorum as this node sees it."""

    def __init__(self, quorum: Callable[[], QuorumStatus]) -> None:
        self._quorum = quorum

    def collect(self) -> Iterator[Metric]:
        status = self._quorum()
        role = GaugeMetricFamily(
            "milena_raft_role", "1 for the role of this node.", labels=["role"]
        )
        for name in Role:
            role.add_metric([name.value], status.role is name)
        yield role
        yield _gauge(
            "raft_has_leader", "1: this node knows a Raft leader.", status.leader_id is not None
        )
        yield _gauge("raft_term", "Raft term.", status.term)
        yield _gauge("raft_commit_index", "Last committed index.", status.commit_index)
        yield _gauge("raft_applied_index", "Last applied index.", status.applied_index)


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


class _ReplicaCollector(Collector):
    """Metrics of local replicas: their positions, their traffic, and rates of the traffic."""

    def __init__(self, replicas: Callable[[], Iterable[ReplicaSample]], clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._rates = Rates()

    def collect(self) -> Iterator[Metric]:
        samples = [((r.topic, str(r.partition)), r) for r in self._replicas()]
        for name, doc, value_of in _REPLICA_GAUGES:
            gauge = GaugeMetricFamily(f"milena_partition_{name}", doc, labels=PARTITION_LABELS)
            for labels, sample in samples:
                gauge.add_metric(labels, value_of(sample))
            yield gauge
        now_ms = self._clock.now_ms()
        self._rates.keep({labels for labels, _ in samples})
        for name, doc, count_of in _REPLICA_COUNTERS:
            total = CounterMetricFamily(
                f"milena_partition_{name}", f"{doc}.", labels=PARTITION_LABELS
            )
            rate = GaugeMetricFamily(
                f"milena_partition_{name}_per_second", f"{doc}, a second.", labels=PARTITION_LABELS
            )
            for labels, sample in samples:
                count = count_of(sample.counts)
                total.add_metric(labels, count)
                rate.add_metric(labels, self._rates.observe(labels, name, count, now_ms))
            yield total
            yield rate


class _GroupSumCollector(Collector):
    """The lag of each group, summed up over the partitions that this node leads."""

    def __init__(self, groups: Callable[[], Sequence[GroupSample]]) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        sums: dict[str, float] = {}
        longest: dict[str, float] = {}
        unknown: dict[str, float] = {}
        for sample in self._groups():
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
            gauge = GaugeMetricFamily(f"milena_group_{name}", doc, labels=["group"])
            for group, value in values.items():
                gauge.add_metric([group], value)
            yield gauge


class _GroupCollector(Collector):
    """Lag and committed offset of each group in each partition that this node leads, the largest lags first."""

    def __init__(self, groups: Callable[[], Sequence[GroupSample]]) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "milena_group_lag", "Records that the group has not committed.", labels=GROUP_LABELS
        )
        seconds = GaugeMetricFamily(
            "milena_group_lag_seconds",
            "How long the first record that the group has not committed has been there.",
            labels=GROUP_LABELS,
        )
        committed = GaugeMetricFamily(
            "milena_group_committed_offset",
            "Next offset that the group will read.",
            labels=GROUP_LABELS,
        )
        samples = self._groups()
        if len(samples) > GROUP_PARTITIONS_MAX:
            samples = nlargest(GROUP_PARTITIONS_MAX, samples, key=lambda one: one.lag or 0)
        for sample in samples:
            labels = (sample.group, sample.topic, str(sample.partition))
            committed.add_metric(labels, sample.committed_offset)
            if sample.lag is not None:
                lag.add_metric(labels, sample.lag)
            if sample.lag_ms is not None:
                seconds.add_metric(labels, sample.lag_ms / 1000)
        yield lag
        yield seconds
        yield committed


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


class _DiskCollector(Collector):
    """Size and free space of the disk; no metrics while they are unknown."""

    def __init__(self, directory: DiskSpace) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        try:
            free_bytes, total_bytes = self._directory.free_bytes(), self._directory.total_bytes()
        except DiskFailedError:
            return
        yield _gauge(
            "disk_free_bytes", "Space left on the file system of the data directory.", free_bytes
        )
        yield _gauge("disk_size_bytes", "Size of that file system.", total_bytes)


class _CertificateCollector(Collector):
    """When the certificates in use expire; no metrics without TLS."""

    def __init__(self, expiry_s: Callable[[], Mapping[str, float]]) -> None:
        self._expiry_s = expiry_s

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "milena_tls_certificate_expiry_timestamp_seconds",
            "When the first certificate of a file in use expires, as unix time.",
            labels=["file"],
        )
        for name, at_s in self._expiry_s().items():
            gauge.add_metric([name], at_s)
        yield gauge


class _KafkaCollector(Collector):
    """The Kafka interface; no sample of requests before the first one."""

    def __init__(self, counts: KafkaCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "milena_kafka_requests",
            "Requests of Kafka clients, by API and the first error code of the response; 0: no error.",
            labels=["api", "code"],
        )
        for (api, code), count in sorted(self._counts.requests.items()):
            requests.add_metric([api, str(code)], count)
        yield requests
        yield from _metrics_of(self._counts)


class _ClockCollector(Collector):
    """How the machine's wall clock compares with the cluster's time."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        clock = self._clock
        yield _gauge(
            "clock_known",
            "1: this node knows the cluster's time. 0: it deletes, forgets and aborts nothing by time.",
            clock.is_known,
        )
        yield _gauge(
            "clock_out_of_bounds",
            "1: the machine's wall clock is more than clock_skew_ms_max off the cluster's time, which counts instead.",
            clock.is_out_of_bounds,
        )
        offset_ms = clock.offset_ms
        if offset_ms is not None:
            yield _gauge(
                "clock_offset_ms",
                "How far the machine's wall clock is ahead of the cluster's time.",
                offset_ms,
            )


class _CountsCollector(Collector):
    """Metrics from the counts of this node."""

    def __init__(self, counts: NodeCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield from _metrics_of(counts)
        contained = CounterMetricFamily(
            "milena_contained_errors",
            "Unexpected errors that the node survived, by where they were caught: each is a bug.",
            labels=["entry"],
        )
        for entry, count in counts.contained.counts.items():
            contained.add_metric([entry.value], count)
        yield contained
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
