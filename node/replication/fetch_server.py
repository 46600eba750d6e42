"""The leader's side of replica fetches: count positions as acknowledgements, and send what changed. On the data loop.

What changed in a partition (new records, high watermark, log start or role) is called its *news*. A fetch takes two
steps:

1. ``_take_position`` judges each position of the fetch. Writers wait for this step.
2. ``_collect`` collects news into rows and bytes, up to the follower's limit. If there is none, the fetch waits in its
   session (``node.replication.follower_session``).

Bytes in memory or in the page cache are read on the loop. A partition that must be read from the disk is *cold*. Only
cold partitions need a task.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial

from milena.disk.files import Buffer
from milena.model.errors import (
    CorruptLogError,
    MalformedRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from milena.model.pending import Pending
from node.peers.link import Reply
from node.replica.leader import FetchVerdict
from node.replica.runner import PartitionRunner
from node.replication.catch_up import CatchUpThrottle, is_catching_up
from node.replication.fetch_wire import (
    FetchCode,
    Position,
    Row,
    parse_log_starts,
    parse_positions,
)
from node.replication.follower_session import FetchedReplica, FollowerSession, answer_with
from raft_meta.machine.image import Broker

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES_MAX = 16 << 20
"""Largest total size of the producer snapshots in one response, if it has several. It is well below a frame's limit."""

_CODES = {
    FetchVerdict.STALE_LEADER_EPOCH: FetchCode.STALE_LEADER_EPOCH,
    FetchVerdict.UNKNOWN_LEADER_EPOCH: FetchCode.UNKNOWN_LEADER_EPOCH,
    FetchVerdict.STALE_BROKER_EPOCH: FetchCode.STALE_BROKER_EPOCH,
    FetchVerdict.NOT_A_REPLICA: FetchCode.NOT_A_REPLICA,
}

FindRunner = Callable[[str, int], PartitionRunner | None]


