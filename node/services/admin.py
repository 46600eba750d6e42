"""Topics, configs, producer ids and brokers: changes that clients make to the replicated state, on any node."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from http_api.ports.node import NewTopic, ProducerState
from milena.model.errors import (
    BrokerInUseError,
    ConflictError,
    FateUnknownError,
    InvalidReplicationError,
    LimitReachedError,
    NoQuorumError,
    NotReadyError,
    StaleVersionError,
    TooManyProducersError,
    TopicExistsError,
    TopicNotFoundError,
)
from node.config.budgets import LONG_PROPOSE_MS
from node.metadata.cluster_watch import ClusterWatch
from node.metadata.lookup import made_again, topic_to_commit
from node.metadata.store import MetadataStore
from node.services.own_topics import check_written_by_clients
from node.services.producers import ProducerService
from raft_meta.machine import bounds
from raft_meta.machine.access.audit import note_text
from raft_meta.machine.brokers import check_removable, voter_stays
from raft_meta.machine.codec import LEVELS
from raft_meta.machine.commands import (
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    DeleteTopic,
    NoteAction,
    UnregisterBroker,
)
from raft_meta.machine.image import Image, Topic
from raft_meta.machine.topics import configs, placement
from raft_meta.machine.topics.topics import PARTITIONS_MAX, check_name

BROKERS_WAIT_MS = 2_000
"""How long the creation of a topic waits for nodes that are starting for the first time, in ms."""
GROWTH_TRIES_MAX = 5
"""Largest number of attempts to add partitions. An attempt fails if another client adds some at the same time."""

_Change = CreateTopic | DeleteTopic | AddPartitions | AlterConfigs | UnregisterBroker


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Values for a new topic if the client gives none. ``replication_factor`` None: 3, or all nodes if fewer."""

    partition_count: int
    replication_factor: int | None
    is_auto_create: bool


