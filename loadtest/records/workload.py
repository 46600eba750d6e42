"""Make the records of a load, which identify themselves, and the bodies of requests (pure).

Every record has its writer's id, its sequence number, and a checksum over both, its key and its padding. So a reader
can tell at once whether a record is intact, and the judge knows its writer. One format is JSON, the other is binary; a
topic may have both.

    JSON    {"w":<writer>,"s":<sequence>,"c":<checksum>,"p":"<padding>"}
    binary  magic 4, writer 8, sequence 8, checksum 4, padding
"""

import json
from dataclasses import dataclass
from enum import Enum, unique
from random import Random
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from loadtest.records.fingerprints import fingerprint
from loadtest.records.source import BINARY_TYPE, JSON_TYPE, Record, request_body

MAGIC = b"\xc3LT1"
"""The magic bytes are not UTF-8, so a conversion to text would damage a binary record visibly."""

_BINARY = Struct(">4sQQI")
_IDS = Struct(">QQ")
_PADDING_BYTES = 1 << 16
"""The size of the block from which padding is cut, at another place for each record."""
_STRIDE = 7919

WRITER_BITS = 52
"""The bits of a writer's id, so that it is exact as a JSON number, which has 53 bits."""


class ForeignValueError(Exception):
    """The value is no record of a load test."""


class DamagedValueError(Exception):
    """The value is a record of a load test, but not as it was written."""


class RecordId(NamedTuple):
    """The writer of a record and the record's sequence; a writer's sequences count from 0 without gaps."""

    writer: int
    sequence: int


@unique
class Dialect(Enum):
    """The form of sent records, by the media type of the request."""

    JSON = JSON_TYPE
    BINARY = BINARY_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """One request with consecutive records of a writer."""

    first_sequence: int
    body: bytes
    fingerprints: bytes
    """The fingerprint of each record, joined."""
    record_count: int
    value_bytes: int


class RecordMaker:
    """Makes the records of one writer, one after the other."""

    def __init__(
        self, writer: int, dialect: Dialect, *, record_bytes: int, key_count: int, rng: Random
    ) -> None:
        assert 0 <= writer < 1 << WRITER_BITS, f"writer={writer} has more than {WRITER_BITS} bits"
        self.writer = writer
        self._dialect = dialect
        self._record_bytes = record_bytes
        self._key_count = key_count
        self._rng = rng
        self._next_sequence = 0
        self._padding = rng.randbytes(_PADDING_BYTES // 2).hex()

    def request(self, record_count: int) -> WriteRequest:
        """Return a request with the writer's next records."""
        first = self._next_sequence
        self._next_sequence += record_count
        stored = [self._record(sequence) for sequence in range(first, self._next_sequence)]
        return WriteRequest(
            first_sequence=first,
            body=request_body(self._dialect.value, stored),
            fingerprints=b"".join(fingerprint(key, value) for key, value in stored),
            record_count=record_count,
            value_bytes=sum(len(value) for _, value in stored),
        )

    def _record(self, sequence: int) -> Record:
        key = self._key()
        if self._dialect is Dialect.JSON:
            return Record(key, self._json_value(key, sequence))
        return Record(key, self._binary_value(key, sequence))

    def _key(self) -> bytes | None:
        if not self._key_count:
            return None
        name = f"key-{self._rng.randrange(self._key_count)}"
        return f'"{name}"'.encode() if self._dialect is Dialect.JSON else name.encode()

    def _json_value(self, key: bytes | None, sequence: int) -> bytes:
        head = f'{{"w":{self.writer},"s":{sequence},"c":'
        size = self._record_bytes - len(head) - len('4294967295,"p":""}')
        padding = self._pad(sequence, size)
        checksum = _checksum(self.writer, sequence, key, padding.encode())
        return f'{head}{checksum},"p":"{padding}"}}'.encode()

    def _binary_value(self, key: bytes | None, sequence: int) -> bytes:
        padding = self._pad(sequence, self._record_bytes - _BINARY.size).encode()
        checksum = _checksum(self.writer, sequence, key, padding)
        return _BINARY.pack(MAGIC, self.writer, sequence, checksum) + padding

    def _pad(self, sequence: int, size: int) -> str:
        if size <= 0:
            return ""
        start = sequence * _STRIDE % len(self._padding)
        piece = self._padding[start : start + size]
        while len(piece) < size:
            piece += self._padding[: size - len(piece)]
        return piece


def identify(key: bytes | None, value: bytes | None) -> RecordId:
    """Return the writer and sequence of a record, after a check that it is intact.

    Raises:
        ForeignValueError: no load test wrote the record.
        DamagedValueError: a load test wrote the record, and its bytes have changed.
    """
    if value is None:
        raise ForeignValueError("a tombstone")
    if value.startswith(MAGIC):
        return _identify_binary(key, value)
    if value.startswith(b'{"w":'):
        return _identify_json(key, value)
    raise ForeignValueError(f"{value[:40]!r}")


def _identify_binary(key: bytes | None, value: bytes) -> RecordId:
    if len(value) < _BINARY.size:
        raise DamagedValueError(f"{len(value)} bytes are too few")
    _, writer, sequence, checksum = _BINARY.unpack_from(value)
    _check(writer, sequence, key, value[_BINARY.size :], checksum)
    return RecordId(writer, sequence)


def _identify_json(key: bytes | None, value: bytes) -> RecordId:
    try:
        fields = json.loads(value)
        writer, sequence, checksum = int(fields["w"]), int(fields["s"]), int(fields["c"])
        padding = fields["p"].encode()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedValueError(f"{value[:40]!r}") from error
    _check(writer, sequence, key, padding, checksum)
    return RecordId(writer, sequence)


def _check(writer: int, sequence: int, key: bytes | None, padding: bytes, checksum: int) -> None:
    is_sane = 0 <= writer < 1 << WRITER_BITS and 0 <= sequence < 1 << WRITER_BITS
    if not is_sane or _checksum(writer, sequence, key, padding) != checksum:
        raise DamagedValueError(f"record {sequence} of writer {writer:x} fails its checksum")


def _checksum(writer: int, sequence: int, key: bytes | None, padding: bytes) -> int:
    return crc32c(b"%b%b|%b" % (_IDS.pack(writer, sequence), key or b"", padding))
