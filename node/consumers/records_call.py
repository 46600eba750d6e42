"""One records call: gathers records of all assigned partitions in fair order, and waits where there are none.

Before the next one, ``ArrivalCheck`` finds out whether its answer has reached the client.
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
from node.consumers.answer_cutting import AnswerRoom, CutRecords, cut
from node.consumers.consumer_messages import (
    RETURNED,
    ConsumerRecordsAnswer,
    DeliveryRow,
    ReturnedRequest,
    node_of,
)
from node.consumers.consumer_sessions import ConsumerSession
from node.consumers.cursor import GivenExtent
from node.consumers.partition_ends import EndWaiter, EndWatcher
from node.consumers.repeated_answer import read_again, row_of
from node.consumers.start_positions import PARALLEL
from node.peers.messages import ask
from node.peers.port import Peers
from raft_meta.machine.image import PartitionKey

logger = logging.getLogger(__name__)

ANSWER_BYTES_DEFAULT = 1 << 20
ANSWER_BYTES_MAX = 16 << 20
"""Keys and values of one answer."""
ANSWER_RECORDS_MAX = 20_000
"""Records without keys and values cost an answer something too."""
SHARE_BYTES_MIN = 16 << 10
"""Read of a partition at least, when many share an answer."""
SHARE_BYTES_MAX = 1 << 20
"""And at most: more is looked at in further reads, between which others have their turn."""
GATHER_MS = 500
"""Records that are there wait this long for more, where ``fetch.min.bytes`` wants more: Kafka's fetch.max.wait.ms."""
FOR_EVER_MS = 1 << 62
RETURNED_MS = 1_000
"""A node has this long to say whether it has returned an answer. One that cannot be heard has not."""
GIVEN_UP = "this call was given up by its caller"
RETRY_MS = 250
RETRY_MS_MAX = 2_000
"""A partition that could not be read is asked again after this long; twice as long each time, up to the bound."""


@dataclass(slots=True)
class _Gathering:
    """The answer while it is gathered."""

    room: AnswerRoom
    bytes_min: int
    payload_bytes: int = 0
    is_full: bool = False
    gathering_ms: int | None = None
    """Since when there is something."""
    deliveries: list[DeliveryRow] = field(default_factory=list)
    extents: list[GivenExtent] = field(default_factory=list)
    """Where those are from."""

    @property
    def is_enough(self) -> bool:
        """Whether it need not wait for more."""
        if self.is_full or self.room.is_over:
            return True
        return bool(self.deliveries) and 0 <= self.bytes_min <= self.payload_bytes

    def gather_until(self, now_ms: int) -> int:
        """The time until which it waits for more, once there is something; ``bytes_min`` -1: as the call may."""
        if not self.deliveries or self.bytes_min < 0:
            return FOR_EVER_MS
        if self.gathering_ms is None:
            self.gathering_ms = now_ms
        return self.gathering_ms + GATHER_MS


@dataclass(slots=True)
class _Round:
    """The result of one look at the partitions."""

    is_first: bool
    """The first one of its call."""
    has_moved: bool = False
    failed: set[PartitionKey] = field(default_factory=set)
    damaged: ReplicaDamagedError | None = None
    """Why one of them failed: its next records are not whole."""
    damages: list[Doubt] = field(default_factory=list)
    """To be told once everything that was read is taken: nothing may change in between."""


