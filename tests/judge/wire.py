"""The encoded record batch, as nodes return it for `application/vnd.milena.batch`.

The documents name its parts (a stamp of the leader, the producer's part, a checksum each, columns in msgpack) and not
their places. The places below were read off answers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c
import msgpack  # type: ignore[import-untyped]

_STAMP = struct.Struct(
    ">IBHqIq"
)  # size, version, size of the header, first offset, leader epoch, time
_REST = struct.Struct(
    ">HIIqqqhiI"
)  # attributes, records, last, first time, last time, producer, epoch, sequence, size
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
    """Return a batch; the leader sets the offset, the epoch and the time."""
    first = min(row.timestamp for row in rows)
    last = max(row.timestamp for row in rows)
    base = rows[0].timestamp
    times = None if first == last else [row.timestamp - base for row in rows]
    headers = [[list(pair) for pair in row.headers] or None for row in rows]
    columns = [
        None,
        times,
        [row.key for row in rows] if any(row.key is not None for row in rows) else None,
        [row.value for row in rows] if any(row.value is not None for row in rows) else None,
        headers if any(headers) else None,
    ]
    payload = bytes(msgpack.packb(columns))
    rest = (
        _REST.pack(0, len(rows), len(rows) - 1, base, last, producer, epoch, sequence, len(payload))
        + payload
    )
    stamp = _STAMP.pack(_HEAD + len(payload), 1, _HEAD, 0, 0, 0)
    return stamp + struct.pack(">II", crc32c.crc32c(stamp), crc32c.crc32c(rest)) + rest


def stamped(batch: bytes, offset: int) -> bytes:
    """Return a batch with the stamp that a leader gives it."""
    size, version, head, *_ = _STAMP.unpack_from(batch)
    stamp = _STAMP.pack(size, version, head, offset, 0, 0)
    return stamp + struct.pack(">I", crc32c.crc32c(stamp)) + batch[_STAMP.size + 4 :]


def decode(data: bytes) -> list[Row]:
    """Return the records of whole plain batches; a ValueError tells what is damaged."""
    rows: list[Row] = []
    while data:
        size, version, head, base, _epoch, _time = _STAMP.unpack_from(data)
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
        if attributes:
            raise ValueError(f"attributes {attributes:#x}, which the judge does not know")
        offsets, times, keys, values, headers = msgpack.unpackb(data[head:size])
        for number in range(count):
            pairs = (headers[number] if headers else None) or []
            rows.append(
                Row(
                    keys[number] if keys else None,
                    values[number] if values else None,
                    tuple((name, value) for name, value in pairs),
                    first + (times[number] if times else 0),
                    base + (offsets[number] if offsets else number),
                )
            )
        data = data[size:]
    return rows
