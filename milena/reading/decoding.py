"""From the bytes of records to what a program works with, and what becomes of those that make no sense (pure).

A deserializer is a function from bytes to an object. None is never given to one: a missing key stays missing, and a
tombstone is None. Decoding stands behind reading and not within it, so that readers and consumers are served alike: a
record that is skipped was read, and counts as done where others do.
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
    """What to do with a record whose key or value cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    RAW = "raw"


class DecodedRecord(NamedTuple):
    """A record with key and value decoded. With an ``error``, which takes ``OnUndecodable.RAW``, both are bytes."""

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
    """The bytes; the default."""
    return data


def text_value(data: bytes) -> object:
    """Text in UTF-8.

    Raises:
        UnicodeDecodeError: it is none.
    """
    return data.decode()


def json_value(data: bytes) -> object:
    """What ``json_bytes``, or the HTTP API's JSON, wrote.

    Raises:
        ValueError, RecursionError: it is no JSON, or nested too deeply.
    """
    return json.loads(data)


def msgpack_value(data: bytes) -> object:
    """What ``msgpack_bytes`` wrote; sequences are lists, whatever they were.

    Raises:
        ValueError, TypeError: it is no MessagePack, or not one object, or has keys that no dictionary takes.
    """
    return msgpack.unpackb(data, strict_map_key=False)


class Decoder:
    """Decodes the records of readers and consumers, and counts those that it had to skip.

    Args:
        key: deserializer of keys.
        value: deserializer of values.
        on_undecodable: raise where the record stands, skip it, or hand it over as bytes with the error.
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
        """One record; None where it is skipped.

        Raises:
            UndecodableRecordError: its key or value is not what the deserializers take, and that is to be raised.
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
        """Those of a list, or of a blocking reader or consumer, one at a time. Begin again after an error."""
        for record in source:
            found = self.decode(record)
            if found is not None:
                yield found

    async def stream(self, source: AsyncIterable[ConsumedRecord]) -> AsyncIterator[DecodedRecord]:
        """Those of a reader or a consumer, one at a time. Begin again after an error: it goes on behind the record."""
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
