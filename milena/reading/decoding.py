"""Decode the bytes of records into a program's objects, and handle records that cannot be decoded (pure).

A deserializer is a function from bytes to an object. It is not called for None: a missing key and the value of a
tombstone stay None. A ``Decoder`` is separate from readers and consumers, and works with both. A record that is skipped
counts as read and done, like any other.
"""

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from enum import Enum, unique
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]  # ships no types

from milena.errors import UndecodableRecordError
from milena.model.types import TimestampType
from milena.records import ConsumedRecord

Deserializer = Callable[[bytes], object]


@unique
class OnUndecodable(Enum):
    """The policy for a record whose key or value cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    RAW = "raw"


class DecodedRecord(NamedTuple):
    """A record with decoded key and value. If ``error`` is set (only with ``OnUndecodable.RAW``), both are bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: object
    value: object
    headers: tuple[tuple[str, bytes | None], ...] = ()
    error: UndecodableRecordError | None = None


def raw_value(data: bytes) -> object:
    """Return the bytes unchanged; the default."""
    return data


def text_value(data: bytes) -> object:
    """Return UTF-8 text.

    Raises:
        UnicodeDecodeError: the bytes are no UTF-8.
    """
    return data.decode()


def json_value(data: bytes) -> object:
    """Return an object from JSON, as ``json_bytes`` or the HTTP API wrote it.

    Raises:
        ValueError, RecursionError: the bytes are no JSON, or nested too deeply.
    """
    return json.loads(data)


def msgpack_value(data: bytes) -> object:
    """Return an object from MessagePack, as ``msgpack_bytes`` wrote it. All sequences become lists.

    Raises:
        ValueError, TypeError: the bytes are no MessagePack, or not one object, or have keys that no dictionary takes.
    """
    return msgpack.unpackb(data, strict_map_key=False)


class Decoder:
    """Decode the records of readers and consumers, and count those that were skipped.

    Args:
        key: the deserializer of keys.
        value: the deserializer of values.
        on_undecodable: raise at the record, skip it, or pass it on as bytes with the error.
    """

    def __init__(
        self,
        *,
        key: Deserializer = raw_value,
        value: Deserializer = raw_value,
        on_undecodable: OnUndecodable = OnUndecodable.FAIL,
    ) -> None:
        self._key = key
        self._value = value
        self._on_undecodable = on_undecodable
        self.skipped = 0

    def decode(self, record: ConsumedRecord) -> DecodedRecord | None:
        """Decode one record; return None if it is skipped.

        Raises:
            UndecodableRecordError: the key or value cannot be decoded, and the policy is to raise.
        """
        try:
            return DecodedRecord(
                *record[:5],
                _decoded(record, "key", record.key, self._key),
                _decoded(record, "value", record.value, self._value),
                record.headers,
            )
        except UndecodableRecordError as error:
            match self._on_undecodable:
                case OnUndecodable.FAIL:
                    raise
                case OnUndecodable.SKIP:
                    self.skipped += 1
                    return None
                case OnUndecodable.RAW:
                    return DecodedRecord(*record, error)

    def records(self, source: Iterable[ConsumedRecord]) -> Iterator[DecodedRecord]:
        """Decode the records of a list, or of a blocking reader or consumer, one at a time.

        After an error, call this again with the same source; it continues behind the record.
        """
        for record in source:
            found = self.decode(record)
            if found is not None:
                yield found

    async def stream(self, source: AsyncIterable[ConsumedRecord]) -> AsyncIterator[DecodedRecord]:
        """Decode the records of a reader or a consumer, one at a time.

        After an error, call this again with the same source; it continues behind the record.
        """
        async for record in source:
            found = self.decode(record)
            if found is not None:
                yield found


def _decoded(
    record: ConsumedRecord, what: str, data: bytes | None, deserializer: Deserializer
) -> object:
    if data is None:
        return None
    try:
        return deserializer(data)
    except Exception as error:
        raise UndecodableRecordError(
            f"{record.topic}-{record.partition}, offset {record.offset}: "
            f"the {what} cannot be decoded: {str(error) or type(error).__name__}",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        ) from error
