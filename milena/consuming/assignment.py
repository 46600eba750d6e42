"""Partitions that a consumer picks itself: by hand, or all partitions of some topics (pure).

This is for a consumer that does not share partitions. A member of a group has
``milena.consuming.membership.GroupMembership`` instead.
"""

from collections.abc import Set
from typing import Protocol

from milena.records import TopicPartition

NOTHING: frozenset[TopicPartition] = frozenset()


class Assignment(Protocol):
    """The partitions that a consumer should read, and those that it reads (``owned``)."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads."""

    @property
    def is_due(self) -> bool:
        """True if there is a step to do: partitions were lost, must be given up, or may be taken."""

    @property
    def is_lost(self) -> bool:
        """True if all owned partitions already went to other members."""

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer reads and must give up."""

    @property
    def added(self) -> frozenset[TopicPartition]:
        """The partitions that the consumer does not read yet and may take."""

    def take(self, partitions: Set[TopicPartition]) -> None:
        """Add these partitions to those that are read."""

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """Remove these partitions from those that are read."""

    def forget(self) -> None:
        """Drop the lost partitions, after the application was told of the loss."""


class StandaloneAssignment:
    """An assignment that reads exactly ``wanted``. Owned by its consumer's loop."""

    is_lost = False

    def __init__(self, wanted: frozenset[TopicPartition] = NOTHING) -> None:
        self.wanted = wanted
        self.owned = NOTHING

    @property
    def is_due(self) -> bool:
        """True if partitions must be given up or may be taken."""
        return self.owned != self.wanted

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """The partitions that are read but no longer wanted."""
        return self.owned - self.wanted

    @property
    def added(self) -> frozenset[TopicPartition]:
        """The partitions that are wanted but not read yet."""
        return self.wanted - self.owned

    def take(self, partitions: Set[TopicPartition]) -> None:
        """Add these partitions to those that are read."""
        self.owned |= partitions

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """Remove these partitions from those that are read."""
        self.owned -= partitions

    def forget(self) -> None:
        """Do nothing: a standalone consumer never loses partitions."""
