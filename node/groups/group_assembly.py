"""The consumer groups of one node, assembled: one object for real and simulated nodes."""

from collections.abc import Callable

from node.context import NodeContext
from node.groups.classic.coordinated import ClassicSettings
from node.groups.classic.service import ClassicGroups
from node.groups.coordinator import GroupCoordinator
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.group_messages import COMMIT, DELETE, HEARTBEAT
from node.groups.group_offsets import CommitQueue, ExpirySettings, OffsetExpiry
from node.groups.group_service import Fetch, GroupService
from node.groups.server_members import ServerMembers
from node.metadata.lookup import GetTopic
from raft_meta.machine.image import Image


class Groups:
    """The objects of consumer groups. ``calls``, ``coordinator`` and ``commits`` serve REST consumers too.

    ``classic`` serves the clients of Kafka's classic protocol, ``server_members`` those of its consumer protocol.
    """

    def __init__(
        self,
        node: NodeContext,
        *,
        topic: GetTopic,
        fetch: Fetch,
        new_member_id: Callable[[], str],
        expiry: ExpirySettings,
        classic: ClassicSettings,
    ) -> None:
        self.calls = CoordinatorCalls(node)
        self.coordinator = GroupCoordinator(node, calls=self.calls, classic=classic)
        self.commits = CommitQueue(node)
        self.calls.serve(HEARTBEAT, self.coordinator.on_heartbeat)
        self.calls.serve(COMMIT, self.commits.on_commit)
        self.calls.serve(DELETE, self.coordinator.on_delete)
        self.service = GroupService(
            node, calls=self.calls, topic=topic, fetch=fetch, new_member_id=new_member_id
        )
        self.classic = ClassicGroups(
            node, calls=self.calls, coordinator=self.coordinator, commits=self.commits
        )
        self.server_members = ServerMembers(
            node, calls=self.calls, coordinator=self.coordinator, new_member_id=new_member_id
        )
        self.expiry = OffsetExpiry(node, calls=self.calls, settings=expiry)

    def on_image(self, image: Image) -> None:
        """Adopt a new image; call this before REST consumers adopt it."""
        self.coordinator.on_image(image)

    async def close(self) -> None:
        """Answer all waiting calls, and stop."""
        await self.coordinator.close()
        await self.commits.close()
