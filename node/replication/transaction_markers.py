"""Writes the ends of transactions to the logs that this node leads, and aborts abandoned transactions.

The image decides transactions (``raft_meta.machine.transactions``). Leaders write the decisions to the logs:

1. If a transaction is open in a log and decided in the image, the leader appends a marker.
2. Once the marker is below the high watermark, the leader reports it to the quorum, which removes the ending.
3. A new leader finds in its log and in the image which markers and reports its predecessor did not finish.

So on every replica, the log alone tells which of its records are committed.

A transaction is abandoned if its timeout has passed, or if the broker that would commit it is gone.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass

from milena.model.errors import MilenaError, NotLeaderError
from node.metadata.store import MetadataStore
from node.metrics.counts import NodeCounts
from node.process.cluster_clock import NodeClock
from node.replica.runner import PartitionRunner
from node.replication.local_replicas import LocalReplicas
from node.replication.transaction_ends import TransactionEnds, abort_of
from raft_meta.machine.image import Ending, Image, PartitionKey
from raft_meta.machine.transactions import NotCommitted, outcome_of
from storage.state.transactions import Identity, OngoingTransaction

logger = logging.getLogger(__name__)

LOOK_MS = 500
"""The pause between two checks for abandoned transactions."""


RESTS_FOR = 4
"""The pause after a check of all attended logs, as a multiple of the check's duration. Thousands of open transactions
must not keep the loop from other work."""

LATE_MS = 10_000
"""A transaction that is open this long after its timeout counts as late: it should have been aborted before."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A caller that waits until the marker of a transaction is committed."""

    identity: Identity
    may_lack: bool
    heard: asyncio.Future[None]


