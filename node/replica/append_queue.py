"""What arrives at a leader in one turn of the loop, judged and put together into one write.

Duplicates are recognised here, from what the log knows: an idempotent producer's sequences, and idempotency keys. Two
batches of one producer or key in the same turn are never in the same write, since the log must know the earlier one
before it can judge the later.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milena.model.batch.header import BatchHeader, IdempotencyExtension
from milena.model.errors import IdempotencyKeyReusedError, MilenaError, PartitionCountChangedError
from milena.model.requests import Acks, BatchReceipt
from node.process.clock import Clock
from storage.log.partition_log import PartitionLog
from storage.state.producer_state import Duplicate


@dataclass(slots=True, eq=False)
class PendingAppend:
    """A batch on its way into the log. ``done`` holds its receipt, or an error: nothing was appended."""

    batch: bytes
    header: BatchHeader
    acks: Acks
    done: "asyncio.Future[BatchReceipt]"


class AppendQueue:
    """The batches that wait for this turn of the loop to end.

    ``check`` refuses a write by raising; ``append`` writes a group and answers each of its members. Owned by the data
    loop.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        topic: str,
        partition: int,
        clock: Clock,
        check: Callable[[Acks], None],
        append: Callable[[Sequence[PendingAppend]], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._clock = clock
        self._check = check
        self._append = append
        self._on_refused = on_refused
        self._pending: list[PendingAppend] = []

    def submit(
        self, batch: bytes, header: BatchHeader, acks: Acks
    ) -> "asyncio.Future[BatchReceipt]":
        """Queue a batch; the future holds its receipt once it is written, or was written before."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BatchReceipt] = loop.create_future()
        if not self._pending:
            loop.call_soon(self._flush)
        self._pending.append(PendingAppend(batch, header, acks, done))
        return done

    def flush(self) -> None:
        """Append what waits, in the order in which it came."""
        if self._pending:
            self._flush()

    def refuse_all(self, error: MilenaError) -> None:
        """Nothing of what waits will be written."""
        for pending in self._take():
            pending.done.set_exception(error)

    def _take(self) -> list[PendingAppend]:
        taken, self._pending = self._pending, []
        return [p for p in taken if not p.done.done()]

    def _flush(self) -> None:
        group: list[PendingAppend] = []
        identities: set[int | bytes] = set()
        for pending in self._take():
            identity = _identity(pending.header)
            if identity is not None and identity in identities:
                self._append(group)
                group, identities = [], set()
            if self._admit(pending):
                group.append(pending)
                if identity is not None:
                    identities.add(identity)
        if group:
            self._append(group)

    def _admit(self, pending: PendingAppend) -> bool:
        """Whether to append it; otherwise it has its answer."""
        try:
            self._check(pending.acks)
            receipt = self._find_duplicate(pending.header)
        except MilenaError as error:
            self._on_refused()
            pending.done.set_exception(error)
            return False
        if receipt is None:
            return True
        pending.done.set_result(receipt)
        return False

    def _find_duplicate(self, header: BatchHeader) -> BatchReceipt | None:
        now_ms = self._clock.wall_ms()
        if header.idempotency is not None:
            return self._find_keyed(header.idempotency, now_ms)
        if header.producer_id < 0:
            return None
        verdict = self._log.producer_check(header, now_ms)
        if isinstance(verdict, Duplicate):
            return self._duplicate(verdict.base_offset, verdict.last_offset)
        return None

    def _find_keyed(self, key: IdempotencyExtension, now_ms: int) -> BatchReceipt | None:
        entry = self._log.idempotency_lookup(key.key_hash, now_ms)
        if entry is None:
            return None
        if entry.partition_count != key.partition_count:
            raise PartitionCountChangedError(
                f"this idempotency key was used when {self._topic} had {entry.partition_count} partitions, "
                f"it has {key.partition_count} now; use a new key"
            )
        if entry.body_hash != key.body_hash:
            raise IdempotencyKeyReusedError(
                "this idempotency key was used with another body; use a new key for new records"
            )
        return self._duplicate(entry.base_offset, entry.last_offset)

    def _duplicate(self, base_offset: int, last_offset: int) -> BatchReceipt:
        return BatchReceipt(
            partition=self._partition,
            base_offset=base_offset,
            last_offset=last_offset,
            is_duplicate=True,
        )


def _identity(header: BatchHeader) -> int | bytes | None:
    """What two batches of one producer or key share."""
    if header.idempotency is not None:
        return header.idempotency.key_hash
    return header.producer_id if header.producer_id >= 0 else None
