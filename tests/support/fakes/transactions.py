"""Transactions of a fake node: writes take effect at once, and the ends of transactions are remembered.

Uncommitted writes are visible to readers, because no test of this fake reads them.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from http_api.access import on_behalf
from milena.model.errors import (
    IdempotencyKeyReusedError,
    StaleProducerEpochError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionNotFoundError,
)
from milena.model.requests import (
    Acks,
    OpenTransaction,
    OpenTransactions,
    ProduceRequest,
    ProducerTransaction,
    TransactionCommit,
    TransactionEnded,
    TransactionReceipt,
    TransactionRequest,
)

if TYPE_CHECKING:
    from tests.support.fakes.ports import FakeNode


class FakeTransactions:
    """An implementation of ``TransactionsPort``. Tests set ``open``, ``is_visible`` and the node's ``errors``."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self.requests: list[TransactionRequest] = []
        self.on_behalf: list[str] = []
        """The principal of each of ``requests``."""
        self.begun: list[tuple[str, int]] = []
        self.commits: list[TransactionCommit] = []
        self.aborts: list[tuple[ProducerTransaction, int]] = []
        self.open: list[OpenTransaction] = []
        self.silent: list[int] = []
        self.is_visible = True
        self._epochs: dict[int, int] = {}
        self._was_committed: dict[tuple[int, int], bool] = {}
        """Whether each ended transaction was committed."""
        self._keys: dict[bytes, tuple[bytes, TransactionReceipt]] = {}

    def keep_open(self, producer_id: int, producer_epoch: int) -> None:
        """Add an open transaction."""
        self._epochs[producer_id] = producer_epoch

    async def transact(self, request: TransactionRequest) -> TransactionReceipt:
        self._node.fail("transact")
        self.requests.append(request)
        self.on_behalf.append(on_behalf.principal.get())
        key = request.idempotency
        if key is not None and key.key_hash in self._keys:
            body_hash, receipt = self._keys[key.key_hash]
            if body_hash != key.body_hash:
                raise IdempotencyKeyReusedError("This Idempotency-Key came with another body.")
            return replace(receipt, is_duplicate=True)
        receipts = [
            await self._node.produce(
                ProduceRequest(
                    topic=write.topic,
                    partition=write.partition,
                    records=write.records,
                    acks=Acks.ALL,
                    timeout_ms=request.timeout_ms,
                )
            )
            for write in request.writes
        ]
        receipt = TransactionReceipt(receipts=receipts, is_visible=self.is_visible)
        if key is not None:
            self._keys[key.key_hash] = key.body_hash, receipt
        return receipt

    async def begin(self, transactional_id: str, *, timeout_ms: int) -> ProducerTransaction:
        self._node.fail("begin")
        self.begun.append((transactional_id, timeout_ms))
        state = await self._node.allocate_producer(transactional_id)
        producer_id = state.producer_id
        epoch = max(state.producer_epoch, self._epochs.get(producer_id, -1) + 1)
        self._epochs[producer_id] = epoch
        return ProducerTransaction(
            producer_id=producer_id, producer_epoch=epoch, timeout_ms=timeout_ms
        )

    async def commit(self, request: TransactionCommit) -> TransactionEnded:
        self._node.fail("commit")
        self.commits.append(request)
        if not self._end(request.transaction, is_commit=True):
            raise TransactionAbortedError("The transaction was aborted; begin again.")
        return self._ended(request.transaction)

    async def abort(self, transaction: ProducerTransaction, *, timeout_ms: int) -> TransactionEnded:
        self._node.fail("abort")
        self.aborts.append((transaction, timeout_ms))
        if self._end(transaction, is_commit=False):
            raise TransactionCommittedError("The transaction was committed, and stays so.")
        return self._ended(transaction)

    async def open_transactions(self, *, older_than_ms: int) -> OpenTransactions:
        self._node.fail("open_transactions")
        return OpenTransactions(found=self.open, silent_nodes=self.silent)

    def _end(self, transaction: ProducerTransaction, *, is_commit: bool) -> bool:
        """End a transaction, unless it has ended; return whether it is committed."""
        key = transaction.producer_id, transaction.producer_epoch
        if key in self._was_committed:
            return self._was_committed[key]
        epoch = self._epochs.get(transaction.producer_id)
        if epoch is None or epoch < transaction.producer_epoch:
            raise TransactionNotFoundError("No producer of this id and epoch has a transaction.")
        if epoch > transaction.producer_epoch:
            raise StaleProducerEpochError("Another producer took over this id.")
        self._epochs[transaction.producer_id] += 1
        self._was_committed[key] = is_commit
        return is_commit

    def _ended(self, transaction: ProducerTransaction) -> TransactionEnded:
        return TransactionEnded(
            next_epoch=transaction.producer_epoch + 1, is_visible=self.is_visible
        )
