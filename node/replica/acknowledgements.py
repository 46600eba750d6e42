"""Writers and readers of one partition that wait until an offset is stored or committed.

A writer is a ``Pending`` for the receipt of one batch. A task awaits it, or it calls back in the same turn of the loop
in which the runner reports that the offset is reached. If the wait ends early, the batch is in the log already, so the
writer does not get a refusal but ``FateUnknownError``.

A batch that names the log's end and finds another end is refused. Its writer waits here, too, until the end that it
found is committed.

The partition's runner reports stored and committed ends. This module knows nothing of roles, replicas and disks.
"""

import asyncio

from milena.model.clock import Clock
from milena.model.errors import (
    FateUnknownError,
    NotLeaderError,
    NotReadyError,
    PreconditionFailedError,
)
from milena.model.pending import Pending, Taker
from milena.model.requests import Acks, BatchReceipt
from node.metrics.counts import NodeCounts
from node.replica.waiters import OffsetWaiters


class _Waiting:
    """A writer that waits for an end, an offset up to which the log must be stored or committed.

    ``outcome``: the receipt of its batch, which is in the log but not yet stored or committed as ``acks`` requires. Or
    the refusal of its batch, because the log ends elsewhere: that end must be committed first.
    """

    __slots__ = ("_acks", "_began_ms", "_outcome", "_owner", "_timeout_ms", "_writer")

    def __init__(
        self,
        owner: "Acknowledgements",
        writer: Pending[BatchReceipt],
        outcome: BatchReceipt | PreconditionFailedError,
        acks: Acks,
        timeout_ms: int,
    ) -> None:
        self._owner = owner
        self._writer = writer
        self._outcome = outcome
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._began_ms = owner.clock.now_ms()
        writer.add_done_callback(self._on_over)

    @property
    def deadline_ms(self) -> int:
        """The time at which the wait ends, by the owner's clock."""
        return self._began_ms + self._timeout_ms

    def done(self) -> bool:
        return self._writer.done()

    def set_result(self, _: None) -> None:
        """Complete the writer, because the end was reached."""
        outcome = self._outcome
        if isinstance(outcome, BatchReceipt):
            self._owner.on_acknowledged(self._acks, self._began_ms)
            self._writer.set_result(outcome)
        else:
            self._writer.set_exception(outcome)

    def set_exception(self, error: BaseException) -> None:
        """Fail the writer: this replica can no longer learn whether the end is reached."""
        if isinstance(error, FateUnknownError) and not isinstance(self._outcome, BatchReceipt):
            # The fate of earlier records is unknown, but this batch was certainly not written.
            error = NotLeaderError(f"{error}; of this write nothing was written")
        self._writer.set_exception(error)

    def expire(self) -> None:
        """Fail the writer: its timeout has passed."""
        outcome = self._outcome
        self._writer.set_exception(
            self._owner.on_overdue(outcome, self._timeout_ms)
            if isinstance(outcome, BatchReceipt)
            else NotReadyError(
                f"{outcome.message}, and what is before that end was not committed within {self._timeout_ms} ms"
            )
        )

    def _on_over(self, writer: Pending[BatchReceipt]) -> None:
        self._owner.forget(self, is_given_up=writer.cancelled())


