"""Kafka's record batches of version 2, written and read naively, record by record, as KIP-98 describes them.

It shares nothing with ``milena.model.batch.v2`` but the checksum, so that each can judge the other.
"""

import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import pack, unpack
from typing import Any

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class KafkaRecord:
    """A record; offset and time are deltas to those of its batch."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    time: int = 0
    offset: int = 0


@dataclass(frozen=True)
class KafkaBatch:
    """A batch with all fields of its head."""

    records: Sequence[KafkaRecord]
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int = 0
    base_time: int = NOW_MS
    max_time: int = NOW_MS
    producer: tuple[int, int, int] = (-1, -1, -1)
    count: int = field(default=0)


def numbered(*records: KafkaRecord) -> list[KafkaRecord]:
    """The records with offset deltas 0, 1, 2, ..."""
    return [
        KafkaRecord(one.value, one.key, one.headers, one.time, place)
        for place, one in enumerate(records)
    ]


def number(value: int) -> bytes:
    """A zigzag varint."""
    left = value * 2 if value >= 0 else -value * 2 - 1
    digits = []
    while True:
        left, digit = divmod(left, 128)
        digits.append(digit + (128 if left else 0))
        if not left:
            return bytes(digits)


def sized(content: bytes | None) -> bytes:
    """The content after its length."""
    return number(-1) if content is None else number(len(content)) + content


def record_bytes(record: KafkaRecord) -> bytes:
    """The record, with its length."""
    body = b"\0" + number(record.time) + number(record.offset)
    body += sized(record.key) + sized(record.value) + number(len(record.headers))
    for name, value in record.headers:
        body += sized(name) + sized(value)
    return number(len(body)) + body


def xerial(plain: bytes, *, block: int = 1 << 15) -> bytes:
    """Java's frames of snappy."""
    framed = b"\x82SNAPPY\0" + pack(">ii", 1, 1)
    for at in range(0, len(plain), block):
        part = bytes(cramjam.snappy.compress_raw(plain[at : at + block]))
        framed += pack(">i", len(part)) + part
    return framed


def streamed_zstd(plain: bytes) -> bytes:
    """A frame that does not declare its size, as streams of Java write it."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(plain)


PACKERS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    # Without the time, so that a simulated run repeats itself.
    1: partial(gzip.compress, mtime=0),
    2: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
    3: lz4.frame.compress,
    4: zstandard.ZstdCompressor().compress,
}


def batch_bytes(batch: KafkaBatch, records: bytes) -> bytes:
    """The batch around a section of records, which is compressed already; its length and checksum are right."""
    covered = pack(
        ">hiqqqhii",
        batch.attributes,
        batch.last_offset_delta,
        batch.base_time,
        batch.max_time,
        *batch.producer,
        batch.count,
    )
    covered += records
    rest = pack(">ibI", batch.leader_epoch, batch.magic, crc32c(covered)) + covered
    return pack(">qi", batch.base_offset, len(rest)) + rest


def encoded(
    records: Iterable[KafkaRecord],
    *,
    pack_records: Callable[[bytes], bytes] | None = None,
    **head: Any,
) -> bytes:
    """A batch as a producer sends it; ``head`` replaces fields of the head."""
    rows = list(records)
    fields: dict[str, Any] = {
        "last_offset_delta": len(rows) - 1,
        "count": len(rows),
        "max_time": head.get("base_time", NOW_MS) + max((row.time for row in rows), default=0),
    } | head
    batch = KafkaBatch(rows, **fields)
    plain = b"".join(map(record_bytes, rows))
    return batch_bytes(batch, (pack_records or PACKERS[batch.attributes & 7])(plain))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def take(self, size: int) -> bytes:
        taken = self._stream.read(size)
        assert len(taken) == size, "cut off"
        return taken

    def number(self) -> int:
        value, place = 0, 0
        while True:
            digit = self.take(1)[0]
            value += (digit % 128) << 7 * place
            place += 1
            if digit < 128:
                return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def sized(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.take(size)

    def is_done(self) -> bool:
        return not self._stream.read()


def unpack_records(codec: int, packed: bytes) -> bytes:
    """The section of records before compression; raw snappy only."""
    match codec:
        case 0:
            return packed
        case 1:
            return gzip.decompress(packed)
        case 2:
            return bytes(cramjam.snappy.decompress_raw(packed))
        case 3:
            plain: bytes = lz4.frame.decompress(packed)
            return plain
        case _:
            return zstandard.ZstdDecompressor().stream_reader(packed).read()


def decoded(data: bytes) -> KafkaBatch:
    """The one batch in these bytes; length and checksum are asserted."""
    base_offset, length, leader_epoch, magic, crc = unpack(">qiibI", data[:21])
    assert length == len(data) - 12
    assert magic == 2
    assert crc == crc32c(data[21:])
    attributes, last_delta, base_time, max_time, *producer, count = unpack(">hiqqqhii", data[21:61])
    reader = _Reader(unpack_records(attributes & 7, data[61:]))
    records = []
    for _ in range(count):
        start = _Reader(reader.take(reader.number()))
        start.take(1)
        time, offset, key, value = start.number(), start.number(), start.sized(), start.sized()
        headers = []
        for _ in range(start.number()):
            name = start.sized()
            assert name is not None
            headers.append((name, start.sized()))
        assert start.is_done()
        records.append(KafkaRecord(value, key, tuple(headers), time, offset))
    assert reader.is_done()
    first, epoch, sequence = producer
    return KafkaBatch(
        records,
        base_offset,
        leader_epoch,
        magic,
        attributes,
        last_delta,
        base_time,
        max_time,
        (first, epoch, sequence),
        count,
    )
