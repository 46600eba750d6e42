"""Topics, configs and producer ids: what clients change of the replicated state, from any node."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from http_api.ports import NewTopic, ProducerState
from node.metadata import MetadataStore
from node.producers import ProducerService
from raft_meta.machine import configs, placement
from raft_meta.machine.commands import AlterConfigs, CreateTopic, DeleteTopic
from raft_meta.machine.image import Image, Topic
from raft_meta.machine.topics import check_name
from storage.errors import (
    FateUnknownError,
    InvalidReplicationError,
    NoQuorumError,
    NotReadyError,
    TopicExistsError,
    TopicNotFoundError,
)

logger = logging.getLogger(__name__)

PROPOSE_TIMEOUT_MS = 10_000
BARRIER_TIMEOUT_MS = 3_000
PARTITIONS_MAX = 10_000
BROKERS_WAIT_MS = 2_000
"""How long a new topic waits for nodes that are just starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a new topic gets where the client says nothing. ``replication_factor`` None: min(3, nodes)."""

    partition_count: int
    replication_factor: int | None
    is_auto_create: bool


class AdminService:
    """Implements ``http_api.ports.MetadataPort``."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        defaults: TopicDefaults,
        rng: random.Random,
        new_topic_id: Callable[[], str],
        producers: ProducerService,
    ) -> None:
        self._producers = producers
        self._metadata = metadata
        self._defaults = defaults
        self._rng = rng
        self._new_topic_id = new_topic_id
        self._barrier: asyncio.Task[Image] | None = None
        self._creating: dict[str, asyncio.Task[Topic]] = {}

    @property
    def node_id(self) -> int:
        """This node's broker id."""
        return self._metadata.node_id

    @property
    def image(self) -> Image:
        """The local image, now."""
        return self._metadata.image

    async def image_since(self, index: int, *, timeout_ms: int) -> Image:
        """The image once its index is above ``index``, or the current one after the timeout."""
        await self._metadata.wait_until(lambda image: image.index > index, timeout_ms=timeout_ms)
        return self._metadata.image

    # -- looking up ------------------------------------------------------------------------------

    async def topic(self, name: str) -> Topic:
        """The topic; what another node has answered with, this one finds too."""
        found = self.image.topic(name)
        if found is not None:
            return found
        found = (await self._current_image()).topic(name)
        if found is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        return found

    async def topic_to_write(self, name: str) -> Topic:
        """The topic; a missing one is created when auto-creation is on."""
        found = self.image.topic(name)
        if found is not None:
            return found
        try:
            return await self.topic(name)
        except TopicNotFoundError:
            if not self._defaults.is_auto_create:
                raise
        task = self._creating.get(name)
        if task is None:
            task = self._creating[name] = asyncio.create_task(self._auto_create(name))
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _auto_create(self, name: str) -> Topic:
        try:
            return await self.create_topic(
                NewTopic(name=name, partition_count=None, replication_factor=None)
            )
        except TopicExistsError:
            return await self.topic(name)

    async def _current_image(self) -> Image:
        """An image as of now. Who asks while a barrier is under way shares the next one: that one began too early."""
        if self._barrier is not None and not self._barrier.done():
            await asyncio.wait([self._barrier])
        if self._barrier is None or self._barrier.done():
            self._barrier = asyncio.create_task(
                self._metadata.barrier(timeout_ms=BARRIER_TIMEOUT_MS)
            )
            # Callers that went away leave a failed barrier to nobody.
            self._barrier.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._barrier)

    # -- changing --------------------------------------------------------------------------------

    async def create_topic(self, topic: NewTopic) -> Topic:
        """Create (or only validate) a topic."""
        check_name(topic.name)
        # Brokers and topics as of now: another node may have let a broker in, or made the topic, a moment ago.
        image = await self._current_image()
        if image.topic(topic.name) is not None:
            raise TopicExistsError(f"Topic '{topic.name}' already exists.")
        if topic.replication_factor is None and not topic.replicas_assignments:
            image = await self._enough_brokers(image)
        layout = self._place(topic, image)
        command = CreateTopic(
            topic_id=self._new_topic_id(),
            name=topic.name,
            configs=tuple(sorted(topic.configs.items())),
            placement=layout,
        )
        made = Topic(
            topic_id=command.topic_id,
            name=topic.name,
            partition_count=len(layout),
            replication_factor=len(layout[0]),
            configs=configs.validate(command.configs, len(layout[0])),
            created_ms=image.now_ms,
        )
        if topic.is_validate_only:
            return made
        await self._propose(command, f"create topic {topic.name}")
        return self.image.topics.get(command.topic_id, made)

    def _default_factor(self, image: Image) -> int:
        nodes = max(len(image.voters), len(image.brokers))
        return self._defaults.replication_factor or min(3, nodes)

    async def _enough_brokers(self, image: Image) -> Image:
        """The image once it has as many live brokers as a topic gets replicas by default.

        Fewer replicas than that, because a node is just starting, would stay fewer for ever.

        Raises:
            NotReadyError: brokers are missing.
        """

        def is_enough(now: Image) -> bool:
            return len(now.live_brokers()) >= self._default_factor(now)

        if is_enough(image):
            return image
        if not await self._metadata.wait_until(is_enough, timeout_ms=BROKERS_WAIT_MS):
            raise NotReadyError(
                f"a new topic gets {self._default_factor(image)} replicas, but only "
                f"{len(self.image.live_brokers())} brokers are alive; wait for the others, or create it with "
                "a replication factor of your own"
            )
        return self.image

    def _place(self, topic: NewTopic, image: Image) -> tuple[tuple[int, ...], ...]:
        if topic.replicas_assignments:
            return _explicit_placement(topic.replicas_assignments, image)
        factor = topic.replication_factor
        if factor is None:
            factor = self._default_factor(image)
        count = self._defaults.partition_count
        if topic.partition_count is not None:
            count = topic.partition_count
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidReplicationError(
                f"partitions_count {count}: give a number from 1 to {PARTITIONS_MAX}"
            )
        return placement.place(image, count, factor, self._rng)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        topic = await self.topic(name)
        await self._propose(DeleteTopic(topic_id=topic.topic_id), f"delete topic {name}")

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, is_validate_only: bool
    ) -> None:
        """Set or reset (None) topic configs."""
        topic = await self.topic(name)
        configs.alter(topic.configs, changes.items(), topic.replication_factor)
        if not is_validate_only:
            command = AlterConfigs(topic_id=topic.topic_id, changes=tuple(sorted(changes.items())))
            await self._propose(command, f"alter configs of {name}")

    async def allocate_producer(self, name: str | None) -> ProducerState:
        """A producer id and epoch."""
        try:
            return await self._producers.allocate(name, timeout_ms=PROPOSE_TIMEOUT_MS)
        except NoQuorumError as error:
            raise NoQuorumError(
                f"cannot allocate a producer id: {error.message}; nothing was changed"
            ) from error

    async def _propose(
        self, command: CreateTopic | DeleteTopic | AlterConfigs, what: str
    ) -> object:
        try:
            return await self._metadata.propose(command, timeout_ms=PROPOSE_TIMEOUT_MS)
        except NoQuorumError as error:
            raise NoQuorumError(f"cannot {what}: {error.message}; nothing was changed") from error
        except FateUnknownError as error:
            raise FateUnknownError(f"{what}: {error.message}; it may yet happen") from error


def _explicit_placement(
    assignments: Mapping[int, object], image: Image
) -> tuple[tuple[int, ...], ...]:
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicationError(
            "replicas_assignments must name the partitions 0, 1, 2, ... without a gap"
        )
    layout = []
    for partition in range(len(assignments)):
        replicas = assignments[partition]
        assert isinstance(replicas, list | tuple)
        unknown = [b for b in replicas if b not in image.brokers]
        if unknown or not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicationError(
                f"replicas_assignments of partition {partition}: {list(replicas)} must be distinct ids of "
                f"registered brokers, which are {sorted(image.brokers)}"
            )
        layout.append(tuple(replicas))
    if len({len(replicas) for replicas in layout}) != 1:
        raise InvalidReplicationError("every partition must have the same number of replicas")
    return tuple(layout)
