"""Ends waits for a leader's response when the partition gets another leader.

A node that stalls or is cut off closes no connection. So a request that waits there would wait until its timeout.
Meanwhile its client would get no response, although another node already leads the partition.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from milena.model.errors import NotLeaderError
from node.metadata.store import MetadataStore
from raft_meta.machine.image import Image, PartitionKey


class LeaderReplacedError(NotLeaderError):
    """The partition has another leader, or none. What the former leader did with the request is unknown."""


class Leaderships:
    """The waits for responses of leaders. Owned by the data loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._waits: dict[PartitionKey, dict[asyncio.Timeout, tuple[int, int, int]]] = {}
        """Partition → its waits, each with the leader, its epoch, and how long (ms) it lasts after a change."""
        self._partitions = metadata.image.partitions
        metadata.listen(self._on_image)

    @asynccontextmanager
    async def held(
        self, key: PartitionKey, leader_id: int, leader_epoch: int, *, grace_ms: int = 0
    ) -> AsyncIterator[None]:
        """Run a block, and cancel its awaits ``grace_ms`` after the partition got another leader or lost its leader.

        Raises:
            LeaderReplacedError: the leader has changed, and the block did not end in time.
        """
        end: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(None) as end:
                self._waits.setdefault(key, {})[end] = (leader_id, leader_epoch, grace_ms)
                # The leadership may have ended before the wait began, and then no further image would say so.
                self._look(key, [end])
                yield
        except TimeoutError:
            raise LeaderReplacedError(
                f"node {leader_id} does not lead the partition any more"
            ) from None
        finally:
            waits = self._waits.get(key)
            if waits is not None and end is not None:
                waits.pop(end, None)
                if not waits:
                    del self._waits[key]

    def _look(self, key: PartitionKey, waits: Iterable[asyncio.Timeout]) -> None:
        """End those of a partition's waits that are for brokers that do not lead it any more."""
        state = self._metadata.image.partitions.get(key)
        for end in waits:
            leader_id, leader_epoch, grace_ms = self._waits[key][end]
            is_same = (
                state is not None
                and state.leader == leader_id
                and state.leader_epoch == leader_epoch
            )
            if not is_same and end.when() is None:
                end.reschedule(asyncio.get_running_loop().time() + grace_ms / 1000)

    def _on_image(self, image: Image) -> None:
        # The map is persistent. Most commands, such as commits of groups, change no partition.
        if image.partitions is self._partitions:
            return
        self._partitions = image.partitions
        for key, waits in self._waits.items():
            self._look(key, waits)
