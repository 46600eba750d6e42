"""Plans a transaction of one request: its records by partition, and its response once their offsets are known. Pure.

Several requests may share a transaction. Their records for one partition then form one part, in the order of requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from milena.model.batch.header import IdempotencyExtension, KeyPlace
from milena.model.errors import IdempotencyKeyReusedError
from milena.model.requests import ProduceReceipt, Records, TransactionReceipt, TransactionWrite
from node.services.record_batches import (
    Appended,
    PartitionBatch,
    merge,
    receipts_of,
    receipts_of_one,
)
from raft_meta.machine.image import PartitionKey, Topic, TransactionExtent
from raft_meta.machine.topics.configs import TopicSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The records of one or more requests for one partition. ``request_keys``: the keys whose home is there."""

    topic: Topic
    settings: TopicSettings
    batch: PartitionBatch
    request_keys: Sequence[IdempotencyExtension] = ()

    @property
    def key(self) -> PartitionKey:
        """Topic id and number of the partition."""
        return self.topic.topic_id, self.batch.partition


class WriteGroup(NamedTuple):
    """Writes of a request whose records were split into parts together. ``sources``: each write's index and count."""

    part_count: int
    sources: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts that a request writes. The first part contains the request's idempotency key, if it has one.

    ``groups``: the groups of writes, in the order of their parts. ``write_count``: the request's number of writes.
    """

    parts: Sequence[Part]
    groups: Sequence[WriteGroup]
    write_count: int

    @property
    def key(self) -> IdempotencyExtension | None:
        """The request's idempotency key, or None."""
        keys = self.parts[0].request_keys if self.parts else ()
        return keys[0] if keys else None

    def receipts(self, base_offsets: Sequence[int]) -> list[Sequence[ProduceReceipt]]:
        """Return the receipts of each write. ``base_offsets``: the first offset of each part."""
        receipts: list[Sequence[ProduceReceipt]] = [()] * self.write_count
        written = iter(zip(self.parts, base_offsets, strict=True))
        for group in self.groups:
            of_group = _receipts_of(list(islice(written, group.part_count)))
            at = 0
            for write, count in group.sources:
                receipts[write] = of_group[at : at + count]
                assert len(receipts[write]) == count, "every record went into one part"
                at += count
        return receipts

    def first_answer(
        self, extents: Sequence[TransactionExtent], *, is_visible: bool
    ) -> TransactionReceipt:
        """Return the response to a repeated request, whose first attempt was committed.

        Raises:
            IdempotencyKeyReusedError: a topic was deleted and created again since, or has more partitions now.
        """
        written = {(extent.topic_id, extent.partition): extent for extent in extents}
        bases: list[int] = []
        for part in self.parts:
            extent = written.get(part.key)
            if extent is None or extent.end_offset - extent.base_offset != len(part.batch.places):
                raise IdempotencyKeyReusedError(
                    "this idempotency key was used for a transaction that is committed, before one of its topics was "
                    "created again or got more partitions; use a new key for new records"
                )
            bases.append(extent.base_offset)
        return TransactionReceipt(
            receipts=self.receipts(bases), is_visible=is_visible, is_duplicate=True
        )


@dataclass(frozen=True, slots=True)
class JoinedPlans:
    """The records of several requests, as the parts of one transaction.

    ``places``: for each part of each plan, the index of the joined part with its records, and the number of records
    before them.
    """

    parts: Sequence[Part]
    places: Sequence[Sequence[tuple[int, int]]]


