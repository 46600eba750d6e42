"""The coordinator of a group, by rendezvous hashing. Every node computes it from the image alone.

The coordinator is the live, not draining broker whose hash with the group's id is greatest. When a broker joins or
leaves, only the groups that it coordinates move. Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase
Hit Rates" (1998).

A group may leave a broker and come back while the broker keeps its epoch: it was fenced for a while, or another broker
was there for a while. A command that the broker proposed before may arrive only after that, and must not overwrite what
the coordinator in between has acknowledged. So the image counts the changes of the set of coordinators, and such
commands carry the count that their proposer saw when it took the request. In Kafka, the leader epoch of the partition
of ``__consumer_offsets`` does this.
"""

import hashlib
from collections.abc import Iterable

from milena.model.errors import NotCoordinatorError, StaleBrokerEpochError
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image

LEVEL = 12
"""Feature level from which on the image counts the changes of the set of coordinators."""


def coordinator_of(image: Image, group_id: str) -> int | None:
    """Return the broker id of the group's coordinator; None if no broker can be one now."""
    return Coordinators(image).of(group_id)


class Coordinators:
    """The coordinators of many groups in one image."""

    def __init__(self, image: Image) -> None:
        self._brokers = _candidates(image)
        self._version = image.coordinators_version if image.feature_level >= LEVEL else None

    def of(self, group_id: str) -> int | None:
        """Return the broker id of the group's coordinator; None if no broker can be one now."""
        return chosen(self._brokers, group_id)

    def check(self, group_id: str, broker_id: int, version: int | None = None) -> None:
        """Refuse a proposal unless the broker is the group's present coordinator.

        ``version``: the coordinators' version under which the broker took the request; None if the command has another
        proof that what it changes is as the broker saw it.

        Raises:
            NotCoordinatorError: another broker coordinates the group, or none does, or another may have done meanwhile.
        """
        coordinator = self.of(group_id)
        if coordinator != broker_id:
            present = "none does" if coordinator is None else f"node {coordinator} does"
            raise NotCoordinatorError(
                f"Node {broker_id} does not coordinate group {group_id}; {present}."
            )
        if version is not None and self._version is not None and version != self._version:
            raise NotCoordinatorError(
                f"Another node may have coordinated group {group_id} since node {broker_id} took this request."
            )


def with_version(before: Image, after: Image) -> Image:
    """Return ``after`` with the next version if other brokers may coordinate groups than before."""
    if after.feature_level < LEVEL or _candidates(before) == _candidates(after):
        return after
    return replace(after, coordinators_version=before.coordinators_version + 1)


def _candidates(image: Image) -> list[int]:
    return sorted(
        broker.broker_id
        for broker in image.brokers.values()
        if not broker.is_fenced and not broker.is_draining
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


def check_coordinator(
    image: Image, group_id: str, broker_id: int, broker_epoch: int, version: int | None = None
) -> None:
    """Refuse a proposal unless the broker is the group's present coordinator, under its present epoch.

    ``version``: see ``Coordinators.check``.

    Raises:
        StaleBrokerEpochError: the broker has registered again since.
        NotCoordinatorError: another broker coordinates the group, or none does, or another may have done meanwhile.
    """
    check_broker(image, broker_id, broker_epoch)
    Coordinators(image).check(group_id, broker_id, version)
