"""Partitions that a consumer picks itself: by hand, or all of some topics (pure).

For a consumer that shares with nobody; a member of a group has ``milena.consuming.membership.GroupMembership`` instead.
"""

from collections.abc import Set
from typing import Protocol

from milena.records import TopicPartition

NOTHING: frozenset[TopicPartition] = frozenset()


class Assignment(Protocol):
    """Partitions that are a consumer's to read, and those it reads."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Partitions that it reads."""

    @property
    def is_due(self) -> bool:
        """There is something lost, to be given back, or to be taken."""

    @property
    def is_lost(self) -> bool:
        """Everything owned went to others already."""

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """Partitions to be given back."""

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Partitions that may be taken."""

    def take(self, partitions: Set[TopicPartition]) -> None:
        """It reads these as well."""

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """It reads these no more."""

    def forget(self) -> None:
        """It knows of the loss."""


class StandaloneAssignment:
    """Everything in ``wanted`` is to be read. Owned by its consumer's loop."""

    is_lost = False

    def __init__(self, wanted: frozenset[TopicPartition] = NOTHING) -> None:
        self.wanted = wanted
        self.owned = NOTHING

    @property
    def is_due(self) -> bool:
        """There is something to give up or to take."""
        return self.owned != self.wanted

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """Partitions that are not wanted any more."""
        return self.owned - self.wanted

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Partitions that are wanted as well."""
        return self.wanted - self.owned

    def take(self, partitions: Set[TopicPartition]) -> None:
        """It reads these as well."""
        self.owned |= partitions

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """It reads these no more."""
        self.owned -= partitions

    def forget(self) -> None:
        """Nothing is ever lost here."""
