"""Marks in the log, at which nodes check that all of them hold the same image, also under load.

Every ``CheckImage`` in the log is a *mark*: each node keeps a reference to the image right after it. The next
``CheckImage`` carries the mark's index, and the hash of the image that its proposer kept there. A node that kept that
mark compares the hash with its own. Both are of one index, regardless of how many commands lie between.

Marks are not part of the image, so they do not change its bytes. A snapshot does not hold them: a node that started
from one compares nothing until the next mark. A first check carries index 0, which no mark has. An older release
compares only if no command lies between two checks. It understands these checks, because the image at the mark is then
the image before the check.
"""

from dataclasses import dataclass

from milena.model.errors import CorruptLogError
from raft_meta.machine.commands import CheckImage
from raft_meta.machine.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A check for a node that kept the mark. ``image``: its own at the mark; ``expected``: the proposer's hash."""

    image: Image
    expected: bytes

    def judge(self, own: bytes) -> None:
        """Compare ``own``, the hash of ``image``, with ``expected``.

        Raises:
            CorruptLogError: the hashes differ; the node must stop.
        """
        if own != self.expected:
            raise CorruptLogError(
                f"This node's metadata at index {self.image.index} has the hash {own.hex()}, the controller's"
                f" {self.expected.hex()}. The node whose hash no other one has is wrong: stop it, empty its metadata"
                " folder and let it load the state from the others."
            )


class ImageMarks:
    """The last mark of one node. Written by the thread that applies commands; ``last`` may be read from any."""

    def __init__(self) -> None:
        self.last: Image | None = None

    def take(self, check: CheckImage, after: Image) -> Comparison | None:
        """Keep ``after``, the image after ``check``, as the next mark; return the comparison that ``check`` asks for.

        None if this node did not keep the mark of ``check``. Nothing is hashed here, so that a check takes no longer
        to apply than other commands.
        """
        before, self.last = self.last, after
        if before is None or before.index != check.index:
            return None
        return Comparison(image=before, expected=check.image_hash)

    def forget(self) -> None:
        """Forget the mark: a snapshot replaced the image, so the earlier image says nothing about it."""
        self.last = None
