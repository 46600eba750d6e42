"""Marks in the log, at which nodes check that all of them hold the same image. This works under load, too.

Every ``CheckImage`` command in the log is a *mark*: each node keeps a reference to its image right after that command.
The next ``CheckImage`` carries the index of this mark, and the hash of the proposer's image at the mark. A node that
kept the mark compares the hash with the hash of its own image. Both images are of the same index, no matter how many
commands lie between the two checks.

Marks are not part of the image. A snapshot does not contain them, so a node that started from a snapshot compares
nothing before the next mark. The first check of a cluster carries index 0, which no mark has. Nodes of an older release
keep no marks. They compare the image before the check, and only if no command lies between two checks. In this case
it is the image at the mark.
"""

from dataclasses import dataclass

from milena.model.errors import CorruptLogError
from raft_meta.machine.commands import CheckImage
from raft_meta.machine.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison for a node that kept the mark. ``image``: its image at the mark; ``expected``: the hash to match."""

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
    """The last mark of one node. The thread that applies commands writes it; any thread may read ``last``."""

    def __init__(self) -> None:
        self.last: Image | None = None

    def take(self, check: CheckImage, after: Image) -> Comparison | None:
        """Make ``after``, the image after ``check``, the next mark; return the comparison that ``check`` asks for.

        Returns:
            None if this node did not keep the mark that ``check`` names.

        This does not compute the hash, so that a check takes no longer to apply than other commands.
        """
        before, self.last = self.last, after
        if before is None or before.index != check.index:
            return None
        return Comparison(image=before, expected=check.image_hash)

    def forget(self) -> None:
        """Remove the mark: the image was replaced by a snapshot, so the earlier image must not be compared."""
        self.last = None
