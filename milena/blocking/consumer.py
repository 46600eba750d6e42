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
from milena.blocking.forwarding import Forwarding, Mirrored, described_as, forwarded
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

    is_stopped = Mirrored[bool](AsyncConsumer.is_stopped)

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
                self._thread.call(self._inner.take_back)
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

    # -- subscription, assignment and positions ----------------------------------------------------

    subscription = Mirrored[Subscription | None](AsyncConsumer.subscription)
    assignment = Mirrored[frozenset[TopicPartition]](AsyncConsumer.assignment)
    paused = Mirrored[frozenset[TopicPartition]](AsyncConsumer.paused)
    member_id = Mirrored[str | None](AsyncConsumer.member_id)
    member_epoch = Mirrored[int | None](AsyncConsumer.member_epoch)
    is_rebalancing = Mirrored[bool](AsyncConsumer.is_rebalancing)
    generation = Mirrored[int | None](AsyncConsumer.generation)
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
        self._thread.call(lambda: self._inner.seek(topic, partition, position))

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Stop giving records of these partitions until ``resume``."""
        self._thread.call(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give records of these partitions again."""
        self._thread.call(lambda: self._inner.resume(*partitions))


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
