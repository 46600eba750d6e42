"""How much one node is given to carry, and from which feature level on every node refuses more.

Whoever proposes a command checks the bounds first, so that they hold from the first upgraded node on. ``apply``
checks them again, which settles races, but only from ``LEVEL`` on: nodes of an older release would apply what this one
refuses, and their images would differ.
"""

from collections import Counter
from collections.abc import Sequence

from milena.model.errors import InvalidReplicationError, TooManyReplicasError
from raft_meta.machine.image import Image

LEVEL = 2
"""The feature level from which on ``apply`` refuses what is above a bound."""

REPLICAS_PER_BROKER_MAX = 4_000
"""Each replica has a folder, open files and a place in every look over all of them: four thousand keep an idle node,
which is one Python process, within a small part of a core, and its open files within what systems allow."""

PARTITIONS_PER_REQUEST_MAX = 1_000
"""Created by one command: each node that gets replicas makes files for all of them at once, which takes seconds. More
are added by further requests."""


def are_in_force(image: Image) -> bool:
    """Whether every node refuses what is above the bounds."""
    return image.feature_level >= LEVEL


def check_new_replicas(image: Image, placement: Sequence[Sequence[int]]) -> None:
    """Refuse partitions that are too many at once, or more than their brokers can hold.

    Raises:
        InvalidReplicationError: more partitions than one request may create.
        TooManyReplicasError: a broker would hold more replicas than one node carries.
    """
    if len(placement) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidReplicationError(
            f"One request creates at most {PARTITIONS_PER_REQUEST_MAX} partitions, not {len(placement)};"
            " create the topic with fewer, and add the others by further requests."
        )
    added = Counter(broker_id for replicas in placement for broker_id in replicas)
    held = Counter(
        broker_id
        for partition in image.partitions.values()
        for broker_id in partition.replicas
        if broker_id in added
    )
    for broker_id in sorted(added):
        total = held[broker_id] + added[broker_id]
        if total > REPLICAS_PER_BROKER_MAX:
            raise TooManyReplicasError(
                f"Broker {broker_id} would hold {total} replicas, more than the {REPLICAS_PER_BROKER_MAX} that one"
                " node carries; use fewer partitions or replicas, delete topics, or add nodes."
            )
