"""A follower's session: the replicas that a node follows here, and how long its fetch waits for news.

A session is the leader's memory of one follower (KIP-227). News is anything about a followed partition that the
follower does not know: records, a high watermark, a log start, the end of a leadership. The session decides when the
follower's waiting fetch is answered. Three kinds of events happen, in any order:

    a fetch arrives        ``arrive``, then ``take`` for each of its positions, then ``park`` if there is no news
    a partition has news   ``on_news``: data is sent in the next turn; a high watermark alone waits for data
    time passes            the fetch's timeout, the delay of a high watermark, or the pause of a throttled partition

An example:

1. A leader's log grows by one record. ``on_news`` finds a parked (waiting) fetch and wakes it. In the next turn of the
   loop, the fetch is answered with the record, and the partition is settled: it gets no more data for this position.
2. The follower's next fetch sends the new position, which moves the high watermark. That news is not urgent, so the
   fetch is parked. The high watermark is sent with the next record, or after five milliseconds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from milena.model.pending import Pending
from node.peers.link import Reply
from node.replica.runner import PartitionRunner
from node.replication.fetch_wire import Position, Row

if TYPE_CHECKING:
    from milena.disk.files import Buffer

HIGH_WATERMARK_DELAY_S = 0.005
"""How long a new high watermark waits for data to be sent with, even if a response is about to be sent.

Without the delay, every commit would cost every follower a round trip. Only clients that read from followers wait for
a new high watermark.
"""

POSTPONE_S_MAX = 1.0
"""The longest pause of a throttled partition, because its limit may be raised meanwhile."""


@dataclass(slots=True)
class FetchedReplica:
    """One partition in a session.

    ``is_settled``: this position was answered with data or an error. The partition waits for a new position.

    ``is_accepted``: the position lies on the leader's log, so the follower may get the high watermark. If its log
    diverged, the follower would count records as committed that are not.

    ``is_unreadable``: the records at this position cannot be read, and the log of the node says so.
    """

    runner: PartitionRunner
    position: Position
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    is_settled: bool = False
    is_accepted: bool = False
    is_unreadable: bool = False


Collect = Callable[[], Reply | Coroutine[None, None, Reply]]


class _Parked:
    """A fetch that waits for news. ``until_s``: when it is answered at the latest, in the loop's seconds."""

    __slots__ = ("_collect", "answer", "until_s")

    def __init__(self, answer: Pending[Reply], collect: Collect, until_s: float) -> None:
        self.answer = answer
        self.until_s = until_s
        self._collect = collect

    def complete(self) -> None:
        """Answer with the news that is collected now, unless the follower does not wait any more."""
        if self.answer.done():
            return
        try:
            found = self._collect()
        except Exception as error:  # noqa: BLE001 - passed on to the task that answers
            self.answer.set_exception(error)
            return
        answer_with(self.answer, found)


def answer_with(answer: Pending[Reply], found: Reply | Coroutine[None, None, Reply]) -> None:
    """Answer with ``found`` itself, or, if it is a coroutine, with its result."""
    if isinstance(found, tuple):
        answer.set_result(found)
        return
    task = asyncio.get_running_loop().create_task(found)
    task.add_done_callback(partial(_pass_on, answer))
    answer.add_done_callback(lambda _: task.cancel())


def _pass_on(answer: Pending[Reply], task: "asyncio.Task[Reply]") -> None:
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


