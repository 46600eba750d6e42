"""The topics that a producer writes to: each is looked up with its first record, and then kept up to date.

Any thread may call ``get``; all other methods are called on the loop's thread.
"""

from contextlib import AbstractContextManager
from random import Random
from typing import TYPE_CHECKING

from milena.cluster.metadata import MetadataCache
from milena.cluster.view import ClusterView, TopicView
from milena.errors import (
    BadRecordError,
    ClientError,
    TargetNotFoundError,
    is_worth_another_try,
)
from milena.model.clock import Clock
from milena.producing.batching import Accumulator
from milena.producing.options import ProducerOptions
from milena.producing.partitioner import Topology
from milena.producing.placement import TopicPlacement
from milena.producing.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class TopicPlacements:
    """Map topics to placements. ``lock`` guards the accumulator's lanes and the turn of records without a key.

    ``can_make`` lets nodes create a missing topic, if their settings allow that, and returns whether the topic exists.
    """

    def __init__(
        self,
        options: ProducerOptions,
        *,
        metadata: MetadataCache,
        can_make: "Callable[[str], Awaitable[bool]]",
        accumulator: Accumulator,
        lock: AbstractContextManager[bool],
        clock: Clock,
        chance: Random,
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._can_make = can_make
        self._accumulator = accumulator
        self._lock = lock
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(
            first_ms=options.retry_backoff_ms, most_ms=options.retry_backoff_max_ms
        )
        self._placements: dict[str, TopicPlacement] = {}
        self._stop: Callable[[], None] | None = None

    def open(self) -> None:
        """Listen to changes of the metadata from now on."""
        self._stop = self._metadata.listen(self._on_view)

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def get(self, topic: str) -> TopicPlacement | None:
        """Return the topic's placement; None if the topic must be looked up first. Any thread may call it."""
        return self._placements.get(topic)

    async def learn(self, topic: str, *, at_least: int = 0) -> None:
        """Look up a topic, which must have at least ``at_least`` partitions.

        Raises:
            TargetNotFoundError: no such topic, and the nodes do not create it.
            BadRecordError: the topic has fewer partitions.
            UnreachableError: no node responded for ``max_block_ms``.
            NeverReachedError: no node has ever responded.
        """
        deadline_ms = self._clock.now_ms() + self._options.max_block_ms
        failures = 0
        while True:
            try:
                view = await self._find(topic, at_least)
                nodes = (await self._metadata.view()).nodes
            except ClientError as error:
                failures += 1
                wait_ms = self._backoff.wait_ms(failures, self._chance)
                is_late = self._clock.now_ms() + wait_ms > deadline_ms
                if is_late or not is_worth_another_try(error):
                    raise
                await self._clock.sleep(wait_ms)
            else:
                self._place(Topology(topic=view, nodes=nodes))
                return

    async def _find(self, topic: str, at_least: int) -> TopicView:
        try:
            view = await self._metadata.topic(topic)
        except TargetNotFoundError:
            if not await self._can_make(topic):
                raise
            view = await self._metadata.topic(topic)
        if len(view.partitions) < at_least:
            await self._metadata.refresh()
            view = await self._metadata.topic(topic)
        if not view.partitions or len(view.partitions) < at_least:
            raise BadRecordError(
                f"{topic} has partitions 0 to {len(view.partitions) - 1}, not {at_least - 1}"
            )
        return view

    def _place(self, topology: Topology) -> None:
        name = topology.topic.name
        with self._lock:
            self._placements[name] = TopicPlacement(
                topology,
                lambda partition: self._accumulator.lane(name, partition),
                partitioner=self._options.partitioner,
                previous=self._placements.get(name),
            )

    def _on_view(self, view: ClusterView) -> None:
        """Use new partitions and leaders from the next record on."""
        topics = {topic.name: topic for topic in view.topics}
        for name in list(self._placements):
            if name not in topics or not topics[name].partitions:
                del self._placements[name]
            elif topics[name] != self._placements[name].topology.topic:
                self._place(Topology(topic=topics[name], nodes=view.nodes))
