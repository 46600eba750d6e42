"""Encode and decode record batches as docs/record-batch.md describes them."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c
import lz4.frame
import msgpack  # type: ignore[import-untyped]  # ships no types
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable

_STAMP = struct.Struct(
    ">IBHqiq"
)  # size, version, size of the header, first offset, leader epoch, time
_REST = struct.Struct(
    ">HiiqqqhiI"
)  # attributes, records, last, first time, last time, producer, epoch, sequence, size
_CODEC, _IS_APPEND_TIME, _IS_MARKER = 0b111, 0b1000, 0b10_0000
_CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.decompress,
    3: lz4.frame.decompress,
    4: lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
_HEAD = _STAMP.size + 8 + _REST.size


@dataclass(frozen=True)
class Row:
    """A record of a batch."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int
    offset: int = 0


def encode(rows: list[Row], producer: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """Return a batch; the leader sets its offset, epoch and time."""
    first = min(row.timestamp for row in rows)
    last = max(row.timestamp for row in rows)
    base = rows[0].timestamp
    times = None if first == last else [row.timestamp - base for row in rows]
    headers = [[list(pair) for pair in row.headers] or None for row in rows]
    columns = [
        None,
        times,
        [row.key for row in rows] if any(row.key is not None for row in rows) else None,
        [row.value for row in rows],
        headers if any(headers) else None,
    ]
    payload = bytes(msgpack.packb(columns))
    rest = (
        _REST.pack(0, len(rows), len(rows) - 1, base, last, producer, epoch, sequence, len(payload))
        + payload
    )
    stamp = _STAMP.pack(_HEAD + len(payload), 1, _HEAD, 0, -1, -1)
    return stamp + struct.pack(">II", crc32c.crc32c(stamp), crc32c.crc32c(rest)) + rest


def stamped(batch: bytes, offset: int) -> bytes:
    """Return a batch with the fields that a leader sets."""
    size, version, head, *_ = _STAMP.unpack_from(batch)
    stamp = _STAMP.pack(size, version, head, offset, 0, 0)
    return stamp + struct.pack(">I", crc32c.crc32c(stamp)) + batch[_STAMP.size + 4 :]


def decode(data: bytes) -> list[Row]:
    """Return the records of complete batches; a ValueError describes any damage."""
    rows: list[Row] = []
    while data:
        size, version, head, base, _epoch, append_time = _STAMP.unpack_from(data)
        if version != 1 or size > len(data):
            raise ValueError(
                f"a batch of version {version} and {size} bytes; {len(data)} are there"
            )
        stamp_crc, rest_crc = struct.unpack_from(">II", data, _STAMP.size)
        if stamp_crc != crc32c.crc32c(data[: _STAMP.size]) or rest_crc != crc32c.crc32c(
            data[_STAMP.size + 8 : size]
        ):
            raise ValueError(f"a wrong checksum in the batch at {base}")
        attributes, count, _last, first, *_ = _REST.unpack_from(data, _STAMP.size + 8)
        if count and not attributes & _IS_MARKER:
            payload = _CODECS[attributes & _CODEC](data[head:size])
            offsets, times, keys, values, headers = msgpack.unpackb(payload)
            for number in range(count):
                pairs = (headers[number] if headers else None) or []
                time_ms = (
                    append_time
                    if attributes & _IS_APPEND_TIME
                    else first + (times[number] if times else 0)
                )
                key = keys[number] if keys else None
                named = tuple((name, value) for name, value in pairs)
                rows.append(
                    Row(
                        key,
                        values[number],
                        named,
                        time_ms,
                        base + (offsets[number] if offsets else number),
                    )
                )
        data = data[size:]
    return rows
