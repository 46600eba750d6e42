"""Bounds on the replicas of one node, and the feature level from which on every node enforces them.

The proposer of a command checks the bounds first, so that they hold from the first upgraded node on. ``apply`` checks
them again, which settles races. It does so only from ``LEVEL`` on: a node of an older release would apply a command
that this release refuses, and their images would differ.
"""

from collections import Counter
from collections.abc import Sequence

from milena.model.errors import InvalidReplicationError, TooManyReplicasError
from raft_meta.machine.image import Image

LEVEL = 2
"""The feature level from which on ``apply`` enforces the bounds."""

REPLICAS_PER_BROKER_MAX = 4_000
"""Each replica has a folder and open files, and takes part in every scan over all replicas. With four thousand, an idle
node, which is one Python process, uses a small part of a core, and its open files stay within the usual limits."""

PARTITIONS_PER_REQUEST_MAX = 1_000
"""Partitions that one command may create. Each node that gets replicas creates files for all of them at once, which
takes seconds. Further requests add more."""


def are_in_force(image: Image) -> bool:
    """Return whether every node enforces the bounds."""
    return image.feature_level >= LEVEL


def check_new_replicas(image: Image, placement: Sequence[Sequence[int]]) -> None:
    """Refuse too many partitions at once, or more replicas than a broker may hold.

    Raises:
        InvalidReplicationError: more partitions than one request may create.
        TooManyReplicasError: a broker would hold more than ``REPLICAS_PER_BROKER_MAX`` replicas.
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
                f"Node {broker_id} would hold {total} replicas, more than the {REPLICAS_PER_BROKER_MAX} that one"
                " node carries; use fewer partitions or replicas, delete topics, or add nodes."
            )
