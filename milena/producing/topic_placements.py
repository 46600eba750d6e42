"""The topics that a producer writes to: found out when they are first named, kept up to date after that.

Lookups come from any thread; everything else belongs to the loop.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Protocol

from milena.cluster.view import ClusterView, TopicView
from milena.errors import BadRecordError, ClientError, TargetNotFoundError
from milena.model.clock import Clock
from milena.producing.batching import Accumulator
from milena.producing.options import ProducerOptions
from milena.producing.partitioner import Topology
from milena.producing.placement import TopicPlacement
from milena.producing.retry import Backoff, is_worth_another_try


class TopicPort(Protocol):
    """Metadata that is needed of ``milena.cluster.metadata``."""

    async def view(self) -> ClusterView:
        """The cluster."""

    async def topic(self, name: str) -> TopicView:
        """A topic."""

    async def refresh(self) -> None:
        """Look now."""

    def listen(self, listener: Callable[[ClusterView], None]) -> Callable[[], None]:
        """Hear of changes; returns what ends that."""


class TopicMakerPort(Protocol):
    """Calls that are needed of ``milena.cluster.transport``."""

    async def can_make_topic(self, topic: str) -> bool:
        """Have a missing topic made, where nodes do that on the first write."""


class TopicPlacements:
    """Topic to placement. ``lock`` guards the accumulator's lanes and the turn of keyless records."""

    def __init__(
        self,
        options: ProducerOptions,
        *,
        metadata: TopicPort,
        maker: TopicMakerPort,
        accumulator: Accumulator,
        lock: AbstractContextManager[bool],
        clock: Clock,
        chance: Random,
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._maker = maker
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
        """Hear of changes from now on."""
        self._stop = self._metadata.listen(self._on_view)

    def close(self) -> None:
        """Hear of no more changes."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def get(self, topic: str) -> TopicPlacement | None:
        """Where the topic's records go; None if that must be learnt. From any thread."""
        return self._placements.get(topic)

    async def learn(self, topic: str, *, at_least: int = 0) -> None:
        """Find out a topic's partitions, of which there should be ``at_least`` so many.

        Raises:
            TargetNotFoundError: no such topic, and the nodes do not make it.
            BadRecordError: it has fewer partitions.
            UnreachableError: no node answered for ``max_block_ms``.
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
            if not await self._maker.can_make_topic(topic):
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
        """New partitions and leaders count from the next record on."""
        topics = {topic.name: topic for topic in view.topics}
        for name in list(self._placements):
            if name not in topics or not topics[name].partitions:
                del self._placements[name]
            elif topics[name] != self._placements[name].topology.topic:
                self._place(Topology(topic=topics[name], nodes=view.nodes))
