"""Batches on their way to the leader: those of Kafka clients are stored as they came, on every replica."""

import pytest

from milena.model.batch.header import BatchHeader, decode_header
from milena.model.batch.v2 import kafka_batch
from milena.model.batch.v2_checks import wrap_v2
from milena.model.errors import FeatureLevelError
from milena.model.requests import Acks, BatchReceipt
from node.services.to_leader import V2_LEVEL
from raft_meta.machine.commands import AllocateProducer
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.disk.kafka_batches import NOW_MS, KafkaRecord, encoded, numbered
from tests.support.disk.log_model import read_all
from tests.support.time.virtual_time import virtual
from tests.unit.node.services.test_produce import move_leader

ROWS = numbered(KafkaRecord(b"one", b"k"), KafkaRecord(b"two"), KafkaRecord(b"three"))


async def bring(
    cluster: Cluster, node_id: int, sent: bytes, topic: str = "t"
) -> tuple[BatchReceipt, BatchHeader]:
    found = cluster.image.topic(topic)
    assert found is not None
    batch, header = wrap_v2(sent, bytes_max=1 << 20, now_ms=NOW_MS)
    bringing = cluster.nodes[node_id].produce.to_leader.bring(
        found, 0, batch, header, acks=Acks.ALL, timeout_ms=2_000
    )
    return await bringing, header


def stored_on(cluster: Cluster, node_id: int) -> list[bytes]:
    return read_all(cluster.runner(node_id, "t").log)


class TestKafkaBatches:
    @virtual
    @pytest.mark.parametrize("codec", range(5))
    async def test_every_replica_has_the_producers_bytes_after_changes_of_leader(
        self, codec: int
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= V2_LEVEL)
            await cluster.create("t", (1, 2, 3))
            sent = encoded(ROWS, attributes=codec)
            await cluster.nodes[1].write("t", "zero")
            receipt, _ = await bring(cluster, 2, sent)
            assert (receipt.base_offset, receipt.last_offset) == (1, 3)
            await move_leader(cluster, 3)
            await cluster.kill(2)
            await cluster.until(lambda: 2 not in cluster.isr_of("t"))
            receipt, _ = await bring(cluster, 1, sent)
            assert (receipt.base_offset, receipt.last_offset) == (4, 6)
            await cluster.restart(2)
            await cluster.until(lambda: 2 in cluster.isr_of("t"))
            await move_leader(cluster, 2)
            for node_id in (1, 2, 3):
                values = await cluster.nodes[node_id].read("t")
                assert values == ["zero", *["one", "two", "three"] * 2]
                _, *batches = stored_on(cluster, node_id)
                assert batches == stored_on(cluster, 1)[1:]
                for base_offset, batch in zip((1, 4), batches, strict=True):
                    head, view = kafka_batch(batch, decode_header(batch))
                    assert view == sent[16:]
                    assert int.from_bytes(head[:8]) == base_offset

    @virtual
    async def test_a_retry_of_an_idempotent_producer_is_recognised_by_the_next_leader(self) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= V2_LEVEL)
            await cluster.create("t", (1, 2, 3))
            answer = await cluster.nodes[1].metadata.propose(
                AllocateProducer(name=None), timeout_ms=500
            )
            assert isinstance(answer, tuple)
            sent = encoded(ROWS, producer=(*answer, 0))
            first, header = await bring(cluster, 2, sent)
            assert (header.producer_id, header.producer_epoch) == answer
            await move_leader(cluster, 3)
            again, _ = await bring(cluster, 2, sent)
            assert (first.base_offset, first.is_duplicate) == (0, False)
            assert (again.base_offset, again.last_offset, again.is_duplicate) == (0, 2, True)
            later, _ = await bring(cluster, 1, encoded(ROWS, producer=(*answer, 3)))
            assert (later.base_offset, later.is_duplicate) == (3, False)

    @virtual
    async def test_none_is_stored_while_a_node_could_not_read_it(self) -> None:
        async with cluster_of(Cluster(feature_max=V2_LEVEL - 1)) as cluster:
            await cluster.create("t", (1, 2, 3))
            with pytest.raises(FeatureLevelError, match="level 12"):
                await bring(cluster, 1, encoded(ROWS))
            assert await cluster.nodes[1].read("t") == []
