"""Committed offsets that nobody came back for are forgotten after ``offsets_retention_minutes``. Source: KIP-211.

Each coordinator looks after its own groups. The time counts from when the group was left and the offset committed,
whichever came later; a group with members keeps all of its offsets.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milena.model.errors import MilenaError
from milena.model.types import WallMs
from node.control.standing import Standing
from node.groups.coordinator_calls import CoordinatorCalls
from node.metadata.store import MetadataStore
from node.metrics.counts import GroupCounts
from node.process.clock import Clock
from raft_meta.machine.commands import ExpireOffsets, GroupExpiry
from raft_meta.machine.image import Group, Image

logger = logging.getLogger(__name__)

PROPOSE_TIMEOUT_MS = 5_000
GROUPS_PER_COMMAND_MAX = 1_000
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    """How long, and how often that is looked at."""

    retention_ms: int
    check_ms: int


class OffsetExpiry:
    """Proposes what is to be forgotten."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        calls: CoordinatorCalls,
        clock: Clock,
        standing: Standing,
        counts: GroupCounts,
        settings: ExpirySettings,
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._clock = clock
        self._standing = standing
        self._counts = counts
        self._settings = settings

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self._clock.sleep(self._settings.check_ms)
            await self.expire()

    async def expire(self) -> None:
        """Forget what is due in the groups that this node coordinates."""
        before_ms = WallMs(self._clock.wall_ms() - self._settings.retention_ms)
        image = self._metadata.image
        due = [
            group_id
            for group_id in sorted(expirable(image, before_ms))
            if self._calls.coordinates(group_id)
        ]
        for first in range(0, len(due), GROUPS_PER_COMMAND_MAX):
            await self._propose(due[first : first + GROUPS_PER_COMMAND_MAX], before_ms)

    async def _propose(self, group_ids: Sequence[str], before_ms: WallMs) -> None:
        command = ExpireOffsets(
            broker_id=self._metadata.node_id,
            broker_epoch=self._standing.broker_epoch,
            groups=tuple(
                GroupExpiry(group_id=group_id, before_ms=before_ms) for group_id in group_ids
            ),
        )
        try:
            forgotten = await self._metadata.propose(command, timeout_ms=PROPOSE_TIMEOUT_MS)
        except MilenaError as error:
            logger.info("offsets did not expire, tried again later: %s", error)
            return
        assert isinstance(forgotten, tuple), forgotten
        count = sum(number for number in forgotten if isinstance(number, int))
        self._counts.expired_offsets += count
        logger.info("offsets expired groups=%d offsets=%d", len(group_ids), count)


def expirable(image: Image, before_ms: WallMs) -> Iterator[str]:
    """Groups of which something is to be forgotten."""
    for group in image.groups.values():
        if not group.members and group.emptied_ms < before_ms and _is_due(image, group, before_ms):
            yield group.group_id


def _is_due(image: Image, group: Group, before_ms: WallMs) -> bool:
    offsets = image.offsets.get(group.group_id)
    return not offsets or any(offset.commit_ms < before_ms for offset in offsets.values())
