"""Creates the parts of REST consumers on one node, and starts, updates and stops them together."""

from collections.abc import Callable, Mapping

from node.consumers.consumer_coordinator import ConsumerCoordinator
from node.consumers.consumer_expiry import ConsumerExpiry
from node.consumers.consumer_messages import RETURNED, TAIL
from node.consumers.consumer_service import ConsumersService
from node.consumers.consumer_sessions import IdleClocks
from node.consumers.partition_ends import EndWatcher
from node.context import NodeContext
from node.groups.group_assembly import Groups
from node.metadata.lookup import GetTopic
from node.peers.messages import peer_handler
from node.peers.port import Handler
from node.services.reads import ReadService
from raft_meta.machine.image import Image


class RestConsumers:
    """The parts of REST consumers.

    ``service``: the API calls it. ``coordinator`` and ``expiry``: the coordinator's part. ``ends``: waits for records.
    """

    def __init__(
        self,
        node: NodeContext,
        *,
        groups: Groups,
        reads: ReadService,
        topic: GetTopic,
        new_name: Callable[[], str],
        idle_ms: int,
    ) -> None:
        idle = IdleClocks(idle_ms)
        self.ends = EndWatcher(node)
        self.coordinator = ConsumerCoordinator(
            node, groups=groups, reads=reads, topic=topic, ends=self.ends, idle=idle
        )
        self.expiry = ConsumerExpiry(
            node, calls=groups.calls, coordinator=self.coordinator, idle=idle
        )
        self.service = ConsumersService(node, calls=groups.calls, new_name=new_name)
        groups.coordinator.use_rest_members(self.coordinator)

    @property
    def peer_handlers(self) -> Mapping[str, Handler]:
        """The handlers for the peer port, except those that ``CoordinatorCalls`` registers."""
        return {
            RETURNED.name: peer_handler(RETURNED, self.service.on_returned),
            TAIL.name: peer_handler(TAIL, self.ends.on_tail),
        }

    def on_image(self, image: Image) -> None:
        """Pass on a new image.

        Call this after the replicas have adopted the image: ``ends`` watches the replicas that exist then.
        """
        self.ends.on_image(image)
        self.coordinator.on_image(image)

    async def run(self) -> None:
        """Let idle consumers expire, until cancelled."""
        await self.expiry.run()

    async def close(self) -> None:
        """Stop all background tasks."""
        await self.service.close()
        await self.coordinator.close()
        await self.ends.close()
