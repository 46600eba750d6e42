"""The records of one ``send_many`` call, serialized and checked, before their partitions are chosen (pure).

The records are columns instead of objects, so that loops in C do the work on each record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import TypeVar

from milena.errors import BadRecordError
from milena.model.columns import Headers
from milena.producing.batching import KEY_OVERHEAD_BYTES, RecordRows, record_size
from milena.producing.serializers import Serializer, plain_bytes, serialize

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRecords:
    """Records that share headers and a timestamp, as columns. ``timestamp_ms`` None: the time of sending."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: Headers | None
    timestamp_ms: int | None
    sizes: list[int]
    """The bytes that each record takes in a batch before compression, rounded up."""
    size_bytes: int

    @property
    def rows(self) -> RecordRows:
        """All records as rows, for a single partition."""
        return RecordRows(self.keys, self.values, range(len(self.values)), self.sizes)

    def rows_at(self, places: Sequence[int]) -> RecordRows:
        """Return the records at these places, in this order."""
        keys = None if self.keys is None else _picked(self.keys, places)
        return RecordRows(keys, _picked(self.values, places), places, _picked(self.sizes, places))


def _picked(column: list[T], places: Sequence[int]) -> Sequence[T]:
    if len(places) == 1:
        return [column[places[0]]]
    # ``itemgetter`` picks all items in one call. For a single place it would return the item itself.
    found: tuple[T, ...] = itemgetter(*places)(column)
    return found


def outgoing_records(
    values: Sequence[object],
    keys: Sequence[object] | None,
    headers: Headers | None,
    timestamp_ms: int | None,
    *,
    value_serializer: Serializer,
    key_serializer: Serializer,
) -> OutgoingRecords:
    """Turn values and keys into bytes.

    Raises:
        BadRecordError: a record cannot be serialized (the message has its index), or there are more or fewer keys than
            values.
    """
    if isinstance(values, bytes | bytearray | memoryview | str):
        # These types are sequences too. The caller most likely forgot the list around one value.
        raise BadRecordError(f"send_many takes a list of values, not {type(values).__name__}")
    if keys is not None and len(keys) != len(values):
        raise BadRecordError(f"{len(keys)} keys for {len(values)} values")
    raw_values = _raw(values, value_serializer, "value")
    raw_keys = None if keys is None else _raw(keys, key_serializer, "key")
    overhead_bytes = record_size(None, None, headers)
    sizes = _plus(overhead_bytes, raw_values, none=overhead_bytes)
    if raw_keys is not None:
        sizes = list(map(add, sizes, _plus(KEY_OVERHEAD_BYTES, raw_keys, none=0)))
    return OutgoingRecords(
        keys=raw_keys,
        values=raw_values,
        headers=headers,
        timestamp_ms=timestamp_ms,
        sizes=sizes,
        size_bytes=sum(sizes),
    )


def _raw(given: Sequence[object], serializer: Serializer, what: str) -> list[bytes | None]:
    if serializer is plain_bytes and set(map(type, given)) <= _BYTES_OR_NONE:
        # The line above checked the types.
        return list(given)  # type: ignore[arg-type]
    return [serialize(serializer, item, f"{what} {place}") for place, item in enumerate(given)]


_BYTES_OR_NONE = {bytes, type(None)}


def _plus(overhead_bytes: int, column: list[bytes | None], *, none: int) -> list[int]:
    """Return the length of each entry plus ``overhead_bytes``; ``none`` for a None."""
    try:
        # Without None entries this loop runs in C, without a Python call per entry.
        return list(map(overhead_bytes.__add__, map(len, column)))  # type: ignore[arg-type]
    except TypeError:
        return [none if item is None else overhead_bytes + len(item) for item in column]
