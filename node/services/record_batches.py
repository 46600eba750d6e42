"""Splits the records of a request by partition, and makes receipts from the results. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from milena.model.batch.timestamps import ANY_TIMESTAMP, TimestampBounds
from milena.model.columns import RecordColumns
from milena.model.errors import InvalidRecordError, MalformedRequestError, MilenaError
from milena.model.partitioner import partition_for_key
from milena.model.requests import ProduceReceipt, ProduceRequest, Receipts, Records
from node.metadata.lookup import check_partition, no_partition
from raft_meta.machine.image import Topic


class Appended(NamedTuple):
    """The outcome of the records of a request or a batch, in their order."""

    offsets: Sequence[int | None]
    """None for each record if the request did not wait for offsets."""
    times: Sequence[int | None] | None = None
    """When the records were appended, in wall ms (None: unknown), if readers see the append time as the timestamp. None
    if readers see the timestamps of the records themselves."""
    errors: Mapping[int, MilenaError] = MappingProxyType({})
    """Errors of records that were refused, by index. The offset of such a record is None."""

    def with_refused(self, errors: Mapping[int, MilenaError], count: int) -> "Appended":
        """Return the outcome of ``count`` records: this one, with refused records inserted at their indexes."""
        offsets, times = iter(self.offsets), iter(self.times or ())
        return Appended(
            [None if place in errors else next(offsets) for place in range(count)],
            None
            if self.times is None
            else [None if place in errors else next(times) for place in range(count)],
            errors,
        )

    def between(self, first: int, last: int) -> "Appended":
        """Return the outcome of the records from index ``first`` up to ``last`` (exclusive)."""
        times = None if self.times is None else self.times[first:last]
        errors = self.errors and {
            place - first: error for place, error in self.errors.items() if first <= place < last
        }
        return Appended(self.offsets[first:last], times, errors)


@dataclass(slots=True, init=False)
class PartitionBatch:
    """Records of one request for one partition. ``places``: their indexes in the request.

    ``wants_times``: whether the receipts must have the records' times.
    """

    partition: int
    places: Sequence[int]
    columns: RecordColumns
    base_timestamp_ms: int
    wants_times: bool

    def __init__(
        self,
        partition: int,
        places: Sequence[int],
        columns: RecordColumns,
        base_timestamp_ms: int,
        wants_times: bool = False,
    ) -> None:
        self.partition = partition
        self.places = places
        self.columns = columns
        self.base_timestamp_ms = base_timestamp_ms
        self.wants_times = wants_times


def highest_partition(request: ProduceRequest) -> int:
    """Return the highest partition that a request names, or 0."""
    if request.partition is not None:
        return request.partition
    named = request.records.partitions
    return 0 if named is None else max((p for p in named if p is not None), default=0)


def split_request(
    topic: Topic,
    request: ProduceRequest,
    *,
    sticky: int,
    now_ms: int,
    timestamps: TimestampBounds,
    needs_keys: bool = False,
) -> tuple[list[PartitionBatch], dict[int, MilenaError]]:
    """Split records by partition; also return the errors of records that may not be stored, by index.

    Args:
        topic: the topic that gets the records.
        request: the records.
        sticky: the partition for records that name no partition and have no key.
        now_ms: the node's wall clock (ms); it is the timestamp of records without one.
        timestamps: the topic's limits for timestamps of producers.
        needs_keys: whether each record without a key is refused.

    Raises:
        PartitionNotFoundError: the request names a partition that does not exist.
        MilenaError: a record may not be stored, and the request has an idempotency key or a condition. Such a request
            is refused as a whole.
    """
    if timestamps is ANY_TIMESTAMP:
        request = _without_times(request)
    records = request.records
    errors = _out_of_bounds(request, timestamps, now_ms)
    if needs_keys:
        errors = _keyless(topic, records) | errors
    if request.partition is not None:
        check_partition(topic, request.partition)
        partition = request.partition
    elif records.keys is None and records.partitions is None and request.idempotency is None:
        partition = sticky
    else:
        partition = None
    if partition is None:
        chosen, missing = _choose(topic, request, sticky)
        errors |= missing
    elif errors:
        chosen = [partition] * len(records.values)
    else:
        return [_whole(partition, request, now_ms)], errors
    _refuse_together(request, errors)
    if not errors and len(set(chosen)) == 1:
        return [_whole(chosen[0], request, now_ms)], errors
    by_partition: dict[int, list[int]] = {}
    for place, partition in enumerate(chosen):
        if place not in errors:
            by_partition.setdefault(partition, []).append(place)
    parts = [_some(p, request, places, now_ms) for p, places in by_partition.items()]
    return parts, errors


def _refuse_together(request: ProduceRequest, errors: Mapping[int, MilenaError]) -> None:
    """If the request must be written as a whole, raise the first error of a record.

    A retry with an idempotency key comes at a later time and must produce the same batches. If records were left out
    because of their time, other records might be left out then.
    """
    if errors and request.is_whole:
        first = min(errors)
        raise type(errors[first])(f"record {first}: {errors[first].message}")


def check_placed(topic: Topic, request: ProduceRequest) -> None:
    """Refuse a request with a condition on a partition's end, if its records do not all go to one known partition.

    Raises:
        MalformedRequestError: the request does not determine one partition for its records.
    """
    records = request.records
    if request.partition is not None or topic.partition_count == 1:
        return
    total = len(records.values)
    keys, named = records.keys or [None] * total, records.partitions or [None] * total
    is_placed = all(p is not None or key is not None for p, key in zip(named, keys, strict=True))
    if not is_placed or len(set(_choose(topic, request, 0)[0])) != 1:
        raise MalformedRequestError(
            f"If-Match names the end of one partition, but {topic.name} has {topic.partition_count} and these records "
            "are not for one of them; write to /topics/{topic}/partitions/{partition}"
        )


def _out_of_bounds(
    request: ProduceRequest, bounds: TimestampBounds, now_ms: int
) -> dict[int, MilenaError]:
    """Return the errors of records whose timestamp is outside of the topic's limits, by index."""
    if request.records.timestamps is None:
        return {}
    earliest, latest = bounds.range_at(now_ms)
    return {
        place: bounds.refusal(timestamp, now_ms)
        for place, timestamp in enumerate(request.records.timestamps)
        if timestamp is not None and not earliest <= timestamp <= latest
    }


