"""Rules of a node that reaches no majority: which records it serves, and when it answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from http_api.records.produce_head import TIMEOUT_MS as TIMEOUT_PARAM
from http_api.routes import ROUTES
from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    FateUnknownError,
    NotLeaderError,
    UnavailableError,
)
from milena.model.requests import (
    Acks,
    IdempotencyKey,
    ProduceRequest,
    ProducerTransaction,
    TransactionRequest,
)
from raft_meta.machine.codec import LEVELS
from raft_meta.machine.commands import NoteAction
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.runners import batch, values_of
from tests.support.clusters.transacting import commit_of, records, send, to
from tests.support.time.virtual_time import after, virtual

LATE = 10**15
"""A wall time after every record."""
TIMEOUT_MS = 500
MARGIN_MS = 1_000
"""How much later than its timeout a request may be answered."""


async def cut_off(cluster: Cluster, *, wait_ms: int) -> SimNode:
    """Node 1 hears of no other node, as if the others had stopped; its connections are still up."""
    cluster.isolate(1)
    await after(wait_ms)
    return cluster.nodes[1]


STARTS: dict[str, tuple[dict[str, int | str], list[str] | None]] = {
    "earliest": ({"offset": "earliest"}, ["a", "b"]),
    "first": ({"offset": 0}, ["a", "b"]),
    "number": ({"offset": 1}, ["b"]),
    "timestamp": ({"timestamp_ms": 0}, ["a", "b"]),
    "end": ({"offset": 2}, None),
    "above": ({"offset": 99}, None),
    "latest": ({"offset": "latest"}, None),
    "last": ({"offset": -1}, None),
    "late": ({"timestamp_ms": LATE}, None),
}
"""Each way to name a start, and the records that a node without a majority serves; None: it refuses."""


class TestReads:
    @virtual
    @pytest.mark.parametrize("leader", [1, 2])
    @pytest.mark.parametrize("wait_ms", [0, 3_000])
    @pytest.mark.parametrize("timeout_ms", [0, TIMEOUT_MS])
    @pytest.mark.parametrize("start", STARTS)
    async def test_leader_and_follower_serve_what_they_have_and_never_say_that_it_is_all(
        self, start: str, timeout_ms: int, wait_ms: int, leader: int
    ) -> None:
        named, served = STARTS[start]
        async with cluster_of() as cluster:
            await cluster.create("t", (leader, 3 - leader, 3))
            await cluster.nodes[leader].write("t", "a")
            await cluster.nodes[leader].write("t", "b")
            await after(50)
            node = await cut_off(cluster, wait_ms=wait_ms)
            reading = node.fetch("t", timeout_ms=timeout_ms, **named)  # type: ignore[arg-type]
            if served is not None:
                assert values_of((await reading).batches) == served
            else:
                with pytest.raises(UnavailableError):
                    await reading

    @virtual
    @pytest.mark.parametrize("start", ["earliest", "timestamp"])
    async def test_an_empty_copy_does_not_say_that_there_are_no_records(self, start: str) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            node = await cut_off(cluster, wait_ms=0)
            with pytest.raises(UnavailableError):
                await node.fetch("t", **STARTS[start][0])  # type: ignore[arg-type]

    @virtual
    async def test_a_copy_serves_no_records_that_were_deleted(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            await cluster.nodes[2].write("t", "b")
            await cluster.nodes[2].delete_records("t", 1)
            node = await cut_off(cluster, wait_ms=0)
            assert values_of((await node.fetch("t", "earliest")).batches) == ["b"]


class Attempt:
    """One request of each kind, to node 1 about topic ``t``, with ``TIMEOUT_MS``."""

    def __init__(self, node: SimNode, transaction: ProducerTransaction, end: int, topic: str):
        self.node = node
        self.transaction = transaction
        self.end = end
        self.topic = topic

    def _request(self, partition: int | None = 0, **changes: object) -> ProduceRequest:
        request = ProduceRequest(
            topic=self.topic,
            records=records("x"),
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partition=partition,
        )
        return replace(request, **changes)  # type: ignore[arg-type]

    async def _produced(self, request: ProduceRequest) -> None:
        for receipt in await self.node.produce.produce(request):
            if receipt.error is not None:
                raise receipt.error

    async def to_topic(self) -> None:
        await self._produced(self._request(None))

    async def to_partition(self) -> None:
        await self._produced(self._request())

    async def under_key(self) -> None:
        key = IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8)
        await self._produced(self._request(idempotency=key))

    async def if_match(self) -> None:
        await self._produced(self._request(expected_end=7))

    async def in_transaction(self) -> None:
        await self._produced(self._request(transaction=self.transaction))

    async def in_unheard_transaction(self) -> None:
        unheard = ProducerTransaction(producer_id=999, producer_epoch=0, timeout_ms=60_000)
        await self._produced(self._request(transaction=unheard))

    async def transact(self) -> None:
        await self.node.transactions.transact(self._transaction())

    async def transact_under_key(self) -> None:
        key = IdempotencyKey(key_hash=b"t" * 16, body_hash=b"b" * 8)
        await self.node.transactions.transact(replace(self._transaction(), idempotency=key))

    def _transaction(self) -> TransactionRequest:
        return TransactionRequest(
            writes=(to(self.topic, 0, "x"),), offsets=(), timeout_ms=TIMEOUT_MS
        )

    async def commit(self) -> None:
        named = commit_of(self.transaction, (self.topic, self.end, 1))
        await self.node.transactions.commit(replace(named, timeout_ms=TIMEOUT_MS))

    async def abort(self) -> None:
        await self.node.admin.note("abort_transaction", {}, timeout_ms=TIMEOUT_MS)

    async def abort_itself(self) -> None:
        await self.node.transactions.abort(self.transaction, timeout_ms=TIMEOUT_MS)

    async def note_deletion(self) -> None:
        await self.node.admin.note("delete_records", {}, timeout_ms=TIMEOUT_MS)

    async def delete(self) -> None:
        await self.node.delete_records(self.topic, 1, timeout_ms=TIMEOUT_MS)

    async def delete_too_much(self) -> None:
        await self.node.delete_records(self.topic, 99, timeout_ms=TIMEOUT_MS)

    async def batch(self) -> None:
        await self._batch(batch("x"))

    async def numbered_batch(self) -> None:
        await self._batch(batch("x", producer=ProducerStamp(999, 0, 0)))

    async def _batch(self, encoded: bytes) -> None:
        await self.node.produce.produce_batch(
            self.topic, 0, encoded, acks=Acks.ALL, timeout_ms=TIMEOUT_MS
        )


V2 = (
    Attempt.to_topic,
    Attempt.to_partition,
    Attempt.under_key,
    Attempt.if_match,
    Attempt.in_transaction,
    Attempt.in_unheard_transaction,
)
BATCHES = (Attempt.batch, Attempt.numbered_batch)
RESULTS: dict[str, tuple[Callable[[Attempt], Awaitable[None]], ...]] = {
    "produceToTopic": V2,
    "produceToPartition": (*V2, *BATCHES),
    "produceBatch": (*V2, *BATCHES),
    "v3ProduceRecords": V2,
    "v3ProduceBatch": V2,
    "transact": (Attempt.transact, Attempt.transact_under_key),
    "commitTransaction": (Attempt.commit,),
    "abortTransaction": (Attempt.abort, Attempt.abort_itself),
    "deleteRecords": (Attempt.note_deletion, Attempt.delete, Attempt.delete_too_much),
}
"""By operation: what it has the node do within its ``timeout_ms``."""
ATTEMPTS = list(dict.fromkeys(attempt for attempts in RESULTS.values() for attempt in attempts))


class TestTimeouts:
    def test_every_operation_with_a_timeout_for_its_result_is_tried(self) -> None:
        takers = {route.operation_id for route in ROUTES if TIMEOUT_PARAM.param in route.params}
        assert takers == set(RESULTS)

    @virtual
    @pytest.mark.parametrize("topic", ["t", "new"])
    @pytest.mark.parametrize("leader", [1, 2])
    @pytest.mark.parametrize("wait_ms", [0, 3_000])
    @pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.__name__)
    async def test_it_is_kept_and_a_certain_refusal_has_done_nothing(
        self, attempt: Callable[[Attempt], Awaitable[None]], wait_ms: int, leader: int, topic: str
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= LEVELS[NoteAction])
            await cluster.create("t", (leader, 3 - leader, 3))
            await cluster.nodes[1].write("t", "a", "b")
            begun = await cluster.nodes[1].transactions.begin("id", timeout_ms=60_000)
            end = await send(cluster, 1, begun, "t", "c")
            node = await cut_off(cluster, wait_ms=wait_ms)
            clock = asyncio.get_running_loop().time
            began_s = clock()
            with pytest.raises((UnavailableError, NotLeaderError, FateUnknownError)) as failed:
                await attempt(Attempt(node, begun, end, topic))
            assert (clock() - began_s) * 1_000 <= TIMEOUT_MS + MARGIN_MS
            cluster.heal()
            await cluster.until(lambda: cluster.is_led("t"))
            await after(20_000)
            if not isinstance(failed.value, FateUnknownError):
                runner = cluster.runner(cluster.leader_of("t") or 0, "t")
                assert runner.log.log_start_offset == 0
                assert "x" not in await cluster.nodes[1].read("t")