class RecordsCall:
    """One call of one consumer; ``run`` once.

    Whatever ends it without an answer gives back what it has taken: those records are delivered by the next call.
    A seek ends it empty: no client seeks while it waits, so that it is a call whose answer nobody hopes for any more.
    Under the ``token`` of the answer before it brings that answer once more, and takes nothing.
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
        self._retry_ms = RETRY_MS
        self._ends = ends
        self._report_damage = report_damage
        self._clock = clock
        consumer = session.view.consumer
        wanted = ANSWER_BYTES_DEFAULT if max_bytes is None else max_bytes
        self._unknown: dict[PartitionKey, MilenaError] = {}
        """Partitions of which it is not known whether there is more, and why. An empty answer would say: none."""
        self._answer = _Gathering(
            AnswerRoom(
                payload_bytes=min(max(wanted, 0), ANSWER_BYTES_MAX),
                records=ANSWER_RECORDS_MAX,
                needs_one=True,
            ),
            consumer.fetch_min_bytes,
        )

    async def run(self) -> ConsumerRecordsAnswer:
        """Gather an answer.

        Raises:
            SubscriptionConflictError: neither subscribed nor assigned.
            OffsetOutOfRangeError: the consumer's policy does not say where to go.
            ReplicaDamagedError: the next records of a partition are damaged, and no others came; nothing was delivered.
            NoLeaderError: a partition could not be read, and no records came of others.
            NotCoordinatorError, ConsumerNotFoundError: nothing was delivered.
            FateUnknownError: a repetition of this call has taken its place.
        """
        session = self._session
        started_ms = self._clock.now_ms()
        if session.under_way == self._call_id:
            # Its caller has lost the connection on which the first one's answer would come.
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
                # A position that has just moved into the log says nothing of what follows it.
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
        """Refuse to say that there are no records where that is not known.

        Raises:
            ReplicaDamagedError, NoLeaderError: it is not.
        """
        if looked.damaged is not None:
            raise looked.damaged
        for key, error in self._unknown.items():
            if key in self._session.cursor:
                # Other kinds of error would tell the caller something of this call.
                name = self._session.view.name(key)
                raise NoLeaderError(f"{name} cannot be read now: {error.message}") from error

    async def _begin(self) -> None:
        """The client is here again: it has what it was given before."""
        session = self._session
        session.cursor.begin(self._call_id, self._token)
        if session.cursor.is_commit_due(self._clock.now_ms()):
            await session.commits.commit_quietly(session.cursor.arrived())

    async def _again(self, extents: Sequence[GivenExtent]) -> ConsumerRecordsAnswer:
        """The answer that was given before.

        Raises:
            MilenaError: not all of it can be read now; it may be asked for again.
        """
        session, deliveries = self._session, list[DeliveryRow]()
        for start in range(0, len(extents), PARALLEL):
            some = extents[start : start + PARALLEL]
            found = await asyncio.gather(
                *(read_again(session, extent, self._report_damage) for extent in some)
            )
            # As with any other read: what was taken away meanwhile is not ours to deliver.
            self._check()
            session.take_assignment()
            for extent, rows in zip(some, found, strict=True):
                deliveries += rows if session.cursor.has_open(extent.key) else []
        return ConsumerRecordsAnswer(
            format=session.view.consumer.format, deliveries=tuple(deliveries)
        )

    # -- one look at all partitions --------------------------------------------------------------

    async def _look(self, *, is_first: bool) -> _Round:
        """Read what there is.

        Only the first look confirms that there is no more: nothing that was acknowledged before the call may be missing
        in its answer. What comes later wakes the call.
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
        # What was taken away meanwhile is not ours to deliver, nor anything that another node may deliver now.
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
        """Deliver what there is room for, up to what is not whole; if that comes first, the call may fail with it."""
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
        """Until there is news: a record, another assignment, another call of this consumer."""
        cursor = self._session.cursor
        for key in cursor:
            position = cursor.position(key)
            if position is not None and key not in looked.failed:
                self._ends.watch(waiter, key, position)
        if looked.failed:
            left_ms = min(left_ms, self._retry_ms)
            self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)
        else:
            self._retry_ms = RETRY_MS
        await waiter.wait(left_ms)

    def _delivered(self) -> ConsumerRecordsAnswer:
        self._session.cursor.on_answered(self._answer.extents)
        return ConsumerRecordsAnswer(
            format=self._session.view.consumer.format, deliveries=tuple(self._answer.deliveries)
        )


class ArrivalCheck:
    """Whether the last answer to a consumer has reached its client: the node that carried it is asked."""

    def __init__(self, node_id: int, peer: Peers) -> None:
        self._node_id = node_id
        self._peer = peer

    async def prove(self, session: ConsumerSession, asker: int | None) -> None:
        """Find out whether the last answer has arrived, now that its client is back on the node ``asker``.

        It has if the client asks on the same node: that is alive, and says so when a client hangs up. Another node may
        have ended with the answer in its hands; then the client is given those records again.
        """
        call_id = session.cursor.unproven
        if not call_id or session.under_way == call_id:
            return
        node_id = node_of(call_id)
        has_returned = node_id in (self._node_id, asker)
        if node_id is not None and not has_returned:
            try:
                answer = await ask(
                    self._peer,
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
