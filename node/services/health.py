"""Answers probes: whether this node has started, and whether it should get requests."""

from collections.abc import Callable

from http_api.ports.node import Readiness
from milena.model.errors import NoQuorumError
from node.context import NodeContext


class HealthService:
    """Implements ``http_api.ports.node.HealthPort``.

    Once the node has joined and caught up, it stays ready, even if it loses the quorum or its disk is full. It can
    still serve reads, and it answers writes with an error. Only draining makes it not ready again.
    """

    def __init__(self, node: NodeContext, *, render_metrics: Callable[[bool], bytes]) -> None:
        self.has_started = False
        self._node = node
        self._render_metrics = render_metrics
        self._was_ready = False

    def is_started(self) -> bool:
        """Return whether the logs are recovered and the ports are open."""
        return self.has_started

    def readiness(self) -> Readiness:
        """Return whether the node has joined, has caught up and is not draining."""
        if self._node.membership.is_draining:
            return Readiness(is_ready=False, reason="the node is draining")
        if self._was_ready:
            return Readiness(is_ready=True)
        reason = self._not_ready_because()
        self._was_ready = not reason
        return Readiness(is_ready=self._was_ready, reason=reason)

    def _not_ready_because(self) -> str:
        if not self.has_started:
            return "logs are being recovered"
        if self._node.membership.broker_epoch < 0:
            return (
                self._node.metadata.quorum.start_obstacle()
                or "waiting for the metadata quorum to register this node"
            )
        if not self._node.membership.is_unfenced or not self._node.membership.has_lease:
            return "waiting for the controller to let this node in"
        return self._behind()

    def _behind(self) -> str:
        image, node_id = self._node.metadata.image, self._node.metadata.node_id
        live = set(image.live_brokers())
        for key, state in image.partitions.items():
            if node_id not in state.replicas:
                continue
            name = f"{image.topics[key[0]].name}-{key[1]}"
            if key not in self._node.replicas.runners:
                return f"the replica of {name} is being opened"
            if state.leader is None and live.isdisjoint({*state.isr}.difference(state.damaged)):
                # No live node has the records, or only a damaged copy, perhaps for days. Meanwhile this node serves its
                # other partitions.
                continue
            if node_id not in state.isr:
                if self._node.replicas.runners[key].has_no_source:
                    # Of the live nodes, only the leader has these records, and they are damaged there. An operator has
                    # to delete them.
                    continue
                return f"the replica of {name} is catching up"
            if state.leader is None:
                return f"{name} has no leader"
        return ""

    async def drain(self, *, timeout_ms: int) -> bool:
        """Ask the controller to let other brokers lead, until the process ends.

        Return True once this node leads nothing and is in no ISR. Return False if the timeout passes first, or as soon
        as only partitions are left that no other broker can lead.
        """
        if not await self._node.membership.drain(timeout_ms=timeout_ms):
            return False
        # The controller's response can arrive before this node has applied the last changes.
        try:
            image = await self._node.metadata.current_image()
        except NoQuorumError:
            image = self._node.metadata.image
        node_id = self._node.metadata.node_id
        return not any(state.leader == node_id for state in image.partitions.values())

    def metrics(self, *, has_partitions: bool) -> bytes:
        """Return the metrics in Prometheus text format."""
        return self._render_metrics(has_partitions)
