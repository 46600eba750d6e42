"""Waits for a change of the cluster: of its brokers, topics or leaders. Commits of groups are no such change.

A version is the index of an image that has such a change. If this node received several changes at once, it is the
index of the last one. A client that has seen the cluster at a version, on any node, has seen every change up to that
version. A greater version is never older. After a start, the first image counts as a change.
"""

import asyncio

from node.metadata.image_parts import ImageParts
from node.metadata.store import MetadataStore
from raft_meta.machine.image import Image


class ClusterWatch:
    """The version of the cluster as clients see it. Owned by the data loop."""

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
        self._changed = asyncio.Event()
        """Wakes the tasks that wait, in order of arrival. It is set only for a moment."""
        metadata.listen(self.on_image)

    def on_image(self, image: Image) -> None:
        """Wake the waiters if the image has a change that clients see."""
        if not self._shown.have_changed(image):
            return
        self.version = image.index
        self._changed.set()
        self._changed.clear()

    async def wait_for(self, version: int, *, timeout_ms: int) -> None:
        """Wait until the version is above ``version``, or until the timeout has passed."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.version <= version:
                    await self._changed.wait()
        except TimeoutError:
            return
