"""REST consumers on any node: passes a client's calls to the coordinator of the consumer's group."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import UNSET, structs

from http_api.ports.groups import (
    ConsumerSubscription,
    Delivered,
    DeliveredRecords,
    NewConsumer,
    OffsetToCommit,
    PartitionCommit,
    Seek,
    TopicPartition,
    by_topic,
    each_partition,
)
from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidConsumerError,
    MalformedRequestError,
    MilenaError,
    NotCoordinatorError,
    SubscriptionConflictError,
)
from node.config.budgets import COORDINATOR_WAIT_MS
from node.consumers import consumer_messages as messages
from node.consumers.consumer_views import find_consumer
from node.context import NodeContext
from node.groups.coordinator_calls import CoordinatorCalls, Repeat
from node.groups.subscriptions import TopicPattern
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ConsumerKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESETS = ("earliest", "latest", "none")
FETCH_MIN_BYTES_MAX = 10_000_000
WAIT_MS_MAX = 300_000
PARTITIONS_MAX = 1_000
"""Largest number of partitions of one assignment, seek or query. For each, a coordinator may have to call a leader."""
RETURNED_MAX = 20_000
"""Number of consumers whose last response this node remembers. If a forgotten consumer continues on another node, it
gets its last response again."""
TAKE_BACKS_MAX = 1_000
"""Largest number of take-backs in flight. A client that disconnects causes one, for a moment."""
LOST_MAX = 20_000
"""Number of consumers for which this node remembers that a response did not reach the client."""


class ConsumersService:
    """Implements ``http_api.ports.groups.ConsumersPort``."""

    def __init__(
        self, node: NodeContext, *, calls: CoordinatorCalls, new_name: Callable[[], str]
    ) -> None:
        self._node = node
        self._node_id = node.metadata.node_id
        self._calls = calls
        self._new_name = new_name
        self._call_ids = itertools.count(1)
        self._take_backs: set[asyncio.Task[None]] = set()
        self._returned: dict[ConsumerKey, str] = {}
        """Consumer → id of the last call whose response with records was sent from this node; the oldest first."""
        self._lost: dict[ConsumerKey, messages.ConsumerTakeBackRequest] = {}
        """Consumer → what to tell the coordinator of the last response that did not reach the client, if it may not
        know that; the oldest first."""

    # -- creating and deleting -------------------------------------------------------------------

    async def create(self, group: str, consumer: NewConsumer) -> str:
        """Create a consumer; return its instance name."""
        group_rules.check_group_id(group)
        _check_settings(consumer)
        is_drawn = consumer.instance is None
        instance = self._new_name() if consumer.instance is None else consumer.instance
        group_rules.check_instance(instance)
        if consumer.commits_next:
            await self._check_level()
        await self._calls.call(
            messages.CREATE,
            messages.ConsumerCreateRequest(
                group_id=group,
                instance=instance,
                is_drawn=is_drawn,
                format=consumer.format,
                auto_offset_reset=consumer.auto_offset_reset,
                is_auto_commit=consumer.is_auto_commit,
                fetch_min_bytes=consumer.fetch_min_bytes,
                request_timeout_ms=consumer.request_timeout_ms,
                principal=consumer.principal or UNSET,
                commits_next=consumer.commits_next or UNSET,
            ),
            repeat=Repeat.ALWAYS if is_drawn else Repeat.ELSEWHERE,
        )
        return instance

    async def _check_level(self) -> None:
        """Refuse a consumer whose commits name the next record, unless all nodes understand such commits."""
        if self._node.metadata.image.feature_level >= group_rules.COMMITS_NEXT_LEVEL:
            return
        level = (await self._node.metadata.current_image()).feature_level
        if level < group_rules.COMMITS_NEXT_LEVEL:
            raise FeatureLevelError(
                f"'commit.offsets' is 'next': it needs feature level {group_rules.COMMITS_NEXT_LEVEL}, and the cluster "
                f"is at {level}; upgrade all nodes first. Nothing was done"
            )

    async def delete(self, group: str, instance: str, *, token: str = "") -> None:
        """Commit what was delivered (if automatic), leave the group and delete the consumer."""
        await self._settle(group, instance, token)
        request = messages.ConsumerDeleteRequest(
            group_id=group, instance=instance, asked_node_id=self._node_id
        )
        await self._calls.call(messages.DELETE, request, repeat=Repeat.ELSEWHERE)

    async def commits_next(self, group: str, instance: str) -> bool:
        """Return whether an offset in the consumer's commits is that of the next record, not of the last one."""
        found = await find_consumer(self._node.metadata, (group, instance))
        return found.commits_next

    async def format_of(self, group: str, instance: str) -> str:
        """Return the format with which the consumer was created."""
        found = await find_consumer(self._node.metadata, (group, instance))
        return found.format

    # -- what it reads ---------------------------------------------------------------------------

    async def subscribe(
        self,
        group: str,
        instance: str,
        topics: Sequence[str],
        pattern: str | None,
        *,
        token: str = "",
    ) -> None:
        """Replace the consumer's subscription."""
        if topics and pattern is not None:
            raise SubscriptionConflictError("give topics or a pattern, not both")
        if not topics and pattern is None:
            raise SubscriptionConflictError("give topics, or a pattern, to subscribe to")
        group_rules.check_subscription(sorted(set(topics)), pattern)
        await self._subscribe(group, instance, topics, pattern, token)

    async def unsubscribe(self, group: str, instance: str, *, token: str = "") -> None:
        """Remove the consumer's subscription or assignment."""
        await self._subscribe(group, instance, (), None, token)

    async def _subscribe(
        self, group: str, instance: str, topics: Sequence[str], pattern: str | None, token: str
    ) -> None:
        await self._settle(group, instance, token)
        request = messages.ConsumerSubscribeRequest(
            group_id=group,
            instance=instance,
            asked_node_id=self._node_id,
            topics=tuple(topics),
            pattern=pattern,
        )
        await self._calls.call(messages.SUBSCRIBE, request, repeat=Repeat.ALWAYS)

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        """Return the topics of the consumer's subscription, and the partitions that it reads."""
        answer = await self._view(group, instance)
        topics = list(answer.topics)
        if answer.pattern is not None:
            matches = TopicPattern(answer.pattern).matches
            image = await self._node.metadata.current_image()
            topics += sorted(name for name in image.topic_ids if matches(name))
        return ConsumerSubscription(
            topics=topics,
            pattern=answer.pattern,
            partitions=each_partition(answer.partitions),
        )

    async def assign(
        self, group: str, instance: str, partitions: Sequence[TopicPartition], *, token: str = ""
    ) -> None:
        """Replace the consumer's manual assignment by these partitions."""
        _check_count(partitions)
        await self._settle(group, instance, token)
        request = messages.ConsumerAssignRequest(
            group_id=group,
            instance=instance,
            asked_node_id=self._node_id,
            partitions=by_topic(partitions),
        )
        await self._calls.call(messages.ASSIGN, request, repeat=Repeat.ALWAYS)

    async def _settle(self, group: str, instance: str, token: str = "") -> None:
        """Tell the coordinator, before a call from which it would conclude that its last response has arrived.

        It learns whether that response was lost on the way to this node. ``token``: the client has the response with
        this token.
        """
        lost = self._lost.get((group, instance))
        if lost is not None:
            await self._tell(lost)
        if token:
            await self._acknowledge(group, instance, token)

    async def _acknowledge(self, group: str, instance: str, token: str) -> None:
        request = messages.ConsumerAcknowledgeRequest(
            group_id=group, instance=instance, token=token
        )
        try:
            await self._calls.call(messages.ACKNOWLEDGE, request, repeat=Repeat.ALWAYS)
        except FeatureLevelError as error:
            # This coordinator's release knows no tokens, so it has sent no response with one.
            logger.debug("consumer=%s/%s token is not known: %s", group, instance, error)

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        """Return the partitions that the consumer reads now."""
        return each_partition((await self._view(group, instance)).partitions)

    async def _view(self, group: str, instance: str) -> messages.ConsumerViewAnswer:
        request = messages.ConsumerViewRequest(
            group_id=group, instance=instance, asked_node_id=self._node_id
        )
        return await self._calls.call(messages.VIEW, request, repeat=Repeat.ALWAYS)

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        """Set the positions from which records are delivered next."""
        _check_count(seeks)
        for seek in seeks:
            given = (seek.offset, seek.timestamp_ms, seek.name)
            if sum(value is not None for value in given) != 1 or (seek.offset or 0) < 0:
                raise MalformedRequestError(
                    "a position is an offset >= 0, a time, or the beginning or end, and only one of them"
                )
        request = messages.ConsumerSeekRequest(
            group_id=group,
            instance=instance,
            asked_node_id=self._node_id,
            seeks=tuple(seeks),
        )
        await self._calls.call(messages.SEEK, request, repeat=Repeat.ALWAYS)

    # -- reading ---------------------------------------------------------------------------------

    async def records(
        self,
        group: str,
        instance: str,
        *,
        timeout_ms: int | None,
        max_bytes: int | None,
        token: str = "",
    ) -> Delivered:
        """Return the next records. If there are none, wait.

        If the coordinator ends or its connection breaks, the response is lost and this node repeats the call. A repeat
        has the same call id, so it gets the records that the first attempt took.
        """
        consumer = await find_consumer(self._node.metadata, (group, instance))
        await self._settle(group, instance)
        wait_ms = consumer.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._node.clock.now_ms() + min(max(wait_ms, 0), WAIT_MS_MAX)
        call_id = messages.call_id_of(
            self._node_id, self._node.metadata.incarnation, next(self._call_ids)
        )
        while True:
            request = messages.ConsumerRecordsRequest(
                group_id=group,
                wait_ms=max(0, deadline_ms - self._node.clock.now_ms()),
                instance=instance,
                call_id=call_id,
                max_bytes=max_bytes,
            )
            try:
                answer = await self._ask_for_records(request, token)
            except (NotCoordinatorError, FateUnknownError):
                # Try another coordinator only if enough time is left for it.
                if deadline_ms - self._node.clock.now_ms() < COORDINATOR_WAIT_MS:
                    self._note_lost(request.key, call_id)
                    raise
            except asyncio.CancelledError:
                self._take_back(group, instance, call_id)
                raise
            else:
                if answer.deliveries:
                    self._remember(request.key, call_id)
                return _delivered(answer, call_id)

    async def _ask_for_records(
        self, request: messages.ConsumerRecordsRequest, token: str
    ) -> messages.ConsumerRecordsAnswer:
        if not token:
            return await self._calls.call(messages.RECORDS, request, repeat=Repeat.ALWAYS)
        under_token = messages.ConsumerTokenRecordsRequest(**structs.asdict(request), token=token)
        return await self._calls.call(messages.TOKEN_RECORDS, under_token, repeat=Repeat.ALWAYS)

    def _remember(self, key: ConsumerKey, call_id: str) -> None:
        """Remember that a call's response is sent from here.

        If the client continues on another node, the coordinator asks this node whether the response was sent.
        """
        _put_last(self._returned, key, call_id, most=RETURNED_MAX)

    async def on_returned(self, request: messages.ReturnedRequest) -> messages.ReturnedAnswer:
        """Return whether the response of a call was sent to its client from this node."""
        returned = self._returned.get((request.group_id, request.instance))
        return messages.ReturnedAnswer(has_returned=returned == request.call_id)

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        """Take back a response that did not reach the client, so that the next call delivers its records."""
        if self._returned.get((group, instance)) == delivered.call_id and delivered.deliveries:
            del self._returned[group, instance]
            self._take_back(group, instance, delivered.call_id)

    async def refuse(self, group: str, instance: str, delivered: Delivered) -> None:
        """Take back a response that the client must not have: it gets an error instead."""
        if self._returned.get((group, instance)) == delivered.call_id and delivered.deliveries:
            del self._returned[group, instance]
            await self._try_to_tell(
                self._note_lost((group, instance), delivered.call_id, is_refused=True)
            )

    def _take_back(self, group: str, instance: str, call_id: str) -> None:
        """Take back a response in the background: the client has disconnected, and its next call gets the records."""
        lost = self._note_lost((group, instance), call_id)
        if len(self._take_backs) < TAKE_BACKS_MAX:
            task = asyncio.get_running_loop().create_task(self._try_to_tell(lost), name="take-back")
            self._take_backs.add(task)
            task.add_done_callback(self._take_backs.discard)

    def _note_lost(
        self, key: ConsumerKey, call_id: str, *, is_refused: bool = False
    ) -> messages.ConsumerTakeBackRequest:
        lost = messages.ConsumerTakeBackRequest(
            group_id=key[0], instance=key[1], call_id=call_id, is_refused=is_refused or UNSET
        )
        _put_last(self._lost, key, lost, most=LOST_MAX)
        return lost

    async def _try_to_tell(self, lost: messages.ConsumerTakeBackRequest) -> None:
        """Tell the coordinator now; if that fails, before the consumer's next call (``_settle``)."""
        try:
            await self._tell(lost)
        except MilenaError as error:
            logger.debug("consumer=%s/%s call=%s: %s", *lost.key, lost.call_id, error)

    async def _tell(self, lost: messages.ConsumerTakeBackRequest) -> None:
        await self._calls.call(messages.TAKE_BACK, lost, repeat=Repeat.ALWAYS)
        if self._lost.get(lost.key) is lost:
            del self._lost[lost.key]

    async def close(self) -> None:
        """Stop all background tasks."""
        tasks = list(self._take_backs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- commits ---------------------------------------------------------------------------------

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        """Commit these offsets; None: commit up to the last record delivered in each partition."""
        if offsets is not None and len(offsets) > group_rules.OFFSETS_PER_COMMIT_MAX:
            raise InvalidConsumerError(
                f"one request commits at most {group_rules.OFFSETS_PER_COMMIT_MAX} offsets, not {len(offsets)}"
            )
        request = messages.ConsumerCommitRequest(
            group_id=group,
            instance=instance,
            asked_node_id=self._node_id,
            offsets=None if offsets is None else tuple(offsets),
        )
        if offsets is None:
            await self._settle(group, instance)
        # Without offsets, never repeat the call: another coordinator does not know what was delivered. With offsets,
        # repeat it only at another coordinator. Then the first attempt cannot be applied any more after the repeat.
        repeat = Repeat.NEVER if offsets is None else Repeat.ELSEWHERE
        await self._calls.call(messages.COMMIT, request, repeat=repeat)

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[PartitionCommit]:
        """Return the offsets that the group has committed; partitions without a commit are left out."""
        _check_count(partitions)
        request = messages.ConsumerCommittedRequest(
            group_id=group,
            instance=instance,
            asked_node_id=self._node_id,
            partitions=by_topic(partitions),
        )
        answer = await self._calls.call(messages.COMMITTED, request, repeat=Repeat.ALWAYS)
        return answer.offsets


def _put_last(calls: dict[ConsumerKey, T], key: ConsumerKey, call: T, *, most: int) -> None:
    """Add an entry as the newest; beyond ``most`` entries, drop the oldest."""
    calls.pop(key, None)
    calls[key] = call
    if len(calls) > most:
        del calls[next(iter(calls))]


def _delivered(answer: messages.ConsumerRecordsAnswer, call_id: str) -> Delivered:
    return Delivered(
        format=answer.format,
        deliveries=[
            DeliveredRecords(
                topic=row.topic,
                partition=row.partition,
                start_offset=row.start_offset,
                end_offset=row.end_offset,
                batches=row.batches.data,
            )
            for row in answer.deliveries
        ],
        call_id=call_id,
    )


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
