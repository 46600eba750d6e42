"""Rules of produce on any node: where records go, how they reach their leader, what is said when it is not known."""

import asyncio
import itertools
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    FateUnknownError,
    IdempotencyKeyReusedError,
    InvalidProducerError,
    InvalidRecordError,
    MalformedRequestError,
    NoLeaderError,
    NoQuorumError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotReadyError,
    PartitionCountChangedError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleProducerEpochError,
    TooManyRequestsError,
)
from milena.model.requests import (
    Acks,
    BatchReceipt,
    IdempotencyKey,
    ProduceReceipt,
    ProduceRequest,
    Records,
)
from node.config.budgets import WRITE_LEADER_WAIT_MS
from node.services import produce as produce_module
from node.services.messages import PRODUCE
from raft_meta.machine.commands import AllocateProducer, CreateTopic, ElectLeaders, LeaderChange
from tests.support.clusters.nodes import Cluster, cluster_of, outcome
from tests.support.clusters.overtaken import deaf, elect, quorum_of
from tests.support.clusters.runners import batch
from tests.support.time.virtual_time import after, settle, virtual

KEY = IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8)


def request(
    *values: str,
    keys: list[bytes | None] | None = None,
    partitions: list[int | None] | None = None,
    acks: Acks = Acks.ALL,
    idempotency: IdempotencyKey | None = None,
    timeout_ms: int = 2_000,
    timestamps: list[int | None] | None = None,
) -> ProduceRequest:
    return ProduceRequest(
        topic="t",
        records=Records(
            keys=keys,
            values=[value.encode() for value in values],
            partitions=partitions,
            timestamps=timestamps,
        ),
        acks=acks,
        timeout_ms=timeout_ms,
        idempotency=idempotency,
    )


async def produce(cluster: Cluster, node_id: int, wish: ProduceRequest) -> list[ProduceReceipt]:
    return list(await cluster.nodes[node_id].produce.produce(wish))


async def move_leader(cluster: Cluster, leader: int) -> None:
    """A planned change of leader."""
    topic = cluster.image.topic("t")
    assert topic is not None
    state = cluster.image.partitions[topic.topic_id, 0]
    change = LeaderChange(
        topic_id=topic.topic_id,
        partition=0,
        partition_epoch=state.partition_epoch,
        leader=leader,
        isr=state.isr,
    )
    await cluster.any.metadata.propose(
        ElectLeaders(controller_epoch=cluster.image.controller_epoch, changes=(change,)),
        timeout_ms=1_000,
    )


