"""Idempotency keys of principals: nobody is in another one's way, and each repeat is recognised on every node."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from http_api.access import on_behalf
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.errors import IdempotencyKeyReusedError
from milena.model.requests import Acks, IdempotencyKey, ProduceRequest
from raft_meta.machine.topics.topics import OWN_KEYS_LEVEL
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.transacting import read, records, to, transact
from tests.support.time.virtual_time import virtual


@contextmanager
def asked_by(principal: str) -> Iterator[None]:
    token = on_behalf.principal.set(principal)
    try:
        yield
    finally:
        on_behalf.principal.reset(token)


def key(body: str) -> IdempotencyKey:
    return IdempotencyKey(key_hash=b"k" * 16, body_hash=body.encode()[:1] * 8)


async def plainly(cluster: Cluster, node_id: int, value: str) -> bool:
    request = ProduceRequest(
        topic="t",
        partition=0,
        records=records(value),
        acks=Acks.ALL,
        timeout_ms=2_000,
        idempotency=key(value),
    )
    (receipt,) = await cluster.nodes[node_id].produce.produce(request)
    if receipt.error is not None:
        raise receipt.error
    return False


async def encoded(cluster: Cluster, node_id: int, value: str) -> bool:
    columns = RecordColumns(
        offset_deltas=None, timestamp_deltas=None, keys=None, values=[value.encode()], headers=None
    )
    receipt = await cluster.nodes[node_id].produce.produce_batch(
        "t",
        0,
        encode_batch(columns, base_timestamp_ms=1),
        acks=Acks.ALL,
        timeout_ms=2_000,
        idempotency=key(value),
    )
    return receipt.is_duplicate


async def together(cluster: Cluster, node_id: int, value: str) -> bool:
    receipt = await transact(cluster, node_id, to("t", 0, value), key=key(value))
    return receipt.is_duplicate


WAYS = [plainly, encoded, together]


async def made(cluster: Cluster, level: int = OWN_KEYS_LEVEL) -> None:
    await cluster.until(lambda: cluster.image.feature_level >= level)
    await cluster.create("t", (1, 2, 3))


@pytest.mark.parametrize("write", WAYS)
@virtual
async def test_a_key_of_another_principal_is_another_key(write) -> None:  # type: ignore[no-untyped-def]
    async with cluster_of() as cluster:
        await made(cluster)
        for principal, value in (("User:ann", "a"), ("User:bob", "b"), ("User:ann", "a")):
            for node_id in (1, 2, 3):
                with asked_by(principal):
                    await write(cluster, node_id, value)
        assert await read(cluster, 1, "t") == ["a", "b"]
        with asked_by("User:ann"), pytest.raises(IdempotencyKeyReusedError):
            await write(cluster, 2, "c")


@pytest.mark.parametrize("write", WAYS)
@virtual
async def test_a_topic_of_before_keeps_its_keys_through_an_upgrade(write) -> None:  # type: ignore[no-untyped-def]
    async with cluster_of(Cluster(feature_max=OWN_KEYS_LEVEL - 1)) as cluster:
        await made(cluster, OWN_KEYS_LEVEL - 1)
        with asked_by("User:ann"):
            await write(cluster, 1, "a")
        assert not cluster.image.topic("t").has_own_keys  # type: ignore[union-attr]
        with asked_by("User:ann"):
            await write(cluster, 2, "a")
        assert await read(cluster, 1, "t") == ["a"]


@virtual
async def test_where_nobody_is_asked_a_key_is_everybodys() -> None:
    async with cluster_of() as cluster:
        await made(cluster)
        await plainly(cluster, 1, "a")
        with pytest.raises(IdempotencyKeyReusedError):
            await plainly(cluster, 2, "b")
        assert await read(cluster, 1, "t") == ["a"]
