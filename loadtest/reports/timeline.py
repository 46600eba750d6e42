"""Compute rates, latencies and gaps over time from the events of ledgers (pure).

The latency of a write is from its first attempt to its acknowledgement, and includes repetitions. The latency of a page
is from its request to its last byte, and includes the wait of a long poll. The users are a closed loop: while the
cluster does not respond, they send nothing. So a pause shows as one gap, and as one long latency per user.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, unique
from itertools import pairwise

from loadtest.judging.ledger import (
    Event,
    Failed,
    Incident,
    Opened,
    Polled,
    Sent,
    Settled,
    Spent,
    Stopping,
)
from loadtest.records.receipts import Fate

BUCKET_S = 0.5
SOON_S = 1.0
"""The longest time from a fault to the start of a gap, in s. A later gap has another cause."""
PERCENTILES = (50.0, 95.0, 99.0, 100.0)


@unique
class Direction(StrEnum):
    """The direction of an endpoint: it produces or fetches."""

    PRODUCE = "produce"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The longest time without a success; ``at_s`` is its start, in s from the start of the run."""

    seconds: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReport:
    """The figures of one kind of request over the whole run."""

    name: str
    direction: Direction
    requests: int
    records: int
    value_bytes: int
    failed_attempts: int
    latency_ms: Mapping[float, float]
    """The latencies in ms by percentile; 100 is the longest."""
    gap: Gap


@dataclass(slots=True)
class _Bucket:
    requests: int = 0
    records: int = 0
    value_bytes: int = 0
    failed: int = 0
    latencies_ms: "array[float]" = field(default_factory=lambda: array("f"))


@dataclass(slots=True)
class _Endpoint:
    direction: Direction
    first_sent_s: float
    buckets: dict[int, _Bucket] = field(default_factory=dict)
    successes_s: "array[float]" = field(default_factory=lambda: array("d"))


