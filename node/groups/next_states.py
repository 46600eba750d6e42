"""What one group becomes next: worked out by ``rebalance``, proposed, and worked out anew where a command was faster.

Targets are made only when something may change them: a join, a leave, or topics and a version that are not those for
which they were made last. Large groups are worked out beside the loop.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence

from milena.model.errors import FencedError, GroupChangedError, NotCoordinatorError
from node.groups.desk_context import DeskContext
from node.groups.rebalance import Change, Leave, NextState, Release, next_state
from node.groups.subscriptions import Subscriptions
from node.groups.waiting import WaitingMembers
from raft_meta.machine.commands import AlterGroup
from raft_meta.machine.image import Group, Image

logger = logging.getLogger(__name__)

PROPOSE_TIMEOUT_MS = 5_000
TRIES_MAX = 20
"""Of one state: each one that fails was overtaken by a command about the same group, of which there are few."""
SUCCESSIONS_KEPT_MAX = 1_000
LARGE_GROUP = 64
"""Members from which on partitions are shared out by a worker."""


class NextStates:
    """The states of one group. Owned by its desk, which asks for one at a time."""

    def __init__(self, group_id: str, context: DeskContext, waiting: WaitingMembers) -> None:
        self._group_id = group_id
        self._context = context
        self._waiting = waiting
        self._succeeded: dict[str, None] = {}
        """Members whose instance id another process has taken over."""
        self._assigned: tuple[int, object] | None = None
        """The version and the topics for which the targets were last made, or found right."""

    def was_succeeded(self, member_id: str) -> bool:
        """Whether another process has taken over the member's instance id."""
        return member_id in self._succeeded

    def is_overtaken(self, group: Group) -> bool:
        """Whether the group is another one than that for which targets were worked out here."""
        return self._assigned is None or self._assigned[0] != group.version

    async def reach(self, changes: Sequence[Change]) -> None:
        """Have these taken in, and free partitions given out.

        Raises:
            NotCoordinatorError, NoQuorumError: nothing was changed.
            InvalidRequestError, LimitReachedError: refused; nothing was changed.
            FateUnknownError: it may be changed.
        """
        for _ in range(TRIES_MAX):
            self._context.check(self._group_id)
            image = self._context.metadata.image
            group = image.groups.get(self._group_id)
            after = await self._next_state(group, image, changes)
            if after is None:
                self._assigned = (0 if group is None else group.version, image.topics)
                return
            try:
                version = await self._propose(group, after)
            except GroupChangedError:
                continue
            except FencedError as error:
                raise NotCoordinatorError(f"{error.message} Nothing was changed.") from error
            self._assigned = (version, image.topics)
            self._note(changes, after)
            return
        raise NotCoordinatorError(
            f"group {self._group_id!r} changes all the time; nothing was done"
        )

    async def _next_state(
        self, group: Group | None, image: Image, changes: Sequence[Change]
    ) -> NextState | None:
        is_same = (
            group is not None
            and self._assigned is not None
            and (self._assigned[0] == group.version and self._assigned[1] is image.topics)
        )
        must_assign = not is_same or any(not isinstance(change, Release) for change in changes)
        present = self._waiting.present
        members = 0 if group is None else len(group.members)
        if not must_assign or members + len(changes) < LARGE_GROUP:
            subscriptions = self._context.subscriptions
            subscriptions.look(image)
            return next_state(
                group, changes, subscriptions, present=present, must_assign=must_assign
            )
        # Sharing out ten thousand partitions takes a second; the node is not to stand still for it.
        subscriptions = Subscriptions()
        subscriptions.look(image)
        return await asyncio.get_running_loop().run_in_executor(
            self._context.pool,
            functools.partial(next_state, group, changes, subscriptions, present=present),
        )

    async def _propose(self, group: Group | None, after: NextState) -> int:
        """Returns the new version."""
        version = await self._context.metadata.propose(
            AlterGroup(
                broker_id=self._context.metadata.node_id,
                broker_epoch=self._context.standing.broker_epoch,
                group_id=self._group_id,
                version=0 if group is None else group.version,
                generation=after.generation,
                assignor=after.assignor,
                members=after.members,
                left=after.left,
            ),
            timeout_ms=PROPOSE_TIMEOUT_MS,
        )
        assert isinstance(version, int), version
        return version

    def _note(self, changes: Sequence[Change], after: NextState) -> None:
        counts = self._context.counts
        if after.is_rebalance:
            counts.rebalances += 1
            logger.info(
                "group rebalanced group=%s generation=%d assignor=%s",
                self._group_id,
                after.generation,
                after.assignor,
            )
        gone = {change.member_id for change in changes if isinstance(change, Leave)}
        for member_id in after.left:
            if member_id not in gone:
                self._succeeded[member_id] = None
        while len(self._succeeded) > SUCCESSIONS_KEPT_MAX:
            del self._succeeded[next(iter(self._succeeded))]