def _without_times(request: ProduceRequest) -> ProduceRequest:
    """Drop the timestamps of records: the topic replaces them by the append time anyway."""
    if request.records.timestamps is None:
        return request
    return replace(request, records=replace(request.records, timestamps=None))


def _keyless(topic: Topic, records: Records) -> dict[int, MilenaError]:
    if records.keys is not None and None not in records.keys:
        return {}
    keys = records.keys or [None] * len(records.values)
    error = InvalidRecordError(f"the record {_needs_key(topic)}")
    return {place: error for place, key in enumerate(keys) if key is None}


def _needs_key(topic: Topic) -> str:
    return (
        f"has no key, but {topic.name} is compacted: it keeps the last record of each key; give every record a key, "
        "or set the topic's cleanup.policy to delete"
    )


def _choose(
    topic: Topic, request: ProduceRequest, sticky: int
) -> tuple[list[int], dict[int, MilenaError]]:
    """Choose a partition for each record: the partition that it names, else by its key, else ``sticky``.

    In a request with an idempotency key, a record without a key is placed by a hash of the idempotency key and the
    record's index. So a retry on any node places it in the same partition.
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


def former_places(topic: Topic, request: ProduceRequest, partition_count: int) -> frozenset[int]:
    """Return the partitions that the records would have had when the topic had ``partition_count`` partitions."""
    if request.partition is not None:
        return frozenset()
    chosen, missing = _choose(replace(topic, partition_count=partition_count), request, 0)
    return frozenset(chosen[place] for place in range(len(chosen)) if place not in missing)


def keyless_record(topic: Topic, part: PartitionBatch) -> InvalidRecordError | None:
    """Return an error for the first record without a key, which a compacted topic refuses; None if all have keys."""
    keys = part.columns.keys
    if keys is not None and None not in keys:
        return None
    place = part.places[0 if keys is None else keys.index(None)]
    return InvalidRecordError(f"record {place} {_needs_key(topic)}")


def _whole(partition: int, request: ProduceRequest, now_ms: int) -> PartitionBatch:
    records = request.records
    base, deltas = _timestamps(records.timestamps, now_ms)
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=deltas,
        keys=records.keys,
        values=records.values,
        headers=records.headers,
    )
    places = range(len(records.values))
    return PartitionBatch(partition, places, columns, base, request.wants_times)


def _some(
    partition: int, request: ProduceRequest, places: Sequence[int], now_ms: int
) -> PartitionBatch:
    records = request.records
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
    return PartitionBatch(partition, places, columns, base, request.wants_times)


def _timestamps(
    timestamps: Sequence[int | None] | None, now_ms: int
) -> tuple[int, list[int] | None]:
    """Return the base timestamp and the deltas (ms). A record without a timestamp gets ``now_ms``."""
    if timestamps is None or all(t is None for t in timestamps):
        return now_ms, None
    filled = [now_ms if t is None else t for t in timestamps]
    base = filled[0]
    return base, [t - base for t in filled]


def size_of_columns(columns: RecordColumns) -> int:
    """Return the approximate size of these records in bytes: keys and values only."""
    size = sum(map(len, filter(None, columns.values)))
    return size if columns.keys is None else size + sum(map(len, filter(None, columns.keys)))


def size_of(records: Records) -> int:
    """Return the approximate size of these records in bytes: keys and values only."""
    return sum(
        len(item) for column in (records.keys, records.values) for item in column or () if item
    )


def halve(part: PartitionBatch) -> list[PartitionBatch]:
    """Split a batch into two halves."""
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
    """Merge the batches of several requests for one partition. They must have neither headers nor timestamp deltas.

    ``places`` of the result: indexes over all records.
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
    part: PartitionBatch, outcome: MilenaError | Appended
) -> Sequence[ProduceReceipt]:
    """Return the receipts of a request whose records all went to one partition."""
    count = len(part.places)
    if isinstance(outcome, MilenaError):
        return Receipts.failed(part.partition, outcome, count)
    receipts = Receipts(
        partitions=[part.partition] * count, offsets=outcome.offsets, times=_times(part, outcome)
    )
    return _with_errors(receipts, outcome.errors)