@dataclass(eq=False, kw_only=True)
class AdminService:
    """Implements ``http_api.ports.node.MetadataPort``."""

    metadata: MetadataStore
    defaults: TopicDefaults
    """The defaults of new topics."""
    rng: random.Random
    new_topic_id: Callable[[], str]
    producers: ProducerService

    def __post_init__(self) -> None:
        self._watch = ClusterWatch(self.metadata)
        self._creating: dict[str, asyncio.Task[Topic]] = {}

    @property
    def node_id(self) -> int:
        """This node's broker id."""
        return self.metadata.node_id

    @property
    def image(self) -> Image:
        """The present local image."""
        return self.metadata.image

    @property
    def version(self) -> int:
        """A number that grows with every change of the cluster that clients can see."""
        return self._watch.version

    async def image_since(self, version: int, *, timeout_ms: int) -> Image:
        """Wait until the cluster's version is above ``version``, or for ``timeout_ms``; return the present image."""
        await self._watch.wait_for(version, timeout_ms=timeout_ms)
        return self.metadata.image

    # -- looking up ------------------------------------------------------------------------------

    async def topic(self, name: str, partition: int = 0, tag: str = "") -> Topic:
        """Return the topic whose id begins with ``tag``.

        If this node's image does not have the topic or partition, ask for the newest image.

        Raises:
            TopicNotFoundError: there is no topic of this name.
            OffsetOutOfRangeError: the name belongs to a topic with another id.
            NoQuorumError: no majority could be asked.
        """
        found = self.image.topic(name)
        is_known = found is not None and partition < found.partition_count
        if found is not None and is_known and found.topic_id.startswith(tag):
            return found
        found = (await self.current_image()).topic(name)
        if found is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        if not found.topic_id.startswith(tag):
            raise made_again(name, tag)
        return found

    async def topic_to_write(
        self, name: str, partition: int = 0, *, may_create: bool, topic_id: str = ""
    ) -> Topic:
        """Return the topic. Create a missing one if auto-creation is on and the caller may create it.

        ``topic_id``: the first digits of its id. A later topic of the name is refused like a missing one, and nothing
        is created.

        Raises:
            TopicNotFoundError: the topic is missing and was not created.
            ForbiddenError: only the cluster itself writes this topic.
        """
        check_written_by_clients(name)
        try:
            return await topic_to_commit(self.topic, name, partition, topic_id)
        except TopicNotFoundError as error:
            if topic_id or not self.defaults.is_auto_create:
                raise
            if not may_create:
                raise TopicNotFoundError(
                    f"{error.message}, and this request may not create it"
                ) from None
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

    async def current_image(self) -> Image:
        """Return an image that is at least as new as this call. Calls that arrive together share one barrier."""
        return await self.metadata.current_image()

    # -- changing --------------------------------------------------------------------------------

    async def create_topic(self, topic: NewTopic) -> Topic:
        """Create a topic and return it. With ``is_validate_only``, only check the request."""
        check_name(topic.name)
        # Use the newest image: a moment ago another node may have registered a broker or created the topic.
        image = await self.current_image()
        if image.topic(topic.name) is not None:
            raise TopicExistsError(f"Topic '{topic.name}' already exists.")
        if topic.replication_factor is None and not topic.replicas_assignments:
            image = await self._enough_brokers(image)
        layout = self._place(topic, image)
        bounds.check_new_replicas(image, layout)
        command = CreateTopic(
            topic_id=self.new_topic_id(),
            name=topic.name,
            configs=tuple(sorted(topic.configs.items())),
            placement=layout,
        )
        made = Topic(
            topic_id=command.topic_id,
            name=topic.name,
            partition_count=len(layout),
            replication_factor=len(layout[0]),
            configs=configs.validate(command.configs, len(layout[0]), level=image.feature_level),
            created_ms=image.now_ms,
        )
        if topic.is_validate_only:
            return made
        await self._propose(command, f"create topic {topic.name}")
        return self.image.topics.get(command.topic_id, made)

    def default_factor(self, image: Image) -> int:
        """Return the replicas of a topic for which the client names no number."""
        nodes = max(len(image.voters), len(image.brokers))
        return self.defaults.replication_factor or min(3, nodes)

    async def _enough_brokers(self, image: Image) -> Image:
        """Return the image once it has as many brokers, dead or alive, as the default replication factor.

        If a topic were created while other nodes start for the first time, it would keep too few replicas.

        Raises:
            NotReadyError: brokers are still missing after ``BROKERS_WAIT_MS``.
        """

        def is_enough(now: Image) -> bool:
            return len(now.brokers) >= self.default_factor(now)

        if is_enough(image):
            return image
        if not await self.metadata.wait_until(is_enough, timeout_ms=BROKERS_WAIT_MS):
            raise NotReadyError(
                f"a new topic gets {self.default_factor(image)} replicas, but only "
                f"{len(self.image.brokers)} nodes have ever started; wait for the others, or create it with "
                "a replication factor of your own"
            )
        return self.image

    def _place(self, topic: NewTopic, image: Image) -> tuple[tuple[int, ...], ...]:
        if topic.replicas_assignments:
            return _explicit_placement(topic.replicas_assignments, image)
        factor = topic.replication_factor
        if factor is None:
            factor = self.default_factor(image)
        count = self.defaults.partition_count
        if topic.partition_count is not None:
            count = topic.partition_count
        if not 1 <= count <= bounds.PARTITIONS_PER_REQUEST_MAX:
            raise InvalidReplicationError(
                f"partitions_count {count}: give a number from 1 to {bounds.PARTITIONS_PER_REQUEST_MAX}, which one "
                f"request creates at most; further requests add partitions, up to {PARTITIONS_MAX} in all"
            )
        return placement.place(image, count, factor, self.rng)

    async def add_partitions(
        self,
        name: str,
        partition_count: int,
        *,
        replicas: Sequence[Sequence[int]] | None = None,
        is_validate_only: bool = False,
    ) -> Topic:
        """Grow a topic to ``partition_count`` partitions, or only check that; do nothing if it has that many already.

        ``replicas``: the brokers of each partition that is added, preferred leader first; None: this node chooses them.
        """
        for _ in range(GROWTH_TRIES_MAX):
            image = await self.current_image()
            topic = image.topic(name)
            if topic is None:
                raise TopicNotFoundError(f"topic {name!r} does not exist")
            if topic.partition_count == partition_count:
                return topic
            command = self._growth(topic, partition_count, image, replicas)
            if is_validate_only:
                return topic
            try:
                await self._propose(command, f"add partitions to {name}")
            except StaleVersionError:
                continue  # another client added some; look again
            return self.image.topics.get(topic.topic_id, topic)
        raise StaleVersionError(
            f"others keep adding partitions to topic {name!r}; nothing was changed, look again"
        )

    def _growth(
        self,
        topic: Topic,
        partition_count: int,
        image: Image,
        replicas: Sequence[Sequence[int]] | None,
    ) -> AddPartitions:
        if partition_count < topic.partition_count:
            raise InvalidReplicationError(
                f"topic {topic.name!r} has {topic.partition_count} partitions, which cannot become fewer: "
                f"give a number above that, not {partition_count}"
            )
        if partition_count > PARTITIONS_MAX:
            raise InvalidReplicationError(
                f"a topic has at most {PARTITIONS_MAX} partitions, not {partition_count}"
            )
        if replicas is None:
            layout = placement.place_more(image, topic, partition_count, self.rng)
        else:
            layout = _explicit_growth(topic, partition_count, image, replicas)
        bounds.check_new_replicas(image, layout)
        return AddPartitions(
            topic_id=topic.topic_id, partition_count=topic.partition_count, placement=layout
        )

    async def delete_topic(self, name: str, *, topic_id: str = "") -> Topic:
        """Delete a topic, and return it. With ``topic_id``, no later topic of the name is deleted."""
        topic = await self.topic(name)
        if topic_id and topic.topic_id != topic_id:
            raise TopicNotFoundError(f"topic {name!r} does not have the id {topic_id}")
        try:
            await self._propose(DeleteTopic(topic_id=topic.topic_id), f"delete topic {name}")
        except TopicNotFoundError:
            # Only the topic that this node knew is gone. By now the image has another one of the name, if there is one.
            present = self.image.topic(name)
            if topic_id or present is None or present.topic_id == topic.topic_id:
                raise
            topic = present
            await self._propose(DeleteTopic(topic_id=topic.topic_id), f"delete topic {name}")
        return topic

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, is_validate_only: bool
    ) -> None:
        """Set topic configs, or reset them to their defaults (None). With ``is_validate_only``, only check them."""
        # Use the newest image: the name may belong to another topic by now, and the present configs decide.
        image = await self.current_image()
        topic = image.topic(name)
        if topic is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        level = image.feature_level
        configs.alter(topic.configs, changes.items(), topic.replication_factor, level=level)
        if not is_validate_only:
            command = AlterConfigs(topic_id=topic.topic_id, changes=tuple(sorted(changes.items())))
            await self._propose(command, f"alter configs of {name}")

    async def remove_broker(self, broker_id: int) -> None:
        """Remove a broker from the cluster that will not come back."""
        image = await self.current_image()
        # Check this before the conditions that an operator can change (broker alive, replicas on it): a voter could not
        # be removed even then. ``check_removable`` checks in another order, because nodes of earlier releases must give
        # the same response.
        if broker_id in image.voters and broker_id in image.brokers:
            raise voter_stays(broker_id)
        check_removable(image, broker_id)
        try:
            await self._propose(UnregisterBroker(broker_id=broker_id), f"remove broker {broker_id}")
        except ConflictError as error:
            # Since the check, the broker has come back or got a replica.
            raise BrokerInUseError(error.message) from error

    async def note(
        self, action: str, change: Mapping[str, object], *, timeout_ms: int = LONG_PROPOSE_MS
    ) -> None:
        """Write an action to the audit log, before the action is carried out.

        Raises:
            NoQuorumError: the entry may be missing in the audit log, so nothing may be done.
        """
        if self.image.feature_level < LEVELS[NoteAction]:
            return
        command = NoteAction(action=action, change=note_text(change))
        try:
            await self.metadata.propose(command, timeout_ms=min(timeout_ms, LONG_PROPOSE_MS))
        except (NoQuorumError, FateUnknownError) as error:
            raise NoQuorumError(
                f"the audit log cannot be told: {error.message}; nothing was done"
            ) from error

    async def allocate_producer(self, name: str | None) -> ProducerState:
        """Return a new producer id, or the id and next epoch of a name."""
        try:
            return await self.producers.allocate(name, timeout_ms=LONG_PROPOSE_MS)
        except LimitReachedError as error:
            raise TooManyProducersError(error.message) from error
        except NoQuorumError as error:
            raise NoQuorumError(
                f"cannot allocate a producer id: {error.message}; nothing was changed"
            ) from error

    async def _propose(self, command: _Change, what: str) -> object:
        try:
            return await self.metadata.propose(
                command, timeout_ms=LONG_PROPOSE_MS, is_answer_first=True
            )
        except NoQuorumError as error:
            raise NoQuorumError(f"cannot {what}: {error.message}; nothing was changed") from error
        except FateUnknownError as error:
            raise FateUnknownError(f"{what}: {error.message}; it may yet happen") from error


