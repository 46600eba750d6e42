"""Deletes records for clients. A deletion is done when no replica that may lead next has the records any more.

Callers wait for this, as Kafka's DeleteRecords waits for the low watermarks of the followers (KIP-107). Owned by the
data loop. The partition's runner calls ``look`` when a replica's log start or the ISR may have changed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from milena.model.errors import FateUnknownError, FeatureLevelError, OffsetOutOfRangeError
from node.replica.leader import PartitionLeader
from node.replica.log_changes import changes_replica
from node.replica.runner_context import RunnerContext
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Deletions:
    """The deletions in progress in one partition.

    Invariants:
        All waiters wait under the present leadership. Waiters of an earlier leadership have got an error.
    """

    log: PartitionLog
    context: RunnerContext
    name: str
    on_log_start: Callable[[], None]
    _leader: PartitionLeader | None = field(default=None, init=False)
    _waiters: dict[asyncio.Future[None], int] = field(default_factory=dict, init=False)
    """Waiter → the offset at which the replicas must start, in order of arrival."""

    def change_leader(self, leader: PartitionLeader | None) -> None:
        """Continue under another leadership, or none (None). Fail all waiters: their deletions' fate is unknown."""
        self._leader = leader
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(
                    FateUnknownError("the leader changed before the deletion was on every replica")
                )

    async def delete(
        self, before: int | None, established_end: Callable[[], int], *, timeout_ms: float
    ) -> int:
        """As leader, delete all records below ``before`` (None: below ``established_end()``); return the log start.

        Raises:
            OffsetOutOfRangeError, NotReadyError, FeatureLevelError: nothing was deleted.
            FateUnknownError: the records are deleted here. But within ``timeout_ms`` it did not become known that
                every replica that may lead next has deleted them, too.
        """
        log, leader = self.log, self._leader
        assert leader is not None, "only a leader deletes"
        offset = established_end() if before is None else before
        if offset > log.log_start_offset:
            end = established_end()
            if offset > end:
                what = f"end, {end}"
                if offset <= leader.high_watermark:
                    what = f"last stable offset, {end}: a transaction is open there"
                raise OffsetOutOfRangeError(
                    f"offset {offset} of {self.name} is above its {what}; nothing was deleted"
                )
            self._check_confirmed(leader)
            logger.info("delete records partition=%s before=%d", self.name, offset)
            with changes_replica(self.context.on_fatal):
                log.start.advance(offset)
        leader.on_deleted(offset)
        self.on_log_start()
        await self._adopted(offset, leader, timeout_ms)
        return log.log_start_offset

    def look(self) -> None:
        """Complete the waiters whose deletion is done on every replica that may lead next."""
        if not self._waiters or self._leader is None:
            return
        for waiter, offset in list(self._waiters.items()):
            if self._leader.has_adopted(offset):
                del self._waiters[waiter]
                if not waiter.done():
                    waiter.set_result(None)

    def _check_confirmed(self, leader: PartitionLeader) -> None:
        """Refuse a deletion that the followers could not confirm.

        Raises:
            FeatureLevelError: an in-sync follower has a release that does not send its log start.
        """
        silent = leader.silent_members
        if silent:
            raise FeatureLevelError(
                f"{self.name}: in-sync nodes {', '.join(map(str, silent))} are of a release that does not "
                "confirm deletions; upgrade them first. Nothing was deleted"
            )

    async def _adopted(self, offset: int, leader: PartitionLeader, timeout_ms: float) -> None:
        """Wait until every replica that may lead next has a log start of ``offset`` or more.

        Raises:
            FateUnknownError: the timeout passed or the leadership ended before this was known.
        """
        if leader.has_adopted(offset):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = offset
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError as error:
            raise FateUnknownError(
                f"{self.name}: the records below offset {offset} are deleted on the leader, but not on every in-sync "
                f"replica within {timeout_ms:.0f} ms"
            ) from error
        finally:
            self._waiters.pop(waiter, None)
