"""Transactions on a simulated cluster: whole transactions, single steps, and reads of their results."""

from milena.model.batch.decode import iterate_headers
from milena.model.requests import (
    Acks,
    CommittedNext,
    FetchRequest,
    GroupOffsets,
    IdempotencyKey,
    ProduceRequest,
    ProducerTransaction,
    Records,
    TransactionCommit,
    TransactionReceipt,
    TransactionRequest,
    TransactionWrite,
    WrittenExtent,
)
from tests.support.clusters.nodes import Cluster
from tests.support.clusters.runners import values_of


def records(*values: str) -> Records:
    return Records(keys=None, values=[value.encode() for value in values])


def to(topic: str, partition: int | None, *values: str) -> TransactionWrite:
    return TransactionWrite(topic=topic, partition=partition, records=records(*values))


def next_of(group: str, topic: str, offset: int) -> GroupOffsets:
    return GroupOffsets(
        group=group,
        member_id=None,
        member_epoch=-1,
        offsets=(CommittedNext(topic=topic, partition=0, next_offset=offset),),
    )


async def transact(
    cluster: Cluster,
    node_id: int,
    *writes: TransactionWrite,
    offsets: tuple[GroupOffsets, ...] = (),
    key: IdempotencyKey | None = None,
    timeout_ms: int = 2_000,
) -> TransactionReceipt:
    return await cluster.nodes[node_id].transactions.transact(
        TransactionRequest(writes=writes, offsets=offsets, timeout_ms=timeout_ms, idempotency=key)
    )


async def read(
    cluster: Cluster,
    node_id: int,
    topic: str,
    partition: int = 0,
    *,
    is_uncommitted: bool = False,
) -> list[str]:
    """Return all values that a reader gets, response by response. A follower may get records later than its leader."""
    found: list[str] = []
    offset = 0
    while True:
        result = await cluster.nodes[node_id].reads.fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=None,
                max_bytes=1 << 20,
                timeout_ms=600,
                is_local=False,
                is_uncommitted=is_uncommitted,
            )
        )
        headers = [header for _, header in iterate_headers(result.batches)]
        if not headers or headers[-1].next_offset <= offset:
            return found
        found += values_of(result.batches)
        offset = headers[-1].next_offset


async def send(
    cluster: Cluster, node_id: int, transaction: ProducerTransaction, topic: str, *values: str
) -> int:
    """Write in an open transaction; return the end offset of the write."""
    receipts = await cluster.nodes[node_id].produce.produce(
        ProduceRequest(
            topic=topic,
            records=records(*values),
            acks=Acks.ALL,
            timeout_ms=2_000,
            partition=0,
            transaction=transaction,
        )
    )
    for receipt in receipts:
        if receipt.error is not None:
            raise receipt.error
    offset = receipts[-1].offset
    assert offset is not None
    return offset + 1


def commit_of(
    transaction: ProducerTransaction,
    *writes: tuple[str, int, int],
    offsets: tuple[GroupOffsets, ...] = (),
) -> TransactionCommit:
    extents = tuple(
        WrittenExtent(topic=topic, partition=0, end_offset=end, records=count)
        for topic, end, count in writes
    )
    return TransactionCommit(
        transaction=transaction,
        writes=extents,
        offsets=offsets,
        timeout_ms=2_000,
    )


def committed_of(cluster: Cluster, group: str, topic: str) -> int | None:
    found = cluster.image.topic(topic)
    assert found is not None
    offsets = cluster.image.offsets.get(group)
    committed = None if offsets is None else offsets.get((found.topic_id, 0))
    return None if committed is None else committed.offset


async def two_topics(cluster: Cluster) -> None:
    await cluster.until(lambda: cluster.image.feature_level >= 6)
    await cluster.create("t", (1, 2, 3))
    await cluster.create("u", (2, 3, 1))
