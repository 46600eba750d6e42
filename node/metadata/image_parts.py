"""The parts of the image on which a listener depends, so that it skips changes of other parts.

Every command makes an image, and most commands are commits of consumer groups. Maps are persistent: a map that no
command changed is the same object, so this comparison is cheap for maps of any size.
"""

from operator import attrgetter

from immutables import Map

from raft_meta.machine.image import Image


class ImageParts:
    """Some fields of the image at the last call. ``names``: two or more fields of ``Image``."""

    def __init__(self, *names: str) -> None:
        self._parts_of = attrgetter(*names)
        self._seen: tuple[object, ...] | None = None

    def have_changed(self, image: Image) -> bool:
        """Return whether a field is another object than at the last call; True at the first call."""
        before, after = self._seen, self._parts_of(image)
        self._seen = after
        if before is None:
            return True
        for was, part in zip(before, after, strict=True):
            # Comparing the contents of maps would be the work that this class saves.
            if was is not part and (isinstance(part, Map) or was != part):
                return True
        return False
