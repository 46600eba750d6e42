"""A limit on the groups, and on their committed offsets, that one principal may create through this node.

The cluster limits both for all principals together. Without this module, one principal could use up the whole limit. It
may use a quarter through all nodes together, so each node gives it an equal part of the quarter: its share. The
replicated state does not record which principal created a group. So each node remembers the groups that it was asked to
create for each principal, and forgets them when it restarts. Groups that were deleted or have expired do not count.
"""

from collections.abc import Iterable

from milena.model.errors import GroupLimitError
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Image

SHARE = 4


class GroupShares:
    """The shares of one node. Belongs to the event loop."""

    def __init__(self) -> None:
        self._made: dict[str, set[str]] = {}
        """Principal → the groups that this node was asked to create for it."""

    def check(self, image: Image, principal: str, groups: Iterable[str]) -> None:
        """Refuse new groups, or offsets in groups, if the principal has created enough already.

        Raises:
            GroupLimitError: the share is used up; the message says what to delete.
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