class FollowerSession:
    """The partitions that one follower's node follows at this node.

    Invariants:
        At most one fetch is parked. A second fetch completes the first, because the follower has given that one up.
        A partition leaves ``news`` only if a response tells its news, or if the follower knows everything. So no news
        is lost between two fetches.
        A settled partition gets no data until its position moves: the follower would get the same bytes twice.
        ``followed`` and ``_indexes`` are inverse to each other. The session watches every runner in them.
    """

    def __init__(self, follower: int, session_id: int) -> None:
        self.follower = follower
        self._loop = asyncio.get_running_loop()
        """Kept here: getting the running loop takes a system call, and each record would need several of them."""
        self.session_id = session_id
        self.has_room = True
        """Whether the follower's disk has room."""
        self.followed: dict[int, FetchedReplica] = {}
        self._indexes: dict[PartitionRunner, int] = {}
        self.rows: list[Row] = []
        """Rows about refused positions, for the next response. ``bodies`` has their bytes."""
        self.bodies: list[Buffer] = []
        self.news: set[int] = set()
        self.is_urgent = False
        """Whether some news must be sent without waiting for data."""
        self._late_since_s: float | None = None
        """When a high watermark started to wait for data, in the loop's seconds; None if none waits."""
        self._postponed: set[int] = set()
        """Throttled partitions. Their news waits for the timer ``_resume``."""
        self._resume: asyncio.TimerHandle | None = None
        self._parked: _Parked | None = None
        self._expiry: asyncio.TimerHandle | None = None
        """The timer for the timeouts of parked fetches. One timer serves many fetches."""
        self._expiry_s = 0.0
        self._is_arriving = False
        """Whether a fetch has arrived, but is not yet answered or parked: until the next turn, or during disk reads."""
        self._is_woken = False
        """Whether ``wake`` was called while a fetch was arriving, so that the fetch must not be parked."""
        self._delayed: asyncio.TimerHandle | None = None

    def on_news(self, runner: PartitionRunner) -> None:
        """Note that the partition's log grew, its high watermark moved, or its role changed."""
        index = self._indexes.get(runner)
        # A postponed partition needs no note: when it resumes, all its news is collected.
        if index is None or index in self._postponed:
            return
        followed = self.followed[index]
        self.news.add(index)
        position = followed.position
        has_data = runner.log.log_end_offset > position.offset and not followed.is_settled
        if has_data or runner.leader_epoch != position.leader_epoch:
            # Writers wait for the data. If the leader epoch is another one, the follower must learn it at once.
            self.hurry()
        else:
            self._delay()

    def hurry(self) -> None:
        """Send the news without waiting any longer."""
        self.is_urgent = True
        self.wake()

    def _delay(self) -> None:
        """Let the news wait for ``HIGH_WATERMARK_DELAY_S``.

        Usually the news is sent earlier, with data. The timer is not cancelled then, because that would cost more.
        """
        loop = self._loop
        if self._late_since_s is None:
            self._late_since_s = loop.time()
        if self._delayed is None:
            self._delayed = loop.call_later(HIGH_WATERMARK_DELAY_S, self._end_delay)

    def _end_delay(self) -> None:
        self._delayed = None
        if self._late_since_s is None:
            return
        loop = self._loop
        left_s = self._late_since_s + HIGH_WATERMARK_DELAY_S - loop.time()
        if left_s > 0:
            self._delayed = loop.call_later(left_s, self._end_delay)
        else:
            self.hurry()

    def begin_to_collect(self) -> None:
        """Count all present news as sent. ``put_back`` undoes this."""
        self.is_urgent = False
        self._late_since_s = None

    def rest(self) -> bool:
        """Return whether an arriving fetch may wait at once: its only position is the end of the leader's log.

        This is the most frequent case. A new high watermark waits for data.
        """
        if self.rows or self.is_urgent or len(self.news) != 1:
            return False
        (index,) = self.news
        followed = self.followed.get(index)
        if followed is None:
            return False
        runner, position = followed.runner, followed.position
        log = runner.log
        if (
            not followed.is_accepted
            or runner.leader is None
            or runner.leader_epoch != position.leader_epoch
            or position.offset != log.log_end_offset
            or log.log_start_offset > followed.sent_log_start
        ):
            return False
        if runner.high_watermark > followed.sent_high_watermark:
            self._delay()
        else:
            self.news.clear()
        return True

    def put_back(self, rows: Sequence[Row]) -> None:
        """Make rows that have only high watermarks news again. They then wait for data."""
        if rows:
            self.news.update(row.index for row in rows)
            self._delay()

    def wake(self) -> None:
        """Complete the parked fetch in the loop's next turn, with or without news."""
        parked = self._parked
        if parked is not None:
            self._parked = None
            # Wait for the next turn: other logs that grow in this turn go into the same response.
            self._loop.call_soon(parked.complete)
        elif self._is_arriving:
            self._is_woken = True

    def arrive(self, go_on: Callable[[], None]) -> None:
        """Note that a fetch arrived, and call ``go_on`` in the loop's next turn."""
        self.notice_wakes()
        self._loop.call_soon(go_on)

    def notice_wakes(self) -> None:
        """From now on until ``may_park``, remember calls of ``wake``: no parked fetch can be completed by them."""
        self._is_arriving, self._is_woken = True, False

    def may_park(self) -> bool:
        """Return whether ``wake`` was not called since the fetch arrived. Stop remembering calls of it."""
        self._is_arriving = False
        return not self._is_woken

    def park(self, timeout_ms: int, collect: Collect, answer: Pending[Reply]) -> None:
        """Let a fetch wait until ``wake`` or for ``timeout_ms``. Complete a fetch that was parked before."""
        self.wake()
        until_s = self._loop.time() + timeout_ms / 1000
        self._parked = _Parked(answer, collect, until_s)
        if self._expiry is None or until_s < self._expiry_s:
            self._expire_at(until_s)

    def _expire_at(self, when_s: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry_s = when_s
        self._expiry = self._loop.call_later(when_s - self._loop.time(), self._expire)

    def _expire(self) -> None:
        self._expiry = None
        parked = self._parked
        if parked is None:
            return
        if parked.until_s <= self._loop.time():
            self.wake()
        else:
            self._expire_at(parked.until_s)

    def take(self, runner: PartitionRunner, position: Position) -> FetchedReplica:
        """Note the follower's position in a partition; return the partition's state in this session."""
        old = self.followed.get(position.index)
        if old is not None and old.runner is not runner:
            # The replica was removed and created again at this node. What was sent of the former one does not count.
            self.forget(position.index)
            old = None
        if old is None:
            old = self.followed[position.index] = FetchedReplica(runner, position)
            self._indexes[runner] = position.index
            runner.watchers[self] = None
        elif old.position.leader_epoch != position.leader_epoch:
            # When the last response arrived, the follower may have been between two epochs and ignored the response.
            old.sent_high_watermark = old.sent_log_start = -1
        old.is_unreadable = old.is_unreadable and old.position.offset == position.offset
        old.position = position
        old.is_settled = old.is_accepted = False
        self.news.add(position.index)
        return old

    def postpone(self, index: int, delay_s: float) -> None:
        """Send nothing of a throttled partition for ``delay_s``, then check it again."""
        self._postponed.add(index)
        if self._resume is None:
            self._resume = self._loop.call_later(
                min(delay_s, POSTPONE_S_MAX), self._resume_postponed
            )

    def _resume_postponed(self) -> None:
        self._resume = None
        self.news |= self._postponed
        self._postponed.clear()
        self.hurry()

    def set_room(self, *, has_room: bool) -> None:
        """Note whether the follower's disk has room. If this changed, tell the leaders of all followed partitions."""
        if has_room is not self.has_room:
            self.has_room = has_room
            for followed in self.followed.values():
                followed.runner.on_follower_room(self.follower, has_room=has_room)

    def forget(self, index: int) -> None:
        """Stop following a partition."""
        followed = self.followed.pop(index, None)
        self.news.discard(index)
        self._postponed.discard(index)
        if followed is not None:
            self._indexes.pop(followed.runner, None)
            followed.runner.watchers.pop(self, None)

    def close(self) -> None:
        """Complete the parked fetch, stop the timers, and forget all partitions."""
        self.wake()
        for timer in (self._delayed, self._expiry, self._resume):
            if timer is not None:
                timer.cancel()
        for index in list(self.followed):
            self.forget(index)
