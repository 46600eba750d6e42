"""Parts of the image that a listener acts on, so that it does nothing for a change of others.

An image comes with every command, and most of those are commits of consumer groups. Maps are persistent: one that no
command touched is the very same object, so that this costs nothing however large it is.
"""

from operator import attrgetter

from immutables import Map

from raft_meta.machine.image import Image


class ImageParts:
    """What some fields of the image were when it was looked at last. ``names``: two or more of ``Image``'s."""

    def __init__(self, *names: str) -> None:
        self._parts_of = attrgetter(*names)
        self._seen: tuple[object, ...] | None = None

    def have_changed(self, image: Image) -> bool:
        """Whether one of them is another one than at the last call; true the first time."""
        before, self._seen = self._seen, self._parts_of(image)
        return before is None or not all(map(_is_same, before, self._seen))


def _is_same(before: object, after: object) -> bool:
    # To compare maps by what is in them would be the work that this saves.
    return before is after or (not isinstance(after, Map) and before == after)
