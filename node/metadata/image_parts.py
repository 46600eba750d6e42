"""The parts of the image on which a listener depends, so that it can ignore changes of other parts.

Every command makes a new image, and most commands are commits of consumer groups. Maps in an image are persistent: if
no command changed a map, it is the same object. So comparing maps by identity is cheap, whatever their size.
"""

from operator import attrgetter

from immutables import Map

from raft_meta.machine.image import Image


class ImageParts:
    """Remembers some fields of the image at the last call. ``names``: two or more fields of ``Image``."""

    def __init__(self, *names: str) -> None:
        self._parts_of = attrgetter(*names)
        self._seen: tuple[object, ...] | None = None

    def have_changed(self, image: Image) -> bool:
        """Return whether one of the fields has changed since the last call; True at the first call."""
        before, after = self._seen, self._parts_of(image)
        self._seen = after
        if before is None:
            return True
        for was, part in zip(before, after, strict=True):
            # Maps are compared by identity only. Comparing their contents would be the work that this class avoids.
            if was is not part and (isinstance(part, Map) or was != part):
                return True
        return False
