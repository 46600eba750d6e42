"""Who waits until deleted records are gone for good: a leader's clients, until whoever may lead next has deleted them.

Kafka's DeleteRecords waits for the low watermarks of its followers likewise (KIP-107). Owned by the data loop; the
partition's runner says when something moved.
"""

import asyncio

from node.replication.leader import PartitionLeader
from storage.errors import FateUnknownError, FeatureLevelError


class Deletions:
    """The deletions under way in one partition.

    Invariants:
        Everybody waits for the present leadership; who waited for an earlier one was told that it is over.
    """

    __slots__ = ("_leader", "_waiters")

    def __init__(self) -> None:
        self._leader: PartitionLeader | None = None
        self._waiters: dict[asyncio.Future[None], int] = {}
        """What each waits for, in the order in which they came."""

    def change_leader(self, leader: PartitionLeader | None) -> None:
        """Another leadership begins here, or none: nobody here can tell any more what became of deletions."""
        self._leader = leader
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(
                    FateUnknownError("the leader changed before the deletion was on every replica")
                )

    def check(self, name: str) -> None:
        """Refuse what could never be confirmed.

        Raises:
            FeatureLevelError: an in-sync follower is of a release that does not say where its log starts.
        """
        silent = () if self._leader is None else self._leader.silent_members
        if silent:
            raise FeatureLevelError(
                f"{name}: in-sync brokers {', '.join(map(str, silent))} are of a release that does not confirm "
                "deletions; upgrade them first. Nothing was deleted"
            )

    def look(self) -> None:
        """Something moved: let go whose deletion is everywhere."""
        if not self._waiters or self._leader is None:
            return
        for waiter, offset in list(self._waiters.items()):
            if self._leader.has_adopted(offset):
                del self._waiters[waiter]
                if not waiter.done():
                    waiter.set_result(None)

    async def adopted(self, offset: int, *, name: str, timeout_ms: float) -> None:
        """Wait until every replica that may lead next starts at ``offset`` or beyond.

        Raises:
            FateUnknownError: the time was up, or the leadership over, before that was known.
        """
        assert self._leader is not None, "only a leader deletes"
        if self._leader.has_adopted(offset):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = offset
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError as error:
            raise FateUnknownError(
                f"{name}: the records below offset {offset} are deleted on the leader, but not on every in-sync "
                f"replica within {timeout_ms:.0f} ms"
            ) from error
        finally:
            self._waiters.pop(waiter, None)
