"""Waits for a change of the cluster: of its brokers, its topics, who leads what. Not of what groups commit.

A version is the index of an image that came with such a change, or a later one where this node was told of several at
once: whoever has seen the cluster at a version, on whatever node, has seen every change up to it, and of two versions
the greater one is never behind. After a start the first image counts as a change.
"""

import asyncio

from node.metadata.image_parts import ImageParts
from node.metadata.store import MetadataStore
from raft_meta.machine.image import Image


class ClusterWatch:
    """The version of what clients are shown of the cluster. Owned by the data loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.version = metadata.image.index
        self._shown = ImageParts(
            "cluster_id",
            "feature_level",
            "controller_id",
            "controller_epoch",
            "brokers",
            "topics",
            "topic_ids",
            "partitions",
        )
        self._shown.have_changed(metadata.image)
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Woken in the order in which they came, so that a simulated run repeats."""
        metadata.listen(self.on_image)

    def on_image(self, image: Image) -> None:
        """Wake who waits, if this is news to clients."""
        if not self._shown.have_changed(image):
            return
        self.version = image.index
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, version: int, *, timeout_ms: int) -> None:
        """Until there is a version above this one, or the time is up."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.version <= version:
                    await self._changed()
        except TimeoutError:
            return

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