def receipts_of(
    count: int,
    parts: Sequence[PartitionBatch],
    outcomes: Sequence[MilenaError | Appended],
    errors: dict[int, MilenaError],
) -> Sequence[ProduceReceipt]:
    """Return the receipts in request order, from each partition's offsets or error."""
    partitions = [-1] * count
    offsets: list[int | None] = [None] * count
    times: list[int | None] | None = None
    failed: dict[int, MilenaError] = {}
    for part, outcome in zip(parts, outcomes, strict=True):
        for place in part.places:
            partitions[place] = part.partition
        if isinstance(outcome, MilenaError):
            failed[part.partition] = outcome
            continue
        for place, offset in zip(part.places, outcome.offsets, strict=True):
            offsets[place] = offset
        errors = errors | {part.places[i]: error for i, error in outcome.errors.items()}
        told = _times(part, outcome)
        if told is not None:
            times = times or [None] * count
            for place, time in zip(part.places, told, strict=True):
                times[place] = time
    receipts = Receipts(partitions=partitions, offsets=offsets, errors=failed, times=times)
    return _with_errors(receipts, errors)


def _with_errors(receipts: Receipts, errors: Mapping[int, MilenaError]) -> Sequence[ProduceReceipt]:
    """Return the receipts, with the errors of single records at their indexes."""
    if not errors:
        return receipts
    return [
        ProduceReceipt(partition=receipts.partitions[place], offset=None, error=errors[place])
        if place in errors
        else receipts[place]
        for place in range(len(receipts))
    ]


def _times(part: PartitionBatch, appended: Appended) -> Sequence[int | None] | None:
    """Return the timestamps that readers see (wall ms); None if the request does not ask for them."""
    if not part.wants_times:
        return None
    if appended.times is not None:
        return appended.times
    base, deltas = part.base_timestamp_ms, part.columns.timestamp_deltas
    return [base] * len(part.places) if deltas is None else [base + delta for delta in deltas]
