"""A consumer's link to its group: continuous heartbeats, and commits (asyncio shell).

``milena.consuming.membership`` decides the content of a heartbeat and the meaning of its response. One heartbeat is in
flight at a time. The coordinator delays its response until the assignment changes, up to the heartbeat's interval. So a
member learns of a rebalance at once. If the member itself has something to report (it gave up partitions, or its
subscription changed), ``hurry`` sends another heartbeat without waiting for the delayed response.

Temporary failures (a coordinator that crashed, an election) are retried at growing intervals. If they last longer than
``patience_ms``, ``poll`` raises the error (``take_failure``), and the heartbeats continue.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from milena.cluster.first_of import first_of
from milena.consuming.group_calls import GroupCalls
from milena.consuming.membership import Beat, BeatAnswer, GroupMembership
from milena.consuming.options import ConsumerOptions
from milena.errors import (
    ClientError,
    CommitFailedError,
    ConsumerFencedError,
    MemberFencedError,
    MemberUnknownError,
    NeverReachedError,
    StaleMemberError,
    UnexpectedAnswerError,
    is_worth_another_try,
)
from milena.model.clock import Clock
from milena.reading.patience import WAIT_MS_MAX, Patience
from milena.records import TopicPartition

logger = logging.getLogger(__name__)

AT_ONCE_MS = 100
"""If a response "no change" arrives within this time (ms) although the node should delay it, the member pauses.