@dataclass(eq=False, kw_only=True)
class TransactionMarkers:
    """The markers of the logs that this node leads; see the module. Owned by the data loop.

    Invariants:
        A leader's runner is attended (checked at each change) if its log has an open transaction, or a transaction
        whose marker the quorum does not know, or one whose marker a caller waits for.
    """

    metadata: MetadataStore
    replicas: LocalReplicas
    ends: TransactionEnds
    clock: NodeClock
    clocks_apart_ms: int
    counts: NodeCounts

    def __post_init__(self) -> None:
        self._attended: dict[PartitionRunner, None] = {}
        self._awaited: dict[PartitionKey, list[_Waiter]] = {}
        self._aborting: set[Identity] = set()
        self._since_ms: dict[Identity, int] = {}
        """Transaction → when this node first saw it open, in monotonic ms. The start time in the log is by the clock of
        the node that led then, which may be ahead of this node's."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = Image()
        self._is_scheduled = False
        self._rests_until_s = 0.0

    def attend(self, runner: PartitionRunner) -> None:
        """Attend a leader's runner whose log has a transaction, or is about to have one."""
        if runner not in self._attended:
            self._attended[runner] = None
            runner.watchers[self] = None
        self._schedule()

    async def committed(
        self, key: PartitionKey, identity: Identity, *, may_lack: bool = False
    ) -> None:
        """Wait until the marker of a transaction is below the high watermark of this leader.

        ``may_lack``: also return if the log has neither records nor a marker of the transaction.

        Raises:
            NotLeaderError: this node does not lead the partition, or has stopped leading it.
        """
        runner = self.replicas.find(*key)
        if runner is None or runner.leader is None:
            raise NotLeaderError("another node leads the partition")
        if _is_seen(runner, identity, may_lack=may_lack):
            return
        waiter = _Waiter(identity, may_lack, asyncio.get_running_loop().create_future())
        waiting = self._awaited.setdefault(key, [])
        waiting.append(waiter)
        # For an aborted transaction, the quorum keeps no ending. So once its marker is written, the waiter is the only
        # reason to attend the runner.
        self.attend(runner)
        try:
            await waiter.heard
        finally:
            waiting.remove(waiter)
            if not waiting:
                del self._awaited[key]

    def on_image(self, image: Image) -> None:
        """Check a new image for decided transactions and for partitions that this node leads now."""
        seen, self._seen = self._seen, image
        if image.ending is not seen.ending or image.partitions is not seen.partitions:
            for key in image.ending:
                runner = self.replicas.find(*key)
                if runner is not None and runner.leader is not None:
                    self.attend(runner)
        if not self._attended:
            return
        if image.producers is not seen.producers or image.ending is not seen.ending:
            self._schedule()
        if image.brokers is not seen.brokers:
            self._abort_overdue()

    def on_news(self, runner: PartitionRunner) -> None:
        """Schedule a check: an attended log grew, its high watermark moved, or its role changed."""
        del runner
        self._schedule()

    def _schedule(self) -> None:
        # Do not check at once: the caller is in the middle of an append, and more changes may follow in this turn.
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        rest_s = self._rests_until_s - loop.time()
        if rest_s > 0:
            loop.call_later(rest_s, self._look)
        else:
            loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        loop, image = asyncio.get_running_loop(), self.metadata.image
        began_s = loop.time()
        for runner in list(self._attended):
            if not self._tend(runner, image):
                del self._attended[runner]
                runner.watchers.pop(self, None)
        ended_s = loop.time()
        self._rests_until_s = ended_s + RESTS_FOR * (ended_s - began_s)

    def _tend(self, runner: PartitionRunner, image: Image) -> bool:
        """Write the markers that are due and report those that are committed; return whether to attend further."""
        key = (runner.topic_id, runner.partition)
        if runner.leader is None or runner.is_closed:
            self._answer(key, runner)
            return False
        state = image.partitions.get(key)
        if state is None or state.leader_epoch != runner.leader_epoch:
            # For a turn of the loop, the image may be ahead of the replicas. In the image's epoch another replica may
            # lead, and may have ended transactions already that are open in this log.
            return True
        opened = runner.log.writers.transactions.open
        for identity in list(opened):
            outcome = outcome_of(image, *key, *identity)
            if outcome is not NotCommitted.OPEN:
                runner.append_marker(identity, outcome if isinstance(outcome, Ending) else None)
        endings = image.ending.get(key)
        if endings is not None and runner.leader.is_established:
            for identity in endings:
                if not self.ends.is_finishing(key, identity):
                    self._maybe_finish(runner, identity)
        is_awaited = self._answer(key, runner)
        return bool(opened) or endings is not None or is_awaited

    def _answer(self, key: PartitionKey, runner: PartitionRunner) -> bool:
        """Answer callers whose marker is committed; fail all if this replica does not lead. Return whether any wait."""
        waiters = self._awaited.get(key, ())
        for waiter in waiters:
            if waiter.heard.done():
                continue
            if runner.leader is None or runner.is_closed:
                waiter.heard.set_exception(NotLeaderError("another node leads the partition"))
            elif _is_seen(runner, waiter.identity, may_lack=waiter.may_lack):
                waiter.heard.set_result(None)
        return bool(waiters)

    def _maybe_finish(self, runner: PartitionRunner, identity: Identity) -> None:
        if _is_under_way(runner, identity):
            return
        key = (runner.topic_id, runner.partition)
        if not _has_marker(runner, identity):
            # The commit means that all in-sync replicas had acknowledged its records. But this log does not have them.
            self.counts.transactions.lost += 1
            logger.error(
                "committed transaction lost partition=%s producer_id=%d producer_epoch=%d",
                runner.name,
                *identity,
            )
        self.ends.finish(key, identity)

    # -- abandoned transactions ------------------------------------------------------------------

    async def run(self) -> None:
        """Check for abandoned transactions every ``LOOK_MS``, until cancelled."""
        while True:
            await self.clock.sleep(LOOK_MS)
            self._abort_overdue()
            if self._attended:
                # Of a report of a marker that did not reach the quorum, no event reminds this leader. So check again.
                self._schedule()

    def _abort_overdue(self) -> None:
        image = self.metadata.image
        # The start time may come from the clock of a former leader, which may be behind. Subtracting the largest
        # difference of clocks prevents an early abort. The time since this leader first saw the transaction is exact.
        latest_ms = self.clock.expiry_ms() - self.clocks_apart_ms
        now_ms = self.clock.now_ms()
        since_ms, self._since_ms = self._since_ms, {}
        counts = self.counts.transactions
        counts.open = counts.late = 0
        for runner in self._attended:
            if runner.leader is None:
                continue
            key = (runner.topic_id, runner.partition)
            for identity, found in runner.log.writers.transactions.open.items():
                since = self._since_ms[identity] = since_ms.get(identity, now_ms)
                open_ms = max(latest_ms - found.began_ms, now_ms - since)
                counts.open += 1
                counts.late += open_ms >= found.timeout_ms + LATE_MS
                if identity in self._aborting or not _is_abandoned(found, image, open_ms):
                    continue
                if outcome_of(image, *key, *identity) is NotCommitted.OPEN:
                    self._aborting.add(identity)
                    self._spawn(self._abort(runner.name, identity))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, name: str, identity: Identity) -> None:
        producer_id, producer_epoch = identity
        logger.info(
            "transaction aborted, its time is over partition=%s producer_id=%d producer_epoch=%d",
            name,
            producer_id,
            producer_epoch,
        )
        try:
            await self.ends.end(abort_of(producer_id, producer_epoch))
            self.counts.transactions.expired += 1
        except MilenaError as error:
            # Another node ended the transaction, or the next check tries again.
            logger.debug("transaction not aborted: %s", error)
        finally:
            self._aborting.discard(identity)

    async def close(self) -> None:
        """Stop aborting transactions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _is_under_way(runner: PartitionRunner, identity: Identity) -> bool:
    """Return whether a transaction is open in the log, or its marker is not committed yet."""
    transactions = runner.log.writers.transactions
    if identity in transactions.open:
        return True
    return transactions.is_ending(identity, runner.high_watermark)


def _is_seen(runner: PartitionRunner, identity: Identity, *, may_lack: bool) -> bool:
    """Return whether readers of the log see that a transaction has ended; see ``TransactionMarkers.committed``."""
    if _is_under_way(runner, identity):
        return False
    return may_lack or _has_marker(runner, identity)


def _has_marker(runner: PartitionRunner, identity: Identity) -> bool:
    """Return whether the log has the marker of a transaction that is not open in the log.

    A marker raises the producer's epoch in the log. So the log then knows a later epoch of the producer.
    """
    producer_id, producer_epoch = identity
    return runner.log.writers.producers.epoch_of(producer_id) > producer_epoch


def _is_abandoned(found: OngoingTransaction, image: Image, open_ms: int) -> bool:
    """Return whether the transaction's timeout has passed, or the only broker that could commit it is gone."""
    if open_ms >= found.timeout_ms:
        return True
    if found.owner < 0:
        return False
    owner = image.brokers.get(found.owner)
    return owner is None or owner.broker_epoch != found.owner_epoch or owner.is_fenced
