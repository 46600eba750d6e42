"""What a REST consumer reads, on its coordinator: as a member of its group by subscription, or partitions by hand."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from milena.model.errors import InvalidRequestError, LimitReachedError, SubscriptionConflictError
from node.consumers import lookup
from node.consumers.answers import Answers
from node.consumers.consumer_messages import (
    ConsumerAssignRequest,
    ConsumerSubscribeRequest,
    ConsumerViewAnswer,
    ConsumerViewRequest,
)
from node.consumers.session import ConsumerSession
from node.consumers.session_table import SessionTable
from node.consumers.session_tools import Memberships
from node.consumers.store import ConsumerStore
from node.groups.group_messages import by_topic, each_partition
from node.groups.members import member_of
from node.metadata.store import MetadataStore
from node.peers.messages import Done
from raft_meta.machine import partition_sets
from raft_meta.machine.image import Image, RestConsumer, Topic

SHARING_MS = 500
"""How long a subscription waits until what it reads is its own."""


class SubscriptionCalls:
    """See the module. Handlers of ``CoordinatorCalls``."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        topic: Callable[[str], Awaitable[Topic]],
        sessions: SessionTable,
        store: ConsumerStore,
        answers: Answers,
        memberships: Memberships,
    ) -> None:
        self._metadata = metadata
        self._topic = topic
        self._sessions = sessions
        self._store = store
        self._answers = answers
        self._memberships = memberships

    async def on_subscribe(self, request: ConsumerSubscribeRequest) -> Done:
        """Subscribe; without topics and pattern, give up subscription or assignment."""
        topics, pattern = tuple(sorted(set(request.topics))), request.pattern
        async with self._sessions.call(request.key) as session, session.turn:
            consumer = session.view.consumer
            if consumer.assigned and (topics or pattern is not None):
                raise SubscriptionConflictError(
                    f"consumer {session.key[1]!r} has a manual assignment; delete its subscription first"
                )
            wanted = replace(consumer, topics=topics, pattern=pattern, assigned=())
            if wanted != consumer:
                if not (topics or pattern is not None):
                    await self._answers.prove(session, request.asked_node_id)
                    await session.commit_delivered()
                await self._store.put(wanted)
                session.places.begin_anew()
            await self._join(session, consumer)
            await session.settle_places()
        return Done()

    async def _join(self, session: ConsumerSession, before: RestConsumer) -> None:
        """Let membership follow the subscription; one that cannot be is taken back.

        Raises:
            MilenaError: it is subscribed as before, or, when nobody can tell, will be a member by and by.
        """
        try:
            await self._memberships.settle(*session.key)
        except (InvalidRequestError, LimitReachedError):
            if session.view.consumer != before:
                await self._store.put(before)
            raise

        def is_settled(image: Image) -> bool:
            member = member_of(image, *session.key)
            return member is None or member.held == member.target

        # What others have to give back first may come later; consumers behind the API do so at once.
        await self._metadata.wait_until(is_settled, timeout_ms=SHARING_MS)

    async def on_assign(self, request: ConsumerAssignRequest) -> Done:
        """Read these partitions, as no member of the group."""
        names = each_partition(request.partitions)
        keys = await lookup.partition_keys(names, self._topic)
        async with self._sessions.call(request.key) as session, session.turn:
            consumer = session.view.consumer
            if consumer.topics or consumer.pattern is not None:
                raise SubscriptionConflictError(
                    f"consumer {session.key[1]!r} is subscribed to topics; delete its subscription first"
                )
            wanted = replace(consumer, assigned=partition_sets.of(keys))
            if wanted != consumer:
                await self._answers.prove(session, request.asked_node_id)
                await session.commit_delivered()
                await self._store.put(wanted)
            await session.settle_places()
        return Done()

    async def on_view(self, request: ConsumerViewRequest) -> ConsumerViewAnswer:
        """Say what it is subscribed to, and what it reads."""
        async with self._sessions.call(request.key) as session:
            consumer = session.view.consumer
            topics = session.view.image.topics
            return ConsumerViewAnswer(
                topics=consumer.topics,
                pattern=consumer.pattern,
                partitions=by_topic(
                    (topics[topic_id].name, number) for topic_id, number in session.view.assigned()
                ),
            )
