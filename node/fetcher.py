"""The follower's side of replication: one loop per leader's node, one request under way in each.

The order for every answer is: write all rows → sync them side by side → tell the new positions in the next request. A
position is thus the stored end, and telling it acknowledges.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node.clock import Clock
from node.fetch_wire import FETCH, FETCH_WAKE, FetchCode, Row, parse_rows
from node.partition_runner import PartitionRunner
from node.peer import PeerClient
from node.peer_codec import Channel
from storage.errors import CorruptLogError, MilenaError, NotLeaderError, UnavailableError

logger = logging.getLogger(__name__)

CHANNEL = Channel.FETCH
RETRY_MS = 50
"""Between tries of a partition or leader that could not answer; short: a new leader is often a moment behind."""

REFUSED_RETRY_MS = 1_000
"""After records that could not be taken: a full disk or a damaged batch will mostly be so again, and they are sent anew
each time."""

ANSWER_MARGIN_MS = 1_000
"""How long past the agreed wait an answer may take before the connection counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Bounds of a fetch."""

    wait_ms_max: int
    bytes_max: int


class LeaderFetcher:
    """Fetches from one leader's node everything that we follow there."""

    def __init__(
        self,
        leader_id: int,
        *,
        peer: PeerClient,
        clock: Clock,
        settings: FetcherSettings,
        broker_epoch: Callable[[], int],
        next_session_id: Callable[[], int],
        has_room: Callable[[], bool] = lambda: True,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._has_room = has_room
        self._on_failure = on_failure
        self.leader_id = leader_id
        self._peer = peer
        self._clock = clock
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._next_session_id = next_session_id
        self._runners: dict[int, PartitionRunner] = {}
        self._indexes: dict[PartitionRunner, int] = {}
        self._epochs: dict[int, int] = {}
        self._told_starts: dict[int, int] = {}
        """Where the leader believes our logs to start."""
        self._next_index = 0
        self._changed: set[int] = set()
        self._forgotten: list[int] = []
        self._session_id = 0
        self._is_parked = False
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._side_tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to fetch."""
        self._task = asyncio.create_task(self._run(), name=f"fetch-from-{self.leader_id}")
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        """The loop ends when it is told to, or by a broken invariant: a node must not go on without it unnoticed."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._on_failure is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """End the loop; what was written stays."""
        tasks = [t for t in (self._task, *self._side_tasks) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is followed there."""
        return not self._runners

    def follow(self, runner: PartitionRunner) -> None:
        """Follow a partition, or learn of its new leader epoch."""
        index = self._indexes.get(runner)
        if index is None:
            index = self._next_index
            self._next_index += 1
            self._indexes[runner], self._runners[index] = index, runner
        elif self._epochs[index] == runner.leader_epoch:
            return
        self._epochs[index] = runner.leader_epoch
        self._told_starts.pop(index, None)
        self._tell(index)

    def forget(self, runner: PartitionRunner) -> None:
        """Stop following a partition."""
        index = self._indexes.pop(runner, None)
        if index is not None:
            del self._runners[index], self._epochs[index]
            self._told_starts.pop(index, None)
            self._changed.discard(index)
            self._forgotten.append(index)
            self._wake()

    def _tell(self, index: int) -> None:
        self._changed.add(index)
        self._wake()

    def _wake(self) -> None:
        self._work.set()
        if self._is_parked:
            self._is_parked = False
            self._spawn(self._send_wake())

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    async def _send_wake(self) -> None:
        try:
            await self._peer.call(
                self.leader_id, FETCH_WAKE, {}, timeout_ms=ANSWER_MARGIN_MS, channel=CHANNEL
            )
        except MilenaError as error:
            logger.debug("fetch wake failed leader=%d: %s", self.leader_id, error)

    async def _run(self) -> None:
        while True:
            while not self._runners and not self._forgotten:
                self._work.clear()
                await self._work.wait()
            try:
                await self._fetch_once()
            except MilenaError as error:
                logger.info("fetch failed leader=%d: %s", self.leader_id, error)
                self._session_id = 0
                self._peer.disconnect(self.leader_id, CHANNEL)
                await self._clock.sleep(RETRY_MS)

    async def _fetch_once(self) -> None:
        is_full = self._session_id == 0
        if is_full:
            self._session_id = self._next_session_id()
            self._changed = set(self._runners)
            self._forgotten.clear()
            self._told_starts.clear()
        await self._settle()
        changed = {i for i in self._changed if self._is_stored(i)}
        self._changed -= changed
        forgotten, self._forgotten = self._forgotten, []
        header: dict[str, object] = {
            "s": self._session_id,
            "full": is_full,
            "be": self._broker_epoch(),
            "p": [self._position(i) for i in changed],
            "ls": self._log_starts(changed),
            "f": forgotten,
            "room": self._has_room(),
            # What is not stored yet is told next; nobody would end a longer wait for it.
            "w": 0 if self._changed else self._settings.wait_ms_max,
            "m": self._settings.bytes_max,
        }
        self._is_parked = True
        try:
            answer, body = await self._peer.call(
                self.leader_id,
                FETCH,
                header,
                timeout_ms=self._settings.wait_ms_max + ANSWER_MARGIN_MS,
                channel=CHANNEL,
            )
        finally:
            self._is_parked = False
        rows = parse_rows(answer.get("r"), len(body))
        if rows and rows[0].code is FetchCode.UNKNOWN_SESSION:
            self._session_id = 0
            return
        self._take(rows, body)

    async def _settle(self) -> None:
        """Wait until what was written is stored: telling a position acknowledges everything below it."""
        syncing = [
            runner.stored(runner.log.log_end_offset)
            for index in self._changed
            if (runner := self._runners[index]).log.stored_end_offset < runner.log.log_end_offset
        ]
        if syncing:
            await asyncio.gather(*syncing, return_exceptions=True)
            self._changed &= self._runners.keys()

    def _is_stored(self, index: int) -> bool:
        log = self._runners[index].log
        return log.stored_end_offset >= log.log_end_offset

    def _position(self, index: int) -> list[object]:
        runner = self._runners[index]
        return [
            index,
            runner.topic_id,
            runner.partition,
            self._epochs[index],
            runner.log.log_end_offset,
            runner.log.last_epoch,
        ]

    def _log_starts(self, indexes: Iterable[int]) -> list[list[int]]:
        """Pairs for those that the leader does not know; it knows them from here on."""
        told = self._told_starts
        moved = []
        for index in indexes:
            start = self._runners[index].log.log_start_offset
            if told.get(index) != start:
                told[index] = start
                moved.append([index, start])
        return moved

    def _take(self, rows: Iterable[Row], body: bytes) -> None:
        position = 0
        for row in rows:
            part = body[position : position + row.size]
            position += row.size
            runner = self._runners.get(row.index)
            if runner is None:
                continue
            try:
                if self._take_row(row, runner, part):
                    self._changed.add(row.index)
            except NotLeaderError:
                continue  # our role changed meanwhile; the image tells what to do
            except (UnavailableError, CorruptLogError) as error:
                logger.warning("fetch partition=%s: %s", runner.name, error)
                self._retry_later(row.index, runner, REFUSED_RETRY_MS)

    def _take_row(self, row: Row, runner: PartitionRunner, data: bytes) -> bool:
        """Act on one row; whether the position moved and is to be told."""
        epoch = self._epochs[row.index]
        if row.code is not FetchCode.OK:
            # The position was not taken, nor was what came with it.
            self._told_starts.pop(row.index, None)
        match row.code:
            case FetchCode.OK:
                if data:
                    runner.append_as_follower(data, leader_epoch=epoch)
                has_new_start = runner.advance_as_follower(
                    leader_epoch=epoch, high_watermark=row.high_watermark, log_start=row.log_start
                )
                # Somebody may wait until it is known that nobody starts below it any more.
                return has_new_start or bool(data)
            case FetchCode.DIVERGING:
                before = runner.log.log_end_offset
                runner.truncate_as_follower(leader_epoch=epoch, epoch=row.a, end_offset=row.b)
                if runner.log.log_end_offset == before:
                    # The same question would get the same answer at once, for ever.
                    self._retry_later(row.index, runner)
                    return False
                return True
            case FetchCode.BELOW_LOG_START:
                runner.restart_as_follower(leader_epoch=epoch, log_start=row.a, producers=data)
                return True
            case _:
                self._retry_later(row.index, runner)
                return False

    def _retry_later(self, index: int, runner: PartitionRunner, pause_ms: int = RETRY_MS) -> None:
        if runner.is_stuck:
            return

        async def retry() -> None:
            await self._clock.sleep(pause_ms)
            if index in self._runners:
                self._tell(index)

        self._spawn(retry())


class ReplicaFetchers:
    """All loops of this node; assigns each followed partition to the loop of its leader."""

    def __init__(self, make: Callable[[int], LeaderFetcher]) -> None:
        self._make = make
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._assigned: dict[PartitionRunner, int] = {}
        self._is_stopped = False

    def assign(self, runner: PartitionRunner, leader_id: int | None) -> None:
        """Follow ``leader_id`` with the partition, or nobody."""
        if self._is_stopped:
            return
        old = self._assigned.get(runner)
        if old is not None and old != leader_id:
            self._fetchers[old].forget(runner)
            del self._assigned[runner]
        if leader_id is None:
            return
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = self._make(leader_id)
            fetcher.start()
        self._assigned[runner] = leader_id
        fetcher.follow(runner)

    async def stop(self) -> None:
        """End every loop, for good."""
        self._is_stopped = True
        await asyncio.gather(*(f.stop() for f in self._fetchers.values()))
        self._fetchers.clear()
        self._assigned.clear()
