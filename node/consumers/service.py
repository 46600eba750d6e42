"""REST consumers on any node: what a client asks is passed on to the coordinator of the consumer's group."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence

from http_api.group_ports import (
    ConsumerSubscription,
    Delivered,
    GroupOffset,
    NewConsumer,
    OffsetToCommit,
    Seek,
    TopicPartition,
)
from milena.model.errors import (
    FateUnknownError,
    InvalidConsumerError,
    MalformedRequestError,
    MilenaError,
    NotCoordinatorError,
    SubscriptionConflictError,
)
from node.consumers import lookup, wire
from node.groups.coordinator_calls import COORDINATOR_WAIT_MS, CoordinatorCalls, Repeat
from node.metadata.store import MetadataStore
from node.metadata.topic_partitions import pack_partitions, partitions_field
from node.peers.codec import (
    Buffer,
    Fields,
    map_list_field,
    optional_str_field,
    str_field,
    str_list_field,
)
from node.process.clock import Clock
from raft_meta.machine import group_rules
from raft_meta.machine.image import ConsumerKey, Image

logger = logging.getLogger(__name__)

RESETS = ("earliest", "latest", "none")
FETCH_MIN_BYTES_MAX = 10_000_000
WAIT_MS_MAX = 300_000
PARTITIONS_MAX = 1_000
"""Of one manual assignment, seek or question: each costs a coordinator a call to a leader."""
RETURNED_MAX = 20_000
"""Consumers that this node answered last. Who is forgotten gets its last answer again on another node."""
TAKE_BACKS_MAX = 1_000
"""Under way. A client that hangs up costs one, for a moment."""


class ConsumersService:
    """Implements ``http_api.group_ports.ConsumersPort``."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        calls: CoordinatorCalls,
        current_image: Callable[[], Awaitable[Image]],
        new_name: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._current_image = current_image
        self._new_name = new_name
        self._clock = clock
        self._call_ids = itertools.count(1)
        self._take_backs: set[asyncio.Task[None]] = set()
        self._returned: dict[ConsumerKey, str] = {}
        """The last call of each consumer whose answer with records left here, oldest first."""

    # -- making and forgetting -------------------------------------------------------------------

    async def create(self, group: str, consumer: NewConsumer) -> str:
        """Returns the instance's name."""
        group_rules.check_group_id(group)
        _check_settings(consumer)
        is_drawn = consumer.instance is None
        instance = self._new_name() if consumer.instance is None else consumer.instance
        group_rules.check_instance(instance)
        await self._calls.call(
            wire.CREATE,
            group,
            {"instance": instance, "is_drawn": is_drawn, **wire.pack_new(consumer)},
            repeat=Repeat.ALWAYS if is_drawn else Repeat.ELSEWHERE,
        )
        return instance

    async def delete(self, group: str, instance: str) -> None:
        """Leave the group and forget the consumer."""
        await self._ask(wire.DELETE, group, instance, repeat=Repeat.ELSEWHERE)

    async def format_of(self, group: str, instance: str) -> str:
        """The format that it was created with."""
        found = await lookup.consumer(self._metadata, (group, instance), self._current_image)
        return found.format

    # -- what it reads ---------------------------------------------------------------------------

    async def subscribe(
        self, group: str, instance: str, topics: Sequence[str], pattern: str | None
    ) -> None:
        """Subscribe instead of what was subscribed before."""
        if topics and pattern is not None:
            raise SubscriptionConflictError("give topics or a pattern, not both")
        if not topics and pattern is None:
            raise SubscriptionConflictError("give topics, or a pattern, to subscribe to")
        group_rules.check_subscription(sorted(set(topics)), pattern)
        await self._ask(
            wire.SUBSCRIBE, group, instance, {"topics": list(topics), "pattern": pattern}
        )

    async def unsubscribe(self, group: str, instance: str) -> None:
        """Give up subscription or assignment."""
        await self._ask(wire.SUBSCRIBE, group, instance, {"topics": [], "pattern": None})

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        """What it is subscribed to."""
        answer = await self._ask(wire.VIEW, group, instance)
        return ConsumerSubscription(
            topics=str_list_field(answer, "topics"),
            pattern=optional_str_field(answer, "pattern"),
            partitions=partitions_field(answer, "partitions"),
        )

    async def assign(self, group: str, instance: str, partitions: Sequence[TopicPartition]) -> None:
        """Assign these by hand."""
        _check_count(partitions)
        await self._ask(wire.ASSIGN, group, instance, {"partitions": pack_partitions(partitions)})

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        """What it reads from now."""
        return (await self.subscription(group, instance)).partitions

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        """Deliver from there next."""
        _check_count(seeks)
        for seek in seeks:
            given = (seek.offset, seek.timestamp_ms, seek.name)
            if sum(value is not None for value in given) != 1 or (seek.offset or 0) < 0:
                raise MalformedRequestError(
                    "a position is an offset >= 0, a time, or the beginning or end, and only one of them"
                )
        await self._ask(
            wire.SEEK, group, instance, {"seeks": [wire.pack_seek(seek) for seek in seeks]}
        )

    # -- reading ---------------------------------------------------------------------------------

    async def records(
        self, group: str, instance: str, *, timeout_ms: int | None, max_bytes: int | None
    ) -> Delivered:
        """The next records, waiting when there are none.

        A call whose answer got lost, because the coordinator ended or the connection to it broke, is repeated; it has
        an id of its own, so that its repetition gets the records that the first one took.
        """
        consumer = await lookup.consumer(self._metadata, (group, instance), self._current_image)
        wait_ms = consumer.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.now_ms() + min(max(wait_ms, 0), WAIT_MS_MAX)
        metadata = self._metadata
        call_id = wire.call_id_of(metadata.node_id, metadata.incarnation, next(self._call_ids))
        fields: Fields = {"instance": instance, "call": call_id, "max_bytes": max_bytes}
        while True:
            left_ms = max(0, deadline_ms - self._clock.now_ms())
            try:
                answer, body = await self._calls.call(
                    wire.RECORDS, group, fields, repeat=Repeat.ALWAYS, wait_ms=left_ms
                )
            except (NotCoordinatorError, FateUnknownError):
                # A call that waited long has used up its patience with coordinators that come and go.
                if deadline_ms - self._clock.now_ms() < COORDINATOR_WAIT_MS:
                    raise
            except asyncio.CancelledError:
                self._take_back(group, instance, call_id)
                raise
            else:
                delivered = wire.unpack_delivered(answer, body, call_id)
                if delivered.deliveries:
                    self._remember((group, instance), call_id)
                return delivered

    def _remember(self, key: ConsumerKey, call_id: str) -> None:
        """When the client comes back on another node, the coordinator asks whether this one kept its answer."""
        self._returned.pop(key, None)
        self._returned[key] = call_id
        if len(self._returned) > RETURNED_MAX:
            del self._returned[next(iter(self._returned))]

    def on_returned(
        self, peer_id: int, header: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Whether a call's answer has gone on from here to its client."""
        del peer_id, body
        key = wire.consumer_key(header)
        return {"has": self._returned.get(key) == str_field(header, "call")}, ()

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        """Nobody got this answer."""
        if self._returned.get((group, instance)) == delivered.call_id and delivered.deliveries:
            del self._returned[group, instance]
            self._take_back(group, instance, delivered.call_id)

    def _take_back(self, group: str, instance: str, call_id: str) -> None:
        """The client hung up: what it was about to be given is for its next call."""
        if len(self._take_backs) < TAKE_BACKS_MAX:
            task = asyncio.get_running_loop().create_task(
                self._tell_taken_back(group, instance, call_id), name="take-back"
            )
            self._take_backs.add(task)
            task.add_done_callback(self._take_backs.discard)

    async def _tell_taken_back(self, group: str, instance: str, call_id: str) -> None:
        fields: Fields = {"instance": instance, "call": call_id}
        try:
            await self._calls.call(wire.TAKE_BACK, group, fields, repeat=Repeat.NEVER)
        except MilenaError as error:
            logger.debug("consumer=%s/%s call=%s: %s", group, instance, call_id, error)

    async def close(self) -> None:
        """Nothing goes on in the background any more."""
        tasks = list(self._take_backs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- commits ---------------------------------------------------------------------------------

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        """Commit these, or (None) up to the last record delivered in each partition."""
        rows = None if offsets is None else [wire.pack_offset(offset) for offset in offsets]
        if rows is not None and len(rows) > group_rules.OFFSETS_PER_COMMIT_MAX:
            raise InvalidConsumerError(
                f"one request commits at most {group_rules.OFFSETS_PER_COMMIT_MAX} offsets, not {len(rows)}"
            )
        # Another coordinator knows nothing of what this one delivered. Given offsets must not come after later ones.
        repeat = Repeat.NEVER if rows is None else Repeat.ELSEWHERE
        await self._ask(wire.COMMIT, group, instance, {"offsets": rows}, repeat=repeat)

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[GroupOffset]:
        """What the group has committed; partitions without a commit are left out."""
        _check_count(partitions)
        answer = await self._ask(
            wire.COMMITTED, group, instance, {"partitions": pack_partitions(partitions)}
        )
        return [wire.unpack_committed(row) for row in map_list_field(answer, "offsets")]

    async def _ask(
        self,
        request_type: str,
        group: str,
        instance: str,
        fields: Fields | None = None,
        *,
        repeat: Repeat = Repeat.ALWAYS,
    ) -> Fields:
        answer, _ = await self._calls.call(
            request_type,
            group,
            {"instance": instance, "from": self._metadata.node_id, **(fields or {})},
            repeat=repeat,
        )
        return answer


def _check_settings(consumer: NewConsumer) -> None:
    if consumer.auto_offset_reset not in RESETS:
        raise InvalidConsumerError(
            f"auto.offset.reset is one of {', '.join(RESETS)}, not {consumer.auto_offset_reset!r}"
        )
    if not -1 <= consumer.fetch_min_bytes <= FETCH_MIN_BYTES_MAX:
        raise InvalidConsumerError(
            f"fetch.min.bytes is -1..{FETCH_MIN_BYTES_MAX}, not {consumer.fetch_min_bytes}"
        )
    if not 0 <= consumer.request_timeout_ms <= WAIT_MS_MAX:
        raise InvalidConsumerError(
            f"consumer.request.timeout.ms is 0..{WAIT_MS_MAX}, not {consumer.request_timeout_ms}"
        )


def _check_count(partitions: Sequence[object]) -> None:
    if len(partitions) > PARTITIONS_MAX:
        raise InvalidConsumerError(
            f"one request names at most {PARTITIONS_MAX} partitions, not {len(partitions)}; use several consumers"
        )
