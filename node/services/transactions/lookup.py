"""Asks the leaders of partitions what they know of transactions and idempotency keys.

Three calls between nodes:

- ``open_transaction`` asks how far a transaction has come in a partition.
- ``keyed_transaction`` asks which transaction used an idempotency key, and how it ended.
- ``open_transactions`` asks which transactions are open in the partitions that a node leads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import astuple

from milena.model.batch.header import KeyPlace
from milena.model.errors import (
    MilenaError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    TooManyRequestsError,
)
from milena.model.requests import OpenTransaction, OpenTransactions, ProduceRequest
from milena.model.turns import one_turn
from node.config.budgets import ANSWER_MS, READ_LEADER_WAIT_MS, RETRY_MS
from node.context import NodeContext
from node.peers.messages import CallType, Message, ask, peer_handler
from node.peers.port import PeerUnreachableError
from node.replica.append_queue import key_of_before
from node.replica.runner import PartitionRunner
from node.services.log_ends import LogEnds, MovedError
from node.services.messages import (
    KEYED_TRANSACTION,
    OPEN_TRANSACTION,
    OPEN_TRANSACTIONS,
    ExtentRow,
    KeyedTransactionAnswer,
    KeyedTransactionRequest,
    OpenTransactionAnswer,
    OpenTransactionRequest,
    OpenTransactionRow,
    OpenTransactionsAnswer,
    OpenTransactionsRequest,
    PlaceRow,
)
from node.services.record_batches import former_places
from node.services.transactions.plans import own_extents
from raft_meta.machine.image import Image, Partition, PartitionKey, Topic, TransactionExtent
from raft_meta.machine.transactions import NotCommitted, outcome_of
from storage.state.idempotency import IDEMPOTENCY_WINDOW_MS
from storage.state.transactions import Identity

logger = logging.getLogger(__name__)

PATIENCE_MS = 3_000
"""How long to ask again while the leader changes, in ms. An election takes a second or two."""
ROWS_MAX = 10_000
"""Largest number of transactions that one node reports."""

CLOCKS_APART_MS = 3_600_000
"""Largest difference between the clocks of two nodes, in ms. The time of a topic's growth comes from one node, and
another node compares it with its own clock."""

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """The transaction that used an idempotency key.

    ``extents``: all that it wrote; None while no marker tells how it ended.
    ``places``: the records of the request with this key, if several keys share the transaction.
    """

    identity: Identity
    extents: tuple[TransactionExtent, ...] | None
    places: tuple[KeyPlace, ...] = ()

    @property
    def written(self) -> Sequence[TransactionExtent] | None:
        """The extents of the request with this key in the transaction; None while no marker tells the outcome."""
        return None if self.extents is None else own_extents(self.extents, self.places)


class TransactionLookup:
    """Asks leaders; as a leader, answers such questions of other nodes. Owned by the data loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._ends = LogEnds(node.metadata)
        self.on_open_transaction = peer_handler(OPEN_TRANSACTION, self._tell_extent)
        self.on_keyed_transaction = peer_handler(KEYED_TRANSACTION, self._tell_keyed)
        self.on_open_transactions = peer_handler(OPEN_TRANSACTIONS, self._tell_open)

    async def extent(
        self, extent: TransactionExtent, identity: Identity, *, is_bound: bool
    ) -> OpenTransactionAnswer:
        """Return how far a transaction has come in a partition.

        ``is_bound``: the caller will have the quorum check that the leader epoch of the response is still the present
        one. If False, the quorum confirms the leader now.

        Raises:
            NoLeaderError, NoQuorumError: no leader or no majority could be asked.
        """
        return await self._of_leader(
            (extent.topic_id, extent.partition),
            OPEN_TRANSACTION,
            lambda leader_epoch: OpenTransactionRequest(
                topic_id=extent.topic_id,
                partition=extent.partition,
                leader_epoch=leader_epoch,
                producer_id=identity[0],
                producer_epoch=identity[1],
                is_bound=is_bound,
            ),
            self._tell_extent,
        )

    async def keyed(self, topic: Topic, partition: int, key_hash: bytes) -> KeyOutcome | None:
        """Return the transaction that used a key whose home is this partition; None if no transaction used it.

        Raises:
            NoLeaderError, NoQuorumError: no leader or no majority could be asked.
        """
        answer = await self._ask_keyed(topic, partition, key_hash)
        if answer.producer_id < 0:
            return None
        extents = tuple(
            TransactionExtent(
                topic_id=row.topic_id,
                partition=row.partition,
                base_offset=row.base_offset,
                end_offset=row.end_offset,
            )
            for row in answer.extents
        )
        identity = (answer.producer_id, answer.producer_epoch)
        places = tuple(KeyPlace(row.extent, row.first, row.records) for row in answer.places)
        return KeyOutcome(identity, extents if answer.is_committed else None, places)

    def is_known(self, topic_id: str, partition: int, key_hash: bytes) -> bool:
        """Return whether a replica on this node knows a request with this key. False proves nothing."""
        runner = self._node.replicas.find(topic_id, partition)
        if runner is None:
            return False
        return runner.log.has_key(key_hash, self._node.clock.expiry_ms())

    def may_be_first(self, topic_id: str, partition: int, key_hash: bytes) -> bool:
        """Return whether the request may be the first with its key, as far as this node's replica knows.

        False also if the replica has no room for another key. True if this node has no replica.
        """
        runner = self._node.replicas.find(topic_id, partition)
        if runner is None:
            return True
        now_ms = self._node.clock.expiry_ms()
        if runner.log.has_key(key_hash, now_ms):
            return False
        try:
            runner.log.writers.idempotency.check_room(now_ms, coming=0)
        except TooManyRequestsError:
            return False
        return True

    async def check_key(self, topic: Topic, request: ProduceRequest) -> None:
        """Refuse a key that was used when the topic had fewer partitions. All partitions that may know it are asked.

        Raises:
            PartitionCountChangedError: the key was used at that time.
            NoLeaderError, NoQuorumError: no leader or no majority could be asked.
        """
        assert request.idempotency is not None, "only keys are asked for"
        key_hash = request.idempotency.key_hash
        since_ms = self._node.clock.expiry_ms() - IDEMPOTENCY_WINDOW_MS - CLOCKS_APART_MS
        places: set[int] = set()
        for partition_count, at_ms in topic.growths:
            if at_ms >= since_ms:
                places |= former_places(topic, request, partition_count)
        answers = await asyncio.gather(
            *(self._ask_keyed(topic, partition, key_hash) for partition in sorted(places))
        )
        for answer in answers:
            if answer.partition_count not in (-1, topic.partition_count):
                raise key_of_before(topic.name, answer.partition_count, topic.partition_count)

    async def _ask_keyed(
        self, topic: Topic, partition: int, key_hash: bytes
    ) -> KeyedTransactionAnswer:
        return await self._of_leader(
            (topic.topic_id, partition),
            KEYED_TRANSACTION,
            lambda leader_epoch: KeyedTransactionRequest(
                topic_id=topic.topic_id,
                partition=partition,
                leader_epoch=leader_epoch,
                partition_count=topic.partition_count,
                key_hash=key_hash,
            ),
            self._tell_keyed,
        )

    async def open_transactions(self) -> OpenTransactions:
        """Return the transactions without a committed marker, as reported by all leaders that answer, oldest first."""
        image = self._node.metadata.image
        others = [b for b in image.live_brokers() if b != self._node.metadata.node_id]
        answers = await asyncio.gather(*(self._ask_open(broker_id) for broker_id in others))
        silent = {
            broker_id for broker_id, rows in zip(others, answers, strict=True) if rows is None
        }
        for state in image.partitions.values():
            if state.leader is None:
                silent.update(state.isr)  # any of them may lead it again
        rows = [(self._node.metadata.node_id, row) for row in self._open_here()]
        rows += [
            (broker_id, row)
            for broker_id, found in zip(others, answers, strict=True)
            for row in found or ()
        ]
        rows.sort(key=lambda told: (told[1].began_ms, astuple(told[1])))
        return OpenTransactions(
            found=[
                described
                for leader, row in rows
                if (described := self._describe(leader, row)) is not None
            ],
            silent_nodes=sorted(silent),
        )

    def _describe(self, leader: int, row: OpenTransactionRow) -> OpenTransaction | None:
        image = self._node.metadata.image
        topic = image.topics.get(row.topic_id)
        if topic is None:
            return None
        outcome = outcome_of(
            image, row.topic_id, row.partition, row.producer_id, row.producer_epoch
        )
        producer = image.producers.get(row.producer_id)
        return OpenTransaction(
            topic=topic.name,
            partition=row.partition,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            first_offset=row.first_offset,
            records=row.records,
            began_ms=row.began_ms,
            timeout_ms=row.timeout_ms,
            leader=leader,
            state="open" if outcome is NotCommitted.OPEN else "ending",
            producer_name=None if producer is None else producer.name,
        )

    async def _ask_open(self, broker_id: int) -> tuple[OpenTransactionRow, ...] | None:
        try:
            answer = await ask(
                self._node.peers,
                broker_id,
                OPEN_TRANSACTIONS,
                OpenTransactionsRequest(),
                timeout_ms=ANSWER_MS,
            )
        except MilenaError as error:
            logger.info("open transactions unknown broker_id=%d: %s", broker_id, error)
            return None
        return answer.rows

    async def _of_leader(
        self,
        key: PartitionKey,
        call: CallType[Q, A],
        request_of: Callable[[int], Q],
        tell: Callable[[Q], Awaitable[A]],
    ) -> A:
        """Return the response of the partition's leader, or of the next leader if it changes meanwhile.

        ``request_of``: returns the request to the leader of an epoch. ``tell``: responds if this node leads.

        Raises:
            NoLeaderError: no leader answered within ``PATIENCE_MS``.
        """
        deadline = self._node.clock.now_ms() + PATIENCE_MS
        while True:
            state: Partition | None = self._node.metadata.image.partitions.get(key)
            failed: MilenaError
            if state is None or state.leader is None:
                failed = NoLeaderError(f"partition {key[1]} of topic {key[0]} has no leader")
            else:
                try:
                    request = request_of(state.leader_epoch)
                    if state.leader == self._node.metadata.node_id:
                        return await tell(request)
                    return await ask(
                        self._node.peers, state.leader, call, request, timeout_ms=ANSWER_MS
                    )
                except (NotLeaderError, NotReadyError, PeerUnreachableError) as error:
                    failed = error
            if self._node.clock.now_ms() >= deadline:
                raise NoLeaderError(failed.message)
            await self._node.clock.sleep(RETRY_MS)

    # -- as leader -------------------------------------------------------------------------------

    async def _leading(
        self, key: PartitionKey, leader_epoch: int, *, is_confirmed: bool = True
    ) -> PartitionRunner:
        """Return the replica that leads the partition. Unless ``is_confirmed`` is False, the quorum confirms this."""
        runner = await self._node.replicas.leading(
            *key, leader_epoch, timeout_ms=READ_LEADER_WAIT_MS
        )
        if runner is None or runner.leader is None:
            raise NotLeaderError(f"node {self._node.metadata.node_id} does not lead the partition")
        if not runner.leader.is_established:
            raise NotReadyError(f"{runner.name}: the new leader does not know its log end yet")
        if is_confirmed:
            try:
                await self._ends.confirm(runner, runner.leader_epoch)
            except MovedError as moved:
                raise NotLeaderError(moved.message) from moved
        return runner

    async def _tell_extent(self, request: OpenTransactionRequest) -> OpenTransactionAnswer:
        runner = await self._leading(
            (request.topic_id, request.partition),
            request.leader_epoch,
            is_confirmed=not request.is_bound,
        )
        found = runner.log.writers.transactions.open.get(
            (request.producer_id, request.producer_epoch)
        )
        return OpenTransactionAnswer(
            end_offset=-1 if found is None else found.end_offset,
            records=0 if found is None else found.records,
            leader_epoch=runner.leader_epoch if request.is_bound else -1,
        )

    async def _tell_keyed(self, request: KeyedTransactionRequest) -> KeyedTransactionAnswer:
        await self._know_growth(request.topic_id, request.partition_count)
        runner = await self._leading((request.topic_id, request.partition), request.leader_epoch)
        entry = runner.log.idempotency_lookup(request.key_hash, self._node.clock.expiry_ms())
        if entry is None:
            return KeyedTransactionAnswer(partition_count=-1)
        found = entry.transaction
        if found is None:
            return KeyedTransactionAnswer(partition_count=entry.partition_count)
        return KeyedTransactionAnswer(
            partition_count=entry.partition_count,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            is_committed=found.marker_offset >= 0,
            extents=tuple(ExtentRow(*extent) for extent in found.extents),
            places=tuple(PlaceRow(*place) for place in found.places),
        )

    async def _know_growth(self, topic_id: str, partition_count: int) -> None:
        """Wait until this node's image has so many partitions of a topic. From then on, this node refuses older keys.

        Otherwise a write with such a key could be appended here after this response said that the key is unknown.

        Raises:
            NotReadyError: the image does not have all partitions in time.
        """

        def is_known(image: Image) -> bool:
            topic = image.topics.get(topic_id)
            return topic is None or topic.partition_count >= partition_count

        if not await self._node.metadata.wait_until(is_known, timeout_ms=READ_LEADER_WAIT_MS):
            raise NotReadyError(
                f"node {self._node.metadata.node_id} has not heard of all partitions"
            )
        # Batches that passed the check before are in the log at the end of this turn (``ToLeader._append_here``).
        await one_turn()

    async def _tell_open(self, request: OpenTransactionsRequest) -> OpenTransactionsAnswer:
        del request
        return OpenTransactionsAnswer(rows=self._open_here())

    def _open_here(self) -> tuple[OpenTransactionRow, ...]:
        rows = [
            OpenTransactionRow(
                runner.topic_id,
                runner.partition,
                *identity,
                found.first_offset,
                found.records,
                found.began_ms,
                found.timeout_ms,
            )
            for runner in self._node.replicas
            if runner.leader is not None
            for identity, found in runner.log.writers.transactions.under_way(runner.high_watermark)
        ]
        rows.sort(key=lambda row: row.began_ms)
        return tuple(rows[:ROWS_MAX])
