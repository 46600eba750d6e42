"""Waits for new records at the ends of many partitions, without polling.

A consumer that has read everything waits at the ends of all its partitions at once. If this node has a replica of a
partition, it watches the replica's stable end. For other partitions, it sends the leader one call (a *poll*) on behalf
of all consumers that wait here. The leader responds when there are more records.
"""

import asyncio
import logging

from milena.model.errors import MilenaError, NoLeaderError, NotLeaderError
from node.config.budgets import BACKGROUND_RETRY_MS, READ_ANSWER_MARGIN_MS
from node.consumers.consumer_messages import TAIL, TailAnswer, TailRequest
from node.context import NodeContext
from node.peers.messages import ask
from node.replica.runner import PartitionRunner, ReplicaRole
from raft_meta.machine.image import Image, Partition, PartitionKey

logger = logging.getLogger(__name__)

POLL_MS = 30_000
"""How long a leader waits for records before it responds, in ms. A poll whose waiters are gone lasts until then."""
NOT_ASKING = -1


class EndWaiter:
    """A wait at the ends of several partitions. ``wake`` ends it."""

    __slots__ = ("_future", "_watches")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watches: list[_Watch] = []

    def wake(self) -> None:
        """End the wait: something has changed."""
        if not self._future.done():
            self._future.set_result(None)

    def add(self, watch: "_Watch") -> None:
        """Wait at the end of this partition, too."""
        self._watches.append(watch)

    async def wait(self, timeout_ms: float) -> None:
        """Wait until ``wake``, or until the timeout passes."""
        if self._future.done() or timeout_ms <= 0:
            return
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stop waiting at all partitions."""
        for watch in self._watches:
            watch.forget(self)
        self._watches.clear()


class _Watch:
    """The end of one partition, and the waiters there."""

    def __init__(self, ends: "EndWatcher", key: PartitionKey, state: Partition | None) -> None:
        self.key = key
        self.state = state
        """The partition in the image when the watch was made. If it changes, another replica may have to be watched."""
        self.runner: PartitionRunner | None = None
        self.poll: asyncio.Task[None] | None = None
        self.poll_offset = 0
        """The offset for which the poll in flight waits."""
        self._ends = ends
        self._waiting: dict[EndWaiter, int] = {}
        self._least = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def least(self) -> int:
        """The lowest offset for which a waiter waits."""
        return self._least

    def add(self, waiter: EndWaiter, offset: int) -> None:
        self._least = min(self._least, offset) if self._waiting else offset
        self._waiting[waiter] = offset
        waiter.add(self)

    def forget(self, waiter: EndWaiter) -> None:
        if self._waiting.pop(waiter, None) is not None and not self._waiting:
            self._ends.on_empty(self)

    def on_news(self, runner: PartitionRunner) -> None:
        """Note a change of the local replica: its log, its high watermark or its role."""
        if runner.is_closed:
            self.wake_all()
        else:
            self.advance(runner.stable_end)

    def advance(self, high_watermark: int) -> None:
        """Wake the waiters for offsets below ``high_watermark``."""
        if high_watermark > self._least:
            kept = []
            for waiter, offset in self._waiting.items():
                if offset < high_watermark:
                    waiter.wake()
                else:
                    kept.append(offset)
            self._least = min(kept, default=high_watermark)

    def wake_all(self) -> None:
        for waiter in self._waiting:
            waiter.wake()


class EndWatcher:
    """All partition ends at which consumers on this node wait. Owned by the data loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._watches: dict[PartitionKey, _Watch] = {}
        self._partitions = node.metadata.image.partitions
        self._polls: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, waiter: EndWaiter, key: PartitionKey, offset: int) -> None:
        """Wake the waiter once the partition has a committed record at or above ``offset``."""
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch(
                self, key, self._node.metadata.image.partition(*key)
            )
            self._attach(watch)
        watch.add(waiter, offset)
        if watch.runner is not None:
            watch.on_news(watch.runner)
        else:
            self._poll(watch)

    def _attach(self, watch: _Watch) -> None:
        runner = self._node.replicas.find(*watch.key)
        if runner is not None and not runner.is_damaged and runner.role is not ReplicaRole.OFFLINE:
            watch.runner = runner
            # All waiters at a partition share one watcher of the replica, so each append calls only one.
            runner.watchers[watch] = None

    def on_empty(self, watch: _Watch) -> None:
        """Drop a watch without waiters. While a poll is in flight, keep it, because a waiter usually comes back."""
        if watch.poll is None:
            self._drop(watch)

    def _drop(self, watch: _Watch) -> None:
        if watch.runner is not None:
            watch.runner.watchers.pop(watch, None)
        if self._watches.get(watch.key) is watch:
            del self._watches[watch.key]

    def on_image(self, image: Image) -> None:
        """Wake the waiters at partitions whose leader or replicas changed.

        They read again and then wait at the right replica.
        """
        if image.partitions is self._partitions:
            return
        self._partitions = image.partitions
        for key, watch in list(self._watches.items()):
            if image.partitions.get(key) is not watch.state:
                self._drop(watch)
                if watch.poll is not None:
                    watch.poll.cancel()
                watch.wake_all()

    # -- partitions of other nodes ---------------------------------------------------------------

    def _poll(self, watch: _Watch) -> None:
        if watch.poll is not None:
            if watch.poll_offset <= watch.least:
                return
            watch.poll.cancel()
        task = asyncio.get_running_loop().create_task(self._ask(watch), name="tail")
        watch.poll, watch.poll_offset = task, watch.least
        self._polls.add(task)
        task.add_done_callback(lambda done: self._on_polled(watch, done))

    def _on_polled(self, watch: _Watch, done: "asyncio.Task[None]") -> None:
        self._polls.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.error("waiting for partition=%s failed", watch.key, exc_info=error)
        if watch.poll is done:
            watch.poll = None
            if watch.is_empty:
                self._drop(watch)
            elif not done.cancelled():
                self._poll(watch)

    async def _ask(self, watch: _Watch) -> None:
        """Send one poll to the leader. It ends with the response, or after a pause if it failed."""
        topic_id, partition = watch.key
        state = self._node.metadata.image.partition(topic_id, partition)
        try:
            if state is None or state.leader is None:
                raise NoLeaderError(f"partition {partition} of {topic_id} has no leader")
            answer = await ask(
                self._node.peers,
                state.leader,
                TAIL,
                TailRequest(
                    topic_id=topic_id,
                    partition=partition,
                    offset=watch.poll_offset,
                    wait_ms=POLL_MS,
                ),
                timeout_ms=POLL_MS + READ_ANSWER_MARGIN_MS,
            )
            # A woken waiter may watch again before this task ends. It must see that no poll is in flight.
            watch.poll_offset = NOT_ASKING
            watch.advance(answer.high_watermark)
        except MilenaError as error:
            logger.debug("cannot wait at the leader of partition=%s: %s", watch.key, error)
            watch.poll_offset = NOT_ASKING
            await self._node.clock.sleep(BACKGROUND_RETRY_MS)

    async def on_tail(self, request: TailRequest) -> TailAnswer:
        """Wait for records of a partition that this node leads, on behalf of another node."""
        runner = self._node.replicas.find(request.topic_id, request.partition)
        if runner is None or runner.leader is None:
            raise NotLeaderError(f"node {self._node.metadata.node_id} does not lead the partition")
        await runner.wait_readable(request.offset, min(request.wait_ms, POLL_MS))
        return TailAnswer(high_watermark=runner.stable_end)

    async def close(self) -> None:
        """Stop all polls."""
        polls = list(self._polls)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
