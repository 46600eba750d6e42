"""REST consumers on one node, put together: what ``node.wiring`` starts, tells of images, and stops."""

from collections.abc import Awaitable, Callable

from milena.model.requests import Doubt, FetchRequest, FetchResult
from node.consumers.coordinator import ConsumerCoordinator
from node.consumers.expiry import ConsumerExpiry
from node.consumers.idle import IdleClocks
from node.consumers.service import ConsumersService
from node.consumers.tails import Tails
from node.control.standing import Standing
from node.groups.parts import Groups
from node.metadata.store import MetadataStore
from node.peers.port import Peers
from node.process.clock import Clock
from node.replication.local_replicas import LocalReplicas
from raft_meta.machine.image import Image, PartitionSet, Topic


class ConsumerKeeper:
    """``service`` is what the API calls, ``coordinator`` and ``expiry`` are the coordinator's part, ``tails`` waits.

    Implements ``node.groups.rest_members.RestMembers``.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        replicas: LocalReplicas,
        peer: Peers,
        clock: Clock,
        groups: Groups,
        fetch: Callable[[FetchRequest], Awaitable[FetchResult]],
        doubt: Callable[[Doubt], Awaitable[None]],
        topic: Callable[[str], Awaitable[Topic]],
        current_image: Callable[[], Awaitable[Image]],
        standing: Standing,
        new_name: Callable[[], str],
        idle_ms: int,
    ) -> None:
        idle = IdleClocks(idle_ms)
        self.tails = Tails(metadata=metadata, replicas=replicas, peer=peer, clock=clock)
        self.coordinator = ConsumerCoordinator(
            metadata=metadata,
            current_image=current_image,
            topic=topic,
            fetch=fetch,
            doubt=doubt,
            calls=groups.calls,
            memberships=groups.coordinator,
            commits=groups.commits,
            peer=peer,
            tails=self.tails,
            idle=idle,
            clock=clock,
            standing=standing,
        )
        self.expiry = ConsumerExpiry(
            metadata=metadata,
            calls=groups.calls,
            coordinator=self.coordinator,
            idle=idle,
            clock=clock,
        )
        self.service = ConsumersService(
            metadata=metadata,
            calls=groups.calls,
            current_image=current_image,
            new_name=new_name,
            clock=clock,
        )
        groups.coordinator.use_rest_members(self)

    def may_release(self, group_id: str, instance: str, partitions: PartitionSet) -> bool:
        """Whether the consumer has let go of these."""
        return self.coordinator.may_release(group_id, instance, partitions)

    def on_image(self, image: Image) -> None:
        """After the replicas: they watch those that are there then."""
        self.tails.on_image(image)
        self.coordinator.on_image(image)

    async def run(self) -> None:
        """Let idle consumers expire, until cancelled."""
        await self.expiry.run()

    async def close(self) -> None:
        """Nothing goes on in the background any more."""
        await self.service.close()
        await self.coordinator.close()
        await self.tails.close()
