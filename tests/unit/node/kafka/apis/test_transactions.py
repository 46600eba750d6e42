"""Transactions of Kafka clients through the handlers: what takes effect, and the code of each refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.batch.decode import iterate_headers
from milena.model.errors import ConflictError, InvalidRequestError, TransactionNotFoundError
from milena.model.requests import ProducerTransaction
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.runners import values_of
from tests.support.clusters.transacting import commit_of, send
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.kafka.apis.test_consumer_groups import beat

Producer = tuple[int, int]


def batch(*values: str, producer: tuple[int, int, int], attributes: int = 0x10) -> bytes:
    rows = numbered(*(KafkaRecord(value.encode(), key=value.encode()) for value in values))
    return encoded(rows, producer=producer, attributes=attributes)


class Session:
    """A transactional producer without any wisdom: each call is one request to the node that should serve it."""

    def __init__(self, cluster: Cluster, name: str = "tx") -> None:
        self.cluster = cluster
        self.name = name
        self.producer: Producer = (-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    def at(self, node_id: int) -> KafkaClient:
        return client_of(self.cluster.nodes[node_id])

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
        }

    async def init(self, *, version: int = 4, keeps: bool = False, timeout_ms: int = 60_000) -> int:
        found = await self.at(1).call(
            22,
            version,
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer[0] if keeps else -1,
            producer_epoch=self.producer[1] if keeps else -1,
        )
        if not found.error_code:
            self.producer = (found.producer_id, found.producer_epoch)
            self.sequences.clear()
        return int(found.error_code)

    async def add(
        self, *partitions: int, topic: str = "t", version: int = 3, node_id: int = 1
    ) -> list[int]:
        found = await self.at(node_id).call(
            24,
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
        )
        (row,) = found.results_by_topic_v3_and_below
        return [one.partition_error_code for one in row.results_by_partition]

    async def send(
        self,
        *values: str,
        partition: int = 0,
        topic: str = "t",
        sequence: int | None = None,
        acks: int = -1,
        transactional_id: str | None = "",
        attributes: int = 0x10,
        version: int = 9,
    ) -> int:
        key = (topic, partition)
        base = self.sequences.get(key, 0) if sequence is None else sequence
        records = batch(*values, producer=(*self.producer, base), attributes=attributes)
        state = self.cluster.image.partition(self.cluster.image.topic_ids[topic], partition)
        assert state is not None
        assert state.leader is not None
        found = await self.at(state.leader).call(
            0,
            version,
            transactional_id=self.name if transactional_id == "" else transactional_id,
            acks=acks,
            timeout_ms=1_000,
            topic_data=[
                {"name": topic, "partition_data": [{"index": partition, "records": records}]}
            ],
        )
        row = found.responses[0].partition_responses[0]
        if not row.error_code and sequence is None:
            self.sequences[key] = base + len(values)
        return int(row.error_code)

    async def end(self, committed: bool, *, version: int = 3, node_id: int = 1) -> int:
        found = await self.at(node_id).call(26, version, committed=committed, **self.fields)
        return int(found.error_code)

    async def add_offsets(self, group_id: str, *, version: int = 3) -> int:
        found = await self.at(2).call(25, version, group_id=group_id, **self.fields)
        return int(found.error_code)

    async def stage(
        self, group_id: str, offset: int, *, version: int = 3, partition: int = 0, **more: Any
    ) -> int:
        node_id = coordinator_of(self.cluster.image, group_id)
        assert node_id is not None
        rows = [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": "m",
            }
        ]
        fields = {"generation_id": -1, "member_id": "", "group_instance_id": None} | more
        found = await self.at(node_id).call(
            28,
            version,
            group_id=group_id,
            topics=[{"name": "t", "partitions": rows}],
            **self.fields,
            **fields,
        )
        return int(found.topics[0].partitions[0].error_code)

    async def offset(
        self, group_id: str, *, is_stable: bool = False, version: int = 7
    ) -> tuple[int, int]:
        """The error code and the offset that a group has in the first partition."""
        node_id = coordinator_of(self.cluster.image, group_id)
        assert node_id is not None
        topics = [{"name": "t", "partition_indexes": [0]}]
        asked: dict[str, Any] = {"group_id": group_id, "topics": topics}
        if version >= 8:
            asked = {"groups": [{"group_id": group_id, "topics": topics}]}
        found = await self.at(node_id).call(9, version, require_stable=is_stable, **asked)
        topic = (found.groups[0] if version >= 8 else found).topics[0]
        return topic.partitions[0].error_code, topic.partitions[0].committed_offset


@asynccontextmanager
async def sessions(*names: str, partitions: int = 1) -> AsyncIterator[Any]:
    """A cluster with topic ``t``, and sessions that have begun."""
    async with cluster_of() as cluster:
        await cluster.create("t", *[(2, 3, 1)] * partitions)
        made = [Session(cluster, name) for name in names or ("tx",)]
        for session in made:
            assert await session.init() == 0
        yield (cluster, *made)


async def seen(cluster: Cluster, *, node_id: int = 2, topic: str = "t") -> list[Any]:
    """Return the records that readers of committed ones see, once all ends are in the logs."""
    await cluster.until(lambda: not cluster.image.ending and not opened(cluster))
    return await read(cluster, node_id=node_id, topic=topic)


async def read(cluster: Cluster, *, node_id: int = 2, topic: str = "t") -> list[Any]:
    """All committed values. A log has offsets without records: markers, and what was aborted."""
    found: list[Any] = []
    offset: int | str = "earliest"
    while True:
        result = await cluster.nodes[node_id].fetch(topic, offset)
        headers = [header for _, header in iterate_headers(result.batches)]
        if not headers:
            return found
        found += values_of(result.batches)
        offset = headers[-1].next_offset


def opened(cluster: Cluster) -> list[object]:
    return [
        identity
        for node in cluster.nodes.values()
        for runner in node.replicas
        for identity in runner.log.writers.transactions.open
    ]


@pytest.mark.parametrize("version", range(5))
@virtual
async def test_records_are_seen_with_the_commit_and_not_before(version: int) -> None:
    async with sessions() as (cluster, tx):
        assert await tx.add(0, version=min(version, 3)) == [0]
        assert await tx.send("a", "b") == 0
        assert await tx.send("c") == 0
        assert await read(cluster) == []
        assert await tx.end(True, version=version) == 0
        assert await seen(cluster) == ["a", "b", "c"]


@virtual
async def test_an_aborted_transaction_is_never_seen_and_the_next_one_goes_on() -> None:
    async with sessions() as (cluster, tx):
        await tx.add(0)
        assert await tx.send("never") == 0
        assert await tx.end(False) == 0
        assert await tx.add(0) == [0]
        assert await tx.send("a") == 0
        assert await tx.end(True) == 0
        assert await seen(cluster) == ["a"]
        log = cluster.runner(2, "t").log
        assert log.writers.producers.last_sequence(tx.producer[0]) == 1


@virtual
async def test_a_repeated_end_gets_the_same_answer_on_every_node() -> None:
    async with sessions() as (cluster, tx):
        await tx.add(0)
        await tx.send("a")
        assert await asyncio.gather(*(tx.end(True, node_id=n) for n in (1, 2, 3, 1))) == [0] * 4
        assert await tx.end(True) == 0
        assert await tx.end(False) == 48
        await tx.add(0)
        assert await tx.end(False) == 0
        assert await tx.end(False) == 0
        assert await tx.end(True) == 48
        assert await seen(cluster) == ["a"]


@pytest.mark.parametrize("committed", [True, False])
@virtual
async def test_an_end_that_its_repetition_overtakes_leaves_the_next_one_open(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's connection broke, which the node has not heard. Seed 6642 of the simulation."""
    async with sessions() as (cluster, tx):
        await tx.add(0)
        await tx.send("a")
        ids = cluster.nodes[1].transactional_ids
        end, released = ids.end, asyncio.Event()

        async def held(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(ids, "end", end)
            await released.wait()
            return await end(*given, **named)

        monkeypatch.setattr(ids, "end", held)
        first = asyncio.ensure_future(tx.end(committed))
        await after(20)
        assert await tx.end(committed) == 0
        await tx.add(0)
        await tx.send("b")
        released.set()
        assert await first == KafkaCode.COORDINATOR_NOT_AVAILABLE
        assert await tx.end(True) == 0
        assert await seen(cluster) == (["a", "b"] if committed else ["b"])


@virtual
async def test_nothing_to_end_is_a_wrong_state() -> None:
    async with sessions() as (_, tx):
        assert await tx.end(True) == 48
        assert await tx.end(False) == 48


@virtual
async def test_a_second_producer_fences_the_first_one() -> None:
    async with sessions("tx", "tx") as (cluster, first, second):
        assert first.producer[0] == second.producer[0]
        for version, code in ((0, 47), (1, 47), (2, 90), (3, 90)):
            assert await first.add(0, version=version) == [code]
            assert await first.end(True, version=version) == code
            assert await first.add_offsets("g", version=version) == code
        assert await first.send("zombie") == 47
        assert await first.stage("g", 1) == 47
        assert await first.init(keeps=True) == 90
        assert await first.init(keeps=True, version=3) == 47
        await second.add(0)
        assert await second.send("a") == 0
        assert await first.send("zombie") == 47
        assert await second.end(True) == 0
        assert await seen(cluster) == ["a"]


@virtual
async def test_a_second_producer_aborts_what_the_first_one_left_open() -> None:
    async with sessions("tx") as (cluster, first):
        await first.add(0)
        assert await first.send("left") == 0
        second = Session(cluster)
        assert await second.init() == 0
        assert await first.end(True) == 90
        await second.add(0)
        assert await second.send("a") == 0
        assert await second.end(True) == 0
        assert await seen(cluster) == ["a"]


@virtual
async def test_ids_that_do_not_belong_together_have_no_mapping() -> None:
    async with sessions("tx", "other") as (_, tx, other):
        tx.producer = other.producer
        assert await tx.add(0) == [49]
        assert await tx.end(True) == 49
        assert await tx.add_offsets("g") == 49
        assert await tx.init(keeps=True) == 49
        assert await tx.send("a") == 47


@virtual
async def test_records_outside_of_the_transaction_are_refused() -> None:
    async with sessions(partitions=2) as (cluster, tx):
        assert await tx.send("early") == 48
        await tx.add(0)
        assert await tx.send("elsewhere", partition=1) == 48
        assert await tx.send("a") == 0
        assert await tx.end(True) == 0
        assert await tx.send("late") == 48
        assert await seen(cluster) == ["a"]


@virtual
async def test_records_and_requests_agree_on_the_transaction() -> None:
    async with sessions() as (cluster, tx):
        await tx.add(0)
        assert await tx.send("a", transactional_id=None) == 48
        assert await tx.send("a", attributes=0) == 48
        # The ids of transactions are of no use without one.
        assert await tx.send("a", attributes=0, transactional_id=None) == 48
        for acks in (0, 1):
            if acks:
                assert await tx.send("a", acks=acks) == 21
        assert cluster.runner(2, "t").log.log_end_offset == 0


@virtual
async def test_a_retry_in_a_later_transaction_is_a_duplicate() -> None:
    async with sessions() as (cluster, tx):
        await tx.add(0)
        assert await tx.send("a", "b") == 0
        assert await tx.end(True) == 0
        await tx.add(0)
        assert await tx.send("a", "b", sequence=0) == 0
        assert await tx.send("gap", sequence=5) == 45
        assert await tx.send("c") == 0
        assert await tx.end(True) == 0
        assert await seen(cluster) == ["a", "b", "c"]


@virtual
async def test_partitions_that_cannot_be_written_refuse_the_request_as_a_whole() -> None:
    async with sessions(partitions=2) as (cluster, tx):
        assert await tx.add(0, 7) == [55, 3]
        assert await tx.add(0, topic="missing") == [3]
        assert await tx.add(0, topic="__audit") == [29]
        await cluster.create("lazy", (1, 2, 3), flush_messages="1000")
        assert await tx.add(0, topic="lazy") == [44]
        assert await tx.end(True) == 48


@pytest.mark.parametrize(("timeout_ms", "code"), [(0, 50), (900_001, 50), (900_000, 0)])
@virtual
async def test_timeouts_have_bounds(timeout_ms: int, code: int) -> None:
    async with sessions("other") as (cluster, _):
        assert await Session(cluster).init(timeout_ms=timeout_ms) == code


@virtual
async def test_names_have_bounds() -> None:
    async with sessions("other") as (cluster, _):
        for name in ("", "n" * 256, "milena.tx"):
            assert await Session(cluster, name).init() == 42


@virtual
async def test_an_epoch_can_be_raised_by_its_client() -> None:
    async with sessions() as (_, tx):
        first = tx.producer
        assert await tx.init(keeps=True) == 0
        assert tx.producer == (first[0], first[1] + 1)
        tx.producer = first  # the response was lost
        assert await tx.init(keeps=True) == 0
        assert tx.producer == (first[0], first[1] + 1)


class TestOffsets:
    """Offsets of groups take effect with the records, or not at all."""

    @virtual
    async def test_offsets_move_with_the_commit(self) -> None:
        async with sessions() as (cluster, tx):
            assert await tx.add_offsets("g") == 0
            assert await tx.stage("g", 7) == 0
            assert await tx.offset("g") == (0, -1)
            for version in (7, 8, 9):
                assert await tx.offset("g", is_stable=True, version=version) == (88, -1)
            assert await tx.offset("other", is_stable=True) == (0, -1)
            await tx.add(0)
            assert await tx.send("a") == 0
            assert await tx.end(True) == 0
            assert await tx.offset("g", is_stable=True) == (0, 7)
            assert await seen(cluster) == ["a"]

    @virtual
    async def test_an_abort_leaves_the_former_offset(self) -> None:
        async with sessions() as (_, tx):
            await tx.add_offsets("g")
            await tx.stage("g", 7)
            await tx.end(True)
            await tx.add_offsets("g")
            await tx.stage("g", 9)
            assert await tx.offset("g", is_stable=True) == (88, -1)
            assert await tx.end(False) == 0
            assert await tx.offset("g", is_stable=True) == (0, 7)

    @pytest.mark.parametrize(("version", "code"), [(3, 59), (4, 59), (5, 120)])
    @virtual
    async def test_a_commit_is_refused_if_the_member_no_longer_holds_the_partition(
        self, version: int, code: int
    ) -> None:
        """The next member may have read from the former offset. The codes let the client abort and go on."""
        async with sessions() as (cluster, tx):
            node_id = coordinator_of(cluster.image, "g")
            joined = await beat(tx.at(node_id))
            epoch = joined.member_epoch
            assert await tx.add_offsets("g") == 0
            assert await tx.stage("g", 7, member_id="m1", generation_id=epoch) == 0
            for heartbeat in ({"member_id": "m2"}, {"member_epoch": -1}):
                assert (await beat(tx.at(node_id), **heartbeat)).error_code == 0
            assert await tx.end(True, version=version) == code
            assert await tx.offset("g", is_stable=True) == (0, -1)
            assert await tx.init(keeps=version < 5) == 0
            assert await tx.add(0) == [0]
            assert await tx.send("a") == 0
            assert await tx.end(True) == 0
            assert await seen(cluster) == ["a"]

    @pytest.mark.parametrize("version", range(5))
    @virtual
    async def test_a_group_must_be_in_the_transaction(self, version: int) -> None:
        async with sessions() as (_, tx):
            assert await tx.stage("g", 7, version=version) == 48
            await tx.add_offsets("g")
            assert await tx.stage("g", 7, version=version) == 0

    @virtual
    async def test_offsets_that_no_group_can_have_are_refused(self) -> None:
        async with sessions() as (_, tx):
            await tx.add_offsets("g")
            assert await tx.stage("g", -1) == 1
            assert await tx.stage("g", 1, partition=9) == 3
            assert await tx.stage("g", 1, member_id="x", generation_id=1) == 25
            assert await tx.add_offsets("") == 24


@virtual
async def test_a_transaction_without_records_is_aborted_when_its_time_is_over() -> None:
    """Otherwise its offsets would hold up readers for ever."""
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        tx = Session(cluster)
        assert await tx.init(timeout_ms=2_000) == 0
        await tx.add_offsets("g")
        await tx.stage("g", 7)
        await cluster.until(lambda: not cluster.image.transactional_ids["tx"].is_open)
        assert await tx.offset("g", is_stable=True) == (0, -1)
        assert await tx.end(True) == 90


@virtual
async def test_overdue_records_are_aborted_and_their_client_is_fenced() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        tx = Session(cluster)
        assert await tx.init(timeout_ms=2_000) == 0
        await tx.add(0)
        assert await tx.send("late") == 0
        await cluster.until(lambda: not cluster.image.transactional_ids["tx"].is_open)
        assert await tx.send("later") == 47
        assert await tx.end(True) == 90
        assert await seen(cluster) == []


class TestWithNewEpochs:
    """Clients with KIP-890: records and offsets enlist by themselves, and each end gives the next epoch."""

    async def end(self, tx: Session, committed: bool, *, node_id: int = 1) -> int:
        found = await tx.at(node_id).call(26, 5, committed=committed, **tx.fields)
        if not found.error_code:
            tx.producer = (found.producer_id, found.producer_epoch)
            tx.sequences.clear()
        return int(found.error_code)

    @virtual
    async def test_records_and_offsets_enlist_by_themselves(self) -> None:
        async with sessions() as (cluster, tx):
            first = tx.producer
            assert await tx.send("a", version=12) == 0
            assert await tx.stage("g", 7, version=5) == 0
            assert await tx.offset("g", is_stable=True) == (88, -1)
            assert await self.end(tx, True) == 0
            assert tx.producer == (first[0], first[1] + 1)
            assert await tx.send("never", version=12) == 0
            assert await self.end(tx, False) == 0
            assert await tx.offset("g", is_stable=True) == (0, 7)
            assert await seen(cluster) == ["a"]

    @virtual
    async def test_a_late_end_does_not_touch_the_next_transaction(self) -> None:
        async with sessions() as (cluster, tx):
            await tx.send("a", version=12)
            former = tx.producer
            assert await self.end(tx, True) == 0
            present = tx.producer
            for committed, code in ((True, 0), (False, 48)):
                tx.producer = former
                assert await self.end(tx, committed, node_id=2) == code
            tx.producer = present
            await tx.send("b", version=12)
            tx.producer = former
            assert await self.end(tx, True) == 48
            assert await tx.send("late", sequence=1, version=12) == 47
            tx.producer = present
            assert await self.end(tx, False) == 0
            assert await seen(cluster) == ["a"]

    @virtual
    async def test_an_abort_of_nothing_raises_the_epoch(self) -> None:
        """A record may be on its way, and must not begin a transaction after the abort."""
        async with sessions() as (_, tx):
            former = tx.producer
            assert await self.end(tx, True) == 48
            assert await self.end(tx, False) == 0
            assert tx.producer == (former[0], former[1] + 1)
            present, tx.producer = tx.producer, former
            assert await tx.send("late", version=12) == 47
            assert await self.end(tx, False) == 0
            assert tx.producer == present


class TestBesideHttp:
    """A name and an identity belong to one interface."""

    @virtual
    async def test_the_name_of_the_other_interface_is_refused(self) -> None:
        async with sessions() as (cluster, _):
            service = cluster.nodes[1].transactions
            with pytest.raises(ConflictError, match="transactional id of Kafka clients"):
                await service.begin("tx", timeout_ms=1_000)
            await service.begin("http", timeout_ms=1_000)
            assert await Session(cluster, "http").init() == 42

    @virtual
    async def test_an_http_client_neither_writes_nor_commits_in_it(self) -> None:
        async with sessions() as (cluster, tx):
            await tx.add(0)
            assert await tx.send("a") == 0
            own = cluster.image.producers[cluster.image.producer_names["tx"]]
            found = ProducerTransaction(
                producer_id=own.producer_id,
                producer_epoch=own.producer_epoch,
                timeout_ms=1_000,
                is_former_visible=True,
            )
            with pytest.raises(TransactionNotFoundError, match="Kafka client"):
                await send(cluster, 1, found, "t", "foreign")
            with pytest.raises(InvalidRequestError):
                await cluster.nodes[1].transactions.commit(commit_of(found))
            assert await tx.end(True) == 0
            assert await seen(cluster) == ["a"]

    @virtual
    async def test_an_operator_sees_and_aborts_it(self) -> None:
        async with sessions() as (cluster, tx):
            await tx.add(0)
            await tx.send("a")
            (row,) = (await cluster.nodes[3].transactions.open_transactions(older_than_ms=0)).found
            assert (row.producer_name, row.records, row.state) == ("tx", 1, "open")
            found = ProducerTransaction(
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                timeout_ms=1_000,
                is_former_visible=True,
            )
            await cluster.nodes[3].transactions.abort(found, timeout_ms=5_000)
            assert await tx.end(True) == 90
            assert await seen(cluster) == []


@virtual
async def test_a_deleted_topic_does_not_hold_up_the_commit() -> None:
    async with sessions() as (cluster, tx):
        await cluster.create("gone", (1, 2, 3))
        await tx.add(0)
        await tx.add(0, topic="gone")
        assert await tx.send("a") == 0
        assert await tx.send("b", topic="gone") == 0
        await cluster.nodes[1].admin.delete_topic("gone")
        assert await tx.end(True) == 0
        assert await seen(cluster) == ["a"]


@virtual
async def test_a_leader_that_dies_takes_nothing_of_the_transaction_with_it() -> None:
    async with sessions() as (cluster, tx):
        await tx.add(0)
        assert await tx.send("a") == 0
        await cluster.kill(2)
        await cluster.until(
            lambda: cluster.image.partition(cluster.image.topic_ids["t"], 0).leader in (1, 3)
        )
        assert await tx.send("b") == 0
        assert await tx.end(True) == 0
        assert await seen(cluster, node_id=3) == ["a", "b"]


@virtual
async def test_a_leader_that_is_cut_off_neither_hides_nor_adds_records() -> None:
    """The former leader lacks what its successor has, and does not know of it."""
    async with sessions() as (cluster, tx):
        await tx.add(0)
        assert await tx.send("a") == 0
        cluster.isolate(2)
        await cluster.until(
            lambda: (
                cluster.nodes[1].metadata.image.partition(cluster.image.topic_ids["t"], 0).leader
                in (1, 3)
            )
        )
        assert await tx.send("b") == 0
        assert await tx.end(True) == 0
        cluster.heal()
        assert await seen(cluster, node_id=3) == ["a", "b"]
