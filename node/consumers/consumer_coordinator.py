"""The coordinator's part of REST consumers: creates, changes, reads for and deletes the consumers of its groups.

State that must survive this node is committed by the quorum before the response: consumers, subscriptions, commits.
All other state is in a ``ConsumerSession``. A session is created at the first call of its consumer. It is dropped when
another node becomes the group's coordinator. ``CoordinatorCalls`` calls the handlers only if this node is the
coordinator.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import UNSET

from http_api.ports.groups import by_topic, each_partition
from milena.model.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LimitReachedError,
    SubscriptionConflictError,
)
from node.config.budgets import PROPOSE_MS
from node.consumers import consumer_messages as messages
from node.consumers.consumer_sessions import ConsumerSession, IdleClocks, SessionTable
from node.consumers.consumer_views import committed, offset_commits, partition_keys
from node.consumers.partition_ends import EndWatcher
from node.consumers.records_call import ArrivalCheck, RecordsCall
from node.context import NodeContext
from node.groups.group_assembly import Groups
from node.groups.members import member_of
from node.metadata.lookup import GetTopic
from node.peers.messages import Done
from node.services.reads import ReadService
from raft_meta.machine.access import quotas
from raft_meta.machine.commands import ConsumerName, DeleteConsumers, PutConsumer
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import ConsumerKey, Image, PartitionSet, RestConsumer
from raft_meta.machine.topics import partition_sets

SHARING_MS = 500
"""How long a subscription waits until the consumer holds all its target partitions, in ms."""


class ConsumerStore:
    """Creates, changes and deletes REST consumers in the replicated state, by proposals to the quorum."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    async def put(self, consumer: RestConsumer, version: int, *, is_new: bool = False) -> None:
        """Create the consumer, or change its subscription or assignment.

        ``version``: ``coordinators_version`` of the image under which this node took the request.

        Raises:
            ConsumerExistsError: ``is_new``, and a consumer has this name.
            MilenaError: the change was refused, or it is unknown whether it was made.
        """
        group_rules.check_consumer(consumer)
        await self._node.metadata.propose(
            PutConsumer(
                broker_id=self._node.metadata.node_id,
                broker_epoch=self._node.membership.broker_epoch,
                is_new=is_new,
                consumer=consumer,
                coordinators_version=version,
            ),
            timeout_ms=PROPOSE_MS,
        )

    async def delete(self, consumers: Sequence[RestConsumer]) -> int:
        """Delete these consumers and their memberships; return how many existed."""
        found = await self._node.metadata.propose(
            DeleteConsumers(
                broker_id=self._node.metadata.node_id,
                broker_epoch=self._node.membership.broker_epoch,
                consumers=tuple(
                    ConsumerName(
                        group_id=consumer.group_id,
                        instance=consumer.instance,
                        created_index=consumer.created_index,
                    )
                    for consumer in consumers
                ),
            ),
            timeout_ms=PROPOSE_MS,
        )
        assert isinstance(found, list | tuple)
        return sum(found)


