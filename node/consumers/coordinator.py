"""The coordinator's part of REST consumers: it makes, changes, reads for and forgets those of its groups.

What must outlive this node goes through the quorum, before it is answered: the consumer, its subscription, commits.
The rest is in ``ConsumerSession``, made when a consumer is first heard of, and dropped when another node coordinates
its group. Handlers run under ``CoordinatorCalls``, which see to it that this node may decide.
"""

from collections.abc import Awaitable, Callable, Sequence

from milena.model.errors import ConsumerExistsError, ConsumerNotFoundError
from milena.model.requests import Doubt, FetchRequest, FetchResult
from node.consumers import lookup
from node.consumers.answers import Answers
from node.consumers.consumer_messages import (
    ASSIGN,
    COMMIT,
    COMMITTED,
    CREATE,
    DELETE,
    RECORDS,
    SEEK,
    SUBSCRIBE,
    TAKE_BACK,
    VIEW,
    ConsumerCommitRequest,
    ConsumerCommittedAnswer,
    ConsumerCommittedRequest,
    ConsumerCreateRequest,
    ConsumerDeleteRequest,
    ConsumerRecordsAnswer,
    ConsumerRecordsRequest,
    ConsumerSeekRequest,
    ConsumerTakeBackRequest,
    DeliveryRow,
    node_of,
)
from node.consumers.idle import IdleClocks
from node.consumers.records_call import RecordsCall
from node.consumers.session_table import SessionTable
from node.consumers.session_tools import Commits, Memberships
from node.consumers.store import ConsumerStore
from node.consumers.subscription_calls import SubscriptionCalls
from node.consumers.tails import Tails
from node.control.standing import Standing
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.group_messages import each_partition
from node.metadata.store import MetadataStore
from node.peers.messages import Blob, Done
from node.peers.port import Peers
from node.process.clock import Clock
from raft_meta.machine.image import ConsumerKey, Image, PartitionSet, RestConsumer, Topic


