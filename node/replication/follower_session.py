"""A follower's session: the replicas that its node follows here, and how long its fetch waits for news.

A session is the leader's memory of one follower (KIP-227). Three things happen to it, in any order, and it decides when
the follower's one waiting fetch is answered:

    a fetch arrives        ``arrive``, then ``take`` for each position that it names, then ``park`` if there is no news
    a partition has news   ``on_news``: data goes out in the next turn, a high watermark alone waits for company
    time passes            the fetch's own limit, the delay of a high watermark, a throttle that lets more through

An example: a leader's log grew by one record. ``on_news`` finds a fetch parked and wakes it; it is answered in the next
turn with the record and settled. The follower's next fetch tells the new position, which moves the high watermark;
that news is not urgent, so the fetch parks, and the watermark travels with the next record or five milliseconds later.
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
"""News of the high watermark alone waits this long for data to travel with, also where the fetch that moved it is
about to be answered: it would otherwise cost every follower a round trip per commit, and nobody but readers of
followers waits for it."""

POSTPONE_S_MAX = 1.0
"""A throttled partition is looked at again after this long at the latest: its bound may have been raised."""


@dataclass(slots=True)
class FetchedReplica:
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


Collect = Callable[[], Reply | Coroutine[None, None, Reply]]


class _Parked:
    """A fetch that waits for news."""

    __slots__ = ("_collect", "answer", "until_s")

    def __init__(self, answer: Pending[Reply], collect: Collect, until_s: float) -> None:
        self.answer = answer
        self.until_s = until_s
        self._collect = collect

    def complete(self) -> None:
        """Answer with what there is, unless the follower is gone."""
        if self.answer.done():
            return
        try:
            found = self._collect()
        except Exception as error:  # noqa: BLE001 - passed on to whoever answers
            self.answer.set_exception(error)
            return
        answer_with(self.answer, found)


def answer_with(answer: Pending[Reply], found: Reply | Coroutine[None, None, Reply]) -> None:
    """Pass on what is there, or what a task will find."""
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
    """Partitions that one follower's node follows here.

    Invariants:
        At most one fetch is parked: a second one that arrives answers the first with what there is, since a follower
        that sends another has given the former up.
        A partition leaves ``news`` by an answer that tells of it, or because the follower knows it all: nothing is
        lost between two fetches.
        A settled partition is sent no data until its position moves: the same bytes would only come twice.
        ``followed`` and ``_indexes`` are each other's inverse, and this is among the watchers of every runner in them.
    """

    def __init__(self, follower: int, session_id: int) -> None:
        self.follower = follower
        self._loop = asyncio.get_running_loop()
        """Kept: to ask for it is a system call, and several are made for each record."""
        self.session_id = session_id
        self.has_room = True
        """Whether the follower's disk takes more."""
        self.followed: dict[int, FetchedReplica] = {}
        self._indexes: dict[PartitionRunner, int] = {}
        self.rows: list[Row] = []
        """Verdicts on positions, to be answered."""
        self.bodies: list[Buffer] = []
        self.news: set[int] = set()
        self.is_urgent = False
        """Some of the news must not wait for company."""
        self._late_since_s: float | None = None
        """Since when news of a high watermark alone has waited; None: none does."""
        self._postponed: set[int] = set()
        """Throttled: their news waits for ``_resume``."""
        self._resume: asyncio.TimerHandle | None = None
        self._parked: _Parked | None = None
        self._expiry: asyncio.TimerHandle | None = None
        """Rings when the fetch that waits may have waited long enough; one timer for many fetches."""
        self._expiry_s = 0.0
        self._is_arriving = False
        """A fetch has come, and is answered or parked in the next turn, or when the disk was read for it."""
        self._is_woken = False
        """It must not be parked."""
        self._delayed: asyncio.TimerHandle | None = None

    def on_news(self, runner: PartitionRunner) -> None:
        """The partition's log grew, its high watermark moved, or its role changed."""
        index = self._indexes.get(runner)
        # Of a postponed one, too, all news is found when it resumes.
        if index is None or index in self._postponed:
            return
        followed = self.followed[index]
        self.news.add(index)
        position = followed.position
        has_data = runner.log.log_end_offset > position.offset and not followed.is_settled
        if has_data or runner.leader_epoch != position.leader_epoch:
            # Writers wait for the data, and a follower of a former epoch for the word that it is over.
            self.hurry()
        else:
            self._delay()

    def hurry(self) -> None:
        """The news is not to wait any longer."""
        self.is_urgent = True
        self.wake()

    def _delay(self) -> None:
        """The news may wait for a while; the timer is left alone when it goes out before, which it mostly does."""
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
        """All that is news by now goes out, unless ``put_back`` says otherwise."""
        self.is_urgent = False
        self._late_since_s = None

    def rest(self) -> bool:
        """Whether a fetch that just came may wait since its one position is where our log ends, the commonest case.

        News of a high watermark go on to wait for company.
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
        """Nothing but high watermarks, if anything: they wait for company."""
        if rows:
            self.news.update(row.index for row in rows)
            self._delay()

    def wake(self) -> None:
        """Complete the waiting fetch in the loop's next turn, whatever it has by then."""
        parked = self._parked
        if parked is not None:
            self._parked = None
            # Not now: what else grows in this turn goes out in the same answer.
            self._loop.call_soon(parked.complete)
        elif self._is_arriving:
            self._is_woken = True

    def arrive(self, go_on: Callable[[], None]) -> None:
        """A fetch has come; ``go_on`` is called in the loop's next turn."""
        self.notice_wakes()
        self._loop.call_soon(go_on)

    def notice_wakes(self) -> None:
        """From here on until ``may_park`` asks, while nothing is parked that could be woken."""
        self._is_arriving, self._is_woken = True, False

    def may_park(self) -> bool:
        """Whether nobody called ``wake`` since the fetch came. It has arrived."""
        self._is_arriving = False
        return not self._is_woken

    def park(self, timeout_ms: int, collect: Collect, answer: Pending[Reply]) -> None:
        """Leave a fetch until ``wake`` or until the time is up; one that waits already gets its answer."""
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
        """Put a partition at a position."""
        old = self.followed.get(position.index)
        if old is not None and old.runner is not runner:
            # The replica was removed and made anew here: what was sent of the former means nothing.
            self.forget(position.index)
            old = None
        if old is None:
            old = self.followed[position.index] = FetchedReplica(runner, position)
            self._indexes[runner] = position.index
            runner.watchers[self] = None
        elif old.position.leader_epoch != position.leader_epoch:
            # What was sent in an earlier epoch may have met a follower that was between the two.
            old.sent_high_watermark = old.sent_log_start = -1
        old.position = position
        old.is_settled = old.is_accepted = False
        self.news.add(position.index)
        return old

    def postpone(self, index: int, delay_s: float) -> None:
        """Look at the partition again when its throttle lets more through."""
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
        """Let the leaders of all that is followed know when it changes."""
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
        """Forget everything."""
        self.wake()
        for timer in (self._delayed, self._expiry):
            if timer is not None:
                timer.cancel()
        if self._resume is not None:
            self._resume.cancel()
        for index in list(self.followed):
            self.forget(index)