Otherwise the member would send heartbeats without a pause.
"""

LEFT_BEHIND_MAX = 4
"""The most heartbeats that were replaced by a newer one and still wait for their response."""

LEAVE_MS = 3_000
"""The timeout of the heartbeat that leaves the group, in ms. If it fails, the session timeout removes the member."""


class GroupLink:
    """Send the heartbeats of one member.

    ``on_change`` is called, on the loop, when the assignment has changed or there is an error for ``poll``.
    """

    def __init__(
        self,
        group: str,
        membership: GroupMembership,
        *,
        options: ConsumerOptions,
        calls: GroupCalls,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self.group = group
        self.membership = membership
        self._session_ms = options.session_timeout_ms
        self._is_static = options.instance_id is not None
        self._calls = calls
        self._clock = clock
        self._on_change = on_change
        self._patience_ms = options.patience_ms
        self._patience = Patience(options.patience_ms)
        self._hurried = asyncio.Event()
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._left_behind: dict[asyncio.Future[BeatAnswer], None] = {}
        self._failure: ClientError | None = None
        self._is_over = False

    # -- for the consumer --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the task that joins the group and sends heartbeats."""
        self._task = asyncio.create_task(self._beat_on())

    async def close(self) -> None:
        """Stop the heartbeats."""
        ending: list[asyncio.Future[BeatAnswer] | asyncio.Task[None]] = [*self._left_behind]
        if self._task is not None:
            ending.append(self._task)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def leave(self) -> None:
        """Send the heartbeat that leaves the group. If it fails, the session timeout removes the member."""
        if self.membership.is_lost or not self.membership.is_member:
            return
        beat = self.membership.farewell()
        self.membership.lose(is_gone=beat is not None)
        if beat is None:
            return
        call = self._calls.heartbeat(self.group, beat, session_ms=self._session_ms)
        try:
            await first_of(call, self._clock.sleep(LEAVE_MS))
        except ClientError as error:
            logger.info("left without a word group=%s error=%s", self.group, error)

    def hurry(self) -> None:
        """Send a heartbeat now, because there is something to report."""
        self._hurried.set()

    @property
    def fenced(self) -> ConsumerFencedError | None:
        """The error, if another process took over the member's instance id, which ends this member; else None."""
        return self._failure if isinstance(self._failure, ConsumerFencedError) else None

    def take_failure(self) -> ClientError | None:
        """Return the error that ``poll`` should raise. A temporary error is returned only once."""
        failure = self._failure
        if not self._is_over:
            self._failure = None
        return failure

    def lose(self, why: object) -> None:
        """End this membership, because the group has removed the member; it joins again later."""
        logger.warning(
            "the group gave this member up group=%s member=%s why=%s",
            self.group,
            self.membership.member_id,
            why,
        )
        self.membership.lose()
        self._heard.set()
        self._on_change()

    # -- heartbeats --------------------------------------------------------------------------------

    async def _beat_on(self) -> None:
        while not self._is_over:
            beat = self.membership.beat(is_held=not self._hurried.is_set())
            self._hurried.clear()
            if beat is None:
                await self._hurried.wait()
                continue
            begun_ms = self._clock.now_ms()
            answer = await self._attempt(beat)
            if answer is None:
                continue
            self._patience.on_success()
            has_changed = self.membership.on_answer(beat, answer)
            self._heard.set()
            if has_changed:
                self._on_change()
            elif beat.wait_ms and self._clock.now_ms() - begun_ms < AT_ONCE_MS:
                await first_of(self._hurried.wait(), self._clock.sleep(beat.wait_ms))

    async def _attempt(self, beat: Beat) -> BeatAnswer | None:
        """Return the response; None if there is none, or if another heartbeat must be sent instead."""
        call = self._calls.heartbeat(self.group, beat, session_ms=self._session_ms)
        try:
            # A heartbeat that joins gets its response at once. A second one must not be sent before that response.
            return await (self._held(beat, call) if beat.wait_ms else call)
        except (MemberFencedError, MemberUnknownError, StaleMemberError) as error:
            # If the member has already lost the membership of this heartbeat, ignore the error.
            if beat.member_id == self.membership.member_id and not self.membership.is_lost:
                self._on_refusal(error)
        except ClientError as error:
            # A heartbeat is repeatable, so it is retried even after an unknown result.
            if is_worth_another_try(error) or isinstance(
                error, UnexpectedAnswerError | NeverReachedError
            ):
                await self._be_patient(error)
            else:
                self._end(error)
        return None

    async def _held(
        self, beat: Beat, call: Coroutine[object, object, BeatAnswer]
    ) -> BeatAnswer | None:
        """Return the response to a heartbeat; None if ``hurry`` was called before the response arrived.

        The heartbeat is then replaced by another one, but not cancelled: the coordinator may send the next change as a
        response to it. Later responses may be newer than this one. So its content is ignored, and its arrival only
        makes the member send another heartbeat.
        """
        task, hurried = asyncio.ensure_future(call), asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait({task, hurried}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            hurried.cancel()
        if task.done():
            return task.result()
        self._leave_behind(beat, task)
        return None

    def _leave_behind(self, beat: Beat, task: "asyncio.Future[BeatAnswer]") -> None:
        def on_late_answer(late: "asyncio.Future[BeatAnswer]") -> None:
            self._left_behind.pop(late, None)
            if late.cancelled() or late.exception() is not None:
                return
            if beat.member_id == self.membership.member_id and (
                late.result().assignment != self.membership.assignment
                or late.result().member_epoch != self.membership.member_epoch
            ):
                self.hurry()

        self._left_behind[task] = None
        task.add_done_callback(on_late_answer)
        while len(self._left_behind) > LEFT_BEHIND_MAX:
            next(iter(self._left_behind)).cancel()
            self._left_behind.pop(next(iter(self._left_behind)))

    def _on_refusal(self, error: MemberFencedError | MemberUnknownError | StaleMemberError) -> None:
        if isinstance(error, MemberFencedError):
            self.fence(error)
        elif self._is_static and isinstance(error, StaleMemberError):
            # Nodes of an earlier release respond with this error.
            self.fence(error)
        else:
            self.lose(error)

    def fence(self, error: MemberFencedError | StaleMemberError) -> ConsumerFencedError:
        """End this member permanently: another process has its instance id, and a new join would fence that process."""
        fenced = ConsumerFencedError(f"another process took over: {error.message}")
        fenced.__cause__ = error
        self._end(fenced)
        return fenced

    def _end(self, error: ClientError) -> None:
        """Stop the heartbeats permanently; every ``poll`` raises ``error`` from now on."""
        self._failure = error
        self._is_over = True
        self.membership.lose()
        self._heard.set()
        self._on_change()

    async def _be_patient(self, error: ClientError) -> None:
        wait_ms = self._patience.on_failure(
            self._clock.now_ms(), is_bad_answer=isinstance(error, UnexpectedAnswerError)
        )
        if wait_ms is None or isinstance(error, NeverReachedError):
            # Report the error to ``poll``, but continue the heartbeats: the cluster may respond again.
            self._failure = error
            self._patience = Patience(self._patience_ms)
            wait_ms = WAIT_MS_MAX
            self._on_change()
        await self._clock.sleep(wait_ms)

    # -- commits -----------------------------------------------------------------------------------

    async def has_moved_on(self, member_epoch: int) -> bool:
        """Return whether the member has another epoch now; send a heartbeat first if needed."""
        if self.membership.member_epoch == member_epoch and not self.membership.is_lost:
            self._heard.clear()
            self.hurry()
            await first_of(self._heard.wait(), self._clock.sleep(self._session_ms))
        return not self.membership.is_lost and self.membership.member_epoch != member_epoch


class OffsetCommits:
    """Commit offsets for a group, one commit at a time, so that an older commit never overwrites a newer one."""

    def __init__(
        self, group: str, *, calls: GroupCalls, clock: Clock, link: GroupLink | None
    ) -> None:
        self._group = group
        self._calls = calls
        self._clock = clock
        self._link = link
        self._turn = asyncio.Lock()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        topic_tags: Mapping[TopicPartition, str],
        *,
        patience_ms: float,
    ) -> None:
        """Commit all of these offsets, or none; ``topic_tags`` as for ``GroupCalls.commit``.

        Raises:
            TargetNotFoundError: a topic was deleted. If there is a new one of the name, it keeps its offsets.
            CommitFailedError: the member does not have one of the partitions any more.
            ConsumerFencedError: another process took over the member's instance id.
            ClientError: the commit was refused, or there was no useful response for ``patience_ms``.
        """
        if not offsets:
            return
        patience = Patience(patience_ms)
        async with self._turn:
            while not await self._attempt(offsets, topic_tags, patience):
                pass

    async def _attempt(
        self,
        offsets: Mapping[TopicPartition, int],
        topic_tags: Mapping[TopicPartition, str],
        patience: Patience,
    ) -> bool:
        member = self._committing(offsets)
        epoch = None if member is None else member.member_epoch
        try:
            await self._calls.commit(
                self._group,
                offsets,
                member_id=None if member is None else member.member_id,
                member_epoch=epoch,
                topic_tags=topic_tags,
            )
        except MemberFencedError as error:
            if self._link is None:
                raise
            raise self._link.fence(error) from error
        except MemberUnknownError as error:
            if self._link is not None:
                self._link.lose(error)
            raise CommitFailedError(f"nothing was committed: {error.message}") from error
        except StaleMemberError as error:
            # The member's epoch may have been raised while it keeps the partitions. Then commit with the new epoch.
            if self._link is None or epoch is None or not await self._link.has_moved_on(epoch):
                raise CommitFailedError(f"nothing was committed: {error.message}") from error
            await self._be_patient(error, patience)
        except ClientError as error:
            if not is_worth_another_try(error):
                raise
            await self._be_patient(error, patience)
        else:
            return True
        return False

    def _committing(self, offsets: Mapping[TopicPartition, int]) -> GroupMembership | None:
        """Return the member that commits these offsets; None if the consumer is not a member.

        Raises:
            ConsumerFencedError: another process took over the member's instance id.
            CommitFailedError: the member does not have one of the partitions.
        """
        if self._link is None:
            return None
        if self._link.fenced is not None:
            raise self._link.fenced
        member = self._link.membership
        if member.is_lost or not member.owned >= offsets.keys():
            raise CommitFailedError(f"nothing was committed: {_not_owned(member, offsets)}")
        return member

    async def _be_patient(self, error: ClientError, patience: Patience) -> None:
        wait_ms = patience.on_failure(self._clock.now_ms())
        if wait_ms is None:
            raise error
        await self._clock.sleep(wait_ms)


def _not_owned(member: GroupMembership, offsets: Mapping[TopicPartition, int]) -> str:
    if member.is_lost:
        return "the group gave this member up"
    names = ", ".join(str(where) for where in sorted(offsets.keys() - member.owned))
    return f"{names}: not this consumer's"
