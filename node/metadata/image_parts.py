"""Parts of the image that a listener acts on, so that it does nothing for a change of others.

An image comes with every command, and most of those are commits of consumer groups. Maps are persistent: one that no
command touched is the very same object, so that this costs nothing however large it is.
"""

from operator import attrgetter

from immutables import Map

from raft_meta.machine.image import Image


class ImageParts:
    """Some fields of the image, as they were when it was looked at last. ``names``: two or more of ``Image``'s."""

    def __init__(self, *names: str) -> None:
        self._parts_of = attrgetter(*names)
        self._seen: tuple[object, ...] | None = None

    def have_changed(self, image: Image) -> bool:
        """Whether one of them is another one than at the last call; true the first time."""
        before, after = self._seen, self._parts_of(image)
        self._seen = after
        if before is None:
            return True
        for was, part in zip(before, after, strict=True):
            # To compare maps by what is in them would be the work that this saves.
            if was is not part and (isinstance(part, Map) or was != part):
                return True
        return False
