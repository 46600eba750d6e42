"""The agreement between a group's coordinator and the REST consumers (``node.consumers``). Same node, same loop.

A REST consumer with a subscription is a member of its group: ``RestConsumer.topics`` and ``pattern`` in the image say
that it is to be one, and under which subscription. The coordinator of REST consumers, which is that of their group:

- puts the consumer (PutConsumer) or deletes it (DeleteConsumers), and then awaits
  ``GroupCoordinator.settle(group_id, instance)``: it returns once the group's membership says what the consumer's
  subscription says (joined under it, or left), with partitions shared out anew. A coordinator that takes over settles
  all consumers of its groups by itself, so that nothing stays half done;
- reads what the consumer has in the image: ``members.assignment_of(image, group_id, instance)``, empty while it is no
  member. It may deliver those partitions; what is not in there it must not deliver, nor commit;
- commits through ``CommitQueue.commit(GroupCommit(...))`` under the member's present epoch
  (``members.member_of(image, group_id, instance).member_epoch``), as everybody does;
- implements ``RestMembers`` below, told to the coordinator by ``GroupCoordinator.use_rest_members``, and calls
  ``GroupCoordinator.look(group_id)`` when what kept it from letting go is over;
- keeps idle consumers' time itself: REST members have no session here.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from milena.model.errors import InvalidRequestError, LimitReachedError
from node.groups.members import membership_change
from node.groups.rebalance import MemberChange, Release, to_give_back
from node.metadata.store import MetadataStore
from raft_meta.machine.image import Group, GroupMember, PartitionSet
from raft_meta.machine.topics import partition_sets

logger = logging.getLogger(__name__)


class RestMembers(Protocol):
    """REST consumers, as the coordinator of groups sees them."""

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Whether the consumer has let go of these, of which it delivers nothing from now on.

        False: a call is under way, or what was delivered is being committed; ``GroupCoordinator.look`` says when to
        ask again. The coordinator asks for a rebalance timeout's time, and then takes them away.
        """


class RestMemberships:
    """REST consumers of one group: they become the members that they are to be, and are asked to let go.

    A coordinator that takes over finishes what another has left half done: a consumer that is subscribed and no member,
    a member whose consumer is gone. ``submit`` takes changes that nobody waits for to the group's writer.
    """

    def __init__(
        self,
        group_id: str,
        metadata: MetadataStore,
        rest_members: Callable[[], RestMembers | None],
        submit: Callable[[Sequence[MemberChange]], asyncio.Future[None]],
    ) -> None:
        self._group_id = group_id
        self._metadata = metadata
        self._rest_members = rest_members
        self._submit = submit
        self._unsettled: set[str] = set()
        """Consumers whose membership may not be what their subscription says."""

    def missing(self, instance: str) -> MemberChange | None:
        """The change that makes the consumer the member that its subscription says; None: it is.

        Raises:
            InvalidConsumerError, InvalidTopicNameError: it cannot be such a member.
        """
        return membership_change(self._metadata.image, self._group_id, instance)

    def settle_soon(self, instance: str) -> None:
        """Let the next ``settle`` look at the consumer."""
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

    def _settle_by(self, instance: str, change: MemberChange) -> None:
        def on_done(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None and not isinstance(error, InvalidRequestError | LimitReachedError):
                self._unsettled.add(instance)

        self._submit([change]).add_done_callback(on_done)

    def ask(self, group: Group | None) -> None:
        """Let consumers commit before they lose partitions; what they have let go is submitted."""
        consumers = self._rest_members()
        changes = [
            release(member)
            for member in (() if group is None else group.members)
            if member.is_rest
            and not partition_sets.is_subset(member.held, member.target)
            and (
                consumers is None
                or consumers.may_release(self._group_id, member.member_id, to_give_back(member))
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
