"""Operations on ``image.PartitionSet``, a canonical tuple: equal sets are equal values and have equal bytes.

``apply``, the coordinators of groups and the assignors use them. All functions are pure, and take time linear in the
sizes of the sets.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from raft_meta.machine.image import PartitionKey, PartitionSet

EMPTY: PartitionSet = ()


def of(keys: Iterable[PartitionKey]) -> PartitionSet:
    """Return the set of these partitions, which may be in any order."""
    return _canonical(_by_topic(keys))


def keys_of(partitions: PartitionSet) -> Iterator[PartitionKey]:
    """Yield the partitions of the set, ascending."""
    return ((topic_id, number) for topic_id, numbers in partitions for number in numbers)


def union(*sets: PartitionSet) -> PartitionSet:
    """Return the partitions that are in at least one of the sets."""
    present = [partitions for partitions in sets if partitions]
    if len(present) == 1:
        return present[0]
    return of(key for partitions in present for key in keys_of(partitions))


def intersection(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """Return the partitions that are in both sets."""
    wanted = dict(right)
    found = {
        topic_id: frozenset(numbers).intersection(wanted[topic_id])
        for topic_id, numbers in left
        if topic_id in wanted
    }
    return _canonical(found)


def difference(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """Return the partitions that are in ``left`` and not in ``right``."""
    unwanted = dict(right)
    found = {
        topic_id: frozenset(numbers).difference(unwanted.get(topic_id, ()))
        for topic_id, numbers in left
    }
    return _canonical(found)


def is_subset(left: PartitionSet, right: PartitionSet) -> bool:
    """Return whether every partition of ``left`` is in ``right``."""
    if left == right or not left:
        return True
    whole = dict(right)
    return all(
        topic_id in whole and frozenset(whole[topic_id]).issuperset(numbers)
        for topic_id, numbers in left
    )


def without_topic(partitions: PartitionSet, topic_id: str) -> PartitionSet:
    """Return the set without one topic's partitions; the same object if it has none of them."""
    if all(other != topic_id for other, _ in partitions):
        return partitions
    return tuple(row for row in partitions if row[0] != topic_id)


def is_canonical(partitions: PartitionSet) -> bool:
    """Return whether topics and partitions are in ascending order, each once, and each topic has partitions."""
    return all(left[0] < right[0] for left, right in pairwise(partitions)) and all(
        numbers and numbers[0] >= 0 and all(left < right for left, right in pairwise(numbers))
        for _, numbers in partitions
    )


def _by_topic(keys: Iterable[PartitionKey]) -> dict[str, set[int]]:
    by_topic: dict[str, set[int]] = {}
    for topic_id, number in keys:
        by_topic.setdefault(topic_id, set()).add(number)
    return by_topic


def _canonical(by_topic: dict[str, set[int]] | dict[str, frozenset[int]]) -> PartitionSet:
    return tuple(
        (topic_id, tuple(sorted(by_topic[topic_id])))
        for topic_id in sorted(by_topic)
        if by_topic[topic_id]
    )
