"""Elections that clients ask any node for: leadership goes back to the first replica.

The controller does the same at intervals. Each change names the partition's epoch, so it is skipped if the partition
has changed since.
"""

from collections.abc import Collection
from itertools import islice

from milena.model.errors import StaleControllerEpochError
from node.config.budgets import BARRIER_MS, LONG_PROPOSE_MS
from node.metadata.store import MetadataStore
from raft_meta.machine.commands import ElectLeaders, LeaderChange
from raft_meta.machine.image import Image, PartitionKey
from raft_meta.machine.topics.elections import plan_preferred

CHANGES_MAX = 2_000
"""Elections in one command. At about 100 bytes each, the command stays well below its bound of 1 MiB."""
TRIES = 5
"""Attempts to elect. An attempt fails if the controller or the partition has changed meanwhile."""


class ElectionService:
    """Elects preferred leaders."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def prefer(self, keys: Collection[PartitionKey] | None) -> set[PartitionKey]:
        """Give partitions (None: all) to their first replicas, where these are live and in sync.

        Return the partitions whose leader changed. This node's image then has the change.

        Raises:
            NoQuorumError, FateUnknownError: the quorum did not answer in time.
        """
        elected: set[PartitionKey] = set()
        for _ in range(TRIES):
            image = await self._metadata.barrier(timeout_ms=BARRIER_MS)
            changes = iter(
                [
                    change
                    for change in plan_preferred(image)
                    if keys is None or (change.topic_id, change.partition) in keys
                ]
            )
            is_done = True
            while part := tuple(islice(changes, CHANGES_MAX)):
                done = await self._elect(image, part)
                elected |= done
                is_done &= len(done) == len(part)
            if is_done:
                break
        return elected

    async def _elect(self, image: Image, changes: tuple[LeaderChange, ...]) -> set[PartitionKey]:
        """Return the partitions of the changes that were applied."""
        command = ElectLeaders(controller_epoch=image.controller_epoch, changes=changes)
        try:
            taken = await self._metadata.propose(command, timeout_ms=LONG_PROPOSE_MS)
        except StaleControllerEpochError:
            return set()
        assert isinstance(taken, tuple), taken
        return {
            (change.topic_id, change.partition)
            for change, is_taken in zip(changes, taken, strict=True)
            if is_taken
        }
