"""A broker's lease state that a test sets."""

from dataclasses import dataclass


@dataclass
class FixedStanding:
    """An implementation of ``node.control.standing.Standing``."""

    broker_epoch: int
    has_lease: bool = True
    is_disk_full: bool = False
