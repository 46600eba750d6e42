"""The leader's side of replica fetches: sessions that wake when there is news. Runs on the data loop."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.fetch_wire import FetchCode, Position, Row, parse_positions
from node.partition_runner import PartitionRunner
from node.replication.leader import FetchVerdict
from raft_meta.machine.image import Broker
from storage.errors import (
    CorruptLogError,
    MalformedRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from storage.files import Buffer

logger = logging.getLogger(__name__)

HIGH_WATERMARK_DELAY_S = 0.005
"""News of the high watermark alone waits this long for data to travel with: it would otherwise cost every follower a
round trip per commit, and nobody but readers of followers waits for it."""

SNAPSHOT_BYTES_MAX = 16 << 20
"""Of writers' states in one answer, if there is more than one: well below what a frame holds."""

_CODES = {
    FetchVerdict.STALE_LEADER_EPOCH: FetchCode.STALE_LEADER_EPOCH,
    FetchVerdict.UNKNOWN_LEADER_EPOCH: FetchCode.UNKNOWN_LEADER_EPOCH,
    FetchVerdict.STALE_BROKER_EPOCH: FetchCode.STALE_BROKER_EPOCH,
    FetchVerdict.NOT_A_REPLICA: FetchCode.NOT_A_REPLICA,
}

FindRunner = Callable[[str, int], PartitionRunner | None]


@dataclass(slots=True)
class Followed:
    """One partition in a session.

    ``is_settled``: answered with data or an error, waiting for a new position. ``is_accepted``: the position lies on
    our log, so our high watermark means something to the follower: to a log that may have parted from ours it would
    call records committed that are not.
    """

    runner: PartitionRunner
    position: Position
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    is_settled: bool = False
    is_accepted: bool = False


