"""The controller's part in moves of replicas: start them, change leaders, finish them. ``Controller`` drives it.

The progress of every move is in the image. So a new controller continues where the former one stopped.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from immutables import Map

from milena.model.clock import Clock
from milena.model.types import MonotonicMs
from node.config.budgets import REFUSED_RETRY_MS
from raft_meta.machine.commands import LeaderChange, ReassignmentStep, StepReassignments
from raft_meta.machine.image import Image, Partition, PartitionKey
from raft_meta.machine.topics.reassignments import plan_steps, running

logger = logging.getLogger(__name__)

STEPS_MAX = 2_000
"""Largest number of steps in a command. It stays well below the command's limit of 1 MiB."""
HANDOVER_MS = 500
"""The time between the change of leader and the removal of the old leader, in ms.

Writers may still wait at the old leader. It needs one fetch from the new leader to learn that their records are
committed, and then answers them. If it were removed before, they would get ``FateUnknownError``.
"""


class Reassigner:
    """Proposes the steps that ``reassignments.plan_steps`` plans."""

    def __init__(
        self,
        *,
        clock: Clock,
        propose: Callable[[StepReassignments], Awaitable[object]],
        propose_changes: Callable[[Sequence[LeaderChange], str], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._propose = propose
        self._propose_changes = propose_changes
        self._handed_over: dict[PartitionKey, MonotonicMs] = {}
        """Partition → when this controller changed its leader, for moves that are about to finish."""
        self._at_rest: Map[PartitionKey, Partition] = Map()
        """The partitions of the last image that had no moves."""

    async def turn(self, image: Image) -> None:
        """Propose the steps that are possible now."""
        if image.partitions is self._at_rest:
            return
        if not running(image):
            self._at_rest = image.partitions
            return
        plan = plan_steps(image)
        now_ms = self._clock.now_ms()
        ready = [step for step in plan.finishes if self._is_over(_key(step), now_ms)]
        await self._take((*plan.starts, *ready))
        for step in ready:
            self._handed_over.pop(_key(step), None)
        if plan.handovers:
            await self._propose_changes(plan.handovers, "hand over")
            for change in plan.handovers:
                self._handed_over[change.topic_id, change.partition] = now_ms

    def _is_over(self, key: PartitionKey, now_ms: MonotonicMs) -> bool:
        since_ms = self._handed_over.get(key)
        return since_ms is None or now_ms - since_ms >= HANDOVER_MS

    async def _take(self, steps: Sequence[ReassignmentStep]) -> None:
        for first in range(0, len(steps), STEPS_MAX):
            part = tuple(steps[first : first + STEPS_MAX])
            codes = await self._propose(StepReassignments(steps=part))
            assert isinstance(codes, tuple), codes
            for step, code in zip(part, codes, strict=True):
                logger.info(
                    "reassignment %s topic_id=%s partition=%d leader=%s%s",
                    step.kind,
                    step.topic_id,
                    step.partition,
                    step.leader,
                    f" refused={code}" if code else "",
                )
            if all(codes):
                # Each command makes a new image, and each image starts a turn. If all steps are refused, wait, so that
                # this does not become a busy loop.
                await self._clock.sleep(REFUSED_RETRY_MS)


def _key(step: ReassignmentStep) -> PartitionKey:
    return step.topic_id, step.partition
