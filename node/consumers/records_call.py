"""One records call: it gathers records of all assigned partitions in fair order. If there are none, it waits.

Before the next call, ``ArrivalCheck`` finds out whether the response has reached the client.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from milena.model.clock import Clock
from milena.model.errors import (
    FateUnknownError,
    MilenaError,
    NoLeaderError,
    NotFoundError,
    OffsetOutOfRangeError,
    ReplicaDamagedError,
    SubscriptionConflictError,
)
from milena.model.requests import Doubt, FetchResult
from node.config.budgets import READ_RETRY_MS, READ_RETRY_MS_MAX
from node.consumers.answer_cutting import AnswerRoom, CutRecords, cut
from node.consumers.consumer_messages import (
    RETURNED,
    ConsumerRecordsAnswer,
    DeliveryRow,
    ReturnedRequest,
    is_of_process,
    node_of,
)
from node.consumers.consumer_sessions import ConsumerSession
from node.consumers.cursor import GivenExtent
from node.consumers.partition_ends import EndWaiter, EndWatcher
from node.consumers.repeated_answer import read_again, row_of
from node.consumers.start_positions import PARALLEL
from node.context import NodeContext
from node.peers.messages import ask
from raft_meta.machine.image import PartitionKey

logger = logging.getLogger(__name__)

ANSWER_BYTES_DEFAULT = 1 << 20
ANSWER_BYTES_MAX = 16 << 20
"""Largest total size of keys and values in one response, in bytes."""
ANSWER_RECORDS_MAX = 20_000
"""Largest number of records in one response. Even a record without key and value costs something."""
SHARE_BYTES_MIN = 16 << 10
"""Smallest number of bytes read of one partition, if many partitions share a response."""
SHARE_BYTES_MAX = 1 << 20
"""Largest number of bytes read of one partition at a time. Other partitions are read before it is read again."""
GATHER_MS = 500
"""How long a call with some records waits for more, if ``fetch.min.bytes`` asks for more. Kafka's default of
fetch.max.wait.ms."""
FOR_EVER_MS = 1 << 62
RETURNED_MS = 1_000
"""Timeout of the question whether a node has sent a response, in ms. No answer counts as no."""
GIVEN_UP = "this call was given up by its caller"


@dataclass(slots=True)
class _Gathering:
    """The state of a response that is being gathered."""

    room: AnswerRoom
    bytes_min: int
    payload_bytes: int = 0
    is_full: bool = False
    gathering_ms: int | None = None
    """When the first records were found (monotonic ms)."""
    deliveries: list[DeliveryRow] = field(default_factory=list)
    extents: list[GivenExtent] = field(default_factory=list)
    """The extents of the records in ``deliveries``."""

    @property
    def is_enough(self) -> bool:
        """Whether the call need not wait for more records."""
        if self.is_full or self.room.is_over:
            return True
        return bool(self.deliveries) and 0 <= self.bytes_min <= self.payload_bytes

    def gather_until(self, now_ms: int) -> int:
        """Return until when the call waits for more (monotonic ms); no limit before it has any records."""
        if not self.deliveries or self.bytes_min < 0:
            return FOR_EVER_MS
        if self.gathering_ms is None:
            self.gathering_ms = now_ms
        return self.gathering_ms + GATHER_MS


@dataclass(slots=True)
class _Round:
    """The result of reading all partitions once."""

    is_first: bool
    """Whether this is the first pass of the call."""
    has_moved: bool = False
    failed: set[PartitionKey] = field(default_factory=set)
    damaged: ReplicaDamagedError | None = None
    """The error if a partition's next records are damaged."""
    damages: list[Doubt] = field(default_factory=list)
    """Damage to report after all records of the pass are taken: in between, nothing may change."""


