"""REST consumers of one group, on its desk: they become the members that they shall be, and are asked to let go.

A coordinator that takes over finishes what another has left half done: a consumer that is subscribed and no member, a
member whose consumer is gone. What cannot be done now is tried again with the desk's next look at the group.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from milena.model.errors import InvalidRequestError, LimitReachedError
from node.groups.desk_context import DeskContext
from node.groups.rebalance import Change, Release, to_give_back
from node.groups.rest_members import membership_change
from raft_meta.machine import partition_sets
from raft_meta.machine.image import Group, GroupMember

logger = logging.getLogger(__name__)


class RestMemberships:
    """See the module. ``submit`` takes changes that nobody waits for to the desk."""

    def __init__(
        self,
        group_id: str,
        context: DeskContext,
        submit: Callable[[Sequence[Change]], asyncio.Future[None]],
    ) -> None:
        self._group_id = group_id
        self._context = context
        self._submit = submit
        self._unsettled: set[str] = set()
        """Consumers whose membership may not be what their subscription says."""

    def missing(self, instance: str) -> Change | None:
        """What makes the consumer the member that its subscription says; None: it is.

        Raises:
            InvalidConsumerError, InvalidTopicNameError: it cannot be such a member.
        """
        return membership_change(self._context.metadata.image, self._group_id, instance)

    def settle_soon(self, instance: str) -> None:
        """With the next ``settle``."""
        self._unsettled.add(instance)

    def settle(self) -> None:
        """Submit what is missing."""
        unsettled, self._unsettled = sorted(self._unsettled), set()
        for instance in unsettled:
            try:
                change = self.missing(instance)
            except InvalidRequestError as error:
                logger.warning(
                    "consumer cannot be a member group=%s instance=%s: %s",
                    self._group_id,
                    instance,
                    error,
                )
                continue
            if change is not None:
                self._settle_by(instance, change)

    def _settle_by(self, instance: str, change: Change) -> None:
        def on_done(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None and not isinstance(error, InvalidRequestError | LimitReachedError):
                self._unsettled.add(instance)

        self._submit([change]).add_done_callback(on_done)

    def ask(self, group: Group | None) -> None:
        """Let consumers commit before they lose partitions; what they have let go is submitted."""
        keeper = self._context.rest_members()
        changes = [
            release(member)
            for member in (() if group is None else group.members)
            if member.is_rest
            and not partition_sets.is_subset(member.held, member.target)
            and (
                keeper is None
                or keeper.may_release(self._group_id, member.member_id, to_give_back(member))
            )
        ]
        if changes:
            self._submit(changes)


def release(member: GroupMember) -> Release:
    """The member gives back all that it is asked for."""
    return Release(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        partitions=to_give_back(member),
    )
