"""Offsets on their coordinator: commits go to the quorum, and unused offsets expire.

Commits of many members travel in one command, with one command in flight at a time. A commit that the image already
refuses is refused at once. The state machine judges each commit again when the command is applied.

Offsets expire after ``offsets_retention_minutes``. The time counts from the later of two moments: the group lost its
last member, or the offset was committed. A group with members keeps all its offsets. Source: KIP-211.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milena.model.errors import (
    DrainingError,
    MilenaError,
    NotCoordinatorError,
    StaleBrokerEpochError,
    TooManyRequestsError,
)
from milena.model.types import WallMs
from node.config.budgets import BARRIER_MS, PROPOSE_MS
from node.context import NodeContext
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.group_messages import GroupCommitRequest
from node.metadata.batched_proposals import BatchedProposals
from node.peers.messages import Done
from raft_meta.machine import codec
from raft_meta.machine.commands import (
    CommitOffsets,
    ExpireOffsets,
    GroupCommit,
    GroupExpiry,
    OffsetCommit,
)
from raft_meta.machine.groups import group_rules, offsets
from raft_meta.machine.image import Group, Image

logger = logging.getLogger(__name__)

COMMAND_BYTES_MAX = 640 << 10
"""The most bytes of commits in a command, estimated. A command has at most 1 MiB, and a single commit is below this."""
OFFSET_BYTES = 60
"""The estimated size of an offset: a topic id, four numbers and their frames."""
COMMIT_BYTES = 64
QUEUED_BYTES_MAX = 32 << 20
"""The most bytes of commits that wait for the quorum. At its best the quorum takes half a minute for them."""
GROUPS_PER_EXPIRY_MAX = 1_000
MINUTE_MS = 60_000


class CommitQueue:
    """Gathers commits of the groups that this node coordinates. Owned by the data loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._counts = node.counts.groups
        self._commits: BatchedProposals[GroupCommit] = BatchedProposals(
            propose=self._propose,
            size_of=_size,
            changes_max=group_rules.COMMITS_PER_COMMAND_MAX,
            bytes_max=COMMAND_BYTES_MAX,
            contained=node.counts.contained,
            task="group-commits",
        )

    async def on_commit(self, request: GroupCommitRequest) -> Done:
        """Commit the offsets of a request; see ``commit``."""
        image = self._node.metadata.image
        commit = GroupCommit(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            offsets=tuple(
                OffsetCommit(
                    topic_id=row.topic_id,
                    partition=row.partition,
                    offset=row.offset,
                    leader_epoch=row.leader_epoch,
                    metadata=row.metadata,
                )
                for row in request.offsets
            ),
            coordinators_version=image.coordinators_version,
        )
        if any(row.topic_id not in image.topics for row in commit.offsets):
            # The node that sent the request has seen the topic, so this node's image is behind.
            await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        await self.commit(commit)
        return Done()

    async def commit(self, commit: GroupCommit) -> None:
        """Commit offsets, all or none, and return once they are committed.

        Raises:
            MemberNotFoundError, MemberFencedError, StaleMemberEpochError, GroupNotEmptyError: the committer is fenced;
                nothing was committed.
            InvalidRequestError, NotFoundError, LimitReachedError: the commit is refused; nothing was committed.
            NotCoordinatorError, NoQuorumError, TooManyRequestsError, DrainingError: this node cannot commit now;
                nothing was committed.
            FateUnknownError: the offsets may be committed.
        """
        offsets.check_commit(self._node.metadata.image, commit)
        if self._commits.queued_bytes + _size(commit) > QUEUED_BYTES_MAX:
            raise TooManyRequestsError("too many commits wait for the quorum; try again")
        await self._commits.add(commit)

    async def _propose(self, commits: Sequence[GroupCommit]) -> list[MilenaError | None]:
        try:
            codes = await self._node.metadata.propose(
                CommitOffsets(
                    broker_id=self._node.metadata.node_id,
                    broker_epoch=self._node.membership.broker_epoch,
                    commits=tuple(commits),
                ),
                timeout_ms=PROPOSE_MS,
            )
        except StaleBrokerEpochError as error:
            # A broker with an earlier epoch coordinates no group.
            raise NotCoordinatorError(f"{error.message} Nothing was committed.") from error
        assert isinstance(codes, tuple), codes
        self._counts.commit_commands += 1
        return [self._outcome(commit, code) for commit, code in zip(commits, codes, strict=True)]

    def _outcome(self, commit: GroupCommit, code: str) -> MilenaError | None:
        if not code:
            self._counts.commits += 1
            self._counts.committed_offsets += len(commit.offsets)
            return None
        # The state has changed since ``commit`` checked it. A second check gives the reason in words.
        try:
            offsets.check_commit(self._node.metadata.image, commit)
        except MilenaError as error:
            if error.code == code:
                return error
        return codec.error_of(code, "the group changed meanwhile; nothing was committed")

    async def close(self) -> None:
        """Refuse the commits that wait, and stop."""
        await self._commits.close(
            lambda: DrainingError("this node is stopping; nothing was committed")
        )


