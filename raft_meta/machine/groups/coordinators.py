"""The coordinator of a group, by rendezvous hashing. Every node computes it from the image alone.

The coordinator is the live, not draining broker whose hash with the group's id is greatest. When a broker joins or
leaves, only the groups that it coordinates move. Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase
Hit Rates" (1998).
"""

import hashlib
from collections.abc import Iterable

from milena.model.errors import NotCoordinatorError, StaleBrokerEpochError
from raft_meta.machine.image import Image


def coordinator_of(image: Image, group_id: str) -> int | None:
    """Return the broker id of the group's coordinator; None if no broker can be one now."""
    return Coordinators(image).of(group_id)


class Coordinators:
    """The coordinators of many groups in one image."""

    def __init__(self, image: Image) -> None:
        self._brokers = [
            broker.broker_id
            for broker in image.brokers.values()
            if not broker.is_fenced and not broker.is_draining
        ]

    def of(self, group_id: str) -> int | None:
        """Return the broker id of the group's coordinator; None if no broker can be one now."""
        return chosen(self._brokers, group_id)

    def check(self, group_id: str, broker_id: int) -> None:
        """Refuse a proposal unless the broker is the group's present coordinator.

        Raises:
            NotCoordinatorError: another broker coordinates the group, or none does.
        """
        coordinator = self.of(group_id)
        if coordinator != broker_id:
            present = "none does" if coordinator is None else f"node {coordinator} does"
            raise NotCoordinatorError(
                f"Node {broker_id} does not coordinate group {group_id}; {present}."
            )


def chosen(brokers: Iterable[int], name: str) -> int | None:
    """Return the broker whose hash with the name is greatest; None if there are no brokers."""
    return max(brokers, key=lambda broker_id: (_weight(broker_id, name), broker_id), default=None)


def _weight(broker_id: int, group_id: str) -> bytes:
    return hashlib.blake2b(f"{broker_id}:{group_id}".encode(), digest_size=8).digest()


def check_broker(image: Image, broker_id: int, broker_epoch: int) -> None:
    """Refuse a proposal under an earlier broker epoch.

    Raises:
        StaleBrokerEpochError: the broker has registered again since, or is gone.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"Node {broker_id} is not registered under broker epoch {broker_epoch}."
        )


def check_coordinator(image: Image, group_id: str, broker_id: int, broker_epoch: int) -> None:
    """Refuse a proposal unless the broker is the group's present coordinator, under its present epoch.

    Raises:
        StaleBrokerEpochError: the broker has registered again since.
        NotCoordinatorError: another broker coordinates the group, or none does.
    """
    check_broker(image, broker_id, broker_epoch)
    Coordinators(image).check(group_id, broker_id)
