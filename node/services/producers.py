"""Producer ids: their allocation, and how writes of a former holder of an id are stopped.

A client that takes over a name gets the id's next epoch. Before it gets this response, every leader reports the last
sequences written under the id. A leader reports only after its own image has the new epoch. From then on it refuses
the former holder. So the sequences that it reported stay the last ones.

The end of a transaction raises the epoch, too. It is answered once all leaders refuse later writes under the
transaction's epoch (``spread``). Writes that a leader accepts before this do not count.

The replicated state does not say where an aborted transaction wrote. So the node that aborts it asks all brokers which
of their copies have records of it, and waits for the markers there (``end_former``). Each in-sync copy of a partition
has all acknowledged records. So the answer of one of them is enough to find every transaction that readers wait for.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from http_api.access import on_behalf
from http_api.ports.node import ProducerState
from milena.model.batch.header import BatchHeader
from milena.model.errors import (
    MilenaError,
    NotReadyError,
    StaleProducerEpochError,
    TransactionNotFoundError,
)
from node.config.budgets import SEQUENCES_ANSWER_MS
from node.context import NodeContext
from node.peers.messages import ask, peer_handler
from node.services.in_time import in_time, nothing
from node.services.messages import (
    SEQUENCES,
    HeldRow,
    SequenceRow,
    SequencesAnswer,
    SequencesRequest,
)
from node.services.transactions.sight import TransactionSight
from raft_meta.machine.commands import AllocateProducer
from raft_meta.machine.image import Image
from raft_meta.machine.producers import OWNERS_LEVEL

IMAGE_WAIT_MS = 1_000
SPREAD_MS = 300
"""How long the end of a transaction waits until brokers know of it, in ms. For a broker that is cut off or hangs, a
longer wait is not needed: once its lease is over, it acknowledges nothing."""
FORMER_END_MS = 2_000
"""How long a new holder of a name waits for the markers of the former holder's transactions, in ms. Readers of
committed records stop at a transaction without a marker. After this time, the new holder may write even so. Otherwise
one partition without a leader would keep it from all other partitions."""


def principal_to_own(image: Image) -> str:
    """Return the principal that will own the producer that the present request reserves; empty for none."""
    return on_behalf.principal.get() if image.feature_level >= OWNERS_LEVEL else ""


class ProducerService:
    """Allocates producer ids, and reports how far a producer has written in the partitions that this node leads."""

    def __init__(self, node: NodeContext, *, sight: TransactionSight) -> None:
        self._sight = sight
        self._metadata = node.metadata
        self._replicas = node.replicas
        self._peer = node.peers
        self.on_sequences = peer_handler(SEQUENCES, self._tell_sequences)
        """Handles another node's question how far a producer has written in the partitions that this node leads."""

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuse a batch of a producer id's former holder.

        Raises:
                StaleProducerEpochError: the quorum has given the id to another holder.
            TransactionNotFoundError: the id is for transactions of Kafka clients only.
        """
        if header.producer_id < 0:
            return
        if header.producer_id in self._metadata.image.transactional_names:
            raise TransactionNotFoundError(
                f"producer id {header.producer_id} belongs to a transactional id of Kafka clients: it writes in "
                "transactions only; nothing was written"
            )
        epoch = self._metadata.image.producer_epoch(header.producer_id)
        if epoch is not None and header.producer_epoch < epoch:
            raise StaleProducerEpochError(
                f"producer id {header.producer_id} has another holder, under epoch {epoch}; "
                f"this batch is of epoch {header.producer_epoch}"
            )

    async def check_transaction(self, header: BatchHeader, *, timeout_ms: float) -> None:
        """Refuse a batch of a transaction that is not open according to this node's image.

        If the image is old, a batch of a committed transaction may pass. It is then written behind the records that the
        commit names, so it does not count.

        Raises:
            StaleProducerEpochError: the transaction has ended.
            TransactionNotFoundError: the transaction was never started.
            NoQuorumError: this node does not know the transaction, and no majority could be asked.
        """
        name = f"{header.producer_id}:{header.producer_epoch}"
        producer = self._metadata.image.producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.producer_epoch:
            async with in_time(timeout_ms, nothing("written")):
                image = await self._metadata.current_image()
            producer = image.producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.producer_epoch:
            raise TransactionNotFoundError(f"transaction {name} never started; nothing was written")
        if producer.name in self._metadata.image.transactional_ids:
            raise TransactionNotFoundError(
                f"transaction {name} is one of a Kafka client, which alone writes in it; nothing was written"
            )
        if header.producer_epoch < producer.producer_epoch:
            raise StaleProducerEpochError(f"transaction {name} is over; nothing was written")

    async def allocate(self, name: str | None, *, timeout_ms: int) -> ProducerState:
        """Return a new id; or, for a known name, the id, its next epoch, and the last sequences written under the id.

        Raises:
            NotReadyError: a broker did not report its sequences, or readers still wait for a transaction of the former
                holder. The name has its next epoch nevertheless.
        """
        command = AllocateProducer(name=name, principal=principal_to_own(self._metadata.image))
        answer = await self._metadata.propose(command, timeout_ms=timeout_ms)
        assert isinstance(answer, tuple)
        producer_id, producer_epoch = answer
        rows: Iterable[SequenceRow] = ()
        if producer_epoch > 0:
            rows, held = await self._ask_everyone(producer_id, producer_epoch)
            if not await self._sight.ended(producer_id, held, timeout_ms=FORMER_END_MS):
                raise NotReadyError(
                    "a transaction of the former holder of this name is aborted, but a partition has no end of it yet; "
                    "ask again, under the next epoch"
                )
        last: dict[str, dict[int, int]] = {}
        for row in rows:
            last.setdefault(row.topic, {})[row.partition] = row.sequence
        return ProducerState(
            producer_id=producer_id, producer_epoch=producer_epoch, last_sequences=last
        )

    async def _ask_everyone(
        self, producer_id: int, producer_epoch: int
    ) -> tuple[list[SequenceRow], list[HeldRow]]:
        image = self._metadata.image
        others = [b for b in image.live_brokers() if b != self._metadata.node_id]
        answers = await asyncio.gather(*(self._ask(b, producer_id, producer_epoch) for b in others))
        rows = [*self._led_here(producer_id), *(row for told in answers for row in told.rows)]
        held = [*self._held_here(producer_id, producer_epoch)]
        return rows, held + [row for told in answers for row in told.held]

    async def spread(
        self, producer_id: int, producer_epoch: int, *, known_by: Collection[int | None] = ()
    ) -> None:
        """Wait until every broker refuses writes under an epoch below ``producer_epoch``.

        The images of this node and of the brokers ``known_by`` have this epoch already. If a broker does not answer
        within ``SPREAD_MS``, this does not wait for it.
        """
        request = SequencesRequest(
            producer_id=producer_id, producer_epoch=producer_epoch, wants_rows=False
        )
        others = set(self._metadata.image.live_brokers()) - {self._metadata.node_id, *known_by}
        await asyncio.gather(*(self._tell(broker_id, request) for broker_id in others))

    async def end_former(self, producer_id: int, producer_epoch: int, *, timeout_ms: float) -> bool:
        """Do as ``spread``, and wait until no reader waits for a transaction of an earlier epoch.

        Return False if the time is up first, or if no in-sync copy of a partition answered.
        """
        request = SequencesRequest(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            wants_rows=False,
            wants_held=True,
        )
        image = self._metadata.image
        others = [b for b in image.live_brokers() if b != self._metadata.node_id]
        answers = await asyncio.gather(*(self._tell(broker_id, request) for broker_id in others))
        held = [*self._held_here(producer_id, producer_epoch)]
        silent: set[int] = set()
        for broker_id, answer in zip(others, answers, strict=True):
            if answer is None:
                silent.add(broker_id)
            else:
                held += answer.held
        has_ended = await self._sight.ended(producer_id, held, timeout_ms=timeout_ms)
        if silent and has_ended:
            partitions = self._metadata.image.partitions.values()
            return not any(silent.issuperset(state.isr) for state in partitions)
        return has_ended

    async def _tell(self, broker_id: int, request: SequencesRequest) -> SequencesAnswer | None:
        """Return the response of a broker; None if there is none in time."""
        with suppress(MilenaError):
            return await ask(self._peer, broker_id, SEQUENCES, request, timeout_ms=SPREAD_MS)
        return None

    async def _ask(self, broker_id: int, producer_id: int, producer_epoch: int) -> SequencesAnswer:
        """Ask a broker for its sequences.

        Raises:
            NotReadyError: the broker did not answer. It will probably lose its partitions; the caller may ask again,
                and the next leaders will answer.
        """
        try:
            return await ask(
                self._peer,
                broker_id,
                SEQUENCES,
                SequencesRequest(
                    producer_id=producer_id, producer_epoch=producer_epoch, wants_held=True
                ),
                timeout_ms=SEQUENCES_ANSWER_MS,
            )
        except MilenaError as error:
            raise NotReadyError(
                f"the last sequences under this name are not known: node {broker_id} did not tell its own "
                f"({error.message}); ask again, under the next epoch"
            ) from error

    def _held_here(self, producer_id: int, producer_epoch: int) -> Iterator[HeldRow]:
        """Yield the transactions of earlier epochs for which readers of this node's copies wait."""
        for runner in self._replicas:
            transactions = runner.log.writers.transactions
            if not transactions:
                continue
            for epoch in transactions.epochs_under_way(producer_id, runner.high_watermark):
                if epoch < producer_epoch:
                    yield HeldRow(runner.topic_id, runner.partition, epoch, runner.leader_epoch)

    def _led_here(self, producer_id: int) -> tuple[SequenceRow, ...]:
        return tuple(
            SequenceRow(runner.topic, runner.partition, sequence)
            for runner in self._replicas
            if runner.leader is not None
            and (sequence := runner.log.writers.producers.last_sequence(producer_id)) is not None
        )

    async def _tell_sequences(self, request: SequencesRequest) -> SequencesAnswer:
        has_epoch = await self._metadata.wait_until(
            lambda image: (
                (image.producer_epoch(request.producer_id) or 0) >= request.producer_epoch
            ),
            timeout_ms=IMAGE_WAIT_MS,
        )
        if not has_epoch:
            raise NotReadyError("this node has not heard of the producer's new epoch yet")
        return SequencesAnswer(
            rows=self._led_here(request.producer_id) if request.wants_rows else (),
            held=tuple(self._held_here(request.producer_id, request.producer_epoch))
            if request.wants_held
            else (),
        )
