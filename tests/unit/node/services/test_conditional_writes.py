"""Rules of writes that name their offset, from any node: the leader judges them, and its word is the quorum's."""

import asyncio

import pytest

from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidRequestError,
    MalformedRequestError,
    NoQuorumError,
    PreconditionFailedError,
    RequestTooLargeError,
)
from milena.model.requests import Acks, IdempotencyKey, ProduceReceipt, ProduceRequest, Records
from node.services.messages import PRODUCE, PRODUCE_IF
from raft_meta.machine.commands import AllocateProducer
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import overtaken
from tests.support.clusters.runners import batch
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_produce import KEY, move_leader


def request(
    *values: str,
    expected_end: int,
    partition: int | None = 0,
    keys: list[bytes | None] | None = None,
    partitions: list[int | None] | None = None,
    idempotency: IdempotencyKey | None = None,
    timeout_ms: int = 2_000,
) -> ProduceRequest:
    return ProduceRequest(
        topic="t",
        records=Records(
            keys=keys, values=[value.encode() for value in values], partitions=partitions
        ),
        acks=Acks.ALL,
        timeout_ms=timeout_ms,
        partition=partition,
        idempotency=idempotency,
        expected_end=expected_end,
    )


async def produce(cluster: Cluster, node_id: int, wish: ProduceRequest) -> list[ProduceReceipt]:
    return list(await cluster.nodes[node_id].produce.produce(wish))


async def offset_of(cluster: Cluster, node_id: int, wish: ProduceRequest) -> int | None:
    """Of the first record; raises its error."""
    first = (await produce(cluster, node_id, wish))[0]
    if first.error is not None:
        raise first.error
    return first.offset