class Acknowledgements:
    """All writers and readers that wait for offsets of one partition. Owned by the data loop.

    Invariants:
        No waiter waits for an offset that the last reported ends have reached.
    """

    def __init__(self, name: str, *, clock: Clock, counts: NodeCounts) -> None:
        """``name``: the name of the partition, for error messages."""
        self.clock = clock
        self._name = name
        self._counts = counts
        self._committed = OffsetWaiters()
        self._stable = OffsetWaiters()
        self._stored = OffsetWaiters()
        self._writers: dict[_Waiting, None] = {}
        """The writers that wait, in order of arrival."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """When the timer fires, in ms of the clock."""

    def __len__(self) -> int:
        return len(self._committed) + len(self._stable) + len(self._stored)

    # -- waiting ---------------------------------------------------------------------------------

    def answer(
        self,
        writer: Pending[BatchReceipt],
        receipt: BatchReceipt,
        acks: Acks,
        *,
        reached: int,
        timeout_ms: int,
    ) -> None:
        """Give a writer its receipt once its batch is stored or committed, as ``acks`` requires.

        ``reached``: the offset up to which the log is stored or committed now. If the batch is not below it within
        ``timeout_ms``, the writer gets ``FateUnknownError``.
        """
        end = _end(receipt)
        if reached >= end:
            self.on_acknowledged(acks, self.clock.now_ms())
            writer.set_result(receipt)
            return
        waiting = _Waiting(self, writer, receipt, acks, timeout_ms)
        self._wait(waiting, end, self._waiters(acks))

    def refuse(
        self,
        writer: Pending[BatchReceipt],
        end: int,
        expected_end: int,
        *,
        reached: int,
        timeout_ms: int,
    ) -> None:
        """Refuse a batch because the log ends at ``end``, not at ``expected_end``. Wait until ``end`` is committed.

        ``reached``: the present high watermark. If ``end`` is not committed within ``timeout_ms``, the writer gets
        ``NotReadyError``. If this node cannot learn it any more, the writer gets ``NotLeaderError``. Neither error
        tells the log's end. In each case nothing was written.
        """
        refusal = ends_elsewhere(self._name, end, expected_end)
        if reached >= end:
            writer.set_exception(refusal)
            return
        self._wait(_Waiting(self, writer, refusal, Acks.ALL, timeout_ms), end, self._committed)

    def _wait(self, waiting: _Waiting, end: int, waiters: OffsetWaiters) -> None:
        self._writers[waiting] = None
        if self._timer is None or waiting.deadline_ms < self._timer_ms:
            self._ring_at(waiting.deadline_ms)
        waiters.add(end, waiting)

    def forget(self, waiting: _Waiting, *, is_given_up: bool) -> None:
        """Remove a writer whose wait has ended. The timer stays, because other writers usually wait when it fires."""
        self._writers.pop(waiting, None)
        if is_given_up:
            self._prune()

    def _ring_at(self, deadline_ms: int) -> None:
        """Set the one timer for all writers. A timer for each writer would double the cost of waiting."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        left_ms = deadline_ms - self.clock.now_ms()
        self._timer = asyncio.get_running_loop().call_later(max(left_ms, 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self.clock.now_ms()
        for waiting in [w for w in self._writers if w.deadline_ms <= now_ms]:
            if not waiting.done():
                waiting.expire()
        self._prune()
        if self._writers and self._timer is None:
            self._ring_at(min(waiting.deadline_ms for waiting in self._writers))

    def close(self) -> None:
        """Cancel the timer. No writer may wait here afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def readable(self, end: int, timeout_ms: int, *, is_uncommitted: bool) -> None:
        """Wait until everything below ``end`` is readable here, but at most ``timeout_ms``.

        Return early if this replica can no longer learn it.
        """
        waiters = self._committed if is_uncommitted else self._stable
        waiter = waiters.wait_for(end)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except (TimeoutError, FateUnknownError):
            self._prune()
        except asyncio.CancelledError:
            self._prune()
            raise

    def call_when_stored(self, end: int, taker: Taker[None]) -> None:
        """Complete ``taker`` once everything below ``end`` is stored here. Fail it if any of this is cut off."""
        self._stored.add(end, taker)

    def on_acknowledged(self, acks: Acks, began_ms: int) -> None:
        """Count a batch whose acks are satisfied."""
        if acks is Acks.ALL:
            self._counts.commit_ms.observe(self.clock.now_ms() - began_ms)

    def on_overdue(self, receipt: BatchReceipt, timeout_ms: int) -> FateUnknownError:
        """Count a batch that was not acknowledged in time; return the error for its writer."""
        self._counts.fate_unknown += 1
        return FateUnknownError(
            f"{self._name} offset {receipt.base_offset} was appended but not acknowledged by every "
            f"in-sync replica within {timeout_ms} ms; it may still be"
        )

    def _waiters(self, acks: Acks) -> OffsetWaiters:
        return self._committed if acks is Acks.ALL else self._stored

    def _prune(self) -> None:
        """Remove waiters that gave up. If a partition commits nothing, its end does not move and removes none."""
        self._committed.prune()
        self._stable.prune()
        self._stored.prune()

    # -- reports of the runner -------------------------------------------------------------------

    def on_committed(self, high_watermark: int, stable_end: int) -> None:
        """Complete the waiters that the new ends have reached.

        Below ``high_watermark`` every record is committed. Below ``stable_end`` every transaction is decided, too.
        """
        self._committed.advance(high_watermark)
        self._stable.advance(stable_end)

    def on_stored(self, stored_end: int) -> None:
        """Complete the waiters for storage up to ``stored_end``."""
        self._stored.advance(stored_end)

    def fail_above(self, offset: int, error: FateUnknownError) -> None:
        """Fail all waiters for records at ``offset`` and above (-1: all waiters). The fate of these is unknown here."""
        self._committed.fail_above(offset, error)
        self._stable.fail_above(offset, error)
        self._stored.fail_above(offset, error)

    def fail_uncommitted(self, high_watermark: int, error: FateUnknownError) -> None:
        """Fail the waiters for commits above ``high_watermark``; waiters for storage continue."""
        self._committed.fail_above(high_watermark, error)
        self._stable.fail_above(high_watermark, error)


def ends_elsewhere(name: str, end_offset: int, expected_end: int) -> PreconditionFailedError:
    """Return the error for a batch that had to be at ``expected_end``. ``name``: the name of the partition."""
    return PreconditionFailedError(
        f"{name} ends at offset {end_offset}, not at {expected_end}; nothing was written",
        end_offset=end_offset,
    )


def _end(receipt: BatchReceipt) -> int:
    assert receipt.last_offset is not None, "a writer of acks=0 waits for nothing"
    return receipt.last_offset + 1