class TestPlacement:
    @virtual
    async def test_records_of_a_key_go_to_one_partition_from_every_node(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 8)
            chosen = set()
            for node_id in (1, 2, 3):
                receipts = await produce(cluster, node_id, request("a", keys=[b"user-7"]))
                chosen.add(receipts[0].partition)
            assert len(chosen) == 1

    @virtual
    async def test_keyless_records_of_one_request_stay_together_and_requests_take_turns(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 4)
            chosen = []
            for _ in range(4):
                receipts = await produce(cluster, 1, request("a", "b", "c"))
                assert len({receipt.partition for receipt in receipts}) == 1
                chosen.append(receipts[0].partition)
            assert sorted(chosen) == [0, 1, 2, 3]

    @virtual
    async def test_keyless_records_of_an_idempotency_key_are_placed_alike_on_every_node(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 4)
            wish = request("a", "b", "c", "d", "e", idempotency=KEY)
            first = await produce(cluster, 1, wish)
            assert await produce(cluster, 2, wish) == first
            assert len({receipt.partition for receipt in first}) > 1
            content = [await cluster.nodes[3].read("t", number) for number in range(4)]
            assert sorted(value for values in content for value in values) == list("abcde")

    @virtual
    async def test_an_idempotency_key_of_before_the_topic_grew_is_refused_wherever_records_would_go(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            await cluster.create("t", (1, 2, 3))
            keys = [IdempotencyKey(key_hash=bytes([n]) * 16, body_hash=b"b" * 8) for n in range(6)]
            wishes = [request("a", keys=[b"k%d" % n], idempotency=keys[n]) for n in range(3)]
            wishes += [request("a", "b", idempotency=key) for key in keys[3:]]
            for wish in wishes:
                await produce(cluster, 1, wish)
            for count in (2, 5):
                await cluster.nodes[2].admin.add_partitions("t", count)
                await cluster.until(lambda: cluster.is_led("t"))
            for wish in wishes:
                with pytest.raises(PartitionCountChangedError, match="had 1 partitions, it has 5"):
                    await produce(cluster, 3, wish)
            named = request("a", "b", partitions=[0, 4], idempotency=KEY)
            assert await produce(cluster, 1, named) == await produce(cluster, 2, named)

    @virtual
    async def test_a_node_that_has_not_heard_of_growth_writes_nothing_under_a_key(self) -> None:
        """Its leader may have told others already that nothing came under that key."""
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            await cluster.create("t", (1, 2, 3))
            stale = cluster.image.topic("t")
            assert stale is not None
            await cluster.nodes[2].admin.add_partitions("t", 2)
            await cluster.until(lambda: cluster.is_led("t"))
            for node_id in (1, 2):
                service = cluster.nodes[node_id].produce
                (receipt,) = await service._produce(stale, request("a", idempotency=KEY))
                assert isinstance(receipt.error, FateUnknownError)
                assert "has 2 partitions since" in receipt.error.message
                (unnamed,) = await service._produce(stale, request("b"))
                assert unnamed.error is None

    @virtual
    async def test_receipts_come_in_request_order_with_an_error_for_each_record_at_fault(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 2)
            receipts = await produce(
                cluster, 1, request("a", "b", "c", "d", partitions=[1, 7, 0, 1])
            )
            assert [(r.partition, r.offset) for r in receipts[::2]] == [(1, 0), (0, 0)]
            assert isinstance(receipts[1].error, PartitionNotFoundError)
            assert (receipts[3].partition, receipts[3].offset) == (1, 1)

    @virtual
    async def test_one_partition_that_refuses_does_not_refuse_the_others(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1,), (2,), min_insync_replicas="1")
            await cluster.kill(2)
            receipts = await produce(cluster, 1, request("a", "b", partitions=[0, 1]))
            assert receipts[0].offset == 0
            assert isinstance(receipts[1].error, NoLeaderError)

    @virtual
    async def test_a_path_that_names_no_partition_of_the_topic_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            with pytest.raises(PartitionNotFoundError):
                await cluster.nodes[1].write("t", "a", partition=5)

    @virtual
    async def test_a_missing_topic_is_created(self) -> None:
        async with cluster_of() as cluster:
            receipts = await asyncio.gather(
                *(cluster.nodes[i].write("new", f"{i}", partition=None) for i in (1, 2, 3))
            )
            assert sorted(r[0].offset or 0 for r in receipts) == [0, 1, 2]
            assert sorted(await cluster.nodes[1].read("new")) == ["1", "2", "3"]


class TestCompactedTopics:
    @virtual
    async def test_a_record_without_a_key_is_refused_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), (2, 3, 1), cleanup_policy="compact")
            wish = request(
                "a", "b", "c", "d", keys=[b"k", b"k", None, b"k"], partitions=[0, 1, 1, 0]
            )
            receipts = await produce(cluster, 1, wish)
            assert [receipt.offset for receipt in receipts] == [0, 0, None, 1]
            assert isinstance(receipts[2].error, InvalidRecordError)
            assert "has no key, but t is compacted" in str(receipts[2].error)
            assert await cluster.nodes[2].read("t", 1) == ["b"]

    @virtual
    async def test_records_of_a_key_are_refused_together(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), cleanup_policy="compact")
            wish = request("a", "b", keys=[b"k", None], idempotency=KEY)
            with pytest.raises(InvalidRecordError, match="record 1: the record has no key"):
                await produce(cluster, 1, wish)
            assert await cluster.nodes[2].read("t") == []

    @virtual
    async def test_an_encoded_batch_needs_keys_too(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), cleanup_policy="compact,delete")
            with pytest.raises(InvalidRecordError, match="record 0 has no key"):
                await cluster.nodes[2].produce.produce_batch(
                    "t", 0, batch("a"), acks=Acks.ALL, timeout_ms=500
                )