class FetchServer:
    """Answers the fetches of all nodes that follow partitions at this node."""

    def __init__(
        self,
        *,
        find_runner: FindRunner,
        brokers: Callable[[], Mapping[int, Broker]],
        throttle: CatchUpThrottle | None = None,
    ) -> None:
        self._find_runner = find_runner
        self._brokers = brokers
        self._throttle = throttle or CatchUpThrottle(0, lambda: 0.0)
        self._sessions: dict[int, FollowerSession] = {}

    def close(self) -> None:
        """Close every session."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def on_wake(self, peer_id: int, header: dict[str, object], body: Buffer) -> Reply:
        """Complete the follower's waiting fetch, so that the follower can send its new positions with the next one."""
        del header, body
        session = self._sessions.get(peer_id)
        if session is not None:
            session.wake()
        return {}, ()

    def on_fetch(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> Reply | Pending[Reply] | Awaitable[Reply]:
        """Count positions as acknowledgements, then respond with news. Without news, wait for some.

        This is not a coroutine. A task for each fetch would cost as much as the fetch, and positions would be counted
        one turn of the loop later. If the fetch may wait, the rest of it is done in the next turn, so that writers who
        waited for its positions get their response first.

        Raises:
            MalformedRequestError: a field of the header is missing or has another type.
            CorruptLogError: the positions or log starts have the wrong shape.
        """
        del body
        get = header.get
        session_id, is_full, broker_epoch = get("s"), get("full"), get("be")
        forgotten, wait_ms, max_bytes = get("f"), get("w"), get("m")
        refused = get("bad")
        # ``match`` would take ten times as long, and writers wait for this.
        if (
            type(session_id) is not int
            or type(is_full) is not bool
            or type(broker_epoch) is not int
            or type(forgotten) is not list
            or type(wait_ms) is not int
            or type(max_bytes) is not int
            or (refused is not None and type(refused) is not list)
        ):
            raise MalformedRequestError("fetch: the request has the wrong shape")
        positions = parse_positions(get("p"))
        # Parse everything before counting anything: a malformed request must not move a high watermark.
        session = self._session(peer_id, session_id, is_full=is_full)
        if session is None:
            return {"r": [Row(0, FetchCode.UNKNOWN_SESSION).pack()]}, ()
        session.set_room(has_room=header.get("room") is not False)
        for index in forgotten:
            if isinstance(index, int):
                session.forget(index)
        starts = parse_log_starts(header.get("ls"))
        for position in positions:
            self._take_position(session, position, broker_epoch, starts.get(position.index))
        if refused:
            _doubt(session, refused)
        if wait_ms > 0:
            # Collect in the next turn: the positions have just acknowledged records to writers. These may send their
            # next records in this turn.
            answer: Pending[Reply] = Pending()
            session.arrive(partial(self._go_on, session, answer, wait_ms, max_bytes))
            return answer
        return self._answer(session, max_bytes)

    def _go_on(
        self, session: FollowerSession, answer: Pending[Reply], wait_ms: int, max_bytes: int
    ) -> None:
        """Respond to a fetch that may wait, or park it (let it wait)."""
        may_park = session.may_park()
        if answer.done():
            return
        if may_park and session.rest():
            session.park(wait_ms, partial(self._answer, session, max_bytes), answer)
            return
        try:
            found = self._collect(session, max_bytes)
            if found.cold:
                answer_with(
                    answer,
                    self._answer_with_cold(session, found, wait_ms if may_park else 0, max_bytes),
                )
            elif may_park and _may_wait(session, found.rows):
                session.put_back(found.rows)
                session.park(wait_ms, partial(self._answer, session, max_bytes), answer)
            else:
                answer.set_result(_reply(session, found))
        except Exception as error:  # noqa: BLE001 - passed on to the task that answers
            answer.set_exception(error)

    def _answer(
        self, session: FollowerSession, max_bytes: int
    ) -> Reply | Coroutine[None, None, Reply]:
        found = self._collect(session, max_bytes)
        if found.cold:
            return self._answer_with_cold(session, found, 0, max_bytes)
        return _reply(session, found)

    async def _answer_with_cold(
        self, session: FollowerSession, found: "_Found", wait_ms: int, max_bytes: int
    ) -> Reply:
        # While the disk is read, the fetch is not parked, so a wake could not complete it. If a wake comes, the session
        # notes it, and ``may_park`` below refuses to park the fetch.
        session.notice_wakes()
        for index in found.cold:
            await self._read_cold(session, index, found)
        found.cold.clear()
        may_park = session.may_park()
        if wait_ms > 0 and may_park and _may_wait(session, found.rows):
            session.put_back(found.rows)
            answer: Pending[Reply] = Pending()
            session.park(wait_ms, partial(self._answer, session, max_bytes), answer)
            return await answer
        return _reply(session, found)

    def _session(self, peer_id: int, session_id: int, *, is_full: bool) -> FollowerSession | None:
        session = self._sessions.get(peer_id)
        if is_full:
            if session is not None:
                session.close()
            session = self._sessions[peer_id] = FollowerSession(peer_id, session_id)
        if session is None or session.session_id != session_id:
            return None
        return session

    def _take_position(
        self,
        session: FollowerSession,
        position: Position,
        broker_epoch: int,
        log_start: int | None,
    ) -> None:
        runner = self._find_runner(position.topic_id, position.partition)
        if runner is None:
            session.rows.append(Row(position.index, FetchCode.NOT_LEADER))
            return
        followed = session.take(runner, position)
        runner.on_follower_room(session.follower, has_room=session.has_room)
        try:
            verdict = runner.on_replica_fetch(
                follower=session.follower,
                broker_epoch=broker_epoch,
                leader_epoch=position.leader_epoch,
                offset=position.offset,
                last_epoch=position.last_epoch,
                log_start=log_start,
                brokers=self._brokers(),
            )
        except NotLeaderError:
            # This node's image may be older than the follower's. The follower asks again until the images agree.
            verdict = FetchVerdict.UNKNOWN_LEADER_EPOCH
        followed.is_accepted = verdict is FetchVerdict.ACCEPTED
        if not followed.is_accepted:
            followed.is_settled = True
            session.news.discard(position.index)
            self._refuse(session, runner, position, verdict)

    def _refuse(
        self,
        session: FollowerSession,
        runner: PartitionRunner,
        position: Position,
        verdict: FetchVerdict,
    ) -> None:
        if verdict is FetchVerdict.DIVERGING:
            epoch, end = runner.agreed_end(position.last_epoch)
            # Send no high watermark. The follower's log has other records below it, and would count them as committed.
            session.rows.append(Row(position.index, FetchCode.DIVERGING, a=epoch, b=end))
        elif verdict is FetchVerdict.BELOW_LOG_START:
            snapshot = runner.log.producer_snapshot(runner.high_watermark)
            # A snapshot has the state of every producer. It may be large, and many partitions may need one at once.
            if (
                session.bodies
                and sum(map(len, session.bodies)) + len(snapshot) > SNAPSHOT_BYTES_MAX
            ):
                # After NOT_LEADER the follower retries.
                session.rows.append(Row(position.index, FetchCode.NOT_LEADER))
                return
            session.rows.append(
                Row(
                    position.index,
                    FetchCode.BELOW_LOG_START,
                    size=len(snapshot),
                    a=runner.log.log_start_offset,
                )
            )
            session.bodies.append(snapshot)
        else:
            session.rows.append(Row(position.index, _CODES[verdict]))

    def _collect(self, session: FollowerSession, max_bytes: int) -> "_Found":
        session.begin_to_collect()
        found = _Found(rows=session.rows, chunks=session.bodies, room=max_bytes)
        session.rows, session.bodies = [], []
        news = session.news
        waiting = []
        for index in self._in_order(session):
            news.discard(index)
            followed = session.followed.get(index)
            if followed is None:
                continue
            if found.room <= 0:
                # The response is full. The next fetch comes at once, and starts with the partitions left out here.
                waiting.append(index)
                continue
            limit = self._limit(session, followed, index, found)
            if limit > 0 and not self._take_news(session, followed, index, limit, found):
                found.cold.append(index)
        if waiting:
            news.update(waiting)
            session.is_urgent = True
        return found

    def _limit(
        self, session: FollowerSession, followed: FetchedReplica, index: int, found: "_Found"
    ) -> int:
        """Return how many bytes of a partition may be sent. If 0, the partition is postponed."""
        state = followed.runner.state
        limit = self._throttle.allowance(state, session.follower, found.room)
        if limit <= 0:
            session.postpone(index, self._throttle.wait_s(state))
        return limit

    def _take_news(
        self,
        session: FollowerSession,
        followed: FetchedReplica,
        index: int,
        limit: int,
        found: "_Found",
    ) -> bool:
        """Collect the news of a partition; return False if its records must be read from the disk."""
        if not _is_answerable(followed, index, found):
            return True
        chunks: Sequence[Buffer] | None = ()
        runner, position = followed.runner, followed.position
        end = runner.log.log_end_offset
        if not followed.is_settled and position.offset < end:
            try:
                chunks = runner.read_for_replica(position.offset, max_bytes=limit, end_offset=end)
            except (OffsetOutOfRangeError, UnavailableError, CorruptLogError) as error:
                self._cannot_read(session, followed, index, found, error)
                return True
        if chunks is None:
            return False
        self._add(session, followed, index, chunks, found)
        return True

    async def _read_cold(self, session: FollowerSession, index: int, found: "_Found") -> None:
        followed = session.followed.get(index)
        if followed is None:
            return
        limit = self._limit(session, followed, index, found) if found.room > 0 else 0
        if limit <= 0:
            if found.room <= 0:
                session.news.add(index)
                session.is_urgent = True
            return
        runner, position = followed.runner, followed.position
        end = runner.log.log_end_offset
        try:
            data = await runner.read(position.offset, max_bytes=limit, end_offset=end)
        except (OffsetOutOfRangeError, UnavailableError, CorruptLogError) as error:
            self._cannot_read(session, followed, index, found, error)
            return
        # During the read, the leader may have changed, or the follower may have sent another position.
        is_same = session.followed.get(index) is followed and followed.position is position
        if is_same and _is_answerable(followed, index, found):
            self._add(session, followed, index, (data,), found)

    def _add(
        self,
        session: FollowerSession,
        followed: FetchedReplica,
        index: int,
        chunks: Sequence[Buffer],
        found: "_Found",
    ) -> None:
        runner = followed.runner
        size = sum(map(len, chunks))
        high_watermark, log_start = runner.high_watermark, runner.log.log_start_offset
        is_known = (
            high_watermark <= followed.sent_high_watermark and log_start <= followed.sent_log_start
        )
        if not size and is_known:
            return
        row = Row(index, FetchCode.OK, high_watermark, log_start, size)
        found.rows.append(row)
        if size:
            if runner.kept_damage is not None:
                # The follower may refuse these bytes as damaged.
                row.a = runner.lost_from(session.follower, self._brokers())
            # These bytes are on their way, so the follower gets no more of this partition until its position moves.
            runner.counts.replicated_bytes_out += size
            followed.is_settled = True
            found.chunks += chunks
            found.room -= size
            self._throttle.on_sent(runner.state, session.follower, size)

    def _cannot_read(
        self,
        session: FollowerSession,
        followed: FetchedReplica,
        index: int,
        found: "_Found",
        error: Exception,
    ) -> None:
        """Make the follower ask again for this partition. The other partitions of the fetch must not wait for it."""
        runner = followed.runner
        if not followed.is_unreadable:
            # The follower asks again and again until the copy is restored.
            logger.warning("read for a follower partition=%s: %s", runner.name, error)
        followed.is_unreadable = followed.is_settled = True
        lost_from = runner.lost_from(session.follower, self._brokers())
        found.rows.append(Row(index, FetchCode.NOT_LEADER, a=lost_from))

    @staticmethod
    def _in_order(session: FollowerSession) -> list[int]:
        """Return the partitions with news. Replicas not in sync come last, because no writer waits for them."""
        found = list(session.news)
        if len(found) < 2:
            return found
        late = [
            index
            for index in found
            if (followed := session.followed.get(index)) is not None
            and is_catching_up(followed.runner.state, session.follower)
        ]
        return [index for index in found if index not in late] + late if late else found


class _Found:
    """The rows and the data of one response.

    ``room``: bytes that still fit into the response. ``cold``: partitions whose records must be read from the disk.
    """

    __slots__ = ("chunks", "cold", "room", "rows")

    def __init__(self, rows: list[Row], chunks: list[Buffer], room: int) -> None:
        self.rows = rows
        self.chunks = chunks
        self.room = room
        self.cold: list[int] = []


def _is_answerable(followed: FetchedReplica, index: int, found: _Found) -> bool:
    """Return whether the follower can use news of the partition. If this node stopped leading it, add a row, once."""
    runner = followed.runner
    if runner.leader is None or runner.leader_epoch != followed.position.leader_epoch:
        if not followed.is_settled:
            followed.is_settled = True
            found.rows.append(Row(index, FetchCode.NOT_LEADER))
        return False
    return followed.is_accepted


def _doubt(session: FollowerSession, refused: Sequence[object]) -> None:
    """Have the partitions checked whose records arrived damaged at a follower: this node would send them for ever."""
    for index in refused:
        followed = session.followed.get(index) if isinstance(index, int) else None
        if followed is not None and followed.is_accepted:
            runner = followed.runner
            logger.warning(
                "refused as damaged partition=%s follower=%d", runner.name, session.follower
            )
            runner.on_doubt(followed.position.offset)


def _reply(session: FollowerSession, found: _Found) -> Reply:
    _note_sent(session, found.rows)
    return {"r": [row.pack() for row in found.rows]}, found.chunks


def _may_wait(session: FollowerSession, rows: Sequence[Row]) -> bool:
    """Return whether the rows have only new high watermarks. These may wait until there is data to send with them."""
    if session.is_urgent:
        return False
    for row in rows:
        followed = session.followed.get(row.index)
        if row.code is not FetchCode.OK or row.size or followed is None:
            return False
        if row.log_start > followed.sent_log_start:
            return False
    return True


def _note_sent(session: FollowerSession, rows: Sequence[Row]) -> None:
    for row in rows:
        followed = session.followed.get(row.index)
        if row.code is FetchCode.OK and followed is not None:
            followed.sent_high_watermark = row.high_watermark
            followed.sent_log_start = row.log_start
