"""Fetch (1): records of partitions that this node leads, or follows.

A follower serves what lies below its own high watermark (KIP-392). If a client names its rack, the leader sends it to a
replica there.

A fetch waits at the ends of all its partitions at once, until there is enough to send or its time is up. A session
(``node.kafka.fetch_sessions``) says which partitions an incremental fetch has.
"""

import asyncio
from typing import NamedTuple

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import MilenaError, ReplicaDamagedError
from milena.model.requests import Doubt, FetchRequest
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.leading import (
    addresses_of,
    followed_here,
    leader_of,
    led_here,
    nearer_replica,
    taken_over,
)
from node.kafka.batches import sent
from node.kafka.fetch_sessions import FetchTopic
from node.kafka.rights import needs
from node.kafka.wire.fetch import (
    IDS_FROM,
    LEADERS_FROM,
    PREFERRED_FROM,
    FetchedPartition,
    RecordsRow,
    WireFetch,
    decode_request,
    encode_response,
)
from node.replica.runner import PartitionRunner, ReplicaRole
from raft_meta.machine.image import Topic

REQUEST_BYTES_MAX = 1 << 20


class EndsWait:
    """A wait at the ends of several partitions. Belongs to the data loop.

    It ends when records of ``bytes_min`` bytes have arrived, or a partition changes its role.
    """

    def __init__(self, bytes_min: int, *, is_uncommitted: bool) -> None:
        self._bytes_min = bytes_min
        self._is_uncommitted = is_uncommitted
        self.has_ended = False
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends: dict[PartitionRunner, tuple[int, int, int, ReplicaRole]] = {}
        """The offset at which each partition is waited at; its leader epoch, bytes and role at the start."""

    def add(self, runner: PartitionRunner, offset: int) -> None:
        """Wait for records of a partition at or above ``offset``, too."""
        self._ends[runner] = (offset, runner.leader_epoch, _bytes_in(runner), runner.role)
        runner.watchers[self] = None
        if runner.readable_end(is_uncommitted=self._is_uncommitted) > offset:
            # They arrived between the read and this call, so they are in no count.
            self._wake()

    def on_news(self, runner: PartitionRunner) -> None:
        """Take note that the log or its end moved, or the role changed."""
        offset, leader_epoch, _, role = self._ends[runner]
        if runner.is_closed or runner.role is not role or runner.leader_epoch != leader_epoch:
            self._wake()
            return
        is_more = runner.readable_end(is_uncommitted=self._is_uncommitted) > offset
        if is_more and (self._bytes_min <= 1 or self._arrived() >= self._bytes_min):
            self._wake()

    def _arrived(self) -> int:
        return sum(
            _bytes_in(runner) - before
            for runner, (offset, _, before, _) in self._ends.items()
            if runner.readable_end(is_uncommitted=self._is_uncommitted) > offset
        )

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def end(self) -> None:
        """Stop waiting for good: the node stops."""
        self.has_ended = True
        self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Wait until woken, or until the timeout passes."""
        await asyncio.wait([self._woken], timeout=timeout_s)

    def close(self) -> None:
        """Stop waiting at all partitions."""
        for runner in self._ends:
            runner.watchers.pop(self, None)


def _bytes_in(runner: PartitionRunner) -> int:
    return runner.counts.bytes_in + runner.counts.replicated_bytes_in


class _Read(NamedTuple):
    """One partition that was read. ``next_offset``: where the next read of it starts."""

    row: RecordsRow
    size: int
    runner: PartitionRunner | None
    next_offset: int


def _code_of(error: MilenaError) -> int:
    """Return the code of an error in a Fetch.

    Kafka's own consumer raises an IllegalStateException at a code that it does not expect in a Fetch, such as
    LEADER_NOT_AVAILABLE. After these codes, it and librdkafka ask for the leader and fetch again.
    Source: Kafka's ``FetchCollector.handleInitializeErrors``.
    """
    if isinstance(error, ReplicaDamagedError):
        return KafkaCode.KAFKA_STORAGE_ERROR
    code = kafka_code_of(error)
    is_passing = code in {KafkaCode.LEADER_NOT_AVAILABLE, KafkaCode.REQUEST_TIMED_OUT}
    return KafkaCode.OFFSET_NOT_AVAILABLE if is_passing else code


class _FetchRound:
    """One look at all partitions of a request."""

    def __init__(self, services: KafkaServices, call: KafkaCall, request: WireFetch) -> None:
        self._services = services
        self._call = call
        self._request = request
        most = services.limits.fetch_bytes_max
        if call.quota is not None:
            most = call.quota.fetch_bytes_max(most)
        self._left = min(max(0, request.bytes_max), most)
        self.size = 0
        self.has_errors = False
        self.has_moves = False
        """Whether a partition's row says where to read it instead."""
        self.reads: list[_Read] = []
        self.topics: list[tuple[str, bytes, list[RecordsRow]]] = []

    async def look(self) -> None:
        """Read all partitions, up to the size that the client takes."""
        image = self._services.metadata.image
        for name, topic_id, partitions in self._request.topics:
            has_id = self._call.version >= IDS_FROM
            topic = image.topics.get(topic_id.hex()) if has_id else image.topic(name)
            code = self._forbidden(topic, name, has_id=has_id)
            if code:
                reads = [self._refused(None, part, code) for part in partitions]
            else:
                reads = [await self._read(topic, part) for part in partitions]
            self.reads += reads
            self.topics.append((name, topic_id, [read.row for read in reads]))

    def _forbidden(self, topic: Topic | None, name: str, *, has_id: bool) -> KafkaCode:
        """Return the code if the client may not read a topic; NONE: it may, or there is no topic of this id."""
        rights = self._call.rights
        if has_id:
            if topic is None:
                return KafkaCode.NONE
            name = topic.name
            if not rights.seen(ResourceType.TOPIC)(name):
                # As if there were none.
                return KafkaCode.UNKNOWN_TOPIC_ID
        may = rights.permits(Operation.READ, ResourceType.TOPIC, name)
        return KafkaCode.NONE if may else KafkaCode.TOPIC_AUTHORIZATION_FAILED

    async def _read(self, topic: Topic | None, part: FetchedPartition) -> _Read:
        runner = self._replica(topic, part)
        if runner is KafkaCode.NOT_LEADER_OR_FOLLOWER:
            await taken_over(self._services, self._call, topic, part.partition)
            runner = self._replica(topic, part)
        by_id = self._call.version >= IDS_FROM
        if isinstance(runner, KafkaCode):
            is_unknown = by_id and topic is None
            return self._refused(topic, part, KafkaCode.UNKNOWN_TOPIC_ID if is_unknown else runner)
        assert topic is not None, "a replica was found by its topic"
        unread = self._unread(topic, runner, part)
        if unread is not None:
            return unread
        try:
            result = await self._services.reads.fetch(
                FetchRequest(
                    topic=runner.topic,
                    partition=part.partition,
                    offset=part.offset,
                    timestamp_ms=None,
                    max_bytes=max(1, min(part.bytes_max, self._left)),
                    timeout_ms=0,
                    is_local=runner.leader is None,
                    is_uncommitted=self._request.is_uncommitted,
                    # An empty response promises nothing, as in Kafka. "Out of range" makes a client jump, so the
                    # quorum must confirm that this node still leads.
                    is_unconfirmed=part.offset <= runner.log.log_end_offset,
                    # The name may belong to another topic by now.
                    topic_tag=topic.topic_id if by_id else "",
                )
            )
            pieces, damaged_at = await sent(result)
            if damaged_at is not None:
                doubt = Doubt(
                    topic=runner.topic,
                    partition=part.partition,
                    offset=damaged_at,
                    broker_id=result.broker_id,
                )
                await self._services.reads.doubt(doubt)
                if not pieces:
                    raise doubt.error
        except MilenaError as error:
            is_gone = by_id and topic.topic_id not in self._services.metadata.image.topics
            return self._refused(
                topic, part, KafkaCode.UNKNOWN_TOPIC_ID if is_gone else _code_of(error)
            )
        size = sum(map(len, pieces))
        if self.size and size > self._left:
            return self._without_records(runner, part)
        self.size += size
        self._left -= size
        stable = result.last_stable_offset
        row = RecordsRow(
            part.partition,
            KafkaCode.NONE,
            high_watermark=result.high_watermark,
            last_stable_offset=result.high_watermark if stable is None else stable,
            log_start_offset=result.log_start_offset,
            pieces=pieces,
        )
        return _Read(row, size, runner, max(part.offset, result.readable_end))

    def _replica(self, topic: Topic | None, part: FetchedPartition) -> PartitionRunner | KafkaCode:
        runner = led_here(self._services, topic, part.partition, part.leader_epoch)
        may_follow = self._call.version >= PREFERRED_FROM
        if runner is KafkaCode.NOT_LEADER_OR_FOLLOWER and may_follow and topic is not None:
            return followed_here(self._services, topic, part.partition, part.leader_epoch)
        return runner

    def _unread(
        self, topic: Topic | None, runner: PartitionRunner, part: FetchedPartition
    ) -> _Read | None:
        """Return what a partition gets without a read; None: it must be read."""
        if part.offset < 0:
            return self._refused(topic, part, KafkaCode.OFFSET_OUT_OF_RANGE)
        if runner.leader is None and part.offset > runner.high_watermark:
            if part.offset > runner.log.log_end_offset:
                # Only the leader can say whether there is such an offset. Clients ask it next.
                return self._refused(topic, part, KafkaCode.OFFSET_OUT_OF_RANGE)
            # It is not known here yet that the record is committed. That is a matter of milliseconds, so wait for it.
            return self._without_records(runner, part, KafkaCode.OFFSET_NOT_AVAILABLE)
        rack = self._request.rack
        nearer = nearer_replica(self._services, self._call, runner, rack, part.offset)
        if nearer is not None:
            self.has_moves = True
            return self._without_records(runner, part, preferred=nearer)
        is_at_end = part.offset == runner.readable_end(is_uncommitted=self._request.is_uncommitted)
        if (is_at_end and not runner.is_damaged) or (self.size and self._left <= 0):
            return self._without_records(runner, part)
        return None

    def _without_records(
        self,
        runner: PartitionRunner,
        part: FetchedPartition,
        code: KafkaCode = KafkaCode.NONE,
        *,
        preferred: int = -1,
    ) -> _Read:
        """Return a partition without records: the client has them all, or the response is full."""
        row = RecordsRow(
            part.partition,
            code,
            high_watermark=runner.high_watermark,
            last_stable_offset=runner.stable_end,
            log_start_offset=runner.log.log_start_offset,
            preferred=preferred,
        )
        return _Read(row, 0, runner, part.offset)

    def _refused(self, topic: Topic | None, part: FetchedPartition, code: int) -> _Read:
        self.has_errors = True
        self._call.note(code)
        has_moved = code == KafkaCode.NOT_LEADER_OR_FOLLOWER and self._call.version >= LEADERS_FROM
        leader = leader_of(self._services, topic, part.partition) if has_moved else None
        return _Read(RecordsRow(part.partition, code, leader=leader), 0, None, part.offset)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until there is more to read than this round has found; return whether the client may wait on."""
        request = self._request
        missing = max(1, min(request.bytes_min, self._services.limits.fetch_bytes_max) - self.size)
        waiting = EndsWait(missing, is_uncommitted=request.is_uncommitted)
        try:
            for read in self.reads:
                if read.runner is not None:
                    waiting.add(read.runner, read.next_offset)
            self._services.polls[waiting] = None
            await waiting.wait(timeout_s)
        finally:
            self._services.polls.pop(waiting, None)
            waiting.close()
        return not waiting.has_ended


def _each_once(topics: list[FetchTopic]) -> list[FetchTopic]:
    """Return the partitions of a request. One that is there several times has its first place and its last offset."""
    if len(topics) == len({(name, topic_id) for name, topic_id, _ in topics}) and all(
        len(parts) == 1 or len(parts) == len({part.partition for part in parts})
        for _, _, parts in topics
    ):
        return topics
    last: dict[tuple[str, bytes], dict[int, FetchedPartition]] = {}
    for name, topic_id, parts in topics:
        last.setdefault((name, topic_id), {}).update((part.partition, part) for part in parts)
    return [(name, topic_id, list(parts.values())) for (name, topic_id), parts in last.items()]


@serves(
    1,
    "Fetch",
    versions=(4, 18),
    access=needs("READ TOPIC"),
    is_cold=False,
    bytes_max=REQUEST_BYTES_MAX,
)
async def _fetch(services: KafkaServices, call: KafkaCall) -> Body:
    request = decode_request(call.reader, call.version)
    request = request._replace(topics=_each_once(request.topics))
    plan = services.fetch_sessions.plan(
        request,
        has_ids=call.version >= IDS_FROM,
        owner=(f"{call.rights.known_principal} {call.host}", call.client_id),
        now_ms=services.clock.now_ms(),
        # An incremental fetch need not name a partition. So behind a shared address, no node could tell its leader.
        may_open=not call.address.is_shared,
    )
    if isinstance(plan, KafkaCode):
        return encode_response(call.version, [], leaders=[], error_code=call.note(plan))
    request = request._replace(topics=plan.topics)
    loop = asyncio.get_running_loop()
    wait_ms = min(max(0, request.wait_ms), services.limits.fetch_wait_ms_max)
    deadline_s = loop.time() + wait_ms / 1000
    while True:
        found = _FetchRound(services, call, request)
        await found.look()
        left_s = deadline_s - loop.time()
        is_due = found.has_errors or found.has_moves or not found.reads
        is_enough = found.size >= request.bytes_min or is_due
        if is_enough or left_s <= 0:
            rows = [row for _, _, rows in found.topics for row in rows]
            for row in rows:
                call.note(row.error_code)
            topics = plan.told(found.topics)
            if call.quota is not None:
                call.quota.charge_fetched(found.size)
            leaders = [row.leader for _, _, rows in topics for row in rows]
            return encode_response(
                call.version,
                topics,
                leaders=addresses_of(services, call, leaders),
                session_id=plan.session_id,
                throttle_ms=call.throttle_ms,
            )
        if not await found.wait(left_s):
            deadline_s = loop.time()


APIS = (_fetch,)
