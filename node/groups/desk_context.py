"""What the desks of a node share: the image and the quorum, the clock, and the coordinator that they belong to."""

from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass

from milena.model.types import MonotonicMs
from node.control.standing import Standing
from node.groups.rest_members import RestMembers
from node.groups.subscriptions import Subscriptions
from node.metadata.store import MetadataStore
from node.metrics.counts import GroupCounts
from node.process.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskContext:
    """Owned by ``GroupCoordinator``."""

    metadata: MetadataStore
    clock: Clock
    pool: Executor
    standing: Standing
    check: Callable[[str], None]
    """Raises NotCoordinatorError unless this node coordinates the group."""
    subscriptions: Subscriptions
    counts: GroupCounts
    rest_members: Callable[[], RestMembers | None]
    spawn: Callable[[Coroutine[None, None, None]], None]
    on_due: Callable[[str, MonotonicMs], None]
    """Ask the group's desk again at this time who has expired."""
