"""The history of a node's last hour, in memory: its traffic, its latencies, and the lag of groups.

Pure: ``node.services.history`` reads replicas and offsets every ``STEP_MS`` and passes the values. Each node keeps the
values of the partitions that it leads. For a topic or group, the values of all nodes are summed up. Lag is computed
from committed offsets, and every node's image has these. So no calls between nodes are needed until a client requests
the history.

Limits: the series take at most ``SERIES_BYTES_MAX``; the busiest partitions take less than the rest of ``BYTES_MAX``.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import NamedTuple

from node.metrics.counts import LATENCY_BOUNDS_MS, LatencyCounts, NodeCounts, PartitionCounts
from node.metrics.series import POINTS, STEP_MS, Floats, Ring, SeriesStore
from raft_meta.machine.image import PartitionKey

BYTES_MAX = 8 << 20
SERIES_BYTES_MAX = 6 << 20
BUSIEST_MAX = 256
"""Number of partitions that are kept of one reading: so many by incoming traffic, and so many by outgoing traffic."""
BUSY_LOOKS = 60_000 // STEP_MS
"""Number of readings over which the busiest partitions are determined: one minute."""

TRAFFIC = (
    "records_in_per_second",
    "bytes_in_per_second",
    "bytes_out_per_second",
    "records_out_per_second",
)
NODE = (*TRAFFIC, "commit_ms_p99", "sync_ms_p99", "stored_bytes", "disk_free_bytes")
GROUP = ("lag",)

_TOPIC = "topic"
_GROUP = "group"


class PartitionTraffic(NamedTuple):
    """Traffic since the last reading, or per second. The fields have the order of ``TRAFFIC``."""

    records_in: float = 0
    bytes_in: float = 0
    bytes_out: float = 0
    records_out: float = 0

    def plus(self, other: "PartitionTraffic") -> "PartitionTraffic":
        """Return the sum of both."""
        return PartitionTraffic(*map(add, self, other))

    def per_second(self, ms: float) -> "PartitionTraffic":
        """Return this traffic of ``ms`` milliseconds as a rate per second."""
        return PartitionTraffic(*(amount * 1000 / ms for amount in self))


_NONE = PartitionTraffic()


@dataclass(slots=True)
class NodeLook:
    """One reading of a node's replicas and groups. It may take several turns of the loop."""

    stored_bytes: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    """Topic id → bytes of its replicas on this node."""
    disk_free_bytes: float = math.nan
    partitions: dict[PartitionKey, PartitionTraffic] = field(default_factory=dict)
    """Partition → traffic, for partitions with traffic."""
    topics: dict[str, PartitionTraffic] = field(default_factory=dict)
    """Topic id → sum of ``partitions``."""
    lags: dict[str, float] = field(default_factory=dict)
    """Group → its lag in the partitions that this node leads, for groups that are behind. If the lag in one partition
    is unknown, the sum is infinite."""

    def add_replica(self, key: PartitionKey, counts: PartitionCounts, stored_bytes: int) -> None:
        """Add the size and the traffic of one replica on this node."""
        self.stored_bytes += stored_bytes
        self.stored[key[0]] = self.stored.get(key[0], 0) + stored_bytes
        if (taken := counts.take()) is not None:
            self.add_traffic(key, PartitionTraffic(*taken))

    def add_traffic(self, key: PartitionKey, traffic: PartitionTraffic) -> None:
        """Add the traffic of one replica."""
        self.partitions[key] = traffic
        self.topics[key[0]] = self.topics.get(key[0], _NONE).plus(traffic)

    def add_lag(self, group: str, lag: int | None) -> None:
        """Add the lag of a group in a partition that this node leads; None if unknown."""
        if lag != 0:
            self.lags[group] = self.lags.get(group, 0) + (math.inf if lag is None else lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldHistory:
    """A node's history of itself, of a topic or of a group: series by name, the latest value last."""

    end_slot: int
    series: Mapping[str, Floats]
    busiest: Sequence[tuple[PartitionKey, PartitionTraffic]]
    """Rates of the busiest partitions on this node."""
    left_out: int


class History:
    """The history of the last hour. Owned by the data loop."""

    def __init__(self, counts: NodeCounts) -> None:
        self._commit = _Quantile(counts.commit_ms)
        self._sync = _Quantile(counts.sync_ms)
        self._store = SeriesStore(SERIES_BYTES_MAX)
        self._own: Ring | None = None
        self._busiest: deque[tuple[float, dict[PartitionKey, PartitionTraffic]]] = deque(
            maxlen=BUSY_LOOKS
        )

    @property
    def size_bytes(self) -> int:
        """Estimated size of the series in bytes."""
        return self._store.size_bytes

    def add(self, slot: int, look: NodeLook, elapsed_ms: float) -> None:
        """Record a reading that was taken ``elapsed_ms`` after the previous one. Skip it if its slot has one already.

        If the clock is set back, no readings are recorded until it reaches its former time again. If it is set back by
        more than an hour, a new history starts.
        """
        if self._own is not None and slot <= self._own.last_slot - POINTS:
            self._own, self._store = None, SeriesStore(SERIES_BYTES_MAX)
        if elapsed_ms <= 0 or (self._own is not None and slot <= self._own.last_slot):
            return
        total = reduce(PartitionTraffic.plus, look.topics.values(), _NONE)
        own = (
            *total.per_second(elapsed_ms),
            self._commit.take(),
            self._sync.take(),
            look.stored_bytes,
            look.disk_free_bytes,
        )
        if self._own is None:
            self._own = Ring(len(NODE), slot, absent=math.nan)
        self._own.put(slot, own, absent=math.nan)
        self._store.begin(slot)
        for topic_id, traffic in look.topics.items():
            self._store.put(slot, (_TOPIC, topic_id), traffic.per_second(elapsed_ms))
        for group, lag in look.lags.items():
            self._store.put(slot, (_GROUP, group), (lag,))
        self._busiest.append((elapsed_ms, _busiest_of(look.partitions)))

    def of_node(self) -> ToldHistory:
        """Return the history of this node."""
        return self._told({} if self._own is None else _columns(self._own, NODE, self._end))

    def of_topic(self, topic_id: str) -> ToldHistory:
        """Return this node's part of a topic's history."""
        told = self._told(self._subject((_TOPIC, topic_id), TRAFFIC))
        return replace(told, busiest=[row for row in told.busiest if row[0][0] == topic_id])

    def of_group(self, group: str) -> ToldHistory:
        """Return the history of a group's lag in the partitions that this node leads."""
        return replace(self._told(self._subject((_GROUP, group), GROUP)), busiest=())

    @property
    def _end(self) -> int:
        return 0 if self._own is None else self._own.last_slot

    def _told(self, series: Mapping[str, Floats]) -> ToldHistory:
        return ToldHistory(
            end_slot=self._end,
            series=series,
            busiest=self._busy_rates(),
            left_out=self._store.left_out,
        )

    def _subject(self, subject: tuple[str, str], names: Sequence[str]) -> Mapping[str, Floats]:
        if self._own is None:
            return {}
        # Slots without a reading have no known values.
        looked = self._own.column(NODE.index("stored_bytes"), self._end, absent=math.nan)
        ring = self._store.find(subject) or Ring(len(names), self._end)
        columns = _columns(ring, names, self._end, absent=0.0)
        for column in columns.values():
            for at, seen in enumerate(looked):
                if math.isnan(seen):
                    column[at] = math.nan
        return columns

    def _busy_rates(self) -> list[tuple[PartitionKey, PartitionTraffic]]:
        total_ms = sum(ms for ms, _ in self._busiest)
        found: dict[PartitionKey, PartitionTraffic] = {}
        for _, partitions in self._busiest:
            for key, traffic in partitions.items():
                found[key] = found.get(key, _NONE).plus(traffic)
        return [(key, traffic.per_second(total_ms)) for key, traffic in found.items()]


def _columns(
    ring: Ring, names: Sequence[str], end_slot: int, *, absent: float = math.nan
) -> dict[str, Floats]:
    return {name: ring.column(index, end_slot, absent=absent) for index, name in enumerate(names)}


def _busiest_of(
    partitions: Mapping[PartitionKey, PartitionTraffic],
) -> dict[PartitionKey, PartitionTraffic]:
    if len(partitions) <= BUSIEST_MAX:
        return dict(partitions)
    by_writes = heapq.nlargest(BUSIEST_MAX, partitions, key=lambda key: partitions[key].bytes_in)
    by_reads = heapq.nlargest(BUSIEST_MAX, partitions, key=lambda key: partitions[key].bytes_out)
    return {key: partitions[key] for key in (*by_writes, *by_reads)}


class _Quantile:
    """The 99th percentile of a histogram since the last reading. Within a bucket, an even distribution is assumed."""

    def __init__(self, counts: LatencyCounts) -> None:
        self._counts = counts
        self._before = list(counts.buckets)

    def take(self) -> float:
        """Return the percentile in ms of the observations since the last call; NaN if there were none."""
        now = list(self._counts.buckets)
        new = [count - before for count, before in zip(now, self._before, strict=True)]
        self._before = now
        left = 0.99 * sum(new)
        if not left:
            return math.nan
        # Durations above the last bound count as the last bound.
        bounds = (0, *LATENCY_BOUNDS_MS, LATENCY_BOUNDS_MS[-1])
        for (low, high), count in zip(pairwise(bounds), new, strict=True):
            if left <= count:
                return low + (high - low) * left / count
            left -= count
        return float(LATENCY_BOUNDS_MS[-1])
