"""Compute from Spark's progress how far a query is behind the topics that it reads (pure).

Spark takes no metrics from a Python source, so ``metrics`` in its progress stays empty. It does report the offsets.
"""

import json
from collections.abc import Mapping

from milena.fields import Json


def source_metrics(source: Mapping[str, object]) -> dict[str, Json]:
    """Return the metrics of Spark's Kafka source, and the lag of each topic, for one of ``lastProgress["sources"]``.

    A partition that no batch has read yet is not counted. A query that has read nothing yet has no partitions.
    """
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    behind = {
        (topic, partition): max(0, offset - ends[topic, partition])
        for (topic, partition), offset in latest.items()
        if (topic, partition) in ends
    }
    topics: dict[str, Json] = {}
    for topic in sorted({topic for topic, _ in behind}):
        topics[topic] = sum(lag for (name, _), lag in behind.items() if name == topic)
    lags = list(behind.values())
    return {
        "minOffsetsBehindLatest": min(lags, default=0),
        "maxOffsetsBehindLatest": max(lags, default=0),
        "avgOffsetsBehindLatest": sum(lags) / len(lags) if lags else 0.0,
        "offsetsBehindLatest": topics,
    }


def _offsets(offset: object) -> dict[tuple[str, str], int]:
    """Return the end of each partition in an offset of the source: its JSON, as text or parsed."""
    parsed = json.loads(offset) if isinstance(offset, str) else offset
    topics = parsed.get("topics", {}) if isinstance(parsed, dict) else {}
    return {
        (topic, partition): place["next"]
        for topic, described in topics.items()
        for partition, place in described["partitions"].items()
    }