class RecordsCall:
    """One call of one consumer. Call ``run`` once.

    If the call ends without a response, it gives back the records that it has taken, and the next call delivers them. A
    seek ends a waiting call with an empty response: no client seeks while it waits, so the call's client is gone. With
    the ``token`` of the previous response, the call returns that response again and takes no new records.
    """

    def __init__(
        self,
        session: ConsumerSession,
        *,
        call_id: str,
        token: str,
        timeout_ms: int,
        max_bytes: int | None,
        ends: EndWatcher,
        report_damage: Callable[[Doubt], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._session = session
        self._call_id = call_id
        self._token = token
        self._timeout_ms = timeout_ms
        self._seeks = session.seeks
        self._retry_ms = READ_RETRY_MS
        self._ends = ends
        self._report_damage = report_damage
        self._clock = clock
        consumer = session.view.consumer
        wanted = ANSWER_BYTES_DEFAULT if max_bytes is None else max_bytes
        self._unknown: dict[PartitionKey, MilenaError] = {}
        """Partition → error, if it is unknown whether it has more records. An empty response would claim that none
        has."""
        self._answer = _Gathering(
            AnswerRoom(
                payload_bytes=min(max(wanted, 0), ANSWER_BYTES_MAX),
                records=ANSWER_RECORDS_MAX,
                needs_one=True,
            ),
            consumer.fetch_min_bytes,
        )

    async def run(self) -> ConsumerRecordsAnswer:
        """Gather a response and return it.

        Raises:
            SubscriptionConflictError: the consumer has neither a subscription nor an assignment.
            OffsetOutOfRangeError: a position is not in the log, and ``auto.offset.reset`` is none.
            ReplicaDamagedError: the next records of a partition are damaged, and no other partition had records.
            NoLeaderError: a partition could not be read, and no other partition had records.
            NotCoordinatorError, ConsumerNotFoundError: nothing was delivered.
            FateUnknownError: a repeat of this call has replaced it.
        """
        session = self._session
        started_ms = self._clock.now_ms()
        if session.under_way == self._call_id:
            # This is a repeat. The connection for the first attempt's response is lost, so end the first attempt.
            session.under_way = ""
            session.wake()
        session.queued.add(self._call_id)
        async with session.one_at_a_time:
            try:
                if self._call_id not in session.queued:
                    raise FateUnknownError(GIVEN_UP)
                session.under_way = self._call_id
                return await self._run(started_ms + self._timeout_ms)
            except BaseException:
                session.cursor.take_back(self._call_id)
                raise
            finally:
                session.queued.discard(self._call_id)
                session.under_way, session.waiter = "", None

    async def _run(self, deadline_ms: int) -> ConsumerRecordsAnswer:
        session = self._session
        is_first = True
        while True:
            session.waiter = waiter = EndWaiter()
            try:
                async with session.turn:
                    self._check()
                    if session.seeks != self._seeks:
                        return ConsumerRecordsAnswer(
                            format=session.view.consumer.format, deliveries=()
                        )
                    if is_first:
                        session.take_assignment()
                        extents = session.cursor.again(self._token)
                        if extents is not None:
                            return await self._again(extents)
                        await self._begin()
                    looked = await self._look(is_first=is_first)
                is_first = False
                now_ms = self._clock.now_ms()
                deadline_ms = min(deadline_ms, self._answer.gather_until(now_ms))
                left_ms = deadline_ms - now_ms
                # If a position has only moved into the log, it is unknown whether records follow there.
                is_ahead = looked.has_moved and not self._answer.deliveries
                if self._answer.is_enough or (left_ms <= 0 and not is_ahead):
                    if not self._answer.deliveries:
                        self._check_known(looked)
                    return self._delivered()
                if not looked.has_moved:
                    await self._wait(waiter, looked, left_ms)
            finally:
                waiter.close()

    def _check(self) -> None:
        session = self._session
        session.check()
        if session.under_way != self._call_id:
            raise FateUnknownError(GIVEN_UP)
        consumer = session.view.consumer
        if not (consumer.topics or consumer.pattern is not None or consumer.assigned):
            raise SubscriptionConflictError(
                f"consumer {session.key[1]!r} is neither subscribed to topics nor assigned partitions"
            )

    def _check_known(self, looked: _Round) -> None:
        """Refuse an empty response if it is unknown whether there are records.

        Raises:
            ReplicaDamagedError, NoLeaderError: why a partition could not be read.
        """
        if looked.damaged is not None:
            raise looked.damaged
        for key, error in self._unknown.items():
            if key in self._session.cursor:
                # Errors of other classes would describe this call to the client, not the partition.
                name = self._session.view.name(key)
                raise NoLeaderError(f"{name} cannot be read now: {error.message}") from error

    async def _begin(self) -> None:
        """Start the call. The client has made another call, so it has the previous response."""
        session = self._session
        session.cursor.begin(self._call_id, self._token)
        if session.cursor.is_commit_due(self._clock.now_ms()):
            await session.commits.commit_quietly(session.cursor.arrived())

    async def _again(self, extents: Sequence[GivenExtent]) -> ConsumerRecordsAnswer:
        """Return the previous response again.

        Raises:
            MilenaError: a part of it cannot be read now. The client may ask again.
        """
        session, deliveries = self._session, list[DeliveryRow]()
        for start in range(0, len(extents), PARALLEL):
            some = extents[start : start + PARALLEL]
            found = await asyncio.gather(
                *(read_again(session, extent, self._report_damage) for extent in some)
            )
            # A partition that was removed from the assignment during the read must not be delivered.
            self._check()
            session.take_assignment()
            for extent, rows in zip(some, found, strict=True):
                deliveries += rows if session.cursor.has_open(extent.key) else []
        return ConsumerRecordsAnswer(
            format=session.view.consumer.format, deliveries=tuple(deliveries)
        )

    # -- one pass over all partitions ------------------------------------------------------------

    async def _look(self, *, is_first: bool) -> _Round:
        """Read the records that are there now.

        The first pass asks leaders to confirm that there are no more: a record that was acknowledged before the call
        must be in the response. Later passes need no confirmation, because new records wake the call.
        """
        session, looked = self._session, _Round(is_first=is_first)
        session.take_assignment()
        if session.cursor.without_position():
            await session.positions.find()
            for key in session.cursor.without_position():
                self._fail(key, NoLeaderError("where to begin is not known"), looked)
        keys = [key for key in session.cursor if session.cursor.position(key) is not None]
        for start in range(0, len(keys), PARALLEL):
            if self._answer.room.is_over:
                break
            await self._read(keys[start : start + PARALLEL], looked)
        return looked

    def _fail(self, key: PartitionKey, error: MilenaError, looked: _Round) -> None:
        looked.failed.add(key)
        if not isinstance(error, NotFoundError):
            self._unknown[key] = error

    async def _read(self, keys: Sequence[PartitionKey], looked: _Round) -> None:
        session, room = self._session, self._answer.room
        share = min(max(room.payload_bytes // len(keys), SHARE_BYTES_MIN), SHARE_BYTES_MAX)
        if len(keys) == 1:
            found = [await self._fetch(keys[0], share, looked)]
        else:
            found = await asyncio.gather(*(self._fetch(key, share, looked) for key in keys))
        # A partition that was removed from the assignment during the read must not be delivered. If another node is the
        # coordinator now, nothing must be delivered.
        self._check()
        session.take_assignment()
        for key, result in zip(keys, found, strict=True):
            if isinstance(result, FetchResult):
                self._unknown.pop(key, None)
                self._take(key, result, looked)
            elif isinstance(result, OffsetOutOfRangeError):
                await self._reset(key, result, looked)
            else:
                logger.debug("consumer=%s/%s cannot read: %s", *session.key, result)
                self._fail(key, result, looked)
                if isinstance(result, ReplicaDamagedError):
                    looked.damaged = result
        damages, looked.damages = looked.damages, []
        await asyncio.gather(*(self._report_damage(report) for report in damages))

    async def _fetch(
        self, key: PartitionKey, max_bytes: int, looked: _Round
    ) -> FetchResult | MilenaError:
        position = self._session.cursor.position(key)
        assert position is not None
        try:
            return await self._session.positions.fetch(
                key,
                position,
                max_bytes=max_bytes,
                is_unconfirmed=not (looked.is_first or key in self._unknown),
            )
        except MilenaError as error:
            return error

    async def _reset(self, key: PartitionKey, error: OffsetOutOfRangeError, looked: _Round) -> None:
        if key not in self._session.cursor:
            return
        try:
            await self._session.positions.reset(key, error)
            looked.has_moved = True
        except OffsetOutOfRangeError:
            if not self._answer.deliveries:
                raise
        except MilenaError as failure:
            self._fail(key, failure, looked)
        self._session.take_assignment()

    def _take(self, key: PartitionKey, result: FetchResult, looked: _Round) -> None:
        """Add the records that fit, up to the first damaged one.

        If the first record is damaged, the call may fail with that error.
        """
        answer = self._answer
        if answer.room.is_over:
            return
        made = cut(result.batches, result.start_offset, result.readable_end, answer.room)
        answer.is_full |= made.is_full
        topic = self._session.view.image.topics.get(key[0])
        if made.damaged_at is not None and topic is not None:
            report = Doubt(
                topic=topic.name,
                partition=key[1],
                offset=made.damaged_at,
                broker_id=result.broker_id,
            )
            looked.damages.append(report)
            if not made.record_count:
                looked.failed.add(key)
                looked.damaged = report.error
        self._deliver(key, made, looked)

    def _deliver(self, key: PartitionKey, made: CutRecords, looked: _Round) -> None:
        answer = self._answer
        if made.next_offset == made.start_offset or not self._session.cursor.deliver(key, made):
            return
        looked.has_moved = True
        answer.room = answer.room.less(made)
        answer.payload_bytes += made.payload_bytes
        if made.record_count:
            answer.deliveries.append(row_of(self._session, key, made))
            answer.extents.append(GivenExtent(key, made.start_offset, made.end_offset))

    # -- waiting ---------------------------------------------------------------------------------

    async def _wait(self, waiter: EndWaiter, looked: _Round, left_ms: int) -> None:
        """Wait for a change: a record, another assignment, or another call of this consumer."""
        cursor = self._session.cursor
        for key in cursor:
            position = cursor.position(key)
            if position is not None and key not in looked.failed:
                self._ends.watch(waiter, key, position)
        if looked.failed:
            left_ms = min(left_ms, self._retry_ms)
            self._retry_ms = min(2 * self._retry_ms, READ_RETRY_MS_MAX)
        else:
            self._retry_ms = READ_RETRY_MS
        await waiter.wait(left_ms)

    def _delivered(self) -> ConsumerRecordsAnswer:
        self._session.cursor.on_answered(self._answer.extents)
        return ConsumerRecordsAnswer(
            format=self._session.view.consumer.format, deliveries=tuple(self._answer.deliveries)
        )


class ArrivalCheck:
    """Finds out whether a consumer's last response has reached the client, by asking the node that sent it."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    async def prove(self, session: ConsumerSession, asker: int | None) -> None:
        """Find out whether the last response has arrived. The client is now back on the node ``asker``.

        If the same process of a node sent the last response, it has arrived: that process is alive, and it reports
        clients that disconnect. Another node may have ended before it sent the response, and so may an earlier process
        of the same node. If the node does not confirm that it sent the response, the response is taken back, and the
        client gets its records again.
        """
        call_id = session.cursor.unproven
        if not call_id or session.under_way == call_id:
            return
        node_id = node_of(call_id)
        metadata = self._node.metadata
        has_returned = node_id == metadata.node_id
        if node_id is not None and node_id == asker:
            broker = metadata.image.brokers.get(node_id)
            has_returned |= broker is not None and is_of_process(
                call_id, node_id, broker.incarnation
            )
        if node_id is not None and not has_returned:
            try:
                answer = await ask(
                    self._node.peers,
                    node_id,
                    RETURNED,
                    ReturnedRequest(
                        group_id=session.key[0], instance=session.key[1], call_id=call_id
                    ),
                    timeout_ms=RETURNED_MS,
                )
                has_returned = answer.has_returned
            except MilenaError as error:
                logger.debug("node_id=%d does not say what it returned: %s", node_id, error)
        if session.cursor.unproven == call_id and session.under_way != call_id:
            if has_returned:
                session.cursor.prove()
            else:
                session.cursor.take_back(call_id)
