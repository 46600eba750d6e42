"""What the sessions of a node share: the image, the records of all partitions, and their groups' coordination."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

from milena.model.requests import FetchRequest, FetchResult
from node.process.clock import Clock
from raft_meta.machine.commands import GroupCommit
from raft_meta.machine.image import Image


class Commits(Protocol):
    """Gathers commits of many groups into few commands (``node.groups``)."""

    async def commit(self, commit: GroupCommit) -> None:
        """Commit these offsets, or none; raises what refuses them."""


class Memberships(Protocol):
    """Group membership on the same node (``node.groups``)."""

    async def settle(self, group_id: str, instance: str) -> None:
        """Return once the consumer is a member as its subscription says, or none."""

    def look(self, group_id: str) -> None:
        """A consumer has let go of what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTools:
    """Owned by the coordinator of REST consumers."""

    image: Callable[[], Image]
    fetch: Callable[[FetchRequest], Awaitable[FetchResult]]
    commits: Commits
    coordinates: Callable[[str], bool]
    """Whether this node may decide for the group now."""
    memberships: Memberships
    spawn: Callable[[Coroutine[object, object, None]], None]
    """Goes on in the background; raises nothing."""
    clock: Clock
