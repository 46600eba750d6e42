"""How many groups, and committed offsets in them, one principal may make through this node.

The cluster bounds both for all principals together. The state does not say who made a group, so each node remembers
which groups it made for whom. Through all nodes together one principal has a quarter of each bound. A node forgets this
when it starts again, and a group that was deleted or has expired counts no more.
"""

from collections.abc import Iterable

from milena.model.errors import GroupLimitError
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Image

SHARE = 4


class GroupShares:
    """Those of one node. Belongs to the event loop."""

    def __init__(self) -> None:
        self._made: dict[str, set[str]] = {}
        """Principal → the groups that this node was to make for it."""

    def check(self, image: Image, principal: str, groups: Iterable[str]) -> None:
        """Refuse groups that are not there, or offsets in groups, if the principal has made enough already.

        Raises:
            GroupLimitError: the message says what to delete.
        """
        if not principal:
            return
        nodes = max(1, len(image.brokers))
        for group in groups:
            made = self._made.get(principal)
            if group not in image.groups:
                made = self._room_for(image, principal, group_rules.GROUPS_MAX // SHARE // nodes)
                made.add(group)
            if (
                made is not None
                and group in made
                and 2 * image.offset_count > group_rules.OFFSETS_MAX
            ):
                self._check_offsets(
                    image, principal, made, group_rules.OFFSETS_MAX // SHARE // nodes
                )

    def _room_for(self, image: Image, principal: str, most: int) -> set[str]:
        made = self._made.setdefault(principal, set())
        if len(made) >= most:
            made.intersection_update(image.groups)
        if len(made) >= most:
            raise GroupLimitError(
                f"{principal} has made {len(made)} consumer groups through this node, as many as one principal may: "
                "delete groups that are not needed"
            )
        return made

    def _check_offsets(self, image: Image, principal: str, made: set[str], most: int) -> None:
        count = sum(len(image.offsets.get(group, ())) for group in made)
        if count >= most:
            raise GroupLimitError(
                f"groups of {principal} have committed {count} offsets, as many as those of one principal may: delete "
                "groups that are not needed"
            )