def join(plans: Sequence[Plan]) -> JoinedPlans:
    """Join the parts of all plans: one part for each partition, and the homes of keys first.

    The parts must have no headers and no timestamps of their own (``merge``).
    """
    homes = [plan.parts[0].key for plan in plans if plan.key is not None]
    numbers: dict[PartitionKey, int] = {}
    for key in (*homes, *(part.key for plan in plans for part in plan.parts)):
        numbers.setdefault(key, len(numbers))
    sharers: list[list[Part]] = [[] for _ in numbers]
    keys: list[list[IdempotencyExtension]] = [[] for _ in numbers]
    counts = [0] * len(numbers)
    places: list[Sequence[tuple[int, int]]] = []
    for plan in plans:
        of_plan: list[KeyPlace] = []
        for part in plan.parts:
            number, records = numbers[part.key], len(part.batch.columns.values)
            of_plan.append(KeyPlace(number, counts[number], records))
            sharers[number].append(part)
            counts[number] += records
        if plan.key is not None:
            keys[of_plan[0].extent].append(replace(plan.key, places=tuple(of_plan)))
        places.append([(place.extent, place.first) for place in of_plan])
    return JoinedPlans(list(map(_shared, sharers, keys)), places)


def _shared(parts: Sequence[Part], keys: Sequence[IdempotencyExtension]) -> Part:
    first = parts[0]
    return Part(first.topic, first.settings, merge([part.batch for part in parts]), keys)


def own_extents(
    extents: Sequence[TransactionExtent], places: Sequence[KeyPlace]
) -> Sequence[TransactionExtent]:
    """Return what the request with these places wrote in a transaction. Without places, it wrote all of it."""
    if not places:
        return extents
    return [
        replace(
            extents[place.extent],
            base_offset=extents[place.extent].base_offset + place.first,
            end_offset=extents[place.extent].base_offset + place.first + place.records,
        )
        for place in places
    ]


def grouped(
    writes: Sequence[TransactionWrite],
) -> Iterator[tuple[str, int | None, Sequence[int]]]:
    """Group the writes whose records are placed together; yield topic, partition and the indexes of the writes.

    If every write of a topic names one partition for all its records, each partition is a group. Otherwise the whole
    topic is one group, and its partition is None.
    """
    by_topic: dict[str, list[int]] = {}
    for number, write in enumerate(writes):
        by_topic.setdefault(write.topic, []).append(number)
    for topic, numbers in by_topic.items():
        by_partition: dict[int, list[int]] = {}
        for number in numbers:
            write = writes[number]
            if write.partition is None or write.records.partitions is not None:
                yield topic, None, numbers
                break
            by_partition.setdefault(write.partition, []).append(number)
        else:
            for partition, own in by_partition.items():
                yield topic, partition, own


def merged(writes: Sequence[TransactionWrite], *, are_placed: bool) -> Records:
    """Return the records of a group of writes, in order. ``are_placed``: all go to one partition."""
    if len(writes) == 1 and (are_placed or writes[0].partition is None):
        return writes[0].records
    counts = [len(write.records.values) for write in writes]

    def joined(
        column: Callable[[TransactionWrite], Sequence[T | None] | None],
    ) -> list[T | None] | None:
        columns = [column(write) for write in writes]
        if all(found is None for found in columns):
            return None
        cells: list[T | None] = []
        for found, count in zip(columns, counts, strict=True):
            cells += [None] * count if found is None else found
        return cells

    return Records(
        keys=joined(lambda write: write.records.keys),
        values=[value for write in writes for value in write.records.values],
        headers=joined(lambda write: write.records.headers),
        timestamps=joined(lambda write: write.records.timestamps),
        partitions=None if are_placed else joined(_partitions_of),
    )


def _partitions_of(write: TransactionWrite) -> Sequence[int | None] | None:
    named = write.records.partitions
    if named is None:
        return None if write.partition is None else [write.partition] * len(write.records.values)
    return [write.partition if partition is None else partition for partition in named]


def _receipts_of(written: Sequence[tuple[Part, int]]) -> Sequence[ProduceReceipt]:
    """Return the receipts of a group. ``written``: its parts, each with its first offset."""
    batches = [part.batch for part, _ in written]
    outcomes = [
        Appended(range(base_offset, base_offset + len(part.batch.places)))
        for part, base_offset in written
    ]
    if len(batches) == 1:
        return receipts_of_one(batches[0], outcomes[0])
    return receipts_of(sum(len(batch.places) for batch in batches), batches, outcomes, {})
