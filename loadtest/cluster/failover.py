"""Kill a leader in the middle of a load, and restart it."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena.cluster.admin import AdminClient

DOWN_S = 3.0


@dataclass(slots=True)
class Failover:
    """Kills the leader of partition 0, and restarts it ``down_s`` later. ``on_incident`` is called for each event."""

    cluster: LocalCluster
    topic: str
    on_incident: Callable[[str], None]
    down_s: float = DOWN_S
    killed: LocalNode | None = None

    async def run(self, is_due: asyncio.Event, is_over: asyncio.Event) -> None:
        """Kill the leader when ``is_due`` is set, and restart it; once ``is_over`` is set, do not wait any longer."""
        await is_due.wait()
        self.killed = await self._leader()
        # Report the kill before it: the call returns when the process is gone, and users notice earlier.
        self.on_incident(f"killed node {self.killed.node_id}, a leader, with -9")
        self.killed.process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), self.down_s)
        self.killed.process.start()
        await self.cluster.wait_ready(self.killed)
        self.on_incident(f"node {self.killed.node_id} is back and ready")

    async def _leader(self) -> LocalNode:
        async with AdminClient(self.cluster.nodes[0].url) as admin:
            topic = await admin.topic(self.topic)
        return self.cluster.node(topic.partitions[0].leader or 1)
