"""REST consumers of the HTTP API. They are in the image so that they outlive the node that created them.

Group and instance name identify a consumer. ``created_index`` distinguishes it from an earlier consumer of the same
name, so that no late request for that one affects it. A subscribed consumer is also a member of its group under its
instance name. The group's coordinator makes it one; consumer and membership end in one step.
"""

from collections import Counter
from collections.abc import Iterable

from immutables import Map

from milena.model.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    GroupLimitError,
    InvalidRequestError,
    PartitionNotFoundError,
)
from milena.model.types import WallMs
from raft_meta.machine.commands import DeleteConsumers, PutConsumer
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import coordinators, group_rules, groups
from raft_meta.machine.image import Image, RestConsumer
from raft_meta.machine.outcome import Outcome

ConsumerCommand = PutConsumer | DeleteConsumers


def apply(image: Image, index: int, now_ms: WallMs, command: ConsumerCommand) -> Outcome:
    """Apply a consumer command; ``index`` becomes a new consumer's ``created_index``.

    Raises:
        StaleBrokerEpochError, NotCoordinatorError, ConsumerExistsError, ConsumerNotFoundError,
        PartitionNotFoundError, InvalidConsumerError, GroupLimitError, InvalidRequestError: refused.
    """
    match command:
        case PutConsumer():
            return _put(image, index, command)
        case DeleteConsumers():
            return _delete(image, index, now_ms, command)


def _put(image: Image, index: int, command: PutConsumer) -> Outcome:
    wanted = command.consumer
    group_rules.check_consumer(wanted)
    if wanted.commits_next and image.feature_level < group_rules.COMMITS_NEXT_LEVEL:
        raise InvalidRequestError(
            "Nodes of an earlier release commit the last record that was read."
        )
    coordinators.check_coordinator(
        image,
        wanted.group_id,
        command.broker_id,
        command.broker_epoch,
        command.coordinators_version,
    )
    present = image.consumers.get((wanted.group_id, wanted.instance))
    if command.is_new:
        _check_new(image, present, wanted)
        wanted = replace(wanted, created_index=index)
    elif present is None or present.created_index != wanted.created_index:
        raise ConsumerNotFoundError(
            f"Group {wanted.group_id} has no consumer {wanted.instance}, or another one of this name."
        )
    absent = group_rules.absent_partition(image, wanted.assigned)
    if absent is not None:
        raise PartitionNotFoundError(f"{absent} does not exist, or no longer.")
    counts = image.consumer_counts
    if present is not None:
        counts = _recounted(counts, present.principal, -1)
    after = replace(
        image,
        consumers=image.consumers.set((wanted.group_id, wanted.instance), wanted),
        consumer_counts=_recounted(counts, wanted.principal, 1),
    )
    return Outcome(after, wanted.created_index)


def counts_by_principal(consumers: Iterable[RestConsumer]) -> Map[str, int]:
    """Return ``Image.consumer_counts`` of these consumers."""
    return Map(Counter(consumer.principal for consumer in consumers))


def _recounted(counts: Map[str, int], principal: str, change: int) -> Map[str, int]:
    count = counts.get(principal, 0) + change
    return counts.set(principal, count) if count else counts.delete(principal)


def _check_new(image: Image, present: RestConsumer | None, wanted: RestConsumer) -> None:
    if present is not None:
        raise ConsumerExistsError(
            f"Group {wanted.group_id} has a consumer {wanted.instance} already; take another name, or delete it."
        )
    if len(image.consumers) >= group_rules.CONSUMERS_MAX:
        raise GroupLimitError(
            f"There are {group_rules.CONSUMERS_MAX} REST consumers already; delete some that are not needed."
        )


def _delete(image: Image, index: int, now_ms: WallMs, command: DeleteConsumers) -> Outcome:
    coordinators.check_broker(image, command.broker_id, command.broker_epoch)
    coordinated = coordinators.Coordinators(image)
    for name in command.consumers:
        coordinated.check(name.group_id, command.broker_id)
    names = [(name.group_id, name.instance) for name in command.consumers]
    if len(set(names)) != len(names):
        raise InvalidRequestError("A consumer is named twice.")
    deleted: list[int] = []
    for name in command.consumers:
        present = image.consumers.get((name.group_id, name.instance))
        is_there = present is not None and present.created_index == name.created_index
        deleted.append(int(is_there))
        if present is not None and is_there:
            image = _without(image, index, now_ms, present)
    return Outcome(image, tuple(deleted))


def _without(image: Image, index: int, now_ms: WallMs, consumer: RestConsumer) -> Image:
    """Return the image without the consumer and its membership."""
    after = replace(
        image,
        consumers=image.consumers.delete((consumer.group_id, consumer.instance)),
        consumer_counts=_recounted(image.consumer_counts, consumer.principal, -1),
    )
    group = image.groups.get(consumer.group_id)
    member = group_rules.member_of(group, consumer.instance)
    if group is None or member is None or not member.is_rest:
        return after
    return groups.without_member(after, index, now_ms, group, consumer.instance)
