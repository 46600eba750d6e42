"""Ends waits for a leader's response when the partition gets another leader.

A node that stalls or is cut off closes no connection. So a fetch that waits there for records would wait until its
timeout. Meanwhile its client would get no records, although another node already leads the partition.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from milena.model.errors import NotLeaderError
from raft_meta.machine.image import Image, PartitionKey


class Leaderships:
    """The waits for responses of leaders. Owned by the data loop; gets every new image."""

    def __init__(self) -> None:
        self._waits: dict[PartitionKey, dict[asyncio.Timeout, tuple[int, int]]] = {}
        """Partition → its waits, each with the (leader, leader_epoch) for which it was started."""
        self._seen: Image | None = None

    @asynccontextmanager
    async def held(
        self, key: PartitionKey, leader_id: int, leader_epoch: int
    ) -> AsyncIterator[None]:
        """Run a block, and cancel its awaits if the partition gets another leader or loses its leader.

        Raises:
            NotLeaderError: the leader has changed during the block.
        """
        end: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(None) as end:
                self._waits.setdefault(key, {})[end] = (leader_id, leader_epoch)
                yield
        except TimeoutError:
            raise NotLeaderError(f"node {leader_id} does not lead the partition any more") from None
        finally:
            waits = self._waits.get(key)
            if waits is not None and end is not None:
                waits.pop(end, None)
                if not waits:
                    del self._waits[key]

    def on_image(self, image: Image) -> None:
        """End the waits for brokers that do not lead any more."""
        before, self._seen = self._seen, image
        # Most commands, such as commits of groups, change no partition.
        if before is not None and before.partitions is image.partitions:
            return
        now = asyncio.get_running_loop().time()
        for key, waits in self._waits.items():
            state = image.partitions.get(key)
            current = None if state is None else (state.leader, state.leader_epoch)
            for end, held in waits.items():
                if held != current and end.when() is None:
                    end.reschedule(now)
