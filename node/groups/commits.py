"""Commits of offsets on their coordinator: many in one command, one command under way at a time.

What the image already refuses is refused at once; the state machine judges again when the command is applied.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from milena.model.errors import (
    DrainingError,
    MilenaError,
    NotCoordinatorError,
    StaleBrokerEpochError,
    TooManyRequestsError,
)
from node.control.standing import Standing
from node.metadata.store import MetadataStore
from node.metrics.counts import GroupCounts
from raft_meta.machine import codec, group_rules, offsets
from raft_meta.machine.commands import CommitOffsets, GroupCommit

PROPOSE_TIMEOUT_MS = 5_000
COMMAND_BYTES_MAX = 640 << 10
"""Of one command's commits, estimated; the bound of a command is 1 MiB, and one commit is below this by its own."""
OFFSET_BYTES = 60
"""A topic id, four numbers and their frames."""
COMMIT_BYTES = 64
QUEUED_BYTES_MAX = 32 << 20
"""Of commits that wait for the quorum: half a minute of it at its best."""


@dataclass(slots=True)
class _Queued:
    commit: GroupCommit
    size: int
    done: asyncio.Future[None]


class GroupCommits:
    """Gathers commits of the groups that this node coordinates. Owned by the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        standing: Standing,
        counts: GroupCounts,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._metadata = metadata
        self._standing = standing
        self._counts = counts
        self._on_failure = on_failure
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def commit(self, commit: GroupCommit) -> None:
        """Return once these offsets are committed, all of them.

        Raises:
            MemberNotFoundError, StaleMemberEpochError, GroupNotEmptyError: fenced; nothing was committed.
            InvalidRequestError, NotFoundError, LimitReachedError: refused; nothing was committed.
            NotCoordinatorError, NoQuorumError, TooManyRequestsError: not now; nothing was committed.
            FateUnknownError: they may be committed.
        """
        offsets.check_commit(self._metadata.image, commit)
        size = _size(commit)
        if self._is_closed:
            raise DrainingError("this node is stopping; nothing was committed")
        if self._queued_bytes + size > QUEUED_BYTES_MAX:
            raise TooManyRequestsError("too many commits wait for the quorum; try again")
        queued = _Queued(commit, size, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self._queued_bytes += size
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._on_done)
        await queued.done

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def _run(self) -> None:
        while self._queue:
            taken = self._take()
            try:
                codes = await self._metadata.propose(
                    CommitOffsets(
                        broker_id=self._metadata.node_id,
                        broker_epoch=self._standing.broker_epoch,
                        commits=tuple(queued.commit for queued in taken),
                    ),
                    timeout_ms=PROPOSE_TIMEOUT_MS,
                )
            except MilenaError as error:
                refusal = _as_refusal(error)
                for queued in taken:
                    _end(queued, refusal)
                continue
            assert isinstance(codes, tuple), codes
            self._counts.commit_commands += 1
            for queued, code in zip(taken, codes, strict=True):
                self._settle(queued, code)
        # Before the callback of this task, which whoever was just answered may precede with the next commit.
        self._task = None

    def _take(self) -> list[_Queued]:
        taken: list[_Queued] = []
        size = 0
        while self._queue and len(taken) < group_rules.COMMITS_PER_COMMAND_MAX:
            size += self._queue[0].size
            if taken and size > COMMAND_BYTES_MAX:
                break
            taken.append(self._queue.popleft())
        self._queued_bytes -= sum(queued.size for queued in taken)
        return taken

    def _settle(self, queued: _Queued, code: str) -> None:
        if not code:
            self._counts.commits += 1
            self._counts.committed_offsets += len(queued.commit.offsets)
            _end(queued, None)
            return
        # The state has moved on since ``commit`` looked; asked again, it says why in words.
        try:
            offsets.check_commit(self._metadata.image, queued.commit)
        except MilenaError as error:
            if error.code == code:
                _end(queued, error)
                return
        _end(queued, codec.error_of(code, "the group changed meanwhile; nothing was committed"))

    async def close(self) -> None:
        """Answer who waits."""
        self._is_closed = True
        while self._queue:
            _end(
                self._queue.popleft(),
                DrainingError("this node is stopping; nothing was committed"),
            )
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def _size(commit: GroupCommit) -> int:
    return COMMIT_BYTES + sum(OFFSET_BYTES + len(row.metadata.encode()) for row in commit.offsets)


def _end(queued: _Queued, error: MilenaError | None) -> None:
    if queued.done.done():
        return
    if error is None:
        queued.done.set_result(None)
    else:
        queued.done.set_exception(error)


def _as_refusal(error: MilenaError) -> MilenaError:
    """A broker that is not what it was has coordinated nothing."""
    if isinstance(error, StaleBrokerEpochError):
        return NotCoordinatorError(f"{error.message} Nothing was committed.")
    return error