class TestNeighbours:
    """What is wrong with a record is its own affair, whatever came in the same request."""

    FAULTS = (
        {"value": "x" * 4000},
        {"partition": 9},
        {"timestamp": 1 << 50},
        {"key": None},
    )

    @virtual
    async def test_each_record_has_its_own_answer_however_they_are_split(self) -> None:
        rng = random.Random(5)
        async with cluster_of() as cluster:
            await cluster.create(
                "t",
                (1, 2, 3),
                (2, 3, 1),
                cleanup_policy="compact",
                max_message_bytes="1024",
                compression_type="uncompressed",
            )
            for round_ in range(30):
                rows = [
                    {
                        "value": f"{round_}.{n}",
                        "key": b"k%d" % n,
                        "partition": rng.choice((None, 0, 1)),
                        "timestamp": None,
                        **(rng.choice(self.FAULTS) if rng.random() < 0.3 else {}),
                    }
                    for n in range(rng.randrange(1, 12))
                ]
                cuts = sorted({0, len(rows), *rng.choices(range(len(rows)), k=rng.randrange(3))})
                receipts = [
                    receipt
                    for first, last in itertools.pairwise(cuts)
                    for receipt in await produce(
                        cluster, rng.choice((1, 2, 3)), _asking(rows[first:last])
                    )
                ]
                good = [
                    len(row["value"]) < 1000
                    and row["partition"] != 9
                    and row["timestamp"] is None
                    and row["key"] is not None
                    for row in rows
                ]
                assert [receipt.error is None for receipt in receipts] == good
                assert [receipt.offset is not None for receipt in receipts] == good
                for row, receipt in zip(rows, receipts, strict=True):
                    if receipt.error is None:
                        stored = await cluster.nodes[1].read("t", receipt.partition)
                        assert stored[receipt.offset] == row["value"]

    @virtual
    @pytest.mark.parametrize("fault", [*FAULTS, {"headers": [("h", b"")] * 1_025}])
    @pytest.mark.parametrize("acks", Acks)
    async def test_under_a_key_one_refuses_all_before_any_is_written(
        self, fault: dict[str, object], acks: Acks
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create(
                "t", (1, 2, 3), (2, 3, 1), cleanup_policy="compact", max_message_bytes="1024"
            )
            for place, (node_id, bad_partition) in enumerate(itertools.product((1, 2, 3), (0, 1))):
                rows = [{"value": "a", "key": b"k", "partition": n} for n in (0, 1, 0, 1)]
                bad = {"value": "b", "key": b"k", "partition": bad_partition, **fault}
                rows.insert(place % 5, bad)
                key = IdempotencyKey(key_hash=bytes([place]) * 16, body_hash=b"b" * 8)
                wish = replace(_asking(rows), idempotency=key, acks=acks)
                with pytest.raises(
                    (InvalidRecordError, PartitionNotFoundError, RequestTooLargeError)
                ):
                    await produce(cluster, node_id, wish)
            await settle()
            for partition in (0, 1):
                assert await cluster.nodes[1].read("t", partition) == []


def _asking(rows):
    wish = request(
        *(row["value"] for row in rows),
        keys=[row["key"] for row in rows],
        partitions=[row["partition"] for row in rows],
        timestamps=[row.get("timestamp") for row in rows],
    )
    headers = [row.get("headers") for row in rows]
    return replace(wish, records=replace(wish.records, headers=headers))


class TestLargeRequests:
    @virtual
    async def test_a_request_larger_than_a_batch_becomes_several_in_order(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), max_message_bytes="1024")
            values = [f"{i:03}" + "x" * 200 for i in range(20)]
            receipts = await produce(cluster, 2, request(*values))
            assert [receipt.offset for receipt in receipts] == list(range(20))
            assert await cluster.nodes[3].read("t") == values

    @virtual
    async def test_a_record_that_fits_in_no_batch_is_refused_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), max_message_bytes="1024")
            values = ["x" * 400] * 5 + ["y" * 2_000] + ["z"]
            receipts = await produce(cluster, 1, request(*values))
            assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4, None, 5]
            assert isinstance(receipts[5].error, RequestTooLargeError)
            assert re.match(r"a record for t-0 takes \d+ bytes", str(receipts[5].error))
            receipts = await produce(cluster, 1, request("y" * 2_000, "y" * 3_000))
            assert all(isinstance(r.error, RequestTooLargeError) for r in receipts)

    @virtual
    async def test_a_record_with_too_many_headers_is_refused_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            wish = request("a", "b", "c")
            headers = [None, [("h", b"")] * 1_025, None]
            wish = replace(wish, records=replace(wish.records, headers=headers))
            receipts = await produce(cluster, 1, wish)
            assert [receipt.offset for receipt in receipts] == [0, None, 1]
            assert isinstance(receipts[1].error, InvalidRecordError)
            assert await cluster.nodes[3].read("t") == ["a", "c"]

    @virtual
    async def test_an_idempotency_keys_records_are_one_batch_or_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), max_message_bytes="1024")
            receipts = await produce(cluster, 1, request(*["x" * 400] * 5, idempotency=KEY))
            assert all(isinstance(r.error, RequestTooLargeError) for r in receipts)
            sentence = r"the records of one idempotency key for t-0 take \d+ bytes"
            assert re.match(sentence, str(receipts[0].error))

    @virtual
    async def test_what_fails_after_its_first_part_was_written_is_of_unknown_fate(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), max_message_bytes="1024")
            to_leader = cluster.nodes[1].produce._to_leader
            real, count = to_leader.bring, 0

            async def append(*args: object, **options: object) -> object:
                nonlocal count
                count += 1
                if count > 1:
                    raise NoLeaderError("nothing was written")
                return await real(*args, **options)  # type: ignore[arg-type]

            monkeypatch.setattr(to_leader, "bring", append)
            receipts = await produce(cluster, 1, request(*["x" * 400] * 4))
            assert all(isinstance(r.error, FateUnknownError) for r in receipts)
            assert len(await cluster.nodes[1].read("t")) == 2


