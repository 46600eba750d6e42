"""The blocking ``milena.consuming.consumer.Consumer``.

Records change threads one run at a time. This module notes record by record how far the program is with a run. So a
commit covers what the program was given, as in the asynchronous counterpart. Rebalances happen while the program waits
for records.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Set
from inspect import iscoroutinefunction
from typing import Self

from milena.blocking.clients import OnExit, Resource
from milena.blocking.loop_thread import ClientLoopThread
from milena.consuming.consumer import Consumer as AsyncConsumer
from milena.consuming.options import RebalanceListener, Subscription
from milena.records import ConsumedRecord, Position, TopicPartition


class Consumer(Resource):
    """Iterate the consumer for records, or ``poll`` it. For one thread.

    While ``poll`` waits, a listener may call the consumer from its own thread.
    """

    def __init__(
        self, consumer: AsyncConsumer, thread: ClientLoopThread, *, on_exit: OnExit | None = None
    ) -> None:
        super().__init__(consumer, thread, on_exit=on_exit)
        self.inner = self._consumer = consumer
        self._rest: Iterator[ConsumedRecord] = iter(())

    def close(self) -> None:
        """Commit what was given out, give the partitions back, and leave the group. You may call it again."""
        self.__exit__(None, None, None)

    # -- records -----------------------------------------------------------------------------------

    def poll(
        self, max_records: int | None = None, timeout_s: float | None = None
    ) -> list[ConsumedRecord]:
        """Return the next records as soon as there are some; an empty list if none arrive within ``timeout_s``."""
        try:
            return self._thread.run(self._consumer.poll(max_records, timeout_s))
        except KeyboardInterrupt:
            # The loop's thread may have taken records that did not arrive here.
            if self._thread.is_usable:
                self._thread.run(self._take_back())
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        consumer = self._consumer
        while True:
            if not consumer.wants_attention:
                for record in self._rest:
                    consumer.mark(record)
                    return record
            self._rest = iter(self._thread.run(consumer.next_run()))

    async def _take_back(self) -> None:
        self._consumer.take_back()

    # -- subscription, assignment and positions ----------------------------------------------------

    @property
    def subscription(self) -> Subscription | None:
        """The topics or the pattern that the consumer is subscribed to; None if partitions were assigned by hand."""
        return self._consumer.subscription

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads now."""
        return self._consumer.assignment

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.paused

    @property
    def member_id(self) -> str | None:
        """The id under which the group knows the consumer; None without a group."""
        return self._consumer.member_id

    @property
    def generation(self) -> int | None:
        """The group's generation as last reported; None without a group."""
        return self._consumer.generation

    def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read these topics instead of what was read before."""
        self._thread.run(self._consumer.subscribe(*topics, pattern=pattern))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without sharing them with a group's members."""
        self._thread.run(self._consumer.assign(partitions))

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record to be given."""
        return self._thread.run(self._consumer.position(topic, partition))

    def lag(self, topic: str, partition: int) -> int:
        """Return how many offsets lie between the position and the end of committed records."""
        return self._thread.run(self._consumer.lag(topic, partition))

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the offset that the group has committed in a partition; None without one."""
        return self._thread.run(self._consumer.committed(topic, partition))

    def commit(
        self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commit these offsets; None commits all records that were given out.

        Errors are those of the asynchronous consumer.
        """
        self._thread.run(self._consumer.commit(offsets))

    def seek(self, topic: str, partition: int, position: Position) -> None:
        """Continue at a position: an offset, an end of the partition, a time, or the last n records."""

        async def work() -> None:
            self._consumer.seek(topic, partition, position)

        self._thread.run(work())

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Stop giving records of these partitions until ``resume``."""

        async def work() -> None:
            self._consumer.pause(*partitions)

        self._thread.run(work())

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give records of these partitions again."""

        async def work() -> None:
            self._consumer.resume(*partitions)

        self._thread.run(work())


def on_threads(listener: RebalanceListener | None) -> RebalanceListener | None:
    """Return a listener that runs its methods on threads, where they may block.

    Raises:
        TypeError: the listener has ``async`` methods, which would not be awaited.
    """
    if listener is None:
        return None
    for method in (listener.on_assigned, listener.on_revoked, listener.on_lost):
        if iscoroutinefunction(method):
            raise TypeError(f"a listener of milena.sync has plain methods: {method.__name__}")
    return _OnThreads(listener)


class _OnThreads(RebalanceListener):
    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_assigned(self, partitions: Set[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_assigned, partitions)

    async def on_revoked(self, partitions: Set[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_revoked, partitions)

    async def on_lost(self, partitions: Set[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_lost, partitions)
