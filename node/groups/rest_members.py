"""The interface between a group's coordinator and the REST consumers (``node.consumers``). Same node, same loop.

A REST consumer with a subscription is a member of its group. ``RestConsumer.topics`` and ``pattern`` in the image are
its subscription. The coordinator of REST consumers is the coordinator of their group. It does this:

- **Membership.** It puts the consumer (PutConsumer) or deletes it (DeleteConsumers). Then it awaits
  ``GroupCoordinator.settle(group_id, instance)``, which returns once the membership matches the subscription (joined
  under it, or left) and partitions are assigned again. A coordinator that takes over settles all consumers of its
  groups by itself, so that nothing stays half done.
- **Assignment.** It reads the consumer's partitions from the image: ``members.assignment_of(image, group_id,
  instance)``, which is empty while the consumer is no member. It must not deliver or commit other partitions.
- **Commits.** It commits through ``CommitQueue.commit(GroupCommit(...))`` under the member's present epoch
  (``members.member_of(image, group_id, instance).member_epoch``), as all members do.
- **Release.** It implements ``RestMembers`` below, which ``GroupCoordinator.use_rest_members`` sets. It calls
  ``GroupCoordinator.look(group_id)`` when a consumer can release its partitions.
- **Idle time.** It measures the idle time of consumers itself, because REST members have no session here.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from milena.model.errors import (
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LimitReachedError,
)
from node.groups.members import membership_change
from node.groups.rebalance import MemberChange, Release, to_give_back
from node.metadata.store import MetadataStore
from raft_meta.machine.image import Group, GroupMember, PartitionSet
from raft_meta.machine.topics import partition_sets

logger = logging.getLogger(__name__)


class RestMembers(Protocol):
    """The REST consumers, as the coordinator of groups sees them."""

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Ask the consumer to release partitions; return whether it has released them.

        From now on it delivers nothing of them. It returns False while a call is in flight, or while delivered records
        are being committed; ``GroupCoordinator.look`` says when to ask again. After the rebalance timeout, the
        coordinator takes the partitions without asking.
        """


class RestMemberships:
    """The REST consumers of one group: settle their memberships, and ask them to release partitions.

    A coordinator that takes over finishes the work of its predecessor: a subscribed consumer that is no member yet, or
    a member whose consumer is deleted. ``submit`` passes changes without a waiting caller to the group's writer.
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
        """Consumers whose membership may not match their subscription."""

    def missing(self, instance: str) -> MemberChange | None:
        """Return the change that makes the consumer's membership match its subscription; None if it does.

        Raises:
            InvalidConsumerError, InvalidTopicNameError: the consumer cannot be a member with this subscription.
        """
        return membership_change(self._metadata.image, self._group_id, instance)

    def settle_soon(self, instance: str) -> None:
        """Have the next ``settle`` check the consumer."""
        self._unsettled.add(instance)

    def settle(self) -> None:
        """Submit the missing changes of all unsettled consumers."""
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
            if error is not None and not isinstance(
                error, InvalidRequestError | LimitReachedError | InconsistentGroupProtocolError
            ):
                self._unsettled.add(instance)

        self._submit([change]).add_done_callback(on_done)

    def ask(self, group: Group | None) -> None:
        """Ask consumers to release the partitions that they must give back, and submit the released ones.

        A consumer may so commit before it loses partitions.
        """
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
    """Return the release of all partitions that the member must give back."""
    return Release(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        partitions=to_give_back(member),
    )
