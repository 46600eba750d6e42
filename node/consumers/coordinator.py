"""The coordinator's part of REST consumers: it makes, changes, reads for and forgets those of its groups.

What must outlive this node goes through the quorum, before it is answered: the consumer, its subscription, commits.
The rest is in ``ConsumerSession``, made when a consumer is first heard of, and dropped when another node coordinates
its group. Handlers run under ``CoordinatorCalls``, which see to it that this node may decide.
"""

from collections.abc import Awaitable, Callable, Sequence

from milena.model.errors import ConsumerExistsError, ConsumerNotFoundError
from milena.model.requests import Doubt, FetchRequest, FetchResult
from node.consumers import lookup, wire
from node.consumers.answers import Answers
from node.consumers.idle import IdleClocks
from node.consumers.records_call import RecordsCall
from node.consumers.session_table import SessionTable
from node.consumers.session_tools import Commits, Memberships
from node.consumers.store import ConsumerStore
from node.consumers.subscription_calls import SubscriptionCalls
from node.consumers.tails import Tails
from node.control.standing import Standing
from node.groups.coordinator_calls import CoordinatorCalls, Reply
from node.metadata.store import MetadataStore
from node.metadata.topic_partitions import partitions_field
from node.peers.codec import (
    Fields,
    bool_field,
    int_field,
    map_list_field,
    optional_int_field,
    str_field,
)
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
        for request_type, handler in (
            (wire.CREATE, self._on_create),
            (wire.DELETE, self._on_delete),
            (wire.SUBSCRIBE, subscriptions.on_subscribe),
            (wire.ASSIGN, subscriptions.on_assign),
            (wire.VIEW, subscriptions.on_view),
            (wire.SEEK, self._on_seek),
            (wire.RECORDS, self._on_records),
            (wire.TAKE_BACK, self._on_take_back),
            (wire.COMMIT, self._on_commit),
            (wire.COMMITTED, self._on_committed),
        ):
            calls.serve(request_type, handler)

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

    async def _on_create(self, fields: Fields, body: bytes) -> Reply:
        del body
        wanted = wire.unpack_new(fields)
        assert wanted.instance is not None
        consumer = RestConsumer(
            group_id=str_field(fields, "group"),
            instance=wanted.instance,
            created_index=0,
            format=wanted.format,
            auto_offset_reset=wanted.auto_offset_reset,
            is_auto_commit=wanted.is_auto_commit,
            fetch_min_bytes=wanted.fetch_min_bytes,
            request_timeout_ms=wanted.request_timeout_ms,
        )
        try:
            await self._store.put(consumer, is_new=True)
        except ConsumerExistsError:
            # A name that the asking node drew is nobody else's: this is the same request again.
            if not bool_field(fields, "is_drawn"):
                raise
        self._idle.hear((consumer.group_id, consumer.instance), self._clock.now_ms())
        return {}, ()

    async def _on_delete(self, fields: Fields, body: bytes) -> Reply:
        del body
        async with self._sessions.call(wire.consumer_key(fields)) as session:
            # A records call that waits does not keep its consumer alive.
            session.wake()
            async with session.turn:
                await self._answers.prove(session, int_field(fields, "from"))
                await session.commit_delivered()
                if not await self.delete([session.view.consumer]):
                    raise ConsumerNotFoundError(f"consumer {session.key[1]!r} is gone already")
        return {}, ()

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

    async def _on_records(self, fields: Fields, body: bytes) -> Reply:
        del body
        async with self._sessions.call(wire.consumer_key(fields)) as session:
            consumer = session.view.consumer
            is_subscribed = bool(consumer.topics) or consumer.pattern is not None
            if is_subscribed and session.view.member() is None:
                await self._memberships.settle(*session.key)
            call_id = str_field(fields, "call")
            async with session.turn:
                if session.cursor.call_id != call_id:
                    await self._answers.prove(session, wire.node_of(call_id))
            call = RecordsCall(
                session,
                call_id=call_id,
                timeout_ms=int_field(fields, "wait_ms"),
                max_bytes=optional_int_field(fields, "max_bytes"),
                tails=self._tails,
                doubt=self._doubt,
                clock=self._clock,
            )
            return wire.pack_delivered(await call.run())

    async def _on_take_back(self, fields: Fields, body: bytes) -> Reply:
        del body
        session = self._sessions.get(wire.consumer_key(fields))
        if session is not None:
            session.take_back(str_field(fields, "call"))
        return {}, ()

    async def _on_seek(self, fields: Fields, body: bytes) -> Reply:
        del body
        seeks = [wire.unpack_seek(row) for row in map_list_field(fields, "seeks")]
        keys = await lookup.partition_keys([(s.topic, s.partition) for s in seeks], self._topic)
        async with self._sessions.call(wire.consumer_key(fields)) as session, session.turn:
            session.check_assigned(keys)
            offsets = [
                await session.places.of_seek(key, seek)
                for key, seek in zip(keys, seeks, strict=True)
            ]
            session.seek(dict(zip(keys, offsets, strict=True)))
        return {}, ()

    async def _on_commit(self, fields: Fields, body: bytes) -> Reply:
        del body
        wanted = None
        if fields.get("offsets") is not None:
            offsets = [wire.unpack_offset(row) for row in map_list_field(fields, "offsets")]
            wanted = await lookup.offset_commits(offsets, self._topic)
        async with self._sessions.call(wire.consumer_key(fields)) as session, session.turn:
            session.take_assignment()
            if wanted is None:
                await self._answers.prove(session, int_field(fields, "from"))
                marks = session.to_commit()
                if marks:
                    await session.commits.commit(marks)
            elif wanted:
                await session.commits.commit_offsets(wanted)
        return {}, ()

    async def _on_committed(self, fields: Fields, body: bytes) -> Reply:
        del body
        async with self._sessions.call(wire.consumer_key(fields)) as session:
            names = partitions_field(fields, "partitions")
            found = lookup.committed(session.view.image, session.key[0], names)
            return {"offsets": [wire.pack_committed(row) for row in found]}, ()
