"""Compares this node's image with the controller's, at the marks of the log (``raft_meta.machine.marks``).

An image is hashed on a worker thread, one at a time, never on the data loop or the quorum's loop. Every node hashes the
image of a mark at most once. The controller does it for the check that it proposes, the others when that check arrives.
While a hash is in progress, one comparison waits; if a newer one arrives, it replaces the one that waits. So a node
that applies the checks of a day within a second hashes two images, not a thousand.

After a start, a node applies some commands a second time. Checks among them are not compared. Otherwise, if the
controller's image had been wrong once, its check in the log would stop every node with a right image at each start.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

from milena.model.clock import Clock
from milena.model.errors import CorruptLogError
from milena.model.types import MonotonicMs
from raft_meta.machine.codec import image_hash
from raft_meta.machine.commands import CheckImage
from raft_meta.machine.image import Image
from raft_meta.machine.marks import Comparison, ImageMarks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Hashed:
    image: Image
    digest: bytes


@dataclass(eq=False, kw_only=True)
class ImageChecks:
    """The checks of one node. Owned by the data loop; ``on_check`` may be called on any thread.

    ``on_failure``: must stop the process.
    """

    marks: ImageMarks
    clock: Clock
    on_failure: Callable[[BaseException], None] | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_begun = False
        self._is_hashing = False
        self._hashed: _Hashed | None = None
        """The last hashed image and its hash, while this image is the last mark."""
        self._waiting: Comparison | None = None
        self.hash_ms = 0
        """How long the last hash took in ms, including the wait for a thread."""

    def begin(self) -> None:
        """Start to compare. A command of this process was applied, so all repeated commands are over."""
        self._has_begun = True

    def next_check(self) -> CheckImage | None:
        """Return the check to propose; None while the image of the last mark is being hashed.

        Without a mark, the check only sets the first one.
        """
        image = self.marks.last
        if image is None:
            return CheckImage(index=0, image_hash=b"")
        if self._hashed is not None and self._hashed.image is image:
            return CheckImage(index=image.index, image_hash=self._hashed.digest)
        if not self._is_hashing:
            self._hash(image)
        return None

    def on_check(self, comparison: Comparison) -> None:
        """Compare this node's image with an applied check, if this node has kept its mark."""
        try:
            self._loop.call_soon_threadsafe(self._compare, comparison)
        except RuntimeError:
            logger.debug("image check after the loop was closed")

    def _compare(self, comparison: Comparison) -> None:
        if not self._has_begun:
            return
        hashed = self._hashed
        if hashed is not None and hashed.image is comparison.image:
            self._hashed = None  # a later image is the mark now
            self._judge(comparison, hashed.digest)
            return
        self._waiting = comparison
        if not self._is_hashing:
            self._hash(comparison.image)

    def _hash(self, image: Image) -> None:
        self._is_hashing = True
        job = self._loop.run_in_executor(None, image_hash, image)
        job.add_done_callback(functools.partial(self._on_hashed, image, self.clock.now_ms()))

    def _on_hashed(self, image: Image, began_ms: MonotonicMs, job: "asyncio.Future[bytes]") -> None:
        if job.cancelled():
            return
        self._is_hashing = False
        error = job.exception()
        if error is not None:
            self._fail(error)
            return
        self.hash_ms = self.clock.now_ms() - began_ms
        self._hashed = _Hashed(image, job.result())
        comparison, self._waiting = self._waiting, None
        if comparison is not None:
            self._compare(comparison)

    def _judge(self, comparison: Comparison, own: bytes) -> None:
        try:
            comparison.judge(own)
        except CorruptLogError as error:
            self._fail(error)
        else:
            logger.debug("image compared index=%d", comparison.image.index)

    def _fail(self, error: BaseException) -> None:
        if self.on_failure is None:
            raise error
        self.on_failure(error)
