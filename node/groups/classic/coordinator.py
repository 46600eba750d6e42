"""The classic groups that this node coordinates, and their deadlines. Driven by ``GroupCoordinator``."""

from collections.abc import Callable, Iterator

from milena.model.errors import GroupLimitError, InconsistentGroupProtocolError
from milena.model.types import MonotonicMs
from node.groups.classic.coordinated import ClassicSettings, CoordinatedClassicGroup
from node.groups.deadlines import Deadlines
from node.groups.group_writer import GroupContext
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Image


class ClassicCoordinator:
    """The classic groups of one node. Runs on the data loop."""

    def __init__(
        self, context: Callable[[Deadlines], GroupContext], settings: ClassicSettings
    ) -> None:
        self._deadlines = Deadlines()
        self._context = context(self._deadlines)
        self._settings = settings
        self._groups: dict[str, CoordinatedClassicGroup] = {}

    def __len__(self) -> int:
        """Return the number of classic groups that are kept here."""
        return len(self._groups)

    @property
    def member_count(self) -> int:
        """The number of members of all of these groups."""
        return sum(group.member_count for group in self._groups.values())

    def group(self, group_id: str) -> CoordinatedClassicGroup:
        """Return the group; the caller has checked that this node coordinates it.

        Raises:
            GroupLimitError: clients named too many groups.
        """
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= group_rules.GROUPS_MAX:
                raise GroupLimitError(
                    f"this node keeps {group_rules.GROUPS_MAX} classic groups already; use fewer groups"
                )
            group = self._groups[group_id] = CoordinatedClassicGroup(
                group_id, self._context, self._settings
            )
        return group

    def ids(self) -> Iterator[str]:
        """Yield the ids of the groups with members that are kept here."""
        return (group_id for group_id, group in self._groups.items() if group.member_count)

    def known(self, group_id: str) -> CoordinatedClassicGroup | None:
        """Return the group if it is kept here."""
        return self._groups.get(group_id)

    def check_other_kind(self, group_id: str) -> None:
        """Refuse a request of a server group for a group with classic members.

        Raises:
            InconsistentGroupProtocolError: it has such members.
        """
        group = self._groups.get(group_id)
        if group is not None and group.member_count:
            raise InconsistentGroupProtocolError(
                f"group {group_id!r} has {group.member_count} members that use Kafka's classic protocol: stop them "
                "first, or use another group"
            )

    def take_over(self, image: Image, is_ours: Callable[[str], bool]) -> None:
        """Drop the groups that other nodes coordinate, and take over those of this node that have members.

        They are taken over now, not with their first request: if all members are dead, no request comes.
        """
        for group_id in [group_id for group_id in self._groups if not is_ours(group_id)]:
            self._drop(group_id)
        for group in image.groups.values():
            has_members = group.classic is not None and bool(group.classic.members)
            if has_members and group.group_id not in self._groups and is_ours(group.group_id):
                self.group(group.group_id)

    def tick(self, now_ms: MonotonicMs) -> None:
        """Look at the groups whose deadline has come, and drop those that are not in use."""
        for group_id in self._deadlines.due(now_ms):
            group = self._groups.get(group_id)
            if group is not None:
                group.expire(now_ms)
        for group_id, group in list(self._groups.items()):
            if group.must_retry:
                group.retry()
            if group.is_idle:
                self._drop(group_id)

    def extend(self, now_ms: MonotonicMs) -> None:
        """Give all members their full times again."""
        for group in self._groups.values():
            group.extend(now_ms)

    def drop_all(self) -> None:
        """Drop all groups, and answer their waiting requests."""
        for group_id in list(self._groups):
            self._drop(group_id)

    def _drop(self, group_id: str) -> None:
        self._groups.pop(group_id).close()
        self._deadlines.forget(group_id)