def _explicit_placement(
    assignments: Mapping[int, Sequence[int]], image: Image
) -> tuple[tuple[int, ...], ...]:
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicationError(
            "replicas_assignments must name the partitions 0, 1, 2, ... without a gap"
        )
    layout = tuple(
        _explicit_replicas(partition, assignments[partition], image)
        for partition in range(len(assignments))
    )
    if len({len(replicas) for replicas in layout}) != 1:
        raise InvalidReplicationError("every partition must have the same number of replicas")
    return layout


def _explicit_growth(
    topic: Topic, partition_count: int, image: Image, assignments: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    first = topic.partition_count
    if len(assignments) != partition_count - first:
        raise InvalidReplicationError(
            f"the assignments place {len(assignments)} new partitions, but topic {topic.name!r} grows from {first} "
            f"partitions to {partition_count}: give one list of nodes for each new partition"
        )
    layout = tuple(
        _explicit_replicas(partition, replicas, image)
        for partition, replicas in enumerate(assignments, first)
    )
    for partition, replicas in enumerate(layout, first):
        if len(replicas) != topic.replication_factor:
            raise InvalidReplicationError(
                f"partition {partition} of topic {topic.name!r} must have {topic.replication_factor} replicas, as the "
                f"topic's other partitions, not {len(replicas)}"
            )
    return layout


def _explicit_replicas(partition: int, replicas: Sequence[int], image: Image) -> tuple[int, ...]:
    unknown = [b for b in replicas if b not in image.brokers]
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise InvalidReplicationError(
            f"replicas_assignments of partition {partition}: {list(replicas)} must be distinct ids of "
            f"registered nodes, which are {sorted(image.brokers)}"
        )
    return tuple(replicas)
