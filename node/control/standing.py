"""How this broker stands in the cluster, for whoever acts in its name: leaders, followers, coordinators, services."""

from typing import Protocol


class Standing(Protocol):
    """What of it ``Membership`` knows at this moment; to be asked again after every wait."""

    @property
    def broker_epoch(self) -> int:
        """Of this life of the broker; -1 until it is registered."""

    @property
    def has_lease(self) -> bool:
        """Whether the controller counts on this broker, as far as can be known."""

    @property
    def is_disk_full(self) -> bool:
        """Whether it takes no records for now."""
