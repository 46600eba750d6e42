"""The follower's side of replication: one fetcher for each leader's node, with one fetch in flight at a time.

A fetch sends positions and asks for the records that follow them. The follower writes these records, syncs them, and
sends the new position with a later fetch. So a position is always the stored end of a log, and sending it acknowledges
the records below it. For each partition the order is always write → sync → send the position.

From the arrival of a response until the next fetch is sent, producers wait. So no task takes part in this: the response
is handled in the turn of the loop in which it arrives, and the next fetch is sent at the end of that turn. The leader's
high watermark and log start are adopted one turn later, because no producer waits for them.

The phases of a fetcher:

    RESTING  no partition is followed
    ASKING   a fetch is in flight: on the network, or waiting at the leader until something changes
    TAKING   a response is being handled, and no fetch may be sent
    HOLDING  the last response was handled, and the next fetch waits for a sync
    PAUSED   a task connects, or waits after a failure
    ENDED    not started, or stopped

When a position is sent:

- Each partition has its own sync, and syncs run at the same time. Each position is sent as soon as it is stored.
- If no position is ready and a *short* sync runs, the next fetch waits until one short sync has ended. Producers wait
  for this position. If the fetch were sent before, the position would have to wait for the next round trip.
- A *long* sync (more than ``SHORT_SYNC_BYTES``, typically half a megabyte of a replica that catches up) does not hold
  the fetch. The fetch is sent without that position, so that records of other partitions can arrive during the sync.
  The next fetch is held only if as many bytes are unsynced as a whole response may have.
- A replica that catches up must not keep the disk from others. If short syncs ended during its long sync, the replica
  pauses for as long as its sync took. Only then its position is sent, so that the leader sends more of it.
- If a position becomes ready while a fetch waits at the leader, one ``FETCH_WAKE`` makes the leader complete that
  fetch. The next fetch sends the position.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto, unique
from functools import partial

from milena.model.batch.decode import iterate_batches
from milena.model.clock import Clock
from milena.model.contained import EntryPoint
from milena.model.errors import CorruptLogError, MilenaError, NotLeaderError, UnavailableError
from milena.model.pending import Pending
from milena.model.types import NO_OFFSET
from node.config.budgets import ANSWER_MARGIN_MS, LASTING_RETRY_MS, RETRY_MS
from node.control.standing import Standing
from node.metrics.counts import NodeCounts
from node.peers.codec import Fields, PeerChannel
from node.peers.link import Answer
from node.peers.port import PeerLostError, Peers, PeerUnreachableError
from node.replica.group_commit import SHORT_SYNC_BYTES
from node.replica.runner import PartitionRunner
from node.replication.fetch_wire import FETCH, FETCH_WAKE, FetchCode, Row, parse_rows
from node.replication.followed import Followed, FollowedPartitions
from node.replication.retries import LeaderRetries

logger = logging.getLogger(__name__)

CHANNEL = PeerChannel.FETCH
OFFSET_MAX = 1 << 62
"""Larger than any offset of a log. Offsets slightly above it still fit into 64 bits."""


REST_S_MAX = 0.05
"""The longest pause of a replica that catches up, in seconds. After a long sync, the replica leaves the disk to others
for as long as the sync took, but not longer than this. A replica that has the disk alone does not pause."""


@unique
class _Phase(Enum):
    RESTING = auto()
    ASKING = auto()
    TAKING = auto()
    HOLDING = auto()
    PAUSED = auto()
    ENDED = auto()


# Names in the module: looking up a member of an enum takes as long as the rest of a comparison.
_RESTING, _ASKING, _TAKING, _HOLDING, _PAUSED, _ENDED = _Phase


class LeaderFetcher:
    """Fetches all partitions that this node follows at one leader's node.

    Invariants:
        - ``_asked`` is set if and only if the phase is ASKING.
        - A partition whose position must be sent is in ``_followed.changed`` until a fetch has sent it.
        - If a partition in ``_followed.changed`` is not stored, or pauses, a callback will be called when this ends.
    """

    def __init__(
        self,
        leader_id: int,
        *,
        peer: Peers,
        clock: Clock,
        wait_ms_max: int,
        bytes_max: int,
        standing: Standing,
        next_session_id: Callable[[], int],
        counts: NodeCounts,
    ) -> None:
        """Create a fetcher that does not run yet.

        ``wait_ms_max``: the longest wait of a fetch at the leader. ``bytes_max``: the most bytes of a response.
        ``counts``: the counters of all logs of this node.
        """
        self._counts = counts
        self.leader_id = leader_id
        self._peer = peer
        self._clock = clock
        self._wait_ms_max = wait_ms_max
        self._bytes_max = bytes_max
        self._answer_s_max = (wait_ms_max + ANSWER_MARGIN_MS) / 1000
        self._standing = standing
        self._next_session_id = next_session_id
        self._followed = FollowedPartitions()
        self._session_id = 0
        """The id of the session; 0 if the next fetch starts a new one."""
        self._loop = asyncio.get_running_loop()
        self._phase = _ENDED
        self._asked: Pending[Answer] | None = None
        self._is_woken = False
        """Whether a ``FETCH_WAKE`` was sent for the fetch in flight."""
        self._answer_due_s = 0.0
        self._overdue: asyncio.TimerHandle | None = None
        """The timer that checks whether the response is overdue. One timer for each fetch would cost more."""
        self._nudge: asyncio.Handle | None = None
        self._retries = LeaderRetries()
        self._has_news = False
        """Whether there is a new partition to follow, or a new leader epoch of one. This ends a pause."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to fetch."""
        self._phase = _RESTING
        self._look_soon()

    async def stop(self) -> None:
        """Stop fetching. Records that were written stay."""
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether no partition is followed at this leader."""
        return self._followed.is_empty

    def follow(self, runner: PartitionRunner) -> None:
        """Follow a partition, or adopt its new leader epoch."""
        if self._followed.add(runner):
            self._has_news = True
            self._look_soon()

    def forget(self, runner: PartitionRunner) -> None:
        """Stop following a partition."""
        if self._followed.remove(runner):
            self._look_soon()

    # -- asking ----------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Call ``_look`` in the loop's next turn, once for all changes of this turn."""
        if self._nudge is None and self._phase is not _ENDED:
            self._nudge = self._loop.call_soon(self._on_nudge)

    def _on_nudge(self) -> None:
        self._nudge = None
        self._guard(self._look)

    def _look(self) -> None:
        """If a position must be sent, send it, or make the leader complete the fetch in flight."""
        if self._phase is _ASKING:
            # A follower has one fetch in flight. A second one would replace the first at the leader. So wake the first.
            if not self._is_woken and (self._followed.forgotten or self._find_stored()):
                self._wake()
        elif self._phase in (_RESTING, _HOLDING):
            # In TAKING, ``_on_answer`` sends the next fetch itself, after the whole response is handled.
            self._go_on()

    def _wake(self) -> None:
        # The response to a wake is ignored. If the wake is lost, the response to the fetch is overdue at some time.
        answer: Pending[Answer] = Pending()
        self._is_woken = self._peer.ask(self.leader_id, FETCH_WAKE, {}, answer, channel=CHANNEL)

    def _go_on(self) -> None:
        """Send the next fetch, unless it must be held. No fetch may be in flight."""
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
        # Bytes that long syncs have not stored yet reduce the next response, so that about ``bytes_max`` bytes at most
        # are unsynced. The minimum lets short records of other partitions arrive at all times.
        room = max(self._bytes_max - followed.syncing_bytes, SHORT_SYNC_BYTES)
        header: Fields = {
            "s": self._session_id,
            "full": is_full,
            "be": self._standing.broker_epoch,
            "p": [followed.tell_position(each) for each in stored],
            "ls": followed.tell_log_starts(stored),
            "f": followed.take_forgotten(),
            "room": not self._standing.is_disk_full,
            "w": self._wait_ms_max,
            "m": room,
        }
        if followed.refused and (refused := followed.take_refused()):
            header["bad"] = refused
        self._send(header)

    def _find_stored(self) -> list[Followed]:
        """Return the changed partitions whose records are synced, so that their positions may be sent.

        Begin to wait for the syncs of the others.
        """
        stored = []
        for followed in self._followed.changed.values():
            if followed.is_resting:
                continue
            if followed.is_stored:
                stored.append(followed)
            elif not followed.is_syncing:
                # It changed without new data, for example by a truncation. So no callback waits for its sync yet.
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
            # Short syncs of the whole node are counted, not only those for this leader: all partitions share the disk.
            now_s, others = self._loop.time(), self._counts.short_syncs
            synced.add_done_callback(partial(self._on_long_sync, followed, now_s, others))
        followed.runner.call_when_stored(synced)

    def _on_synced(self, followed: Followed, _: Pending[None]) -> None:
        """Continue with a partition that is stored now, or that was truncated during the sync."""
        self._followed.end_sync(followed)
        if self._followed.short_syncs:
            # Other short syncs may end in the same turn. Then one fetch sends all these positions.
            self._look_soon()
        else:
            # No other short sync can end, so waiting for the next turn would only delay the writers.
            self._guard(self._look)

    def _on_long_sync(
        self, followed: Followed, began_s: float, others: int, synced: Pending[None]
    ) -> None:
        """Continue as ``_on_synced`` does, but pause first if others need the disk.

        ``others``: the number of short syncs that this node had done when this sync started.
        """
        # A replica in sync never pauses, however large its sync: writers wait for its position.
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
        return followed.short_syncs > 0 or followed.syncing_bytes >= self._bytes_max

    def _send(self, header: Fields) -> None:
        # The positions in the header count as sent. So it is sent after connecting, or the session ends.
        if not self._ask(header):
            self._phase = _PAUSED
            self._retries.begin(self._loop.time())
            self._spawn(self._dial(header))

    def _ask(self, header: Fields) -> bool:
        """Send a fetch; return False if there is no connection to the leader's node."""
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
            # The timer was set for an earlier fetch, which has been answered.
            self._overdue = self._loop.call_at(self._answer_due_s, self._on_due)
            return
        ms = self._answer_s_max * 1000
        self._fail(
            PeerLostError(f"node {self.leader_id} did not answer a fetch within {ms:.0f} ms")
        )

    # -- failures --------------------------------------------------------------------------------

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step from a callback. If the step raises, end the session."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - sorted by _fail
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the session and start another one after a pause. Report an unexpected error.

        All errors that a leader's response causes on this loop end here. If one occurs in the middle of a change of a
        log, ``node.replica.log_changes`` has stopped the node before.
        """
        if not isinstance(error, MilenaError):
            self._report(error, "leader", str(self.leader_id))
        now_s = self._loop.time()
        count = self._retries.count(now_s)
        if count:
            logger.info("fetch failed leader=%d times=%d: %s", self.leader_id, count, error)
        self._give_up_asking()
        # The positions of the lost fetch count as sent, but the leader may not have got them. A full fetch in a new
        # session makes both sides agree again (KIP-227).
        self._session_id = 0
        self._phase = _PAUSED
        self._has_news = False
        is_unreachable = isinstance(error, PeerUnreachableError)
        pause_ms = self._retries.pause_ms(now_s, is_unreachable=is_unreachable)
        if not isinstance(error, MilenaError):
            # An unexpected error usually happens again with the same response.
            pause_ms = max(pause_ms, LASTING_RETRY_MS)
        self._spawn(self._pause(pause_ms))

    async def _pause(self, pause_ms: float) -> None:
        """Sleep in short steps. Stop early on a new leader epoch: the leader is back, or another node leads."""
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
            return  # the fetch was given up
        self._asked = None
        # In TAKING no fetch is sent. An append below may show that an earlier sync has ended, and its callback would
        # send a fetch at once. ``_go_on`` would then send another one, and the first one's response would be dropped.
        # The leader sends data for a position once, so the partition would get no more records.
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
                # The fetch is sent at the end of the turn, so more work in this turn would delay it.
                self._loop.call_soon(self._guard, partial(self._advance, taken))
        except Exception as error:  # noqa: BLE001 - sorted by _fail
            self._fail(error)

    def _take(self, rows: Sequence[Row], body: bytes) -> list[tuple[Followed, Row]]:
        """Write the records of a response; return the partitions with an OK row, for ``_advance``.

        If one partition fails, the others of the response are still handled.
        """
        taken = []
        position = 0
        for row in rows:
            data = body[position : position + row.size]
            position += row.size
            followed = self._followed.get(row.index)
            if followed is None:
                # The partition is not followed any more. ``position`` has moved past its data all the same.
                continue
            try:
                if row.code is not FetchCode.OK:
                    self._take_verdict(row, followed, data)
                    continue
                if data:
                    self._append(followed, row, data)
                taken.append((followed, row))
            except (NotLeaderError, UnavailableError, CorruptLogError) as error:
                self._on_refused(followed, error)
            except MilenaError:
                raise
            except Exception as error:  # noqa: BLE001 - the other partitions of this leader go on
                self._report(error, "partition", followed.runner.name)
                self._retry_later(followed, LASTING_RETRY_MS)
        return taken

    def _append(self, followed: Followed, row: Row, data: bytes) -> None:
        try:
            followed.runner.append_as_follower(data, leader_epoch=followed.leader_epoch)
        except CorruptLogError:
            sound_bytes = _sound_bytes(data)
            if 0 < sound_bytes < len(data):
                # Then the report names the place. The response may reach over several segments, and the leader's
                # scrubber checks the segment of the place.
                self._append(followed, row, data[:sound_bytes])
                self._followed.refused.append(followed.index)
                return
            # The leader sends the bytes that it has on disk, so a retry would get the same bytes. The next fetch
            # reports the damage, and the leader's scrubber checks its copy.
            self._followed.refused.append(followed.index)
            # Only if the leader knows of exactly this damage, it was not caused on the way or here.
            followed.runner.on_no_records(has_source=row.a != followed.runner.log.log_end_offset)
            raise
        self._followed.changed[followed.index] = followed
        # With relaxed flushing, a record counts as stored as soon as it is written.
        if not followed.is_stored:
            self._await_sync(followed, len(data))

    def _take_verdict(self, row: Row, followed: Followed, data: bytes) -> None:
        """Handle a row with which the leader refused the position."""
        # The leader ignored everything about the refused position, also the log start that was sent with it.
        followed.told_start = NO_OFFSET
        runner, epoch = followed.runner, followed.leader_epoch
        match row.code:
            case FetchCode.DIVERGING:
                before = runner.log.log_end_offset
                runner.truncate_as_follower(leader_epoch=epoch, epoch=row.a, end_offset=row.b)
                if runner.log.log_end_offset == before:
                    # The log did not change, so another fetch would get the same response at once, again and again.
                    self._retry_later(followed)
                    return
            case FetchCode.BELOW_LOG_START:
                if not 0 <= row.a <= OFFSET_MAX:
                    # Check it before the restart: an error in the middle of it would stop the node.
                    raise CorruptLogError(f"fetch: a log cannot start at offset {row.a}")
                runner.restart_as_follower(leader_epoch=epoch, log_start=row.a, producers=data)
            case _:
                runner.on_no_records(has_source=row.a != runner.log.log_end_offset)
                self._retry_later(followed)
                return
        self._followed.changed[followed.index] = followed

    def _advance(self, taken: Sequence[tuple[Followed, Row]]) -> None:
        """Adopt the leader's high watermark and log start."""
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
                # Deletions of records at the leader wait until all replicas have reported the new log start.
                self._tell(followed)

    def _tell(self, followed: Followed) -> None:
        if self._followed.has(followed):
            self._followed.changed[followed.index] = followed
            self._look_soon()

    def _on_refused(self, followed: Followed, error: MilenaError) -> None:
        if isinstance(error, NotLeaderError):
            return  # the role changed since the fetch was sent; the image decides what to do
        logger.warning("fetch partition=%s: %s", followed.runner.name, error)
        self._retry_later(followed, LASTING_RETRY_MS)

    def _retry_later(self, followed: Followed, pause_ms: int = RETRY_MS) -> None:
        if not followed.runner.is_stuck:
            self._spawn(self._retry(followed, pause_ms))

    async def _retry(self, followed: Followed, pause_ms: int) -> None:
        await self._clock.sleep(pause_ms)
        self._tell(followed)


def _sound_bytes(batches: bytes) -> int:
    """Return how many bytes the batches before the first damaged one have."""
    end = 0
    with suppress(CorruptLogError):
        for position, header in iterate_batches(batches):
            end = position + header.batch_bytes
    return end


class ReplicaFetchers:
    """The fetchers of this node. Each followed partition is assigned to the fetcher of its leader's node."""

    def __init__(self, make: Callable[[int], LeaderFetcher]) -> None:
        self._make = make
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._assigned: dict[PartitionRunner, int] = {}
        self._is_stopped = False

    def assign(self, runner: PartitionRunner, leader_id: int | None) -> None:
        """Follow ``leader_id`` with the partition; None: follow no leader."""
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
        """Stop every fetcher for good."""
        self._is_stopped = True
        await asyncio.gather(*(f.stop() for f in self._fetchers.values()))
        self._fetchers.clear()
        self._assigned.clear()
