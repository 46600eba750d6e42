"""Server groups for the listener of Kafka's protocol: members by Kafka's own consumer protocol (KIP-848).

They are the groups that HTTP members use, and both kinds of members may share one. A request at a node that does not
coordinate the group is refused with NotCoordinatorError: Kafka's clients then look for the coordinator again.
"""

from collections.abc import Callable

from http_api.ports.groups import HeartbeatAnswer, KafkaHeartbeat
from milena.model.errors import GroupNotFoundError, StaleMemberEpochError
from node.context import NodeContext
from node.groups.classic.member import unknown_member
from node.groups.coordinator import GroupCoordinator
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.descriptions import TopicNames, is_server_group
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Group


class ServerMembers:
    """Members of server groups that speak Kafka's protocol. Runs on the data loop.

    Each method raises NotCoordinatorError if this node does not coordinate the group; nothing was done then.
    """

    def __init__(
        self,
        node: NodeContext,
        *,
        calls: CoordinatorCalls,
        coordinator: GroupCoordinator,
        new_member_id: Callable[[], str],
    ) -> None:
        """Serve the groups of this coordinator. ``new_member_id``: makes an id for a member that comes without one."""
        self._node = node
        self._calls = calls
        self._coordinator = coordinator
        self.names = TopicNames(lambda: node.metadata.image)
        """Translates topic ids, which this protocol uses, to names."""
        self.new_member_id = new_member_id

    async def heartbeat(self, heartbeat: KafkaHeartbeat) -> HeartbeatAnswer:
        """Let a member join, stay or leave.

        Raises:
            InstanceHeldError: another member has the instance id, and is still there.
            MilenaError: as ``http_api.ports.groups.GroupsPort.heartbeat``.
        """
        group_rules.check_group_id(heartbeat.group_id)
        async with self._calls.judged(heartbeat.group_id):
            return await self._coordinator.on_heartbeat(heartbeat)

    def describe(self, group_id: str) -> Group:
        """Return the group with its members, by this node's image. The caller has made sure that the image is current.

        Raises:
            GroupNotFoundError: there is no such group, or it is none of this kind.
        """
        self._calls.check(group_id)
        group = self._node.metadata.image.groups.get(group_id)
        if group is None or not is_server_group(group):
            raise GroupNotFoundError(
                f"group {group_id!r} does not exist, or does not use the consumer protocol"
            )
        return group

    async def check_member(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Refuse a request of a member that is not in the group, or not under this epoch.

        A group of another kind, or without members, refuses no request.

        Raises:
            MemberNotFoundError, StaleMemberEpochError: refused.
        """
        async with self._calls.judged(group_id):
            group = self._node.metadata.image.groups.get(group_id)
            if group is None or not group.members:
                return
            member = group_rules.member_of(group, member_id)
            if member is None:
                raise unknown_member(group_id, member_id)
            if member.member_epoch != member_epoch:
                raise StaleMemberEpochError(
                    f"member {member_id!r} is at epoch {member.member_epoch}, not {member_epoch}: "
                    "send a heartbeat first"
                )
