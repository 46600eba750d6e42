"""The blocking ``milena.consuming.consumer.Consumer``.

The iteration takes runs of records from the loop's thread, and gives the program one record at a time. It notes which
record the program has. So a commit covers only records that the program was given, as in the asynchronous consumer.
Rebalances happen while the program waits for records.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Set
from inspect import iscoroutinefunction
from typing import Self, TypeVar

from milena.blocking.clients import OnExit, Resource
from milena.blocking.forwarding import Forwarding, described_as, forwarded
from milena.blocking.loop_thread import ClientLoopThread
from milena.consuming.consumer import Consumer as AsyncConsumer
from milena.consuming.options import RebalanceListener, Subscription
from milena.hints import Hinting
from milena.records import ConsumedRecord, Position, TopicPartition

T = TypeVar("T")


class Consumer(Resource[AsyncConsumer], Forwarding[AsyncConsumer], Hinting, hints="Consumer"):
    """A consumer for one thread: iterate it for records, or call ``poll``.

    A rebalance listener runs on another thread, while ``poll`` waits, and may call the consumer there.
    """

    def __init__(
        self, consumer: AsyncConsumer, thread: ClientLoopThread, *, on_exit: OnExit | None = None
    ) -> None:
        super().__init__(consumer, thread, on_exit=on_exit)
        self._rest: Iterator[ConsumedRecord] = iter(())

    def _run(self, work: Callable[[AsyncConsumer], Coroutine[object, object, T]]) -> T:
        return self._thread.run(work(self._inner))

    def close(self) -> None:
        """Commit all records that were given out, give up the partitions, and leave the group.

        A second call does nothing.
        """
        self.__exit__(None, None, None)

    def stop(self) -> None:
        """End the loops of the program: the running ``poll`` and all later ones return an empty list, iterations end.

        The consumer stays a member until its block is left. Any thread and any signal handler may call this, at any
        time: ``signal.signal(signal.SIGTERM, lambda *_: consumer.stop())``.
        """
        self._inner.stop()

    @property
    def is_stopped(self) -> bool:
        """True after ``stop``: the condition to end a loop of ``poll``."""
        return self._inner.is_stopped

    # -- records -----------------------------------------------------------------------------------

    def poll(
        self, max_records: int | None = None, timeout_s: float | None = None
    ) -> list[ConsumedRecord]:
        """Return the next records as soon as there are some; an empty list if none arrive within ``timeout_s``."""
        try:
            return self._thread.run(self._inner.poll(max_records, timeout_s))
        except KeyboardInterrupt:
            # ``poll`` may have taken records on the loop's thread and lost them by the interrupt. Give them again.
            if self._thread.is_usable:
                self._thread.run(self._take_back())
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        consumer = self._inner
        while True:
            if not consumer.wants_attention:
                for record in self._rest:
                    consumer.mark(record)
                    return record
            self._rest = iter(self._thread.run(consumer.next_run()))
            if consumer.is_stopped:
                raise StopIteration

    async def _take_back(self) -> None:
        self._inner.take_back()

    # -- subscription, assignment and positions ----------------------------------------------------

    @property
    def subscription(self) -> Subscription | None:
        """The topics or the pattern that the consumer is subscribed to; None if partitions were assigned by hand."""
        return self._inner.subscription

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads now."""
        return self._inner.assignment

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._inner.paused

    @property
    def member_id(self) -> str | None:
        """The id under which the group knows the consumer; None without a group."""
        return self._inner.member_id

    @property
    def member_epoch(self) -> int | None:
        """The epoch under which the consumer commits; None without a group, 0 before it has joined."""
        return self._inner.member_epoch

    @property
    def is_rebalancing(self) -> bool:
        """True during a rebalance: the consumer is getting, giving up or losing partitions."""
        return self._inner.is_rebalancing

    @property
    def generation(self) -> int | None:
        """The group's generation as last reported; None without a group."""
        return self._inner.generation

    subscribe = forwarded(AsyncConsumer.subscribe)
    assign = forwarded(AsyncConsumer.assign)
    position = forwarded(AsyncConsumer.position)
    lag = forwarded(AsyncConsumer.lag)
    committed = forwarded(AsyncConsumer.committed)
    commit = forwarded(AsyncConsumer.commit)
    rewind = forwarded(AsyncConsumer.rewind)

    @described_as(AsyncConsumer.seek)
    def seek(self, topic: str, partition: int, position: Position) -> None:
        """Continue at a position, as the asynchronous consumer does."""

        async def work() -> None:
            self._inner.seek(topic, partition, position)

        self._thread.run(work())

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Stop giving records of these partitions until ``resume``."""

        async def work() -> None:
            self._inner.pause(*partitions)

        self._thread.run(work())

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give records of these partitions again."""

        async def work() -> None:
            self._inner.resume(*partitions)

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