class FollowerSession:
    """What one follower's node follows here."""

    def __init__(self, follower: int, session_id: int) -> None:
        self.follower = follower
        self.session_id = session_id
        self.has_room = True
        """Whether the follower's disk takes more."""
        self.followed: dict[int, Followed] = {}
        self._indexes: dict[PartitionRunner, int] = {}
        self.rows: list[Row] = []
        """Verdicts on positions, to be answered."""
        self.bodies: list[Buffer] = []
        self.news: set[int] = set()
        self._wake: asyncio.Future[None] | None = None
        self._delayed: asyncio.TimerHandle | None = None

    def on_news(self, runner: PartitionRunner) -> None:
        """The partition's log grew, its high watermark moved, or its role changed."""
        index = self._indexes.get(runner)
        if index is None:
            return
        followed = self.followed[index]
        self.news.add(index)
        position = followed.position
        has_data = runner.log.log_end_offset > position.offset and not followed.is_settled
        if has_data or runner.leader_epoch != position.leader_epoch:
            self.wake()
        elif self._delayed is None:
            loop = asyncio.get_running_loop()
            self._delayed = loop.call_later(HIGH_WATERMARK_DELAY_S, self._wake_late)

    def _wake_late(self) -> None:
        self._delayed = None
        self.wake()

    def wake(self) -> None:
        """Complete the waiting fetch, whatever it has."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, timeout_ms: int) -> None:
        """Park until ``wake`` or the time is up."""
        self.wake()
        if self.news:
            return  # it came while a cold read was under way
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._wake
        except TimeoutError:
            pass
        finally:
            self._wake = None

    def take(self, runner: PartitionRunner, position: Position) -> Followed:
        """Put a partition at a position."""
        old = self.followed.get(position.index)
        if old is not None and old.runner is not runner:
            self.forget(position.index)
            old = None
        if old is None:
            old = self.followed[position.index] = Followed(runner, position)
            self._indexes[runner] = position.index
            runner.watchers[self] = None
        old.position = position
        old.is_settled = old.is_accepted = False
        self.news.add(position.index)
        return old

    def set_room(self, *, has_room: bool) -> None:
        """Let the leaders of all that is followed know when it changes."""
        if has_room is not self.has_room:
            self.has_room = has_room
            for followed in self.followed.values():
                followed.runner.on_follower_room(self.follower, has_room=has_room)

    def forget(self, index: int) -> None:
        """Stop following a partition."""
        followed = self.followed.pop(index, None)
        self.news.discard(index)
        if followed is not None:
            self._indexes.pop(followed.runner, None)
            followed.runner.watchers.pop(self, None)

    def close(self) -> None:
        """Forget everything."""
        self.wake()
        if self._delayed is not None:
            self._delayed.cancel()
        for index in list(self.followed):
            self.forget(index)


class FetchServer:
    """Answers the fetches of every follower of this node."""

    def __init__(
        self, *, find_runner: FindRunner, brokers: Callable[[], Mapping[int, Broker]]
    ) -> None:
        self._find_runner = find_runner
        self._brokers = brokers
        self._sessions: dict[int, FollowerSession] = {}

    def close(self) -> None:
        """Drop every session."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def on_wake(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> tuple[dict[str, object], Sequence[Buffer]]:
        """The follower has new positions to tell: complete its waiting fetch."""
        del header, body
        session = self._sessions.get(peer_id)
        if session is not None:
            session.wake()
        return {}, ()

    async def on_fetch(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> tuple[dict[str, object], Sequence[Buffer]]:
        """Take positions as acknowledgements, then answer with news, waiting for some."""
        del body
        match header:
            case {
                "s": int(session_id),
                "full": bool(is_full),
                "be": int(broker_epoch),
                "p": raw,
                "f": list(forgotten),
                "w": int(wait_ms),
                "m": int(max_bytes),
            }:
                positions = parse_positions(raw)
            case _:
                raise MalformedRequestError("fetch: the request has the wrong shape")
        session = self._session(peer_id, session_id, is_full=is_full)
        if session is None:
            return {"r": [Row(0, FetchCode.UNKNOWN_SESSION).pack()]}, ()
        session.set_room(has_room=header.get("room") is not False)
        for index in forgotten:
            if isinstance(index, int):
                session.forget(index)
        for position in positions:
            self._take_position(session, position, broker_epoch)
        rows, chunks = await self._collect(session, max_bytes)
        if not rows and wait_ms > 0:
            await session.wait(wait_ms)
            rows, chunks = await self._collect(session, max_bytes)
        return {"r": [row.pack() for row in rows]}, chunks

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
        self, session: FollowerSession, position: Position, broker_epoch: int
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
                brokers=self._brokers(),
            )
        except NotLeaderError:
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
            # No high watermark: it means nothing to a log that is not a prefix of ours.
            session.rows.append(Row(position.index, FetchCode.DIVERGING, a=epoch, b=end))
        elif verdict is FetchVerdict.BELOW_LOG_START:
            snapshot = runner.log.producer_snapshot()
            if (
                session.bodies
                and sum(map(len, session.bodies)) + len(snapshot) > SNAPSHOT_BYTES_MAX
            ):
                session.rows.append(Row(position.index, FetchCode.NOT_LEADER))  # it asks again
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

    async def _collect(
        self, session: FollowerSession, max_bytes: int
    ) -> tuple[list[Row], list[Buffer]]:
        rows, session.rows = session.rows, []
        chunks, session.bodies = session.bodies, []
        room = max_bytes
        news = session.news
        waiting = []
        for index in list(news):
            news.discard(index)
            followed = session.followed.get(index)
            if followed is None:
                continue
            if room <= 0:
                waiting.append(index)
                continue
            row, data = await self._news_of(followed, index, room)
            if row is not None:
                rows.append(row)
                if data:
                    chunks.append(data)
                    room -= len(data)
        news.update(waiting)
        return rows, chunks

    async def _news_of(self, followed: Followed, index: int, room: int) -> tuple[Row | None, bytes]:
        runner, position = followed.runner, followed.position
        if runner.leader is None or runner.leader_epoch != position.leader_epoch:
            if followed.is_settled:
                return None, b""
            followed.is_settled = True
            return Row(index, FetchCode.NOT_LEADER), b""
        if not followed.is_accepted:
            return None, b""
        data = b""
        log = runner.log
        if not followed.is_settled and position.offset < log.log_end_offset:
            try:
                data = await runner.read(
                    position.offset, max_bytes=room, end_offset=log.log_end_offset
                )
            except (OffsetOutOfRangeError, UnavailableError, CorruptLogError) as error:
                # This one asks again, and is judged anew; the others must not wait for it.
                logger.warning("read for a follower partition=%s: %s", runner.name, error)
                followed.is_settled = True
                return Row(index, FetchCode.NOT_LEADER), b""
        high_watermark, log_start = runner.high_watermark, log.log_start_offset
        if not data and (
            high_watermark <= followed.sent_high_watermark and log_start <= followed.sent_log_start
        ):
            return None, b""
        runner.counts.replicated_bytes_out += len(data)
        followed.is_settled = followed.is_settled or bool(data)
        followed.sent_high_watermark, followed.sent_log_start = high_watermark, log_start
        return Row(index, FetchCode.OK, high_watermark, log_start, len(data)), data