class Timeline:
    """Collects events, in any order."""

    def __init__(self, bucket_s: float = BUCKET_S) -> None:
        self.bucket_s = bucket_s
        self._endpoints: dict[str, _Endpoint] = {}
        self._partitions: defaultdict[int, array[float]] = defaultdict(lambda: array("d"))
        self._incidents: list[Incident] = []
        self._failures: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._stopping_s = math.inf
        self._cores: list[float] = []

    def note(self, event: Event) -> None:
        """Add an event."""
        match event:
            case Opened():
                self._begin(event.at_s)
            case Sent():
                self._begin(event.at_s)
                self._endpoint(event.endpoint, Direction.PRODUCE, event.at_s)
            case Settled():
                self._settled(event)
            case Polled():
                self._polled(event)
            case Failed():
                self._failed(event)
            case Incident():
                self._incidents.append(event)
            case Stopping():
                self._stopping_s = min(self._stopping_s, event.at_s)
            case Spent():
                self._cores.append(event.cpu_s / max(event.at_s - event.since_s, 1e-9))

    def _begin(self, at_s: float) -> None:
        self._began_s = at_s if self._began_s is None else min(self._began_s, at_s)

    def _endpoint(self, name: str, direction: Direction, sent_s: float) -> _Endpoint:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            endpoint = self._endpoints[name] = _Endpoint(direction, sent_s)
        endpoint.first_sent_s = min(endpoint.first_sent_s, sent_s)
        return endpoint

    def _bucket(self, endpoint: _Endpoint, at_s: float) -> _Bucket:
        # Buckets are aligned to the clock, because the start of the run is known only after all ledgers were read.
        return endpoint.buckets.setdefault(int(at_s // self.bucket_s), _Bucket())

    def _settled(self, event: Settled) -> None:
        endpoint = self._endpoint(event.endpoint, Direction.PRODUCE, event.sent_s)
        if event.fate is not Fate.ACKNOWLEDGED:
            return
        self._succeeded(endpoint, event.at_s, event.sent_s, event.count, event.value_bytes)
        for partition in set(event.partitions):
            self._partitions[partition].append(event.at_s)

    def _polled(self, event: Polled) -> None:
        endpoint = self._endpoint(event.endpoint, Direction.FETCH, event.sent_s)
        count = len(event.offsets)
        self._succeeded(endpoint, event.at_s, event.sent_s, count, event.value_bytes)

    def _succeeded(
        self, endpoint: _Endpoint, at_s: float, sent_s: float, records: int, value_bytes: int
    ) -> None:
        bucket = self._bucket(endpoint, at_s)
        bucket.requests += 1
        bucket.records += records
        bucket.value_bytes += value_bytes
        bucket.latencies_ms.append((at_s - sent_s) * 1000)
        endpoint.successes_s.append(at_s)
        self._ended_s = max(self._ended_s, at_s)

    def _failed(self, event: Failed) -> None:
        direction = Direction(event.endpoint.split(" ")[0])
        endpoint = self._endpoint(event.endpoint, direction, event.at_s)
        self._bucket(endpoint, event.at_s).failed += 1
        self._failures[event.endpoint, event.reason] += 1

    # -- what came of it ---------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the last success."""
        return max(self._ended_s - self._start_s, 0.0)

    @property
    def _start_s(self) -> float:
        return 0.0 if self._began_s is None else self._began_s

    def incidents(self) -> list[tuple[float, str]]:
        """Return each incident: its seconds from the start, and its text."""
        every = sorted(self._incidents, key=lambda incident: incident.at_s)
        return [(incident.at_s - self._start_s, incident.text) for incident in every]

    def cores_of_users(self) -> list[float]:
        """Return the share of a core that each user process used; unknown for a killed process."""
        return sorted(self._cores)

    def failures(self) -> list[tuple[int, str, str]]:
        """Return count, endpoint and reason of the failures, the most frequent first."""
        found = ((count, *what) for what, count in self._failures.items())
        return sorted(found, key=lambda item: (-item[0], *item[1:]))

    def endpoints(self) -> list[EndpointReport]:
        """Return one report per endpoint, by name."""
        return [self._report(name) for name in sorted(self._endpoints)]

    def _report(self, name: str) -> EndpointReport:
        endpoint = self._endpoints[name]
        buckets = endpoint.buckets.values()
        latencies = sorted(latency for bucket in buckets for latency in bucket.latencies_ms)
        return EndpointReport(
            name=name,
            direction=endpoint.direction,
            requests=sum(bucket.requests for bucket in buckets),
            records=sum(bucket.records for bucket in buckets),
            value_bytes=sum(bucket.value_bytes for bucket in buckets),
            failed_attempts=sum(bucket.failed for bucket in buckets),
            latency_ms={p: percentile(latencies, p) for p in PERCENTILES},
            gap=self._gap(endpoint.successes_s, endpoint.first_sent_s),
        )

    def partition_gaps(self) -> dict[int, Gap]:
        """Return the longest time without an acknowledgement, by partition."""
        began_s = min(
            (e.first_sent_s for e in self._endpoints.values() if e.direction is Direction.PRODUCE),
            default=self._start_s,
        )
        return {p: self._gap(times, began_s) for p, times in sorted(self._partitions.items())}

    def gap_after(self, at_s: float) -> tuple[int, Gap] | None:
        """Return the partition with the longest gap soon after ``at_s``, and that gap; None without any write."""
        since = self._start_s + at_s
        worst: tuple[int, Gap] | None = None
        for partition, times_s in self._partitions.items():
            for before, after in pairwise(self._until_stopped(times_s)):
                is_soon = after > since and before < since + SOON_S
                if is_soon and (worst is None or after - before > worst[1].seconds):
                    worst = partition, Gap(seconds=after - before, at_s=before - self._start_s)
        return worst

    def _gap(self, times_s: Iterable[float], began_s: float) -> Gap:
        longest, at_s, last = 0.0, began_s, began_s
        for time_s in self._until_stopped(times_s):
            if time_s - last > longest:
                longest, at_s = time_s - last, last
            last = time_s
        return Gap(seconds=longest, at_s=at_s - self._start_s)

    def _until_stopped(self, times_s: Iterable[float]) -> list[float]:
        """Return the sorted times before users were told to stop, and the time of that: what follows is no gap."""
        end_s = min(self._ended_s, self._stopping_s)
        return [*sorted(time_s for time_s in times_s if time_s < end_s), end_s]

    # -- series to draw ----------------------------------------------------------------------------

    def times_s(self) -> list[float]:
        """Return the middle of each bucket, in s from the start of the run."""
        first, last = self._range()
        return [(n + 0.5) * self.bucket_s - self._start_s for n in range(first, last + 1)]

    def requests_per_s(self, endpoint: str) -> list[float]:
        """Return the successes of one endpoint, for each of ``times_s``."""
        return [bucket.requests / self.bucket_s for bucket in self._series(endpoint)]

    def records_per_s(self, direction: Direction) -> list[float]:
        """Return the acknowledged or fetched records, for each of ``times_s``."""
        names = self._names(direction)
        columns = zip(*(self._series(name) for name in names), strict=True)
        return [sum(b.records for b in column) / self.bucket_s for column in columns]

    def failed_per_s(self) -> list[float]:
        """Return the failed attempts of all endpoints, for each of ``times_s``."""
        columns = zip(*(self._series(name) for name in self._endpoints), strict=True)
        return [sum(b.failed for b in column) / self.bucket_s for column in columns]

    def latency_ms(self, direction: Direction, percent: float) -> list[float]:
        """Return a percentile over all endpoints of a direction, for each of ``times_s``; NaN without a success."""
        columns = zip(*(self._series(name) for name in self._names(direction)), strict=True)
        return [
            percentile(sorted(ms for bucket in column for ms in bucket.latencies_ms), percent)
            for column in columns
        ]

    def _names(self, direction: Direction) -> list[str]:
        return [name for name, e in sorted(self._endpoints.items()) if e.direction is direction]

    def _series(self, name: str) -> list[_Bucket]:
        first, last = self._range()
        buckets = self._endpoints[name].buckets
        return [buckets.get(number, _Bucket()) for number in range(first, last + 1)]

    def _range(self) -> tuple[int, int]:
        return int(self._start_s // self.bucket_s), int(self._ended_s // self.bucket_s)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted numbers, by nearest rank; NaN if there are none."""
    if not ordered:
        return math.nan
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]


def timeline_of(events: Iterable[Event]) -> Timeline:
    """Return the timeline of all events of a run."""
    timeline = Timeline()
    for event in events:
        timeline.note(event)
    return timeline
