"""The follower's side of replication: one fetch at a time under way to each leader's node.

A fetch tells positions and asks for what follows them. What it brings is written, then synced, then told with a later
fetch. A position is thus the stored end, and telling it acknowledges: for each partition the order is always
write → sync → tell.

Writers wait for the way from an answer to the next fetch. So there is no task on it: the answer is taken in the very
turn of the loop in which it arrives, the next fetch leaves as that turn ends, and what nobody waits for (the leader's
high watermark, its log start) is adopted in the turn after it. The phases of a fetcher:

    RESTING  nothing is followed
    ASKING   a fetch is under way: on the wires, or parked at the leader until there is news
    HOLDING  the last answer was taken, and the next fetch waits for a sync
    PAUSED   a task dials, or lets time pass after a failure
    ENDED    not started, or stopped

What is told when:

- Partitions sync side by side, and each is told as soon as it is stored, whatever becomes of the others.
- Where there is nothing to tell yet and a *short* sync is under way, the next fetch is held until one has ended: its
  writers wait for just that position, and a fetch ahead of it would cost each of them a round trip.
- For a *long* sync, of half a megabyte of a replica that catches up, no fetch is held: it leaves without that position,
  so that records of other partitions can come meanwhile. Only when as much as a whole answer holds is unsynced is the
  next fetch held.
- A replica that catches up leaves the disk to others: after a long sync in which short ones were done, it rests as long
  as that took, and is told, so that it gets more, only then.
- What there is to tell while a fetch is parked wakes it (``FETCH_WAKE``), once: it comes back, and the next one tells.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto, unique
from functools import partial

from milena.model.clock import Clock
from milena.model.contained import EntryPoint
from milena.model.errors import CorruptLogError, MilenaError, NotLeaderError, UnavailableError
from milena.model.pending import Pending
from milena.model.types import NO_OFFSET
from node.control.standing import Standing
from node.metrics.counts import NodeCounts
from node.peers.codec import Fields, PeerChannel
from node.peers.link import Answer
from node.peers.port import PeerLostError, Peers, PeerUnreachableError
from node.replica.group_commit import SHORT_SYNC_BYTES
from node.replica.runner import PartitionRunner
from node.replication.fetch_wire import FETCH, FETCH_WAKE, FetchCode, Row, parse_rows
from node.replication.followed import Followed, FollowedPartitions
from node.replication.retries import RETRY_MS, LeaderRetries

logger = logging.getLogger(__name__)

CHANNEL = PeerChannel.FETCH
OFFSET_MAX = 1 << 62
"""No log gets as far; 64 bits hold what comes behind it, too."""
REFUSED_RETRY_MS = 1_000
"""After records that could not be taken: a full disk or a damaged batch will mostly be so again, and they are sent anew
each time."""

ANSWER_MARGIN_MS = 1_000
"""How long past the agreed wait an answer may take before the connection counts as dead."""

REST_S_MAX = 0.05
"""How long a replica that catches up leaves the disk to others after a long sync: as long as that took, and no longer
than this, as cold reads do. Alone on the disk it does not rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Bounds of a fetch."""

    wait_ms_max: int
    bytes_max: int


@unique
class _Phase(Enum):
    RESTING = auto()
    ASKING = auto()
    TAKING = auto()
    HOLDING = auto()
    PAUSED = auto()
    ENDED = auto()


# As module names: looking up a member of an enum costs as much as the rest of a comparison.
_RESTING, _ASKING, _TAKING, _HOLDING, _PAUSED, _ENDED = _Phase


class LeaderFetcher:
    """Fetches from one leader's node everything that we follow there.

    Invariants:
        - ``_asked`` is there if and only if the phase is ASKING;
        - a partition with something to tell is in the changed ones until a fetch has told it;
        - one that is in there, and not stored, or resting, has somebody who calls back when that is over.
    """

    def __init__(
        self,
        leader_id: int,
        *,
        peer: Peers,
        clock: Clock,
        settings: FetcherSettings,
        standing: Standing,
        next_session_id: Callable[[], int],
        counts: NodeCounts,
    ) -> None:
        """``counts``: of all logs of this node."""
        self._counts = counts
        self.leader_id = leader_id
        self._peer = peer
        self._clock = clock
        self._settings = settings
        self._answer_s_max = (settings.wait_ms_max + ANSWER_MARGIN_MS) / 1000
        self._standing = standing
        self._next_session_id = next_session_id
        self._followed = FollowedPartitions()
        self._session_id = 0
        """0: the next fetch begins a session."""
        self._loop = asyncio.get_running_loop()
        self._phase = _ENDED
        self._asked: Pending[Answer] | None = None
        self._is_woken = False
        """The fetch under way comes back at once."""
        self._answer_due_s = 0.0
        self._overdue: asyncio.TimerHandle | None = None
        """Looks now and then whether an answer is overdue: a timer for each fetch would cost more."""
        self._nudge: asyncio.Handle | None = None
        self._retries = LeaderRetries()
        self._has_news = False
        """Something is to be followed that was not, or in another epoch: a pause ends."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to fetch."""
        self._phase = _RESTING
        self._look_soon()

    async def stop(self) -> None:
        """Ask no more; what was written stays."""
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is followed there."""
        return self._followed.is_empty

    @property
    def has_ended(self) -> bool:
        """Whether it asks for nothing any more, or not yet."""
        return self._phase is _ENDED

    def follow(self, runner: PartitionRunner) -> None:
        """Follow a partition, or learn of its new leader epoch."""
        if self._followed.add(runner):
            self._has_news = True
            self._look_soon()

    def forget(self, runner: PartitionRunner) -> None:
        """Stop following a partition."""
        if self._followed.remove(runner):
            self._look_soon()

    # -- asking ----------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Look in the loop's next turn, once for all that changes in this one."""
        if self._nudge is None and self._phase is not _ENDED:
            self._nudge = self._loop.call_soon(self._on_nudge)

    def _on_nudge(self) -> None:
        self._nudge = None
        self._guard(self._look)

    def _look(self) -> None:
        """Something may be to be told."""
        if self._phase is _ASKING:
            if not self._is_woken and (self._followed.forgotten or self._find_stored()):
                self._wake()
        elif self._phase in (_RESTING, _HOLDING):
            self._go_on()

    def _wake(self) -> None:
        # Its answer says nothing; where that gets lost, so does the fetch's.
        answer: Pending[Answer] = Pending()
        self._is_woken = self._peer.ask(self.leader_id, FETCH_WAKE, {}, answer, channel=CHANNEL)

    def _go_on(self) -> None:
        """Send the next fetch, unless it is to be held. None is under way."""
        followed = self._followed
        if followed.is_empty and not followed.forgotten:
            self._phase = _RESTING
            return
        is_full = self._session_id == 0
        if is_full:
            self._session_id = self._next_session_id()
            followed.begin_session()
        stored = self._find_stored()
        if not (stored or is_full or followed.forgotten) and self._must_hold():
            self._phase = _HOLDING
            return
        # Long syncs under way leave that much less room.
        room = max(self._settings.bytes_max - followed.syncing_bytes, SHORT_SYNC_BYTES)
        header: Fields = {
            "s": self._session_id,
            "full": is_full,
            "be": self._standing.broker_epoch,
            "p": [followed.tell_position(each) for each in stored],
            "ls": followed.tell_log_starts(stored),
            "f": followed.take_forgotten(),
            "room": not self._standing.is_disk_full,
            "w": self._settings.wait_ms_max,
            "m": room,
        }
        if followed.refused:
            header["bad"] = followed.take_refused()
        self._send(header)

    def _find_stored(self) -> list[Followed]:
        """Those that have a position to tell; of the others that changed it will be heard when they have."""
        stored = []
        for followed in self._followed.changed.values():
            if followed.is_resting:
                continue
            if followed.is_stored:
                stored.append(followed)
            elif not followed.is_syncing:
                self._await_sync(followed, 0)
        return stored

    def _await_sync(self, followed: Followed, data_bytes: int) -> None:
        if followed.is_syncing:
            return
        self._followed.begin_sync(followed, data_bytes)
        synced: Pending[None] = Pending()
        if data_bytes <= SHORT_SYNC_BYTES:
            synced.add_done_callback(partial(self._on_synced, followed))
        else:
            now_s, others = self._loop.time(), self._counts.short_syncs
            synced.add_done_callback(partial(self._on_long_sync, followed, now_s, others))
        followed.runner.call_when_stored(synced)

    def _on_synced(self, followed: Followed, _: Pending[None]) -> None:
        """Go on with a partition that is stored, or was cut off meanwhile."""
        self._followed.end_sync(followed)
        if self._followed.short_syncs:
            # Those that end in the same turn are told together.
            self._look_soon()
        else:
            self._guard(self._look)

    def _on_long_sync(
        self, followed: Followed, began_s: float, others: int, synced: Pending[None]
    ) -> None:
        """As ``_on_synced``; ``others``: how many short syncs there had been when it began."""
        if self._counts.short_syncs == others or followed.runner.is_in_sync:
            self._on_synced(followed, synced)
            return
        self._followed.end_sync(followed)
        followed.is_resting = True
        rest_s = min(self._loop.time() - began_s, REST_S_MAX)
        self._loop.call_later(rest_s, self._end_rest, followed)

    def _end_rest(self, followed: Followed) -> None:
        followed.is_resting = False
        self._look_soon()

    def _must_hold(self) -> bool:
        followed = self._followed
        return followed.short_syncs > 0 or followed.syncing_bytes >= self._settings.bytes_max

    def _send(self, header: Fields) -> None:
        if not self._ask(header):
            self._phase = _PAUSED
            self._retries.begin(self._loop.time())
            self._spawn(self._dial(header))

    def _ask(self, header: Fields) -> bool:
        """Send a fetch; False: there is no link that takes it."""
        asked: Pending[Answer] = Pending()
        asked.add_done_callback(self._on_answer)
        if not self._peer.ask(self.leader_id, FETCH, header, asked, channel=CHANNEL):
            return False
        self._phase, self._asked, self._is_woken = _ASKING, asked, False
        self._answer_due_s = self._loop.time() + self._answer_s_max
        if self._overdue is None:
            self._overdue = self._loop.call_at(self._answer_due_s, self._on_due)
        return True

    async def _dial(self, header: Fields) -> None:
        try:
            await self._peer.connect(
                self.leader_id, timeout_ms=self._answer_s_max * 1000, channel=CHANNEL
            )
            if not self._ask(header):
                raise PeerUnreachableError(f"the connection to node {self.leader_id} did not last")
        except MilenaError as error:
            self._fail(error)
        else:
            self._guard(self._look)

    def _on_due(self) -> None:
        self._overdue = None
        if self._phase is not _ASKING:
            return
        if self._loop.time() < self._answer_due_s:
            self._overdue = self._loop.call_at(self._answer_due_s, self._on_due)
            return
        ms = self._answer_s_max * 1000
        self._fail(
            PeerLostError(f"node {self.leader_id} did not answer a fetch within {ms:.0f} ms")
        )

    # -- trouble ---------------------------------------------------------------------------------

    def _guard(self, step: Callable[[], None]) -> None:
        """Take a step from a callback: what it raises begins a new session."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - sorted by _fail
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Begin a new session in a moment; an unexpected error is reported.

        This is the one place that contains what an answer of the leader makes this loop raise. An error in the middle
        of a change of a log has stopped the node before (``node.replica.log_changes``).
        """
        if not isinstance(error, MilenaError):
            self._report(error, "leader", str(self.leader_id))
        now_s = self._loop.time()
        count = self._retries.count(now_s)
        if count:
            logger.info("fetch failed leader=%d times=%d: %s", self.leader_id, count, error)
        self._give_up_asking()
        self._session_id = 0
        self._phase = _PAUSED
        self._has_news = False
        is_unreachable = isinstance(error, PeerUnreachableError)
        pause_ms = self._retries.pause_ms(now_s, is_unreachable=is_unreachable)
        if not isinstance(error, MilenaError):
            # It will mostly happen again.
            pause_ms = max(pause_ms, REFUSED_RETRY_MS)
        self._spawn(self._pause(pause_ms))

    async def _pause(self, pause_ms: float) -> None:
        """In short sleeps: where the leader's node is back, the metadata say so by a new epoch of what it leads."""
        self._peer.disconnect(self.leader_id, CHANNEL)
        while pause_ms > 0 and not self._has_news:
            await self._clock.sleep(min(RETRY_MS, pause_ms))
            pause_ms -= RETRY_MS
        if self._has_news:
            self._retries.hurry()
        self._phase = _RESTING
        self._guard(self._look)

    def _report(self, error: BaseException, field: str, value: str) -> None:
        self._counts.contained.report(EntryPoint.REPLICATION, error, field, value)

    def _end(self) -> None:
        self._phase = _ENDED
        self._give_up_asking()
        for handle in (self._overdue, self._nudge, *self._tasks):
            if handle is not None:
                handle.cancel()
        self._overdue = self._nudge = None

    def _give_up_asking(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._phase is not _ENDED:
            self._fail(error)

    # -- taking answers --------------------------------------------------------------------------

    def _on_answer(self, asked: Pending[Answer]) -> None:
        if asked is not self._asked:
            return  # it was given up
        self._asked = None
        # Whatever comes of what is taken, the next fetch is sent once all of it is.
        self._phase = _TAKING
        try:
            fields, body = asked.result()
            if self._retries.has_failed:
                self._retries.restart()
            rows = parse_rows(fields.get("r"), len(body))
            if rows and rows[0].code is FetchCode.UNKNOWN_SESSION:
                self._session_id = 0
                rows = []
            taken = self._take(rows, body)
            self._go_on()
            if taken:
                # Frames leave at the end of a turn: whatever is done in this one delays the fetch.
                self._loop.call_soon(self._guard, partial(self._advance, taken))
        except Exception as error:  # noqa: BLE001 - sorted by _fail
            self._fail(error)

    def _take(self, rows: Sequence[Row], body: bytes) -> list[tuple[Followed, Row]]:
        """Write what came; returns those whose leader had nothing to object, for ``_advance``."""
        taken = []
        position = 0
        for row in rows:
            data = body[position : position + row.size]
            position += row.size
            followed = self._followed.get(row.index)
            if followed is None:
                continue
            try:
                if row.code is not FetchCode.OK:
                    self._take_verdict(row, followed, data)
                    continue
                if data:
                    self._append(followed, data)
                taken.append((followed, row))
            except (NotLeaderError, UnavailableError, CorruptLogError) as error:
                self._on_refused(followed, error)
            except MilenaError:
                raise
            except Exception as error:  # noqa: BLE001 - the other partitions of this leader go on
                self._report(error, "partition", followed.runner.name)
                self._retry_later(followed, REFUSED_RETRY_MS)
        return taken

    def _append(self, followed: Followed, data: bytes) -> None:
        try:
            followed.runner.append_as_follower(data, leader_epoch=followed.leader_epoch)
        except CorruptLogError:
            # The leader sends what lies on its disk. It would for ever, if it did not hear that it has to look.
            self._followed.refused.append(followed.index)
            raise
        self._followed.changed[followed.index] = followed
        if not followed.is_stored:
            self._await_sync(followed, len(data))

    def _take_verdict(self, row: Row, followed: Followed, data: bytes) -> None:
        """The position was not taken, nor was what came with it."""
        followed.told_start = NO_OFFSET
        runner, epoch = followed.runner, followed.leader_epoch
        match row.code:
            case FetchCode.DIVERGING:
                before = runner.log.log_end_offset
                runner.truncate_as_follower(leader_epoch=epoch, epoch=row.a, end_offset=row.b)
                if runner.log.log_end_offset == before:
                    # The same question would get the same answer at once, for ever.
                    self._retry_later(followed)
                    return
            case FetchCode.BELOW_LOG_START:
                if not 0 <= row.a <= OFFSET_MAX:
                    # Checked here: in the middle of a restart it would end the node.
                    raise CorruptLogError(f"fetch: a log cannot start at offset {row.a}")
                runner.restart_as_follower(leader_epoch=epoch, log_start=row.a, producers=data)
            case _:
                self._retry_later(followed)
                return
        self._followed.changed[followed.index] = followed

    def _advance(self, taken: Sequence[tuple[Followed, Row]]) -> None:
        """Adopt what the leader says of its log's ends."""
        if self._phase is _ENDED:
            return
        for followed, row in taken:
            try:
                has_new_start = followed.runner.advance_as_follower(
                    leader_epoch=followed.leader_epoch,
                    high_watermark=row.high_watermark,
                    log_start=row.log_start,
                )
            except (NotLeaderError, UnavailableError, CorruptLogError) as error:
                self._on_refused(followed, error)
                continue
            if has_new_start:
                # Somebody may wait until it is known that nobody starts below it any more.
                self._tell(followed)

    def _tell(self, followed: Followed) -> None:
        if self._followed.has(followed):
            self._followed.changed[followed.index] = followed
            self._look_soon()

    def _on_refused(self, followed: Followed, error: MilenaError) -> None:
        if isinstance(error, NotLeaderError):
            return  # our role changed meanwhile; the image tells what to do
        logger.warning("fetch partition=%s: %s", followed.runner.name, error)
        self._retry_later(followed, REFUSED_RETRY_MS)

    def _retry_later(self, followed: Followed, pause_ms: int = RETRY_MS) -> None:
        if not followed.runner.is_stuck:
            self._spawn(self._retry(followed, pause_ms))

    async def _retry(self, followed: Followed, pause_ms: int) -> None:
        await self._clock.sleep(pause_ms)
        self._tell(followed)


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
