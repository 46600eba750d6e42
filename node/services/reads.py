"""Fetch on any node: from the local replica if it can serve the call, else from another one.

Any replica serves records below its own high watermark (KIP-392). A committed reader gets only those below the last
stable offset that belong to no aborted transaction. Some requests depend on the true end of the log: "latest", offsets
out of range, timestamps. Only the leader judges these, once it has made sure that it still leads (``log_ends``).

A response also says where the log ends, unless a bound on its size cut it short. So what was acknowledged before a
reader asked is in the response of every node:

- If a follower's response would end at its own high watermark, it asks the leader for the leader's and adopts it.
  Records acknowledged with acks=all are then in the log of every in-sync follower. A follower that is behind passes the
  read on.
- A response without records counts only if the quorum says afterwards that the same leader still led.
- A reader that waits costs one question to the leader at the start, and one to the quorum if it has waited in vain.

``replica=local`` and ``is_unconfirmed`` give this up. If the leader or the quorum cannot be asked, this node serves the
records that it has, from an offset, its first record or a time. It refuses a response without records, because that
would say that there are none. It also refuses "latest" and -N, because only a confirmed leader knows the end.

Stored bytes are sent as they are. A component that decodes them reports bytes that are not whole. The node that sent
the copy then checks it (``node.replica.scrubber``), as it does when a follower reports damage.

One call crosses the peer port: ``read``, with ``topic`` (id), ``partition``, ``offset``, ``timestamp``, ``max_bytes``,
``timeout_ms`` and ``epoch`` (the leader's, or -1).

- With ``bad``, it reads nothing and reports that what was sent from ``offset`` on was not whole. A node of an earlier
  release takes it for a read.
- With ``unconfirmed`` and ``latest``, it is a follower's question for the leader's high watermark.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from milena.disk.files import Buffer
from milena.model.batch.header import decode_header
from milena.model.errors import (
    CorruptLogError,
    FateUnknownError,
    InternalError,
    MalformedRequestError,
    MilenaError,
    NoLeaderError,
    NoQuorumError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ReplicaDamagedError,
    ReplicaNotFoundError,
    UnavailableError,
)
from milena.model.requests import Doubt, FetchRequest, FetchResult, PartitionOffsets
from milena.model.turns import one_turn
from node.config.budgets import READ_ANSWER_MARGIN_MS, READ_LEADER_WAIT_MS
from node.context import NodeContext
from node.metadata.leaderships import Leaderships
from node.metadata.lookup import GetTopic, check_partition
from node.peers.codec import Fields
from node.peers.messages import ask_with_body, pack, unpack
from node.peers.port import PeerUnreachableError
from node.replica.runner import PartitionRunner
from node.services.last_records import READ_BYTES_MAX, LastRecords
from node.services.log_ends import LeaderEnds, LogEnds, MovedError
from node.services.messages import READ, ReadAnswer, ReadRequest
from raft_meta.machine.image import Topic
from storage.log.reader import end_of_span, first_with_records, tally_span, without_aborted

logger = logging.getLogger(__name__)

DOUBT_MS_MAX = 1_000
"""How long a reader waits for another node to be told of the damage in its copy."""

LEADER_END_MS = 1_000
"""How long a follower waits for the high watermark of its leader."""

MOVES_MAX = 3
"""Changes of leader that one request follows before it gives up."""

DATED_BATCHES_MAX = 16
"""Batches that are read to find the date of the next record."""

PASSED_OVER_BYTES = 1 << 20
"""Bytes read at a time to pass over batches without records."""

COLD_READS_MAX = 1
"""Client reads that may wait for the disk at the same time; others queue. A read takes the disk from the syncs that
writers wait for. It takes the processor from clients that read and write at the end of the log. With two reads at once,
beside four readers, an acknowledgement took seven times as long as alone; with one read, four times. Each reads
ahead."""

COLD_REST_S_MAX = 0.05
"""The longest rest of the disk after a cold read. If writers' syncs were done during the read, the disk rests as long
as the read took, up to this: half of the disk belongs to writers."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """Stored batches of this copy, up to ``end`` at the most. ``has_records``: at least one is for the reader."""

    data: bytes
    end: int
    has_records: bool


class _BehindError(Exception):
    """The leader has more than this copy, or must judge the offset: ask the leader. Never leaves the node."""

    def __init__(self, message: str, found: FetchResult | None) -> None:
        """Create the error. ``found`` has the records of this copy, if there are any."""
        super().__init__(message)
        self.message = message
        self.found = found


class ReadService:
    """Implements ``http_api.ports.node.ReadsPort``."""

    def __init__(self, node: NodeContext, *, topic_to_read: GetTopic) -> None:
        self._standing = node.membership
        self._counts = node.counts
        self._metadata = node.metadata
        self._replicas = node.replicas
        self._peer = node.peers
        self._topic_to_read = topic_to_read
        self._ends = LogEnds(node.metadata)
        self._leader_ends = LeaderEnds(self._ask_leader_end)
        self._leaderships = Leaderships(node.metadata)
        self._disk = asyncio.Semaphore(COLD_READS_MAX)
        self._telling: set[tuple[int, str, int]] = set()
        """Broker and partition that are being told of damage; each is told once at a time."""

    @property
    def _node_id(self) -> int:
        return self._metadata.node_id

    def fetch_at_once(self, request: FetchRequest) -> FetchResult | None:
        """Return records of this copy if they are in memory and no other node has to be asked; else None."""
        runner, offset = self._at_hand(request), request.offset
        if runner is None or not isinstance(offset, int) or request.wants_records_end:
            return None
        log, is_uncommitted = runner.log, request.is_uncommitted
        end = runner.readable_end(is_uncommitted=is_uncommitted)
        has_aborted = not is_uncommitted and bool(log.writers.transactions.aborted)
        if has_aborted or not log.log_start_offset <= offset < end:
            return None
        try:
            data = runner.read_cached(offset, max_bytes=request.max_bytes, end_offset=end)
            if not data or first_with_records(data, offset, end) is None:
                return None
        except MilenaError:
            # ``fetch`` finds the same error, and knows what to do.
            return None
        is_following = runner.leader is None and not request.is_local
        if is_following and tally_span(data, offset, end)[1] >= end:
            # The leader may have more.
            return None
        return self._result(runner, request, offset, _Looked(data, end, has_records=True))

    def _at_hand(self, request: FetchRequest) -> PartitionRunner | None:
        """Return the local replica for a plain request, if it is sound and in the epoch of the image; else None."""
        image = self._metadata.image
        topic = image.topic(request.topic)
        if topic is None or not topic.topic_id.startswith(request.topic_tag):
            return None
        if not _is_plain(request):
            return None
        state = image.partition(topic.topic_id, request.partition)
        runner = self._replicas.find(topic.topic_id, request.partition)
        if state is None or runner is None or runner.is_damaged:
            return None
        return runner if runner.leader_epoch >= state.leader_epoch else None

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read records: here if this replica can serve them, else at the leader."""
        moves = 0
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + request.timeout_ms / 1000
        while True:
            try:
                return await self._fetch(request)
            except MovedError as moved:
                moves += 1
                if moves > MOVES_MAX:
                    raise NotLeaderError(moved.message) from moved
                left_ms = max(0, int((deadline_s - clock()) * 1000))
                request = replace(request, timeout_ms=left_ms)

    async def _fetch(self, request: FetchRequest) -> FetchResult:
        # Check the id before the wait. An offset of a former topic may be the end of the present one, and the reader
        # would wait there.
        topic = await self._topic_to_read(request.topic, request.partition, request.topic_tag)
        check_partition(topic, request.partition)
        runner = self._replicas.find(topic.topic_id, request.partition)
        if request.is_local:
            if runner is None:
                raise ReplicaNotFoundError(
                    f"node {self._node_id} holds no replica of {topic.name}-{request.partition}"
                )
            return await self._fetch_here(runner, request)
        state = self._metadata.image.partition(topic.topic_id, request.partition)
        if state is not None and state.leader == self._node_id:
            runner = await self._replicas.leading(
                topic.topic_id,
                request.partition,
                state.leader_epoch,
                timeout_ms=READ_LEADER_WAIT_MS,
            )
        damaged: ReplicaDamagedError | None = None
        if runner is not None and self._can_serve(runner, request):
            try:
                return await self._fetch_here(runner, request)
            except ReplicaDamagedError as error:
                # The damage was found while the reader waited, or by its read. Another replica has the records.
                damaged = error
            except _BehindError as behind:
                try:
                    return await self._fetch_there(topic, request, None)
                except (UnavailableError, FateUnknownError, NotLeaderError):
                    if behind.found is None:
                        raise
                    return behind.found
        if runner is None or damaged is not None:
            return await self._fetch_there(topic, request, damaged)
        return await self._fetch_there_or_own(topic, runner, request)

    async def _fetch_there_or_own(
        self, topic: Topic, runner: PartitionRunner, request: FetchRequest
    ) -> FetchResult:
        """Ask the leader for a start that this copy may not judge. If it cannot be asked, serve what this copy has."""
        try:
            return await self._fetch_there(topic, request, None)
        except (UnavailableError, FateUnknownError, NotLeaderError):
            found = await self._fetch_own(runner, request)
            if found is None:
                raise
            return found

    async def _fetch_own(
        self, runner: PartitionRunner, request: FetchRequest
    ) -> FetchResult | None:
        """Read this copy, because the leader cannot be asked for the start that the request means.

        None: this copy does not know the start, or has no records from there on.
        """
        if runner.is_damaged or _is_plain(request):
            return None
        try:
            offset, is_by_end = await self._resolve(runner, request)
            if is_by_end:
                return None
            # The leader had the time to wait for records.
            plain = replace(request, offset=offset, timestamp_ms=None, timeout_ms=0)
            return await self._fetch_here(runner, plain)
        except _BehindError as behind:
            return behind.found
        except CorruptLogError as error:
            runner.on_doubt(error.offset)
        except MilenaError as error:
            logger.debug("nothing to serve of %s: %s", runner.name, error)
        return None

    def _can_serve(self, runner: PartitionRunner, request: FetchRequest) -> bool:
        """Return whether this replica may respond: a leader to anything, a follower to offsets in its log."""
        if runner.is_damaged:
            return False
        if runner.leader is not None:
            return True
        if request.timestamp_ms is not None or not isinstance(request.offset, int):
            return False
        # Up to the copy's log end the offset exists, or will. Beyond that, only the leader may judge.
        return runner.log.log_start_offset <= request.offset <= runner.log.log_end_offset

    async def _fetch_here(self, runner: PartitionRunner, request: FetchRequest) -> FetchResult:
        """Read this copy.

        Raises:
            ReplicaDamagedError: the copy is damaged, perhaps only at the place of the read.
            MovedError: another broker leads.
            _BehindError: the leader has to be asked.
        """
        runner.check_readable()
        offset: int | None = None
        try:
            offset, is_confirmed = await self._place(runner, request)
            if runner.leader is None and not request.is_local:
                return await self._fetch_following(runner, offset, request)
            leader_epoch = runner.leader_epoch
            looked = await self._look(runner, offset, request, request.timeout_ms)
            is_answer = looked.has_records or is_confirmed or request.is_local
            if not (is_answer or request.is_unconfirmed):
                self._end_of(runner, request)
                await self._ends.confirm(runner, leader_epoch)
            end = await self.records_end(runner) if request.wants_records_end else None
            return replace(self._result(runner, request, offset, looked), records_end=end)
        except CorruptLogError as error:
            place = offset if error.offset is None else error.offset
            runner.on_doubt(place)
            logger.debug("cannot read partition=%s: %s", runner.name, error)
            if place is None:
                raise ReplicaDamagedError(
                    f"{runner.name}: node {self._node_id} cannot read its copy, which is checked now; "
                    "try again in a few seconds"
                ) from error
            doubt = Doubt(
                topic=runner.topic,
                partition=runner.partition,
                offset=place,
                broker_id=self._node_id,
            )
            raise doubt.error from error

    async def _fetch_following(
        self, runner: PartitionRunner, offset: int, request: FetchRequest
    ) -> FetchResult:
        """Read this copy as a follower. The response has all that the leader had acknowledged when this was called.

        Raises:
            MovedError: another broker leads.
            _BehindError: the leader has to be asked.
            MilenaError: this copy has no records, and it is not known whether there are more.
        """
        leader_id, leader_epoch = runner.leader_id, runner.leader_epoch
        looked = await self._look(runner, offset, request, 0)
        if looked.has_records and tally_span(looked.data, offset, looked.end)[1] < looked.end:
            # The size limit ends the response, and the reader continues there. So nothing is said about the end of the
            # log.
            return self._result(runner, request, offset, looked)
        looked, unknown = await self._look_further(runner, offset, request, looked)
        if not looked.has_records and request.timeout_ms > 0:
            looked = await self._look(runner, offset, request, request.timeout_ms)
            if unknown is not None and not looked.has_records:
                # The leader may answer by now.
                looked, unknown = await self._look_further(runner, offset, request, looked)
        if runner.leader is not None or runner.leader_epoch != leader_epoch:
            raise MovedError(f"node {leader_id} does not lead {runner.name} any more")
        if isinstance(unknown, NotLeaderError) and looked.has_records:
            await self._check_refusal(runner, leader_id)
        elif not (looked.has_records or request.is_unconfirmed):
            await self._check_end(runner, leader_id, unknown)
        return self._result(runner, request, offset, looked)

    async def _look_further(
        self, runner: PartitionRunner, offset: int, request: FetchRequest, looked: _Looked
    ) -> tuple[_Looked, MilenaError | None]:
        """Read up to the leader's high watermark; also return the reason if that is not known.

        Raises:
            _BehindError: the leader has to be asked for the records.
        """
        end = await self._leader_ends.high_watermark(runner)
        if isinstance(end, MilenaError):
            return looked, end
        if runner.readable_end(is_uncommitted=request.is_uncommitted) > looked.end:
            looked = await self._look(runner, offset, request, 0)
        if runner.leader is None and (end > runner.high_watermark or offset > end):
            found = self._result(runner, request, offset, looked) if looked.has_records else None
            raise _BehindError(f"{runner.name}: its leader ends at {end}", found)
        return looked, None

    async def _check_refusal(self, runner: PartitionRunner, leader_id: int | None) -> None:
        """Make sure that the records of this copy still count, because the broker said that it does not lead them.

        The topic may have been deleted and created again, and this node's image does not show that yet. If no majority
        can be asked, they count: a node that is cut off serves the records that it has.

        Raises:
            MovedError: that broker does not lead the partition, or there is no such topic any more.
        """
        assert leader_id is not None, "it has answered"
        with suppress(NoQuorumError):
            key = (runner.topic_id, runner.partition)
            await self._ends.check(key, leader_id, runner.leader_epoch)

    async def _check_end(
        self, runner: PartitionRunner, leader_id: int | None, unknown: MilenaError | None
    ) -> None:
        """Make sure that there is no more: the leader said so (``unknown`` None), and it led.

        Raises:
            MovedError: that broker did not lead.
            MilenaError: it is not known whether there is more.
        """
        if unknown is None or isinstance(unknown, NotLeaderError):
            key = (runner.topic_id, runner.partition)
            assert leader_id is not None, "a leader has answered"
            await self._ends.check(key, leader_id, runner.leader_epoch)
        if isinstance(unknown, FateUnknownError | PeerUnreachableError):
            raise NoLeaderError(f"{runner.name}: {unknown.message}") from unknown
        if unknown is not None:
            raise unknown

    async def _ask_leader_end(self, runner: PartitionRunner) -> int:
        """Return the high watermark of the leader that this replica follows, and adopt it here.

        Raises:
            MilenaError: it is not known.
        """
        leader_id, leader_epoch = runner.leader_id, runner.leader_epoch
        if leader_id is None or leader_id == self._node_id:
            raise NoLeaderError(f"{runner.name} has no leader")
        question = ReadRequest(
            topic_id=runner.topic_id,
            partition=runner.partition,
            offset="latest",
            timestamp_ms=None,
            max_bytes=1,
            timeout_ms=0,
            leader_epoch=leader_epoch,
            is_uncommitted=True,
            is_unconfirmed=True,
        )
        key = (runner.topic_id, runner.partition)
        async with self._leaderships.held(key, leader_id, leader_epoch):
            answer, _ = await ask_with_body(
                self._peer, leader_id, READ, question, timeout_ms=LEADER_END_MS
            )
        if answer.leader_epoch != leader_epoch:
            raise NotLeaderError(f"node {leader_id} leads {runner.name} in another epoch")
        # For a reader of uncommitted records, as this one is, reading ends at the high watermark.
        end = answer.readable_end
        runner.adopt_leader_end(leader_epoch=leader_epoch, high_watermark=end)
        return end

    async def _look(
        self, runner: PartitionRunner, offset: int, request: FetchRequest, timeout_ms: int
    ) -> _Looked:
        """Read this copy up to its own end. Wait there up to ``timeout_ms`` for a record."""
        is_uncommitted = request.is_uncommitted
        await runner.wait_readable(offset, timeout_ms, is_uncommitted=is_uncommitted)
        # The copy may have been found damaged meanwhile. It then ends before the damage.
        runner.check_readable()
        end = runner.readable_end(is_uncommitted=is_uncommitted)
        if offset >= end:
            return _Looked(b"", end, has_records=False)
        runner.check_offset(offset, has_lease=True)
        data = await self._read(runner, offset, request.max_bytes, end, is_uncommitted)
        if data and first_with_records(data, offset, end) is None:
            return await self._pass_over(runner, data, request, timeout_ms)
        return _Looked(data, end, has_records=bool(data))

    def _result(
        self, runner: PartitionRunner, request: FetchRequest, offset: int, looked: _Looked
    ) -> FetchResult:
        if looked.data:
            runner.counts.records_out += tally_span(looked.data, offset, looked.end)[0]
            runner.counts.bytes_out += len(looked.data)
        # Reading ended at one of the two ends. The other end may have moved since.
        is_uncommitted = request.is_uncommitted
        high_watermark = looked.end if is_uncommitted else max(looked.end, runner.high_watermark)
        return FetchResult(
            start_offset=offset,
            high_watermark=high_watermark,
            last_stable_offset=min(looked.end, runner.stable_end) if is_uncommitted else looked.end,
            is_uncommitted=is_uncommitted,
            log_start_offset=runner.log.log_start_offset,
            leader_epoch=runner.leader_epoch,
            batches=looked.data,
            broker_id=self._node_id,
            topic_id=runner.topic_id,
        )

    async def _read(
        self,
        runner: PartitionRunner,
        offset: int,
        max_bytes: int,
        end_offset: int,
        is_uncommitted: bool,
    ) -> bytes:
        """Return whole batches below ``end_offset``.

        Those of aborted transactions are empty unless ``is_uncommitted``.
        """
        # Take the aborted transactions first: retention may forget one during the read, and its records are still in
        # the data.
        aborted = runner.log.writers.transactions.aborted
        data = await self._read_stored(runner, offset, max_bytes, end_offset)
        return without_aborted(data, aborted) if aborted and not is_uncommitted else data

    async def _read_stored(
        self, runner: PartitionRunner, offset: int, max_bytes: int, end_offset: int
    ) -> bytes:
        """Return bytes from memory at once, or from the disk, in turn with other cold reads."""
        found = runner.read_cached(offset, max_bytes=max_bytes, end_offset=end_offset)
        if found is not None:
            return found
        await self._disk.acquire()
        loop = asyncio.get_running_loop()
        # A thread continues to read when its client hangs up. It counts as a cold read until it is done.
        reading = loop.create_task(runner.read(offset, max_bytes=max_bytes, end_offset=end_offset))
        reading.add_done_callback(partial(self._on_read, loop.time(), self._counts.syncs))
        return await asyncio.shield(reading)

    def _on_read(self, began_s: float, syncs_before: int, reading: "asyncio.Task[bytes]") -> None:
        if self._counts.syncs == syncs_before:
            self._disk.release()
        else:
            loop = asyncio.get_running_loop()
            rest_s = min(loop.time() - began_s, COLD_REST_S_MAX)
            loop.call_later(rest_s, self._disk.release)
        if not reading.cancelled():
            # The client that waited may be gone. Read the exception, or asyncio logs it as never retrieved.
            reading.exception()

    async def _pass_over(
        self, runner: PartitionRunner, barren: bytes, request: FetchRequest, timeout_ms: int
    ) -> _Looked:
        """Return the batches from the next one with records on; compaction has left none in ``barren``.

        Otherwise a reader that continues behind its last record would get an empty response each time. If no record
        arrives in time, return what was read last: it says how far there are none.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            offset = end_of_span(barren)
            await runner.wait_readable(
                offset,
                int((deadline - loop.time()) * 1000),
                is_uncommitted=request.is_uncommitted,
            )
            end = runner.readable_end(is_uncommitted=request.is_uncommitted)
            if offset >= end:
                return _Looked(barren, end, has_records=False)
            data = await self._read(runner, offset, PASSED_OVER_BYTES, end, request.is_uncommitted)
            found = first_with_records(data, offset, end)
            if found is not None:
                start = max(found, offset)
                data = await self._read(
                    runner, start, request.max_bytes, end, request.is_uncommitted
                )
                return _Looked(data, end, has_records=True)
            barren = data
            # An aborted transaction may be large, and reads from memory give no turn to other work.
            await one_turn()

    async def _place(self, runner: PartitionRunner, request: FetchRequest) -> tuple[int, bool]:
        """Return the offset that the request means, and whether the quorum has confirmed the leader.

        If the offset depends on where the log ends, the quorum has confirmed it: the end is not that of a former
        leader.

        Raises:
            MovedError: another broker leads.
        """
        leader_epoch = runner.leader_epoch
        offset, is_by_end = await self._resolve(runner, request)
        if offset < 0:
            offset = await self._last(runner, request, -offset)
        try:
            runner.check_offset(offset, has_lease=self._standing.has_lease)
        except OffsetOutOfRangeError:
            if offset < runner.log.log_start_offset:
                raise
            is_by_end = True
        if is_by_end and not request.is_unconfirmed:
            await self._ends.confirm(runner, leader_epoch)
            runner.check_offset(offset, has_lease=self._standing.has_lease)
        return offset, is_by_end

    async def _resolve(self, runner: PartitionRunner, request: FetchRequest) -> tuple[int, bool]:
        """Return the offset that the request means, and whether that depends on where the log ends.

        -N is returned unchanged: it counts records from the end.
        """
        if request.timestamp_ms is not None:
            found = await runner.record_at_time(
                request.timestamp_ms, is_uncommitted=request.is_uncommitted
            )
            end = runner.readable_end(is_uncommitted=request.is_uncommitted)
            if found is not None and found[0] < end:
                return found[0], False
            return self._end_of(runner, request), True
        offset = request.offset
        if isinstance(offset, int):
            return offset, offset < 0
        if offset == "earliest":
            return runner.log.log_start_offset, False
        if offset == "latest":
            return self._end_of(runner, request), True
        raise MalformedRequestError(f"offset {offset!r}: give a number, earliest or latest")

    async def _last(self, runner: PartitionRunner, request: FetchRequest, count: int) -> int:
        """Return where the last ``count`` records begin that the reader may see."""
        end = self._end_of(runner, request)
        search = self._search(runner, end, is_uncommitted=request.is_uncommitted)
        try:
            return await search.find(count)
        except OffsetOutOfRangeError:
            # Retention moved the log start meanwhile.
            return runner.log.log_start_offset

    async def records_end(self, runner: PartitionRunner) -> int:
        """Return one above the last record of this copy that a committed reader sees; the log start without one."""
        log, end = runner.log, runner.stable_end
        state = (log.log_start_offset, end, log.compaction.clean_end)
        known = runner.records_end
        if known is not None and known[0] == state:
            return known[1]
        try:
            found = await self._search(runner, end, is_uncommitted=False).records_end()
        except OffsetOutOfRangeError:
            # Retention moved the log start meanwhile.
            return end
        except CorruptLogError as error:
            # There may be no reader that would report it.
            runner.on_doubt(error.offset)
            raise
        runner.records_end = (state, found)
        return found

    async def appended_ms(self, runner: PartitionRunner, offset: int) -> int | None:
        """Return the wall time at which the first record from ``offset`` on was appended to this copy's log.

        None: there is no record in the next ``DATED_BATCHES_MAX`` batches, or it cannot be read now.
        """
        try:
            for _ in range(DATED_BATCHES_MAX):
                end = runner.stable_end
                span = await self._read_stored(runner, offset, 1, end) if offset < end else b""
                if not span:
                    return None
                header = decode_header(span)
                # Markers have no records, nor have batches whose records compaction removed.
                if header.record_count:
                    return header.append_time_ms
                offset = header.next_offset
        except MilenaError as error:
            if isinstance(error, CorruptLogError):
                runner.on_doubt(offset)
            logger.debug(
                "cannot date the record offset=%d partition=%s: %s", offset, runner.name, error
            )
        return None

    def _search(self, runner: PartitionRunner, end: int, *, is_uncommitted: bool) -> LastRecords:
        async def read(offset: int, before: int) -> bytes:
            return await self._read_stored(runner, offset, READ_BYTES_MAX, before)

        return LastRecords(
            read=read,
            start=runner.log.log_start_offset,
            end=end,
            aborted={} if is_uncommitted else runner.log.writers.transactions.aborted,
        )

    def _end_of(self, runner: PartitionRunner, request: FetchRequest) -> int:
        return runner.established_end(
            has_lease=self._standing.has_lease, is_uncommitted=request.is_uncommitted
        )

    async def _fetch_there(
        self, topic: Topic, request: FetchRequest, damaged: ReplicaDamagedError | None
    ) -> FetchResult:
        """Ask the leader. For a plain offset, ask any other replica if the leader cannot answer.

        ``damaged`` says why this node does not serve its own copy. It is raised if no other node can be asked.
        """
        state = self._metadata.image.partition(topic.topic_id, request.partition)
        if state is None:
            raise NoLeaderError(f"{topic.name}-{request.partition} is not known here yet")
        candidates = [] if state.leader in (None, self._node_id) else [state.leader]
        if _is_plain(request):
            candidates += [b for b in state.replicas if b not in (state.leader, self._node_id)]
        last: MilenaError = damaged or NoLeaderError(
            f"{topic.name}-{request.partition} has no leader"
        )
        for broker_id in candidates:
            try:
                if broker_id != state.leader:
                    return await self._read_at(broker_id, topic, request, -1)
                return await self._read_at_leader(broker_id, topic, request, state.leader_epoch)
            except (UnavailableError, FateUnknownError, NotLeaderError) as error:
                # A copy that ends before the damage refuses, because it does not lead. That says less.
                if not (
                    isinstance(last, ReplicaDamagedError) and isinstance(error, NotLeaderError)
                ):
                    last = error
        if isinstance(last, InternalError):
            raise last
        # A leader that cannot be asked, or whose response was lost, counts as no leader. A read can be repeated safely.
        if isinstance(last, FateUnknownError | PeerUnreachableError):
            raise NoLeaderError(f"{topic.name}-{request.partition}: {last.message}") from last
        raise last

    async def _read_at_leader(
        self, leader_id: int, topic: Topic, request: FetchRequest, leader_epoch: int
    ) -> FetchResult:
        key = (topic.topic_id, request.partition)
        async with self._leaderships.held(key, leader_id, leader_epoch):
            try:
                return await self._read_at(leader_id, topic, request, leader_epoch)
            except NotLeaderError as error:
                refusal = error
        # That node may know more than this node's image, or it may not know yet that it leads.
        if not _is_plain(request):
            await self._ends.check(key, leader_id, leader_epoch)
        raise refusal

    async def _read_at(
        self, broker_id: int, topic: Topic, request: FetchRequest, leader_epoch: int
    ) -> FetchResult:
        answer, batches = await ask_with_body(
            self._peer,
            broker_id,
            READ,
            ReadRequest(
                topic_id=topic.topic_id,
                partition=request.partition,
                offset=request.offset,
                timestamp_ms=request.timestamp_ms,
                max_bytes=request.max_bytes,
                timeout_ms=request.timeout_ms,
                leader_epoch=leader_epoch,
                is_uncommitted=request.is_uncommitted,
                is_unconfirmed=request.is_unconfirmed,
                wants_records_end=request.wants_records_end,
            ),
            timeout_ms=request.timeout_ms + READ_ANSWER_MARGIN_MS,
        )
        is_of_earlier_release = answer.high_watermark < 0
        return FetchResult(
            start_offset=answer.start_offset,
            high_watermark=answer.readable_end if is_of_earlier_release else answer.high_watermark,
            last_stable_offset=None if is_of_earlier_release else answer.last_stable_offset,
            is_uncommitted=request.is_uncommitted,
            log_start_offset=answer.log_start_offset,
            leader_epoch=answer.leader_epoch,
            batches=batches,
            broker_id=broker_id,
            records_end=None if answer.records_end < 0 else answer.records_end,
            topic_id=topic.topic_id,
        )

    async def on_read(
        self, peer_id: int, fields: Fields, body: Buffer
    ) -> tuple[Fields, Sequence[Buffer]]:
        """Serve a fetch that another node passes to this replica."""
        del peer_id, body
        asked = unpack(ReadRequest, fields)
        if asked.is_doubted:
            self._doubt_here(asked.topic_id, asked.partition, asked.offset)
            return {}, []
        runner = await self._replicas.leading(
            asked.topic_id, asked.partition, asked.leader_epoch, timeout_ms=READ_LEADER_WAIT_MS
        )
        if runner is None:
            raise NotLeaderError(f"node {self._node_id} holds no replica of the partition")
        request = FetchRequest(
            topic=runner.topic,
            partition=asked.partition,
            offset=asked.offset,
            timestamp_ms=asked.timestamp_ms,
            max_bytes=asked.max_bytes,
            timeout_ms=asked.timeout_ms,
            is_local=False,
            is_uncommitted=asked.is_uncommitted,
            is_unconfirmed=asked.is_unconfirmed,
            wants_records_end=asked.wants_records_end,
        )
        if not self._can_serve(runner, request):
            raise NotLeaderError(f"node {self._node_id} does not lead {runner.name}")
        try:
            result = await self._fetch_here(runner, request)
        except (MovedError, _BehindError) as moved:
            raise NotLeaderError(moved.message) from moved
        answer = ReadAnswer(
            start_offset=result.start_offset,
            readable_end=result.readable_end,
            high_watermark=result.high_watermark,
            last_stable_offset=-1
            if result.last_stable_offset is None
            else result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            leader_epoch=result.leader_epoch,
            records_end=-1 if result.records_end is None else result.records_end,
        )
        return pack(answer)[0], [result.batches]

    async def doubt(self, doubt: Doubt) -> None:
        """Let the node that sent a copy check it: a reader here decoded bytes that are not whole."""
        topic = self._metadata.image.topic(doubt.topic)
        if topic is None:
            return
        key = (topic.topic_id, doubt.partition)
        broker_id = doubt.broker_id
        if broker_id is None:
            state = self._metadata.image.partition(*key)
            broker_id = None if state is None else state.leader
        if broker_id == self._node_id:
            self._doubt_here(*key, doubt.offset)
        elif broker_id is not None and (broker_id, *key) not in self._telling:
            self._telling.add((broker_id, *key))
            try:
                await self._tell(broker_id, key, doubt.offset)
            except MilenaError as error:
                logger.debug("node_id=%d was not told of damage: %s", broker_id, error)
            finally:
                self._telling.discard((broker_id, *key))

    def _doubt_here(self, topic_id: str, partition: int, offset: object) -> None:
        runner = self._replicas.find(topic_id, partition)
        # A peer may send anything, so check that this is an offset that still exists.
        if runner is not None and isinstance(offset, int):
            log = runner.log
            if log.log_start_offset <= offset < log.log_end_offset:
                runner.on_doubt(offset)

    async def _tell(self, broker_id: int, key: tuple[str, int], offset: int) -> None:
        doubt = ReadRequest(
            topic_id=key[0],
            partition=key[1],
            offset=offset,
            timestamp_ms=None,
            max_bytes=1,
            timeout_ms=0,
            leader_epoch=-1,
            is_doubted=True,
        )
        await self._peer.call(broker_id, READ.name, pack(doubt)[0], timeout_ms=DOUBT_MS_MAX)

    async def offsets(
        self,
        topic: str,
        partition: int,
        *,
        wants_records_end: bool = False,
    ) -> PartitionOffsets:
        """Return where the partition begins and ends, as the leader knows it."""
        result = await self.fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset="latest",
                timestamp_ms=None,
                max_bytes=1,
                timeout_ms=0,
                is_local=False,
                wants_records_end=wants_records_end,
            )
        )
        return PartitionOffsets(
            log_start_offset=result.log_start_offset,
            high_watermark=result.high_watermark,
            last_stable_offset=result.start_offset,
            records_end=result.records_end,
            topic_id=result.topic_id,
        )


def _is_plain(request: FetchRequest) -> bool:
    """Return whether the request names the offset that it wants."""
    is_number = isinstance(request.offset, int) and request.offset >= 0
    return is_number and request.timestamp_ms is None
