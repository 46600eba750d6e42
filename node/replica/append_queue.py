"""A leader's queue of appends: check the batches of one turn of the loop, write them together, and answer them.

This module recognises duplicates, by the log's state: sequences of idempotent producers, and idempotency keys. The log
must know a batch before a later batch of the same producer or key can be checked. So two such batches are never in one
write, even if they arrive in the same turn.

A batch may name the offset at which it must be (``expected_end``). This is checked only after the search for
duplicates, so that a retry gets its first answer. The earlier batches of the turn are written before the check. A
refused batch is answered only when the end that caused the refusal is committed. If that end were cut off, there would
be no reason for the refusal.

Until a batch is in the log, every refusal says that nothing was written. After that, ``Acknowledgements`` answers the
writer of the batch.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from milena.model.batch.header import BatchHeader, IdempotencyExtension
from milena.model.errors import (
    DiskFailedError,
    DiskFullError,
    IdempotencyKeyReusedError,
    MilenaError,
    NotEnoughReplicasError,
    PartitionCountChangedError,
    TransactionInProgressError,
    TransactionNotFoundError,
)
from milena.model.pending import Pending
from milena.model.requests import Acks, BatchReceipt
from node.metrics.counts import PartitionCounts
from node.replica.acknowledgements import Acknowledgements
from node.replica.log_changes import is_fatal
from node.replica.runner_context import RunnerContext
from storage.log.partition_log import PartitionLog
from storage.state.idempotency import IdempotencyEntry
from storage.state.producer_state import Duplicate

logger = logging.getLogger(__name__)


class OnAppended(Protocol):
    """Called when the log has grown."""

    def __call__(self, *, is_own_sync_awaited: bool) -> None:
        """``is_own_sync_awaited``: a writer waits until this replica has stored its batch, and for no other one."""


class _Append:
    """A batch that waits to be written. ``writer`` gets the receipt of the batch, or an error."""

    __slots__ = ("acks", "batch", "expected_end", "header", "timeout_ms", "writer")

    def __init__(
        self,
        batch: bytes,
        header: BatchHeader,
        acks: Acks,
        timeout_ms: int,
        expected_end: int | None,
    ) -> None:
        self.batch = batch
        self.header = header
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.expected_end = expected_end
        self.writer: Pending[BatchReceipt] = Pending()

    def refuse(self, error: Exception) -> None:
        """Fail the writer; nothing of the batch was written."""
        if not self.writer.done():
            self.writer.set_exception(error)


@dataclass(slots=True, eq=False, kw_only=True)
class AppendQueue:
    """The batches that wait for the end of this turn of the loop; checks them and writes them. Owned by the data loop.

    - ``leader_epoch``: returns the epoch under which a batch with these acks may be written, or raises to refuse it
    - ``on_transaction``: called before a batch of a transaction is written
    - ``on_appended``: called when the log has grown
    - ``reached``: returns the offset below which batches with these acks are answered
    """

    log: PartitionLog
    acknowledgements: Acknowledgements
    context: RunnerContext
    topic: str
    partition: int
    leader_epoch: Callable[[Acks], int]
    reached: Callable[[Acks], int]
    on_appended: OnAppended
    on_disk_full: Callable[[], None]
    on_transaction: Callable[[], None]
    counts: PartitionCounts
    _waiting: list[_Append] = field(default_factory=list, init=False)

    def submit(
        self,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
        at_once: bool,
        expected_end: int | None,
    ) -> Pending[BatchReceipt]:
        """Queue a batch until this turn ends. With ``at_once``, write it now, after the batches that wait."""
        append = _Append(batch, header, acks, timeout_ms, expected_end)
        self._waiting.append(append)
        if at_once:
            self._flush()
        elif len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return append.writer

    def refuse_all(self, error: MilenaError) -> None:
        """Refuse all waiting batches; none of them is written."""
        for append in self._take():
            append.refuse(error)

    def _take(self) -> list[_Append]:
        taken, self._waiting = self._waiting, []
        return [append for append in taken if not append.writer.done()]

    def _flush(self) -> None:
        group: list[_Append] = []
        identities: set[int | bytes] = set()
        for append in self._take():
            own = _identities(append.header)
            is_repeat = not identities.isdisjoint(own)
            # ``expected_end`` can be checked only after earlier batches are written: some of them may be refused.
            if group and (is_repeat or append.expected_end is not None):
                self._write(group)
                group, identities = [], set()
            if self._admit(append, coming=len(identities)):
                group.append(append)
                identities.update(own)
        if group:
            self._write(group)

    # -- judging ---------------------------------------------------------------------------------

    def _admit(self, append: _Append, *, coming: int) -> bool:
        """Return whether to write a batch. If not, it is refused, or answered as a duplicate.

        ``coming``: the number of producers and keys with batches that will be written before this one.
        """
        try:
            refusal = self._refusal(append)
            receipt = self._find_duplicate(append.header, coming)
            if receipt is None and refusal is not None:
                raise refusal
            if receipt is None:
                return self._is_expected(append)
        except Exception as error:  # noqa: BLE001 - nothing is written yet: an unexpected error is this request's alone
            self.context.counts.produce_refused += 1
            append.refuse(error)
            return False
        self._answer(append, receipt)
        return False

    def _refusal(self, append: _Append) -> NotEnoughReplicasError | None:
        """Return an error if the batch may be written only as a duplicate; None if it may be written.

        A retry of a batch that is in the log gets the answer of its first attempt. So it must not be refused here.

        Raises:
            NotLeaderError, NotEnoughReplicasError: the batch must be refused, even if it is a duplicate.
        """
        try:
            self.leader_epoch(append.acks)
        except NotEnoughReplicasError as error:
            if not _identities(append.header):
                raise
            return error
        return None

    def _is_expected(self, append: _Append) -> bool:
        """Return whether the log ends at the batch's ``expected_end``, if it has one. If not, refuse the batch."""
        end, expected = self.log.log_end_offset, append.expected_end
        if expected is None or expected == end:
            return True
        self.context.counts.produce_refused += 1
        self.acknowledgements.refuse(
            append.writer,
            end,
            expected,
            reached=self.reached(Acks.ALL),
            timeout_ms=append.timeout_ms,
        )
        return False

    def _find_duplicate(self, header: BatchHeader, coming: int) -> BatchReceipt | None:
        now_ms = self.context.clock.expiry_ms()
        if header.is_transactional:
            identity = (header.producer_id, header.producer_epoch)
            if header.marker is not None:
                if identity not in self.log.writers.transactions.open:
                    raise TransactionNotFoundError(
                        "the transaction has its marker; nothing was written"
                    )
                return None
            self.log.writers.transactions.check_room(identity)
            self.on_transaction()
        if header.request_keys:
            found = self._find_keyed(header, now_ms, coming)
            if found is not None or not header.is_transactional:
                return found
        if header.producer_id < 0:
            return None
        verdict = self.log.producer_check(header, now_ms)
        if isinstance(verdict, Duplicate):
            return self._duplicate(verdict.base_offset, verdict.last_offset)
        return None

    def _find_keyed(self, header: BatchHeader, now_ms: int, coming: int) -> BatchReceipt | None:
        for key in header.request_keys:
            entry = self.log.idempotency_lookup(key.key_hash, now_ms)
            if entry is not None:
                return self._repeat_of(header, key, entry)
        coming += len(header.request_keys) - 1
        self.log.writers.idempotency.check_room(now_ms, coming=coming)
        return None

    def _repeat_of(
        self, header: BatchHeader, key: IdempotencyExtension, entry: IdempotencyEntry
    ) -> BatchReceipt:
        if entry.partition_count != key.partition_count:
            raise key_of_before(self.topic, entry.partition_count, key.partition_count)
        if entry.body_hash != key.body_hash:
            raise IdempotencyKeyReusedError(
                "this idempotency key was used with another body; use a new key for new records"
            )
        first = entry.transaction
        is_own = first is not None and first[:2] == (header.producer_id, header.producer_epoch)
        if first is not None and first.marker_offset < 0 and not is_own:
            raise TransactionInProgressError(
                "another request with this idempotency key is a transaction that is not decided yet; nothing was "
                "written"
            )
        if not key.places:
            return self._duplicate(entry.base_offset, entry.last_offset)
        if not is_own:
            # Nothing of the batch may count, other keys included: the records of this key are in the log already.
            raise IdempotencyKeyReusedError(
                "a request under an idempotency key that was used before shares no transaction; nothing was written"
            )
        base_offset = entry.base_offset - key.places[0].first
        return self._duplicate(base_offset, base_offset + header.last_offset_delta)

    def _duplicate(self, base_offset: int, last_offset: int) -> BatchReceipt:
        return BatchReceipt(
            partition=self.partition,
            base_offset=base_offset,
            last_offset=last_offset,
            is_duplicate=True,
        )

    # -- writing ---------------------------------------------------------------------------------

    def _write(self, group: Sequence[_Append]) -> None:
        try:
            self._append(group)
        except Exception as error:
            if is_fatal(error):
                self.context.on_fatal(error)
            raise

    def _append(self, group: Sequence[_Append]) -> None:
        try:
            now_ms = self.context.clock.wall_ms()
            offsets = self.log.append_as_leader(
                [append.batch for append in group],
                leader_epoch=self.leader_epoch(Acks.NONE),
                now_ms=now_ms,
                headers=[append.header for append in group],
            )
        except DiskFullError as error:
            logger.warning("disk full partition=%s-%d: write refused", self.topic, self.partition)
            self.on_disk_full()
            for append in group:
                append.refuse(DiskFullError(error.message))
            return
        except DiskFailedError:
            raise
        except MilenaError as error:
            self._refuse(group, error)
            return
        for append in group:
            self.counts.records_in += append.header.record_count
            self.counts.bytes_in += len(append.batch)
        self.on_appended(is_own_sync_awaited=any(a.acks is Acks.LEADER for a in group))
        for append, base_offset in zip(group, offsets, strict=True):
            assert append.expected_end in (None, base_offset), (append.expected_end, base_offset)
            self._answer(append, self._receipt(append, base_offset, now_ms))

    def _refuse(self, group: Sequence[_Append], error: MilenaError) -> None:
        """Write each batch of the group alone, so that only those that cannot be appended are refused."""
        if len(group) == 1:
            group[0].refuse(error)
            return
        for append in group:
            self._write([append])

    def _receipt(self, append: _Append, base_offset: int, now_ms: int) -> BatchReceipt:
        if append.acks is Acks.NONE:
            return BatchReceipt(partition=self.partition, base_offset=None, last_offset=None)
        last_offset = base_offset + append.header.last_offset_delta
        return BatchReceipt(
            partition=self.partition,
            base_offset=base_offset,
            last_offset=last_offset,
            append_time_ms=now_ms,
        )

    def _answer(self, append: _Append, receipt: BatchReceipt) -> None:
        if append.writer.done():
            return
        if append.acks is Acks.NONE:
            append.writer.set_result(receipt)
            return
        self.acknowledgements.answer(
            append.writer,
            receipt,
            append.acks,
            reached=self.reached(append.acks),
            timeout_ms=append.timeout_ms,
        )


def _identities(header: BatchHeader) -> Sequence[int | bytes]:
    """Return the key hashes of a batch, or its producer ids. A duplicate of the batch has one of them, too."""
    if header.request_keys:
        return [key.key_hash for key in header.request_keys]
    if header.client is not None:
        # Also the id of the transaction: a marker in the same write would not refuse the batch.
        return [header.producer_id, header.client.producer_id]
    return [header.producer_id] if header.producer_id >= 0 else []


def key_of_before(topic: str, before: int, now: int) -> PartitionCountChangedError:
    """Return the error for a key used when the topic had another number of partitions: its partition may differ."""
    return PartitionCountChangedError(
        f"this idempotency key was used when {topic} had {before} partitions, it has {now} now; use a new key"
    )