class ConsumerCoordinator:
    """See the module. Owned by the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        current_image: Callable[[], Awaitable[Image]],
        topic: Callable[[str], Awaitable[Topic]],
        fetch: Callable[[FetchRequest], Awaitable[FetchResult]],
        doubt: Callable[[Doubt], Awaitable[None]],
        calls: CoordinatorCalls,
        memberships: Memberships,
        commits: Commits,
        peer: Peers,
        tails: Tails,
        idle: IdleClocks,
        clock: Clock,
        standing: Standing,
    ) -> None:
        self._topic = topic
        self._memberships = memberships
        self._tails = tails
        self._doubt = doubt
        self._clock = clock
        self._idle = idle
        self._store = ConsumerStore(metadata, standing)
        self._answers = Answers(metadata.node_id, peer)
        self._sessions = SessionTable(
            metadata=metadata,
            current_image=current_image,
            fetch=fetch,
            coordinates=calls.coordinates,
            memberships=memberships,
            commits=commits,
            idle=idle,
            clock=clock,
        )
        subscriptions = SubscriptionCalls(
            metadata=metadata,
            topic=topic,
            sessions=self._sessions,
            store=self._store,
            answers=self._answers,
            memberships=memberships,
        )
        calls.serve(CREATE, self._on_create)
        calls.serve(DELETE, self._on_delete)
        calls.serve(SUBSCRIBE, subscriptions.on_subscribe)
        calls.serve(ASSIGN, subscriptions.on_assign)
        calls.serve(VIEW, subscriptions.on_view)
        calls.serve(SEEK, self._on_seek)
        calls.serve(RECORDS, self._on_records)
        calls.serve(TAKE_BACK, self._on_take_back)
        calls.serve(COMMIT, self._on_commit)
        calls.serve(COMMITTED, self._on_committed)

    def __len__(self) -> int:
        return len(self._sessions)

    def on_image(self, image: Image) -> None:
        """Wake those whose assignment may be another, and forget those that are another node's."""
        self._sessions.on_image(image)

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Implements ``RestMembers``."""
        return self._sessions.may_release(group_id, instance, partitions)

    async def close(self) -> None:
        """Nothing goes on in the background any more."""
        await self._sessions.close()

    # -- making and forgetting -------------------------------------------------------------------

    async def _on_create(self, request: ConsumerCreateRequest) -> Done:
        consumer = RestConsumer(
            group_id=request.group_id,
            instance=request.instance,
            created_index=0,
            format=request.format,
            auto_offset_reset=request.auto_offset_reset,
            is_auto_commit=request.is_auto_commit,
            fetch_min_bytes=request.fetch_min_bytes,
            request_timeout_ms=request.request_timeout_ms,
        )
        try:
            await self._store.put(consumer, is_new=True)
        except ConsumerExistsError:
            # A name that the asking node drew is nobody else's: this is the same request again.
            if not request.is_drawn:
                raise
        self._idle.hear(request.key, self._clock.now_ms())
        return Done()

    async def _on_delete(self, request: ConsumerDeleteRequest) -> Done:
        async with self._sessions.call(request.key) as session:
            # A records call that waits does not keep its consumer alive.
            session.wake()
            async with session.turn:
                await self._answers.prove(session, request.asked_node_id)
                await session.commit_delivered()
                if not await self.delete([session.view.consumer]):
                    raise ConsumerNotFoundError(f"consumer {session.key[1]!r} is gone already")
        return Done()

    async def delete(self, consumers: Sequence[RestConsumer]) -> int:
        """Forget these, and their membership with them; returns how many there were."""
        count = await self._store.delete(consumers)
        for consumer in consumers:
            session = self._sessions.get((consumer.group_id, consumer.instance))
            if session is not None and session.view.created_index == consumer.created_index:
                self._sessions.drop(session)
        return count

    async def commit_arrived(self, key: ConsumerKey) -> None:
        """Before a consumer expires: what it certainly has, if it commits by itself."""
        session = self._sessions.get(key)
        if session is not None:
            await session.commit_arrived()

    # -- reading ---------------------------------------------------------------------------------

    async def _on_records(self, request: ConsumerRecordsRequest) -> ConsumerRecordsAnswer:
        async with self._sessions.call(request.key) as session:
            consumer = session.view.consumer
            is_subscribed = bool(consumer.topics) or consumer.pattern is not None
            if is_subscribed and session.view.member() is None:
                await self._memberships.settle(*session.key)
            async with session.turn:
                if session.cursor.call_id != request.call_id:
                    await self._answers.prove(session, node_of(request.call_id))
            call = RecordsCall(
                session,
                call_id=request.call_id,
                timeout_ms=request.wait_ms,
                max_bytes=request.max_bytes,
                tails=self._tails,
                doubt=self._doubt,
                clock=self._clock,
            )
            delivered = await call.run()
        return ConsumerRecordsAnswer(
            format=delivered.format,
            deliveries=tuple(
                DeliveryRow(
                    topic=delivery.topic,
                    partition=delivery.partition,
                    start_offset=delivery.start_offset,
                    end_offset=delivery.end_offset,
                    batches=Blob(delivery.batches),
                )
                for delivery in delivered.deliveries
            ),
        )

    async def _on_take_back(self, request: ConsumerTakeBackRequest) -> Done:
        session = self._sessions.get(request.key)
        if session is not None:
            session.take_back(request.call_id)
        return Done()

    async def _on_seek(self, request: ConsumerSeekRequest) -> Done:
        keys = await lookup.partition_keys(
            [(seek.topic, seek.partition) for seek in request.seeks], self._topic
        )
        async with self._sessions.call(request.key) as session, session.turn:
            session.check_assigned(keys)
            offsets = [
                await session.places.of_seek(key, seek)
                for key, seek in zip(keys, request.seeks, strict=True)
            ]
            session.seek(dict(zip(keys, offsets, strict=True)))
        return Done()

    async def _on_commit(self, request: ConsumerCommitRequest) -> Done:
        wanted = None
        if request.offsets is not None:
            wanted = await lookup.offset_commits(request.offsets, self._topic)
        async with self._sessions.call(request.key) as session, session.turn:
            session.take_assignment()
            if wanted is None:
                await self._answers.prove(session, request.asked_node_id)
                marks = session.to_commit()
                if marks:
                    await session.commits.commit(marks)
            elif wanted:
                await session.commits.commit_offsets(wanted)
        return Done()

    async def _on_committed(self, request: ConsumerCommittedRequest) -> ConsumerCommittedAnswer:
        async with self._sessions.call(request.key) as session:
            names = each_partition(request.partitions)
            return ConsumerCommittedAnswer(
                offsets=lookup.committed(session.view.image, request.group_id, names)
            )
