"""A broker's standing as a test says."""

from dataclasses import dataclass


@dataclass
class FixedStanding:
    """Implements ``node.control.standing.Standing``."""

    broker_epoch: int
    has_lease: bool = True
    is_disk_full: bool = False
