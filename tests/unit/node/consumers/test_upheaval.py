"""Consumers of one group while nodes are killed and started again: each record is delivered, none committed unseen."""

import asyncio
from random import Random

import pytest

from milena.model.errors import MilenaError
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.groups.sim_consumers import GROUP, Client
from tests.support.time.virtual_time import after, virtual

PARTITIONS = 3
ROUNDS = 8
PATIENCE_S = 5.0
"""Of a client with one call."""


class Upheaval:
    """Readers that commit by themselves or not, each call on any node; a writer; somebody who kills nodes."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = Random(seed)
        self.written: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.seen: set[str] = set()
        self.is_over = False

    async def join(self, instance: str, *, is_auto_commit: bool) -> "asyncio.Task[None]":
        client = await Client(self.cluster, instance).create(
            reset="latest", is_auto_commit=is_auto_commit
        )
        await client.subscribe("t")
        return asyncio.create_task(self.read(client, commits=not is_auto_commit))

    def node(self) -> int:
        return self.rng.choice(sorted(self.cluster.nodes))

    async def read(self, client: Client, *, commits: bool) -> None:
        while not self.is_over:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self.seen.update(await client.read(self.node(), timeout_ms=500, max_bytes=30))
                if commits:
                    async with asyncio.timeout(PATIENCE_S):
                        await client.commit(node_id=self.node())
            except (MilenaError, TimeoutError):
                await after(100)

    async def write(self) -> None:
        """What is acknowledged counts; nothing is written twice, so that a partition's values name its offsets."""
        for number in range(40):
            partition = number % PARTITIONS
            value = f"{partition}:{len(self.written[partition])}"
            while True:
                try:
                    offset = len(self.written[partition])
                    receipt = (
                        await self.cluster.nodes[self.node()].write(
                            "t", value, partition=partition, timeout_ms=20_000
                        )
                    )[0]
                except MilenaError:
                    await after(200)
                    continue
                if receipt.error is None:
                    assert receipt.offset is not None
                    assert receipt.offset >= offset
                    self.written[partition].append(value)
                    break
                await after(200)
            await after(self.rng.uniform(50, 400))

    async def kill(self) -> None:
        for _ in range(ROUNDS):
            await after(self.rng.uniform(500, 2_000))
            victim = self.node()
            await self.cluster.kill(victim)
            await after(self.rng.uniform(100, 4_000))
            await self.cluster.restart(victim)

    def has_seen_all(self) -> bool:
        return all(value in self.seen for values in self.written for value in values)


@pytest.mark.parametrize("seed", range(4))
def test_every_record_is_delivered(seed: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(seed=seed)) as cluster:
            await cluster.create("t", *[(1, 2, 3)] * PARTITIONS, min_insync_replicas="2")
            upheaval = Upheaval(cluster, seed)
            readers = [await upheaval.join(f"c{i}", is_auto_commit=bool(i % 2)) for i in range(3)]
            await asyncio.gather(upheaval.write(), upheaval.kill())
            await cluster.until(upheaval.has_seen_all, timeout_ms=60_000)
            upheaval.is_over = True
            await asyncio.gather(*readers)
            topic = cluster.image.topic("t")
            assert topic is not None
            for (topic_id, number), row in cluster.image.offsets[GROUP].items():
                assert topic_id == topic.topic_id
                assert row.offset <= cluster.runner(cluster.any.node_id, "t", number).high_watermark

    run()