class TestOnAnyNode:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 2])
    async def test_it_is_written_at_the_offset_that_it_names_or_not_at_all(
        self, node_id: int
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            assert await offset_of(cluster, node_id, request("a", "b", expected_end=0)) == 0
            for expected_end in (0, 1, 3):
                with pytest.raises(PreconditionFailedError) as refused:
                    await offset_of(cluster, node_id, request("c", expected_end=expected_end))
                assert refused.value.end_offset == 2
            assert await offset_of(cluster, node_id, request("c", expected_end=2)) == 2
            assert await cluster.nodes[3].read("t") == ["a", "b", "c"]

    @virtual
    @pytest.mark.parametrize("node_id", [1, 2])
    async def test_so_is_an_encoded_batch(self, node_id: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            send = cluster.nodes[node_id].produce.produce_batch
            options = {"acks": Acks.ALL, "timeout_ms": 500}
            assert (await send("t", 0, batch("a"), **options, expected_end=0)).base_offset == 0  # type: ignore[arg-type]
            with pytest.raises(PreconditionFailedError) as refused:
                await send("t", 0, batch("b"), **options, expected_end=0)  # type: ignore[arg-type]
            assert refused.value.end_offset == 1
            assert await cluster.nodes[3].read("t") == ["a"]

    @virtual
    async def test_of_many_writers_for_one_offset_on_all_nodes_one_is_acknowledged(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            for end in range(5):
                writes = [
                    offset_of(cluster, 1 + i % 3, request(f"{end}-{i}", expected_end=end))
                    for i in range(9)
                ]
                done = await asyncio.gather(*writes, return_exceptions=True)
                assert sum(outcome == end for outcome in done) == 1
                refused = [o for o in done if isinstance(o, PreconditionFailedError)]
                assert [error.end_offset for error in refused] == [end + 1] * 8
            assert len(await cluster.nodes[2].read("t")) == 5

    @virtual
    async def test_it_shares_no_batch_with_others(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            plain = asyncio.ensure_future(cluster.nodes[1].write("t", "a"))
            with pytest.raises(PreconditionFailedError):
                await offset_of(cluster, 1, request("b", expected_end=1_000))
            assert (await plain)[0].offset == 0
            assert await cluster.nodes[1].read("t") == ["a"]

    @virtual
    async def test_records_under_a_condition_are_one_batch_or_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), max_message_bytes="1024")
            with pytest.raises(RequestTooLargeError, match="the records of one If-Match for t-0"):
                await offset_of(cluster, 2, request(*["x" * 400] * 5, expected_end=0))
            assert await cluster.nodes[1].read("t") == []


class TestOnePartition:
    @virtual
    async def test_a_topic_of_one_partition_needs_no_name_of_it(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            wish = request("a", partition=None, expected_end=0)
            assert await offset_of(cluster, 2, wish) == 0

    @virtual
    @pytest.mark.parametrize(
        ("keys", "partitions"),
        [([b"k", b"k"], None), (None, [2, 2]), ([b"k", b"l"], [1, 1])],
    )
    async def test_records_may_say_themselves_that_they_are_for_one(
        self, keys: list[bytes | None] | None, partitions: list[int | None] | None
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 4)
            wish = request(
                "a", "b", partition=None, keys=keys, partitions=partitions, expected_end=0
            )
            first, second = await produce(cluster, 2, wish)
            assert (first.offset, second.offset) == (0, 1)
            assert first.partition == second.partition

    @virtual
    @pytest.mark.parametrize(
        ("keys", "partitions"),
        [
            (None, None),
            ([b"k", None], None),
            ([b"k", b"n"], None),
            (None, [0, 1]),
            (None, [0, None]),
        ],
    )
    async def test_else_a_condition_is_refused_for_it_would_hold_for_whoever_has_the_turn(
        self, keys: list[bytes | None] | None, partitions: list[int | None] | None
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 4)
            wish = request(
                "a", "b", partition=None, keys=keys, partitions=partitions, expected_end=0
            )
            with pytest.raises(MalformedRequestError, match="the end of one partition"):
                await produce(cluster, 2, wish)
            for number in range(4):
                assert await cluster.nodes[1].read("t", number) == []


class TestRepeats:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 2])
    async def test_under_a_key_it_gets_its_first_answer_from_every_node(self, node_id: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            wish = request("a", expected_end=0, idempotency=KEY)
            assert await offset_of(cluster, node_id, wish) == 0
            await cluster.nodes[3].write("t", "between")
            assert await offset_of(cluster, 3, wish) == 0
            assert await cluster.nodes[1].read("t") == ["a", "between"]

    @virtual
    async def test_under_a_sequence_too(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            answer = await cluster.nodes[1].metadata.propose(
                AllocateProducer(name=None), timeout_ms=500
            )
            assert isinstance(answer, tuple)
            data = batch("a", producer=ProducerStamp(*answer, 0))
            for node_id in (2, 1, 3):
                receipt = await cluster.nodes[node_id].produce.produce_batch(
                    "t", 0, data, acks=Acks.ALL, timeout_ms=500, expected_end=0
                )
                assert receipt.base_offset == 0

    @virtual
    async def test_without_them_a_lost_answer_is_not_sent_again_and_a_repeat_is_refused(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE_IF.name)}
            with pytest.raises(FateUnknownError):
                await offset_of(cluster, 1, request("a", expected_end=0, timeout_ms=700))
            cluster.network.lose_answers_to = set()
            with pytest.raises(PreconditionFailedError):
                await offset_of(cluster, 1, request("a", expected_end=0))
            assert await cluster.nodes[3].read("t") == ["a"]

    @virtual
    async def test_a_keyed_write_whose_answer_is_lost_is_found_at_the_next_leader(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE_IF.name)}
            wish = request("a", expected_end=0, idempotency=KEY, timeout_ms=60_000)
            writing = asyncio.ensure_future(offset_of(cluster, 1, wish))
            await after(100)
            await move_leader(cluster, 1)
            assert await writing == 0

    @virtual
    async def test_a_keyed_write_that_the_next_leader_refuses_was_never_written(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "before")
            cluster.network.lose_answers_to = {(1, PRODUCE_IF.name)}
            wish = request("a", expected_end=0, idempotency=KEY, timeout_ms=60_000)
            writing = asyncio.ensure_future(offset_of(cluster, 1, wish))
            await after(100)
            await move_leader(cluster, 1)
            with pytest.raises(PreconditionFailedError) as refused:
                await writing
            assert refused.value.end_offset == 1


class TestFormerLeaders:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 2, 3])
    async def test_the_end_of_a_former_leader_refuses_nobody(self, node_id: int) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster, deaf=(2, 3))
            assert await offset_of(cluster, node_id, request("d", expected_end=3)) == 3

    @virtual
    @pytest.mark.parametrize("node_id", [1, 2, 3])
    async def test_nor_is_it_told_to_who_is_refused(self, node_id: int) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster, deaf=(2, 3))
            with pytest.raises(PreconditionFailedError) as refused:
                await offset_of(cluster, node_id, request("d", expected_end=1))
            assert refused.value.end_offset == 3

    @virtual
    async def test_who_cannot_ask_the_quorum_refuses_with_nothing_written(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))

            async def nobody() -> None:
                raise NoQuorumError("no majority answers")

            monkeypatch.setattr(cluster.nodes[1].metadata, "current_image", nobody)
            for node_id in (1, 2):
                with pytest.raises(NoQuorumError):
                    await offset_of(cluster, node_id, request("a", expected_end=7))
            assert await cluster.nodes[1].read("t", is_local=True) == []


class TestEarlierReleases:
    @virtual
    async def test_a_leader_that_knows_no_conditions_writes_nothing(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[1].write("t", "a")

            async def unknown(*_: object) -> None:
                raise InvalidRequestError("this node knows no request 'produce_if'")

            cluster.network.handlers[2][PRODUCE_IF.name] = unknown  # type: ignore[assignment]
            with pytest.raises(FeatureLevelError, match="node 2, which leads t-0, is of a"):
                await offset_of(cluster, 1, request("b", expected_end=1))
            assert await cluster.nodes[3].read("t") == ["a"]
            assert (await cluster.nodes[1].write("t", "b"))[0].offset == 1

    def test_a_condition_never_travels_in_a_call_that_earlier_releases_know(self) -> None:
        assert PRODUCE_IF.name != PRODUCE.name
        assert "expected_end" not in PRODUCE.request.__struct_fields__
