"""Do all nodes hold the same image? Compared under load, too, without a stop and without a word in the state.

Every ``CheckImage`` in the log is a *mark*: each node keeps the image as it is right after it, which is a reference.
The next ``CheckImage`` carries the mark's index and the hash of the image that its proposer kept there; whoever kept
that mark compares it with its own. However many commands come in between, both are of one index.

Marks are no part of the image: a snapshot does not hold them, so a node that began with one compares nothing until the
next mark, and state bytes stay equal. A first check carries index 0, which no mark has. A release that judges a check
only where no command came in between understands these: there, the image at the mark is the image before the check.
"""

from dataclasses import dataclass

from milena.model.errors import CorruptLogError
from raft_meta.machine.commands import CheckImage
from raft_meta.machine.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A check, for a node that kept its mark. ``image``: its own there; ``expected``: the proposer's hash."""

    image: Image
    expected: bytes

    def judge(self, own: bytes) -> None:
        """Compare with the hash of ``image``.

        Raises:
            CorruptLogError: they differ; the node must stop.
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
        """A check was applied, which made ``after``: what is to be compared, if anything, and the next mark.

        It hashes nothing, so that applying a check costs what other commands cost.
        """
        before, self.last = self.last, after
        if before is None or before.index != check.index:
            return None
        return Comparison(image=before, expected=check.image_hash)

    def forget(self) -> None:
        """The image was replaced by a snapshot's: what was before says nothing about it."""
        self.last = None
