"""This broker's standing in the cluster, for all parts that act in its name, such as leaders and coordinators."""

from typing import Protocol


class Standing(Protocol):
    """The state of this broker that ``Membership`` knows now. Read it again after every wait."""

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this process; -1 until it is registered."""

    @property
    def has_lease(self) -> bool:
        """Whether this broker has a lease, and so may act on what it leads."""

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk is full, so that this broker takes no records now."""
