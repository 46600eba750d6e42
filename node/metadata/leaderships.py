"""Waits that end with a partition's leadership.

A node that stands still, or is cut off, breaks no connection: a question that waits there for records would wait to its
end, and whoever follows the partition would hear nothing for so long, while another node leads it by then.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from milena.model.errors import NotLeaderError
from raft_meta.machine.image import Image, PartitionKey


class Leaderships:
    """Waits for answers of leaders. Owned by the data loop; told of every image."""

    def __init__(self) -> None:
        self._waits: dict[PartitionKey, dict[asyncio.Timeout, tuple[int, int]]] = {}
        """By partition: the wait, and (leader, leader_epoch) that it holds on to."""
        self._seen: Image | None = None

    @asynccontextmanager
    async def held(
        self, key: PartitionKey, leader_id: int, leader_epoch: int
    ) -> AsyncIterator[None]:
        """A block whose awaits end once another leads, or nobody.

        Raises:
            NotLeaderError: that was it.
        """
        end: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(None) as end:
                self._waits.setdefault(key, {})[end] = (leader_id, leader_epoch)
                yield
        except TimeoutError:
            raise NotLeaderError(
                f"broker {leader_id} does not lead the partition any more"
            ) from None
        finally:
            waits = self._waits.get(key)
            if waits is not None and end is not None:
                waits.pop(end, None)
                if not waits:
                    del self._waits[key]

    def on_image(self, image: Image) -> None:
        """End what holds on to leaders of the past."""
        before, self._seen = self._seen, image
        # Most commands, commits of groups among them, leave all partitions as they are.
        if before is not None and before.partitions is image.partitions:
            return
        now = asyncio.get_running_loop().time()
        for key, waits in self._waits.items():
            state = image.partitions.get(key)
            current = None if state is None else (state.leader, state.leader_epoch)
            for end, held in waits.items():
                if held != current and end.when() is None:
                    end.reschedule(now)