class TestForwarding:
    @virtual
    async def test_any_node_takes_a_write(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            for node_id in (1, 2, 3):
                assert await outcome(cluster.nodes[node_id].write("t", "a")) == [node_id - 1]
            assert cluster.nodes[2].counts.forwarded_requests == 0
            assert cluster.nodes[1].counts.forwarded_requests == 1

    @virtual
    async def test_a_forwarded_write_is_never_forwarded_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            topic = cluster.image.topic("t")
            assert topic is not None
            header: dict[str, object] = {
                "topic": topic.topic_id, "partition": 0, "epoch": 0, "acks": -1, "timeout_ms": 500,
            }  # fmt: skip
            with pytest.raises(NotLeaderError):
                await cluster.nodes[1].produce.on_produce(3, header, batch("a"))
            kinds = [kind for _, _, kind, _ in cluster.network.calls]
            assert PRODUCE.name not in kinds

    @virtual
    @pytest.mark.parametrize("change", [{"acks": 2}, {"acks": "all"}, {"epoch": None}])
    async def test_a_peers_request_of_the_wrong_shape_is_refused(
        self, change: dict[str, object]
    ) -> None:
        async with cluster_of() as cluster:
            header: dict[str, object] = {
                "topic": "x", "partition": 0, "epoch": 0, "acks": -1, "timeout_ms": 500,
            }  # fmt: skip
            with pytest.raises(MalformedRequestError):
                await cluster.nodes[1].produce.on_produce(3, header | change, batch("a"))

    @virtual
    async def test_a_batch_that_was_damaged_on_its_way_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            topic = cluster.image.topic("t")
            assert topic is not None
            header: dict[str, object] = {
                "topic": topic.topic_id, "partition": 0, "epoch": 0, "acks": -1, "timeout_ms": 500,
            }  # fmt: skip
            with pytest.raises(InvalidRecordError):
                await cluster.nodes[1].produce.on_produce(3, header, batch("abc")[:-1] + b"!")

    @virtual
    async def test_a_refusal_with_nothing_written_is_tried_at_the_next_leader(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            behind = cluster.nodes[3].quorum
            behind.is_stopped = True
            await move_leader(cluster, 1)
            writing = asyncio.ensure_future(outcome(cluster.nodes[3].write("t", "a")))
            await after(100)
            assert not writing.done()
            behind.is_stopped = False
            behind.catch_up()
            assert await writing == [0]
            sent = [target for _, target, kind, _ in cluster.network.calls if kind == PRODUCE.name]
            assert sent == [2, 1]

    @virtual
    async def test_a_leader_that_cannot_be_dialled_is_left_as_soon_as_another_leads(self) -> None:
        async with cluster_of() as cluster:
            # The writing node hears of the change from the Raft leader, which it still reaches.
            after_it = cluster.log.leader_id
            assert after_it is not None
            writer, leader = (i for i in (1, 2, 3) if i != after_it)
            await cluster.create("t", (leader, after_it, writer))
            cluster.network.links.discard((writer, leader))
            cluster.network.cut(writer, leader)
            writing = asyncio.ensure_future(outcome(cluster.nodes[writer].write("t", "a")))
            await after(100)
            assert not writing.done()
            await move_leader(cluster, after_it)
            assert await writing == [0], "nothing had been sent, so it may be sent to the next"
            assert await cluster.nodes[after_it].read("t") == ["a"]

    @virtual
    async def test_a_leader_that_cannot_be_dialled_is_given_up_with_nothing_written(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.links.discard((3, 2))
            cluster.network.cut(3, 2)
            began = cluster.any.clock.now_ms()
            result = await outcome(cluster.nodes[3].write("t", "a", timeout_ms=60_000))
            assert isinstance(result, NoLeaderError)
            assert cluster.any.clock.now_ms() - began < 1_500

    @virtual
    async def test_an_answer_that_gets_lost_is_of_unknown_fate_and_not_sent_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE.name)}
            result = await outcome(cluster.nodes[1].write("t", "a", timeout_ms=700))
            assert isinstance(result, FateUnknownError)
            assert await cluster.nodes[3].read("t") == ["a"]

    @virtual
    async def test_a_leader_that_is_replaced_while_a_forward_is_out_leaves_its_fate_unknown(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE.name)}
            began = cluster.any.clock.now_ms()
            writing = asyncio.ensure_future(
                outcome(cluster.nodes[1].write("t", "a", timeout_ms=60_000))
            )
            await after(100)
            await move_leader(cluster, 3)
            assert isinstance(await writing, FateUnknownError)
            assert cluster.any.clock.now_ms() - began < 1_500, "at once, not after a minute"

    @virtual
    async def test_a_keyed_write_survives_a_change_of_leader_exactly_once(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE.name)}
            writing = asyncio.ensure_future(
                produce(cluster, 1, request("a", idempotency=KEY, timeout_ms=60_000))
            )
            await after(100)
            await move_leader(cluster, 1)
            [receipt] = await writing
            assert receipt.offset == 0
            assert await cluster.nodes[3].read("t") == ["a"]

    @virtual
    async def test_a_repeat_is_not_told_that_nothing_was_written_while_the_first_may_be(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), min_insync_replicas="2")
            cluster.isolate(2)
            first = (await produce(cluster, 1, request("a", idempotency=KEY, timeout_ms=500)))[0]
            assert isinstance(first.error, FateUnknownError)
            # The follower leaves the in-sync replicas: a new record would be refused.
            await after(60_000)
            fresh = await outcome(cluster.nodes[1].write("t", "b", timeout_ms=500))
            assert isinstance(fresh, NotEnoughReplicasError)
            again = (await produce(cluster, 1, request("a", idempotency=KEY, timeout_ms=500)))[0]
            assert isinstance(again.error, FateUnknownError)
            other = IdempotencyKey(key_hash=b"o" * 16, body_hash=b"b" * 8)
            refused = (await produce(cluster, 1, request("c", idempotency=other, timeout_ms=500)))[
                0
            ]
            assert isinstance(refused.error, NotEnoughReplicasError)
            cluster.heal()
            await after(60_000)
            last = (await produce(cluster, 1, request("a", idempotency=KEY)))[0]
            assert (last.error, last.offset) == (None, 0)
            assert await cluster.nodes[1].read("t") == ["a"]

    @virtual
    async def test_without_a_leader_the_fate_of_a_key_is_unknown(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.kill(2)
            await after(1_000)
            for wish in (
                produce(cluster, 1, request("a", idempotency=KEY)),
                cluster.nodes[1].produce.produce_batch(
                    "t", 0, batch("a"), acks=Acks.ALL, timeout_ms=500, idempotency=KEY
                ),
            ):
                told = await outcome(asyncio.ensure_future(wish))
                error = told if isinstance(told, Exception) else told[0].error
                assert isinstance(error, FateUnknownError)
                assert "nothing was written" not in error.message
                assert "this try wrote nothing" in error.message

    @virtual
    async def test_no_leader_is_said_at_once_with_nothing_written(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.kill(2)
            await after(1_000)
            began = cluster.any.clock.now_ms()
            result = await outcome(cluster.nodes[1].write("t", "a", timeout_ms=60_000))
            assert isinstance(result, NoLeaderError)
            assert cluster.any.clock.now_ms() - began <= WRITE_LEADER_WAIT_MS + 10

    @virtual
    @pytest.mark.parametrize("asked", [1, 2])
    async def test_a_leader_whose_disk_is_slow_to_create_the_files_is_waited_for(
        self, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            replicas = cluster.nodes[2].replicas
            make = replicas._make

            async def make_slowly(*given: Any) -> Any:
                await after(2_500)
                return await make(*given)

            monkeypatch.setattr(replicas, "_make", make_slowly)
            await cluster.any.metadata.propose(
                CreateTopic(
                    topic_id=cluster.new_topic_id(), name="t", configs=(), placement=((2, 1, 3),)
                ),
                timeout_ms=2_000,
            )
            wish = asyncio.ensure_future(cluster.nodes[asked].write("t", "a", timeout_ms=30_000))
            await after(2_000)
            assert not wish.done()
            assert [receipt.offset for receipt in await wish] == [0]

    @virtual
    @pytest.mark.parametrize("asked", [1, 2])
    async def test_a_leader_that_is_replaced_before_it_has_the_files_is_not_waited_for(
        self, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            monkeypatch.setattr(cluster.nodes[2].replicas, "_make", lambda *_: after(20_000))
            await cluster.any.metadata.propose(
                CreateTopic(
                    topic_id=cluster.new_topic_id(), name="t", configs=(), placement=((2, 1, 3),)
                ),
                timeout_ms=2_000,
            )
            wish = asyncio.ensure_future(cluster.nodes[asked].write("t", "a", timeout_ms=3_000))
            await after(300)
            began_ms = cluster.any.clock.now_ms()
            await elect(cluster, leader=1, isr=(1, 3), by=1)
            assert [receipt.offset for receipt in await wish] == [0]
            assert cluster.any.clock.now_ms() - began_ms < 100

    @virtual
    async def test_a_leader_without_a_lease_refuses_at_once(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.isolate(2)
            await after(2_500)
            began = cluster.any.clock.now_ms()
            result = await outcome(cluster.nodes[2].write("t", "a", timeout_ms=60_000))
            assert isinstance(result, NoLeaderError)
            assert cluster.any.clock.now_ms() - began <= 310

    @virtual
    async def test_an_isr_below_the_minimum_is_named(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), min_insync_replicas="2")
            await cluster.kill(2)
            await cluster.until(lambda: cluster.isr_of("t") == (1,))
            result = await outcome(cluster.nodes[3].write("t", "a"))
            assert isinstance(result, NotEnoughReplicasError)
            assert await outcome(cluster.nodes[3].write("t", "a", acks=Acks.LEADER)) == [0]


class TestEncodedBatches:
    @virtual
    async def test_a_client_batch_is_appended_as_it_is_and_recognised_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            answer = await cluster.nodes[1].metadata.propose(
                AllocateProducer(name=None), timeout_ms=500
            )
            assert isinstance(answer, tuple)
            data = batch("a", "b", producer=ProducerStamp(*answer, 0))
            send = cluster.nodes[2].produce.produce_batch
            first = await send("t", 0, data, acks=Acks.ALL, timeout_ms=500)
            again = await send("t", 0, data, acks=Acks.ALL, timeout_ms=500)
            assert (first.base_offset, first.last_offset, first.is_duplicate) == (0, 1, False)
            assert (again.base_offset, again.last_offset, again.is_duplicate) == (0, 1, True)

    @virtual
    async def test_a_batch_under_a_key_is_recognised_wherever_it_comes_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))

            async def send(node_id: int, data: bytes) -> BatchReceipt:
                return await cluster.nodes[node_id].produce.produce_batch(
                    "t", 0, data, acks=Acks.ALL, timeout_ms=500, idempotency=KEY
                )

            first = await send(2, batch("a", "b"))
            await move_leader(cluster, 3)
            again = await send(1, batch("a", "b"))
            assert (first.base_offset, first.last_offset, first.is_duplicate) == (0, 1, False)
            assert (again.base_offset, again.last_offset, again.is_duplicate) == (0, 1, True)
            with pytest.raises(InvalidProducerError, match="without Idempotency-Key"):
                await send(1, batch("a", producer=ProducerStamp(7, 0, 0)))
            other = replace(KEY, body_hash=b"c" * 8)
            with pytest.raises(IdempotencyKeyReusedError):
                await cluster.nodes[1].produce.produce_batch(
                    "t", 0, batch("c"), acks=Acks.ALL, timeout_ms=500, idempotency=other
                )
            assert await cluster.nodes[1].read("t") == ["a", "b"]

    @virtual
    async def test_an_id_or_epoch_that_was_never_allocated_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            [producer_id, epoch] = await cluster.nodes[1].metadata.propose(  # type: ignore[misc]
                AllocateProducer(name="p"), timeout_ms=500
            )
            for stamp in (ProducerStamp(77, 0, 0), ProducerStamp(producer_id, epoch + 1, 0)):
                with pytest.raises(InvalidProducerError, match="never allocated"):
                    await cluster.nodes[2].produce.produce_batch(
                        "t", 0, batch("a", producer=stamp), acks=Acks.ALL, timeout_ms=500
                    )

    @virtual
    async def test_a_former_holder_of_a_name_is_fenced(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            first = await cluster.nodes[1].admin.allocate_producer("p")
            second = await cluster.nodes[2].admin.allocate_producer("p")
            assert second.producer_epoch == first.producer_epoch + 1
            stamp = ProducerStamp(first.producer_id, first.producer_epoch, 0)
            with pytest.raises(StaleProducerEpochError):
                await cluster.nodes[3].produce.produce_batch(
                    "t", 0, batch("a", producer=stamp), acks=Acks.ALL, timeout_ms=500
                )

    @virtual
    async def test_who_takes_a_name_over_is_told_what_every_leader_has_of_it_or_nothing(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), (2, 3, 1))
            first = await cluster.nodes[1].admin.allocate_producer("p")
            for partition, values in enumerate(("a", "bcd")):
                stamp = ProducerStamp(first.producer_id, first.producer_epoch, 0)
                await cluster.nodes[3].produce.produce_batch(
                    "t", partition, batch(*values, producer=stamp), acks=Acks.ALL, timeout_ms=500
                )
            second = await cluster.nodes[3].admin.allocate_producer("p")
            assert second.last_sequences == {"t": {0: 0, 1: 2}}
            await cluster.kill(2)
            with pytest.raises(NotReadyError, match="ask again"):
                await cluster.nodes[3].admin.allocate_producer("p")
            await cluster.until(lambda: cluster.image.live_brokers() == (1, 3))
            last = await cluster.nodes[3].admin.allocate_producer("p")
            assert last.last_sequences == {"t": {0: 0, 1: 2}}
            assert last.producer_epoch == first.producer_epoch + 3

    @virtual
    async def test_a_gap_is_refused_by_the_leader_and_reaches_the_client_as_such(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            [producer_id, epoch] = await cluster.nodes[1].metadata.propose(  # type: ignore[misc]
                AllocateProducer(name=None), timeout_ms=500
            )
            stamp = ProducerStamp(producer_id, epoch, 5)
            with pytest.raises(InvalidProducerError):
                await cluster.nodes[2].produce.produce_batch(
                    "t", 0, batch("a", producer=stamp), acks=Acks.ALL, timeout_ms=500
                )


class TestUnacknowledged:
    @virtual
    async def test_acks_none_is_answered_before_anything_is_sent(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            [receipt] = await produce(cluster, 1, request("a", acks=Acks.NONE))
            assert (receipt.offset, receipt.error) == (None, None)
            await after(50)
            assert await cluster.nodes[3].read("t") == ["a"]

    @virtual
    @pytest.mark.parametrize("node_id", [1, 2])
    async def test_one_clients_writes_keep_their_order_however_large_they_are(
        self, node_id: int
    ) -> None:
        # Nobody waits for an answer, so that the next write may be there before the last one left.
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            values = ["a", "b", "c" * 50_000, "d", "e"]
            for value in values:
                await produce(cluster, node_id, request(value, acks=Acks.NONE))
            await after(100)
            assert await cluster.nodes[3].read("t") == values

    @virtual
    async def test_a_failure_of_what_nobody_waits_for_harms_nobody(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.kill(2)
            await produce(cluster, 1, request("a", acks=Acks.NONE))
            await after(3_000)
            assert not cluster.nodes[1].produce._unacked
            assert cluster.nodes[1].produce._unacked_bytes == 0

    @virtual
    async def test_number_and_bytes_under_way_are_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            cluster.network.lose_answers_to = {(1, PRODUCE.name)}
            service = cluster.nodes[1].produce
            monkeypatch.setattr(produce_module, "UNACKED_BYTES_MAX", 1_000)
            await produce(cluster, 1, request("x" * 900, acks=Acks.NONE))
            with pytest.raises(TooManyRequestsError):
                await produce(cluster, 1, request("x" * 900, acks=Acks.NONE))
            with pytest.raises(TooManyRequestsError):
                await service.produce_batch(
                    "t", 0, batch("x" * 900), acks=Acks.NONE, timeout_ms=500
                )
            monkeypatch.setattr(produce_module, "UNACKED_MAX", 1)
            with pytest.raises(TooManyRequestsError):
                await produce(cluster, 1, request("x", acks=Acks.NONE))
            await after(4_000)
            assert service._unacked_bytes == 0
            await settle()


class TestOldSettings:
    """Another node has answered that the topic has other settings, of which node 3 has not heard."""

    @staticmethod
    async def changed(cluster: Cluster, before: dict[str, str], **after_: str) -> None:
        await cluster.create("t", (3, 1, 2), **before)
        named = {name.replace("_", "."): value for name, value in after_.items()}
        with deaf(cluster, 3):
            await cluster.nodes[1].admin.alter_configs("t", named, is_validate_only=False)

    @virtual
    @pytest.mark.parametrize("values", [("x" * 3_000,), ("a", "x" * 3_000)])
    @pytest.mark.parametrize("key", [None, KEY])
    async def test_a_record_is_not_too_large(
        self, values: tuple[str, ...], key: IdempotencyKey | None
    ) -> None:
        async with cluster_of() as cluster:
            await self.changed(cluster, {"max_message_bytes": "1024"}, max_message_bytes="99999")
            receipts = await produce(cluster, 3, request(*values, idempotency=key))
            assert [receipt.offset for receipt in receipts] == list(range(len(values)))

    @virtual
    async def test_a_record_needs_no_key(self) -> None:
        async with cluster_of() as cluster:
            await self.changed(cluster, {"cleanup_policy": "compact"}, cleanup_policy="delete")
            (receipt,) = await produce(cluster, 3, request("a"))
            assert receipt.offset == 0

    @virtual
    async def test_a_batch_is_not_too_large(self) -> None:
        async with cluster_of() as cluster:
            await self.changed(cluster, {"max_message_bytes": "1024"}, max_message_bytes="99999")
            receipt = await cluster.nodes[3].produce.produce_batch(
                "t", 0, batch("x" * 3_000), acks=Acks.ALL, timeout_ms=1_000
            )
            assert receipt.base_offset == 0

    @virtual
    async def test_what_is_refused_indeed_costs_a_round(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (3, 1, 2), max_message_bytes="1024")
            (receipt,) = await produce(cluster, 3, request("x" * 3_000))
            assert isinstance(receipt.error, RequestTooLargeError)
            quorum_of(cluster, 3)._is_reachable = lambda: False
            (receipt,) = await produce(cluster, 3, request("x" * 3_000, timeout_ms=500))
            assert receipt.error is not None
            assert receipt.error.is_retriable

    @virtual
    @pytest.mark.parametrize("values", [("x" * 3_000,), ("a", "x" * 3_000)])
    @pytest.mark.parametrize("partitions", [1, 2])
    async def test_without_a_majority_the_fate_under_a_key_is_unknown(
        self, values: tuple[str, ...], partitions: int
    ) -> None:
        """An earlier attempt may have written the records, when the topic still took them."""
        async with cluster_of() as cluster:
            await cluster.create("t", *[(3, 1, 2)] * partitions, max_message_bytes="1024")
            cluster.isolate(3)
            places: list[int | None] = [place % partitions for place in range(len(values))]
            wish = request(*values, partitions=places, idempotency=KEY, timeout_ms=500)
            assert isinstance(await outcome(produce(cluster, 3, wish)), FateUnknownError)
            with pytest.raises(FateUnknownError):
                await cluster.nodes[3].produce.produce_batch(
                    "t", 0, batch("x" * 3_000), acks=Acks.ALL, timeout_ms=500, idempotency=KEY
                )

    @virtual
    async def test_the_question_to_the_quorum_counts_for_the_timeout(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), max_message_bytes="1024")
            quorum_of(cluster, 3)._is_reachable = lambda: False
            to_leader = cluster.nodes[3].produce._to_leader
            real, given = to_leader.bring_all, []

            async def bring_all(*args: object, timeout_ms: int, **options: object) -> object:
                given.append(timeout_ms)
                return await real(*args, timeout_ms=timeout_ms, **options)  # type: ignore[arg-type]

            monkeypatch.setattr(to_leader, "bring_all", bring_all)
            receipts = await produce(cluster, 3, request("a", "x" * 3_000, timeout_ms=2_000))
            assert [type(receipt.error) for receipt in receipts] == [type(None), NoQuorumError]
            assert given == [1_000]

    @virtual
    async def test_a_key_from_before_the_topic_grew_is_not_written_again(self) -> None:
        """Node 3 has heard neither of the settings nor of the partitions. The first attempt came before the growth."""
        async with cluster_of() as cluster:
            await cluster.create("t", (3, 1, 2), cleanup_policy="compact")
            keys = [IdempotencyKey(key_hash=bytes([n]) * 16, body_hash=b"b" * 8) for n in range(8)]
            with deaf(cluster, 3):
                admin = cluster.nodes[1].admin
                changes = {"cleanup.policy": "delete"}
                await admin.alter_configs("t", changes, is_validate_only=False)
                for key in keys:
                    await produce(cluster, 1, request("a", idempotency=key))
                await admin.add_partitions("t", 8)
            outcomes = [
                await outcome(produce(cluster, 3, request("a", idempotency=key))) for key in keys
            ]
            image = cluster.nodes[3].metadata.image
            ends = [
                cluster.runner(leader, "t", number).log.log_end_offset
                for number in range(8)
                if (leader := image.partitions[image.topic_ids["t"], number].leader) is not None
            ]
            assert sum(ends) == len(keys), "none is there twice"
            assert {type(each) for each in outcomes} == {PartitionCountChangedError}
