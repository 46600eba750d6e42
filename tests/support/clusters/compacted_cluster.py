"""A simulated cluster with a compacted topic ``t``, and functions that write to the topic and compact it."""

from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.requests import Acks
from node.metrics.counts import CompactionCounts
from node.replica.compactor import Compactor
from tests.support.clusters.nodes import Cluster
from tests.support.time.virtual_time import LoopClock

CONFIGS = {
    "cleanup_policy": "compact",
    "segment_ms": "1000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete_retention_ms": "5000",
}
"""Segments close after a second. A log is compacted when a tenth of it is new. Tombstones stay for five seconds."""


async def write(cluster: Cluster, *pairs: tuple[str, str | None]) -> None:
    columns = RecordColumns(
        None,
        None,
        [key.encode() for key, _ in pairs],
        [None if value is None else value.encode() for _, value in pairs],
        None,
    )
    batch = encode_batch(columns, base_timestamp_ms=LoopClock().wall_ms())
    await cluster.nodes[1].produce.produce_batch("t", 0, batch, acks=Acks.ALL, timeout_ms=1_000)


async def update(cluster: Cluster, rounds: int) -> None:
    """Write each of four keys ``rounds`` times, and wait until segments may be closed."""
    for number in range(rounds):
        await write(cluster, *((f"key-{n}", f"{number}") for n in range(4)))
    await LoopClock().sleep(1_100)


def compactor_of(cluster: Cluster, node_id: int, **settings: int) -> Compactor:
    node = cluster.nodes[node_id]
    return Compactor(
        runners=node.replicas,
        clock=LoopClock(),
        counts=CompactionCounts(),
        standing=node.membership,
        **{"check_ms": 1000, "bytes_per_s": 1 << 30, "settle_ms": 500, **settings},
    )


async def compact(cluster: Cluster, *node_ids: int) -> None:
    """Close segments, let a checkpoint seal them, and compact them."""
    compactors = [compactor_of(cluster, node_id) for node_id in node_ids]
    for _ in range(2):
        for compactor in compactors:
            await compactor.look()
        await LoopClock().sleep(1_500)