def _size(commit: GroupCommit) -> int:
    return COMMIT_BYTES + sum(OFFSET_BYTES + len(row.metadata.encode()) for row in commit.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    """Times in ms: how long offsets are kept, and the pause between checks."""

    retention_ms: int
    check_ms: int


class OffsetExpiry:
    """Proposes the expiry of offsets in the groups that this node coordinates."""

    def __init__(
        self, node: NodeContext, *, calls: CoordinatorCalls, settings: ExpirySettings
    ) -> None:
        self._node = node
        self._calls = calls
        self._settings = settings

    async def run(self) -> None:
        """Expire offsets every ``check_ms``, until cancelled."""
        while True:
            await self._node.clock.sleep(self._settings.check_ms)
            await self.expire()

    async def expire(self) -> None:
        """Expire the offsets that are due in the groups that this node coordinates."""
        before_ms = WallMs(self._node.clock.expiry_ms() - self._settings.retention_ms)
        image = self._node.metadata.image
        due = [
            group_id
            for group_id in sorted(expirable(image, before_ms))
            if self._calls.coordinates(group_id)
        ]
        for first in range(0, len(due), GROUPS_PER_EXPIRY_MAX):
            await self._propose(due[first : first + GROUPS_PER_EXPIRY_MAX], before_ms)

    async def _propose(self, group_ids: Sequence[str], before_ms: WallMs) -> None:
        command = ExpireOffsets(
            broker_id=self._node.metadata.node_id,
            broker_epoch=self._node.membership.broker_epoch,
            groups=tuple(
                GroupExpiry(group_id=group_id, before_ms=before_ms) for group_id in group_ids
            ),
        )
        try:
            forgotten = await self._node.metadata.propose(command, timeout_ms=PROPOSE_MS)
        except MilenaError as error:
            logger.info("offsets did not expire, tried again later: %s", error)
            return
        assert isinstance(forgotten, tuple), forgotten
        count = sum(number for number in forgotten if isinstance(number, int))
        self._node.counts.groups.expired_offsets += count
        logger.info("offsets expired groups=%d offsets=%d", len(group_ids), count)


def expirable(image: Image, before_ms: WallMs) -> Iterator[str]:
    """Yield the ids of groups with offsets to expire, and of empty groups without offsets."""
    for group in image.groups.values():
        if (
            not group.member_count
            and group.emptied_ms < before_ms
            and _is_due(image, group, before_ms)
        ):
            yield group.group_id


def _is_due(image: Image, group: Group, before_ms: WallMs) -> bool:
    offsets = image.offsets.get(group.group_id)
    return not offsets or any(offset.commit_ms < before_ms for offset in offsets.values())
