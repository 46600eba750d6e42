"""The state of this broker in the cluster, for the parts of a node that act for it: leaders, coordinators, others."""

from typing import Protocol


class Standing(Protocol):
    """The state of this broker as far as it knows now; ``Membership`` implements it. Read it again after every wait."""

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this process; -1 until this broker is registered."""

    @property
    def has_lease(self) -> bool:
        """Whether this broker has a lease. Without one it must not act as the leader of its partitions."""

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk is full. This broker then takes no records."""