class ConsumerCoordinator:
    """Handles the calls of REST consumers as the coordinator of their group. Owned by the data loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        topic: GetTopic,
        reads: ReadService,
        groups: Groups,
        ends: EndWatcher,
        idle: IdleClocks,
    ) -> None:
        self._node = node
        self._topic = topic
        self._memberships = groups.coordinator
        self._ends = ends
        self._reads = reads
        self._idle = idle
        self._store = ConsumerStore(node)
        self._arrival = ArrivalCheck(node)
        self._sessions = SessionTable(node, groups=groups, fetch=reads.fetch, idle=idle)
        serve = groups.calls.serve
        serve(messages.CREATE, self._on_create)
        serve(messages.DELETE, self._on_delete)
        serve(messages.SUBSCRIBE, self._on_subscribe)
        serve(messages.ASSIGN, self._on_assign)
        serve(messages.VIEW, self._on_view)
        serve(messages.SEEK, self._on_seek)
        serve(messages.RECORDS, self._on_records)
        serve(messages.TOKEN_RECORDS, self._on_token_records)
        serve(messages.ACKNOWLEDGE, self._on_acknowledge)
        serve(messages.TAKE_BACK, self._on_take_back)
        serve(messages.COMMIT, self._on_commit)
        serve(messages.COMMITTED, self._on_committed)

    def on_image(self, image: Image) -> None:
        """Wake calls whose assignment may have changed; drop the sessions that now belong to another coordinator."""
        self._sessions.on_image(image)

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Return whether the consumer has released these partitions; see ``node.groups.rest_members.RestMembers``."""
        return self._sessions.may_release(group_id, instance, partitions)

    async def close(self) -> None:
        """Stop all background tasks."""
        await self._sessions.close()

    # -- creating and deleting -------------------------------------------------------------------

    async def _on_create(self, request: messages.ConsumerCreateRequest) -> Done:
        # Nodes of the previous release would stop at a command with a field that they do not know.
        image = self._node.metadata.image
        is_said = image.feature_level >= quotas.LEVEL
        consumer = RestConsumer(
            group_id=request.group_id,
            instance=request.instance,
            created_index=0,
            format=request.format,
            auto_offset_reset=request.auto_offset_reset,
            is_auto_commit=request.is_auto_commit,
            fetch_min_bytes=request.fetch_min_bytes,
            request_timeout_ms=request.request_timeout_ms,
            principal=request.principal if is_said and request.principal is not UNSET else "",
            commits_next=request.commits_next is True,
        )
        try:
            await self._store.put(consumer, image.coordinators_version, is_new=True)
        except ConsumerExistsError:
            # The node that sent the request drew this name at random, so no other consumer has it. This is a repeat
            # of the same request.
            if not request.is_drawn:
                raise
        self._idle.hear(request.key, self._node.clock.now_ms())
        return Done()

    async def _on_delete(self, request: messages.ConsumerDeleteRequest) -> Done:
        async with self._sessions.call(request.key) as session:
            # A records call that waits must not delay the deletion.
            session.wake()
            async with session.turn:
                await self._arrival.prove(session, request.asked_node_id)
                await session.commit_delivered()
                if not await self.delete([session.view.consumer]):
                    raise ConsumerNotFoundError(f"consumer {session.key[1]!r} is gone already")
        return Done()

    async def delete(self, consumers: Sequence[RestConsumer]) -> int:
        """Delete these consumers and their memberships; return how many existed."""
        count = await self._store.delete(consumers)
        for consumer in consumers:
            session = self._sessions.get((consumer.group_id, consumer.instance))
            if session is not None and session.view.created_index == consumer.created_index:
                self._sessions.drop(session)
        return count

    async def commit_arrived(self, key: ConsumerKey) -> None:
        """Before a consumer expires, commit what has certainly reached its client.

        Only if the consumer commits automatically.
        """
        session = self._sessions.get(key)
        if session is not None:
            await session.commit_arrived()

    # -- subscriptions and assignments -----------------------------------------------------------

    async def _on_subscribe(self, request: messages.ConsumerSubscribeRequest) -> Done:
        """Subscribe. Without topics and pattern, remove the subscription or assignment."""
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
                    await self._arrival.prove(session, request.asked_node_id)
                    await session.commit_delivered()
                await self._store.put(wanted, session.commits.coordinators_version)
                session.positions.begin_anew()
            await self._join(session, consumer)
            await session.settle_positions()
        return Done()

    async def _join(self, session: ConsumerSession, before: RestConsumer) -> None:
        """Make the consumer's group membership follow its subscription. If this is refused, restore the former one.

        Raises:
            MilenaError: the consumer has its former subscription. Or the result is unknown, and it joins later.
        """
        try:
            await self._memberships.settle(*session.key)
        except (InvalidRequestError, LimitReachedError, InconsistentGroupProtocolError):
            if session.view.consumer != before:
                await self._store.put(before, session.commits.coordinators_version)
            raise

        def is_settled(image: Image) -> bool:
            member = member_of(image, *session.key)
            return member is None or member.held == member.target

        # Wait until this member holds its target partitions, but at most SHARING_MS: other members may have to release
        # some first. REST consumers release partitions at once, so the wait is usually short.
        await self._node.metadata.wait_until(is_settled, timeout_ms=SHARING_MS)

    async def _on_assign(self, request: messages.ConsumerAssignRequest) -> Done:
        """Assign these partitions, without making the consumer a member of the group."""
        names = each_partition(request.partitions)
        keys = await partition_keys(names, self._topic)
        async with self._sessions.call(request.key) as session, session.turn:
            consumer = session.view.consumer
            if consumer.topics or consumer.pattern is not None:
                raise SubscriptionConflictError(
                    f"consumer {session.key[1]!r} is subscribed to topics; delete its subscription first"
                )
            wanted = replace(consumer, assigned=partition_sets.of(keys))
            if wanted != consumer:
                await self._arrival.prove(session, request.asked_node_id)
                await session.commit_delivered()
                await self._store.put(wanted, session.commits.coordinators_version)
            await session.settle_positions()
        return Done()

    async def _on_view(self, request: messages.ConsumerViewRequest) -> messages.ConsumerViewAnswer:
        """Return the consumer's subscription, and the partitions that it reads."""
        async with self._sessions.call(request.key) as session:
            consumer = session.view.consumer
            topics = session.view.image.topics
            return messages.ConsumerViewAnswer(
                topics=consumer.topics,
                pattern=consumer.pattern,
                partitions=by_topic(
                    (topics[topic_id].name, number) for topic_id, number in session.view.assigned()
                ),
            )

    # -- reading ---------------------------------------------------------------------------------

    async def _on_records(
        self, request: messages.ConsumerRecordsRequest
    ) -> messages.ConsumerRecordsAnswer:
        return await self._records(request, "")

    async def _on_token_records(
        self, request: messages.ConsumerTokenRecordsRequest
    ) -> messages.ConsumerRecordsAnswer:
        return await self._records(request, request.token)

    async def _records(
        self, request: messages.ConsumerRecordsRequest, token: str
    ) -> messages.ConsumerRecordsAnswer:
        async with self._sessions.call(request.key) as session:
            consumer = session.view.consumer
            is_subscribed = bool(consumer.topics) or consumer.pattern is not None
            if is_subscribed and session.view.member() is None:
                await self._memberships.settle(*session.key)
            async with session.turn:
                if session.cursor.call_id != request.call_id:
                    await self._arrival.prove(session, messages.node_of(request.call_id))
            call = RecordsCall(
                session,
                call_id=request.call_id,
                token=token,
                timeout_ms=request.wait_ms,
                max_bytes=request.max_bytes,
                ends=self._ends,
                report_damage=self._reads.doubt,
                clock=self._node.clock,
            )
            return await call.run()

    async def _on_acknowledge(self, request: messages.ConsumerAcknowledgeRequest) -> Done:
        async with self._sessions.call(request.key) as session, session.turn:
            session.take_assignment()
            session.cursor.acknowledge(request.token)
        return Done()

    async def _on_take_back(self, request: messages.ConsumerTakeBackRequest) -> Done:
        session = self._sessions.get(request.key)
        if session is not None:
            session.take_back(request.call_id, is_refused=request.is_refused is True)
        return Done()

    async def _on_seek(self, request: messages.ConsumerSeekRequest) -> Done:
        keys = await partition_keys(
            [(seek.topic, seek.partition) for seek in request.seeks], self._topic
        )
        async with self._sessions.call(request.key) as session, session.turn:
            session.check_assigned(keys)
            offsets = [
                await session.positions.of_seek(key, seek)
                for key, seek in zip(keys, request.seeks, strict=True)
            ]
            session.seek(dict(zip(keys, offsets, strict=True)))
        return Done()

    async def _on_commit(self, request: messages.ConsumerCommitRequest) -> Done:
        wanted = None
        if request.offsets is not None:
            wanted = await offset_commits(request.offsets, self._topic)
        async with self._sessions.call(request.key) as session, session.turn:
            session.take_assignment()
            if wanted is None:
                await self._arrival.prove(session, request.asked_node_id)
                delivered = session.to_commit()
                if delivered:
                    await session.commits.commit(delivered)
            elif wanted:
                await session.commits.commit_offsets(wanted)
        return Done()

    async def _on_committed(
        self, request: messages.ConsumerCommittedRequest
    ) -> messages.ConsumerCommittedAnswer:
        async with self._sessions.call(request.key) as session:
            names = each_partition(request.partitions)
            return messages.ConsumerCommittedAnswer(
                offsets=committed(session.view.image, request.group_id, names)
            )
