"""Records of a request, by partition, ready to be encoded. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from milena.model.columns import RecordColumns
from milena.model.errors import InvalidRecordError, MilenaError
from milena.model.partitioner import partition_for_key
from milena.model.requests import ProduceReceipt, ProduceRequest, Receipts, Records
from node.metadata.lookup import check_partition, no_partition
from raft_meta.machine.image import Topic


@dataclass(slots=True, init=False)
class PartitionBatch:
    """Records of one request for one partition. ``places``: their positions in the request."""

    partition: int
    places: Sequence[int]
    columns: RecordColumns
    base_timestamp_ms: int

    def __init__(
        self, partition: int, places: Sequence[int], columns: RecordColumns, base_timestamp_ms: int
    ) -> None:
        self.partition = partition
        self.places = places
        self.columns = columns
        self.base_timestamp_ms = base_timestamp_ms


def highest_partition(request: ProduceRequest) -> int:
    """The highest partition that a request names, or 0."""
    if request.partition is not None:
        return request.partition
    named = request.records.partitions
    return 0 if named is None else max((p for p in named if p is not None), default=0)


def split_request(
    topic: Topic, request: ProduceRequest, *, sticky: int, now_ms: int
) -> tuple[list[PartitionBatch], dict[int, MilenaError]]:
    """Records by partition, and errors of records that name a partition which is not there.

    ``sticky``: the partition for records that name none and have no key.
    """
    records = request.records
    count = len(records.values)
    if request.partition is not None:
        check_partition(topic, request.partition)
        return [_whole(request.partition, records, count, now_ms)], {}
    if records.keys is None and records.partitions is None and request.idempotency is None:
        return [_whole(sticky, records, count, now_ms)], {}
    chosen, errors = _choose(topic, request, sticky)
    if not errors and len(set(chosen)) == 1:
        return [_whole(chosen[0], records, count, now_ms)], {}
    by_partition: dict[int, list[int]] = {}
    for place, partition in enumerate(chosen):
        if place not in errors:
            by_partition.setdefault(partition, []).append(place)
    parts = [_some(p, records, places, now_ms) for p, places in by_partition.items()]
    return parts, errors


def _choose(
    topic: Topic, request: ProduceRequest, sticky: int
) -> tuple[list[int], dict[int, MilenaError]]:
    """A partition for every record: as it says, else by its key, else one for all that say nothing.

    With an idempotency key, records without a key are placed by hash(key, index), so that a retry on any node
    places them alike.
    """
    records, count = request.records, topic.partition_count
    total = len(records.values)
    keys = records.keys or [None] * total
    named = records.partitions or [None] * total
    chosen: list[int] = []
    errors: dict[int, MilenaError] = {}
    hashed: dict[bytes, int] = {}
    for place, (partition, key) in enumerate(zip(named, keys, strict=True)):
        if partition is not None:
            if not 0 <= partition < count:
                errors[place] = no_partition(topic, partition)
            chosen.append(partition)
        elif key is not None:
            found = hashed.get(key)
            if found is None:
                found = hashed[key] = partition_for_key(key, count)
            chosen.append(found)
        elif request.idempotency is not None:
            chosen.append(_place_by_hash(request.idempotency.key_hash, place, count))
        else:
            chosen.append(sticky)
    return chosen, errors


def _place_by_hash(key_hash: bytes, place: int, count: int) -> int:
    digest = hashlib.blake2b(place.to_bytes(8, "big"), digest_size=8, key=key_hash).digest()
    return int.from_bytes(digest, "big") % count


def keyless_record(topic: Topic, part: PartitionBatch) -> InvalidRecordError | None:
    """Why records may not go into a compacted topic: one of them has no key."""
    keys = part.columns.keys
    if keys is not None and None not in keys:
        return None
    place = part.places[0 if keys is None else keys.index(None)]
    return InvalidRecordError(
        f"record {place} has no key, but {topic.name} is compacted: it keeps the last record of each key; "
        "give every record a key, or set the topic's cleanup.policy to delete"
    )


def _whole(partition: int, records: Records, count: int, now_ms: int) -> PartitionBatch:
    base, deltas = _timestamps(records.timestamps, now_ms)
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=deltas,
        keys=records.keys,
        values=records.values,
        headers=records.headers,
    )
    return PartitionBatch(partition, range(count), columns, base)


def _some(partition: int, records: Records, places: Sequence[int], now_ms: int) -> PartitionBatch:
    timestamps = records.timestamps
    base, deltas = _timestamps(
        None if timestamps is None else [timestamps[i] for i in places], now_ms
    )
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=deltas,
        keys=None if records.keys is None else [records.keys[i] for i in places],
        values=[records.values[i] for i in places],
        headers=None if records.headers is None else [records.headers[i] for i in places],
    )
    return PartitionBatch(partition, places, columns, base)


def _timestamps(
    timestamps: Sequence[int | None] | None, now_ms: int
) -> tuple[int, list[int] | None]:
    """Base timestamp and deltas; records that say nothing were made now."""
    if timestamps is None or all(t is None for t in timestamps):
        return now_ms, None
    filled = [now_ms if t is None else t for t in timestamps]
    base = filled[0]
    return base, [t - base for t in filled]


def size_of_columns(columns: RecordColumns) -> int:
    """About as many bytes as these records take."""
    size = sum(map(len, filter(None, columns.values)))
    return size if columns.keys is None else size + sum(map(len, filter(None, columns.keys)))


def size_of(records: Records) -> int:
    """About as many bytes as these records take."""
    return sum(
        len(item) for column in (records.keys, records.values) for item in column or () if item
    )


def halve(part: PartitionBatch) -> list[PartitionBatch]:
    """The same records in two batches."""
    middle = len(part.columns.values) // 2
    columns = part.columns
    return [
        PartitionBatch(
            part.partition,
            part.places[piece],
            RecordColumns(
                offset_deltas=None,
                timestamp_deltas=columns.timestamp_deltas and columns.timestamp_deltas[piece],
                keys=columns.keys and columns.keys[piece],
                values=columns.values[piece],
                headers=columns.headers and columns.headers[piece],
            ),
            part.base_timestamp_ms,
        )
        for piece in (slice(None, middle), slice(middle, None))
    ]


def merge(parts: Sequence[PartitionBatch]) -> PartitionBatch:
    """The records of several requests for one partition as those of one; none of them has headers or deltas.

    ``places`` counts through all of them.
    """
    if len(parts) == 1:
        return parts[0]
    base = parts[0].base_timestamp_ms
    values: list[bytes | None] = []
    deltas: list[int] = []
    for part in parts:
        values += part.columns.values
        deltas += [part.base_timestamp_ms - base] * len(part.columns.values)
    keys: list[bytes | None] | None = None
    if any(part.columns.keys is not None for part in parts):
        keys = []
        for part in parts:
            keys += part.columns.keys or [None] * len(part.columns.values)
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=deltas if any(deltas) else None,
        keys=keys,
        values=values,
        headers=None,
    )
    return PartitionBatch(parts[0].partition, range(len(values)), columns, base)


def receipts_of_one(
    part: PartitionBatch, outcome: MilenaError | Sequence[int | None]
) -> Sequence[ProduceReceipt]:
    """Receipts of a request whose records all went to one partition."""
    count = len(part.places)
    if isinstance(outcome, MilenaError):
        return Receipts.failed(part.partition, outcome, count)
    return Receipts(partitions=[part.partition] * count, offsets=outcome)


def receipts_of(
    count: int,
    parts: Sequence[PartitionBatch],
    outcomes: Sequence[MilenaError | Sequence[int | None]],
    errors: dict[int, MilenaError],
) -> list[ProduceReceipt]:
    """Receipts in request order, from each partition's offsets or error."""
    receipts: list[ProduceReceipt | None] = [None] * count
    for place, error in errors.items():
        receipts[place] = ProduceReceipt(partition=-1, offset=None, error=error)
    for part, outcome in zip(parts, outcomes, strict=True):
        if isinstance(outcome, MilenaError):
            for place in part.places:
                receipts[place] = ProduceReceipt(
                    partition=part.partition, offset=None, error=outcome
                )
        else:
            for place, offset in zip(part.places, outcome, strict=True):
                receipts[place] = ProduceReceipt(partition=part.partition, offset=offset)
    return [r for r in receipts if r is not None]
