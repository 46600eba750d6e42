"""Fill topics batch by batch, so that a test knows the offset of each record."""

from collections.abc import Sequence

from loadtest.cluster.local_cluster import LocalNode
from milena.model.batch.encode import encode_batch
from milena.model.columns import Headers, RecordColumns
from tests.support.clusters.live_cluster import BASE_TIMESTAMP_MS, ok, write_batch

Row = tuple[int, int, bytes]
"""Partition, offset, value."""


def put(
    node: LocalNode,
    topic: str,
    partition: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    timestamp_ms: int = BASE_TIMESTAMP_MS,
) -> int:
    """Append one batch, whose record ``n`` has time ``timestamp_ms + n``; return the offset of its first record."""
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=list(range(len(values))),
        keys=None if keys is None else list(keys),
        values=list(values),
        headers=None if headers is None else list(headers),
    )
    batch = encode_batch(columns, base_timestamp_ms=timestamp_ms)
    return int(ok(write_batch(node, topic, batch, partition))["base_offset"])


def fill(
    node: LocalNode, topic: str, counts: Sequence[int], *, batch_records: int = 100, size: int = 0
) -> list[Row]:
    """Write ``counts[p]`` records to partition ``p`` in batches; return all records, in order.

    ``size`` is the minimum number of bytes of a value.
    """
    rows: list[Row] = []
    for partition, count in enumerate(counts):
        for first in range(0, count, batch_records):
            numbers = range(first, min(first + batch_records, count))
            values = [f"{topic}-{partition}-{n} ".encode().ljust(size, b".") for n in numbers]
            base = put(node, topic, partition, values)
            rows += [(partition, base + n, value) for n, value in enumerate(values)]
    return rows
