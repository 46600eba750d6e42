"""Record batches of simulated clients: what they send, what they read, and the spoiled ones that no node may take."""

from dataclasses import replace
from random import Random
from typing import NamedTuple

from tests.support.disk.kafka_batches import KafkaRecord, decoded, encoded, numbered

TRANSACTIONAL, CONTROL = 0x10, 0x20
SECTION = 61
"""Where the records of a batch begin."""
PLAIN, GZIP, SNAPPY, LZ4, ZSTD = range(5)


class Sent(NamedTuple):
    """The producer of a batch, and the sequence of its first record."""

    producer_id: int
    producer_epoch: int
    sequence: int


def batch(values: list[str], sent: Sent, *, codec: int = PLAIN, is_in_transaction: bool) -> bytes:
    """Return a batch of records."""
    rows = numbered(*(KafkaRecord(value.encode(), key=value.encode()) for value in values))
    attributes = codec | (TRANSACTIONAL if is_in_transaction else 0)
    return encoded(rows, producer=tuple(sent), attributes=attributes)


def spoiled(rng: Random, values: list[str], sent: Sent, *, is_in_transaction: bool) -> bytes:
    """Return a batch that no broker may take: a bit is turned over, or its records are numbered wrongly."""
    good = batch(values, sent, is_in_transaction=is_in_transaction)
    if rng.random() < 0.5:
        # In the last value, so that the batch still has the form of one. Only its checksum tells.
        found = bytearray(good)
        found[-2 - rng.randrange(len(values[-1]))] ^= 1
        return bytes(found)
    rows = numbered(*(KafkaRecord(value.encode(), key=value.encode()) for value in values))
    attributes = TRANSACTIONAL if is_in_transaction else 0
    if rng.random() < 0.5:
        rows[-1] = replace(rows[-1], offset=rows[-1].offset + 1)
        return encoded(rows, producer=tuple(sent), attributes=attributes)
    return encoded(
        rows, producer=tuple(sent), attributes=attributes, last_offset_delta=len(rows) + 1
    )


class Read(NamedTuple):
    """The result of a fetch: the values, the offset of each, and the offset from which the next fetch starts."""

    values: list[str]
    offsets: list[int]
    next_offset: int


def read_from(data: bytes, start: int) -> Read:
    """Return the records from ``start`` on, as a client hands them out: without those of control batches."""
    values: list[str] = []
    offsets: list[int] = []
    end = start
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        one, data = decoded(data[:size]), data[size:]
        end = max(end, one.base_offset + one.last_offset_delta + 1)
        if one.attributes & CONTROL:
            continue
        for record in one.records:
            offset = one.base_offset + record.offset
            if offset >= start:
                offsets.append(offset)
                values.append((record.value or b"").decode())
    return Read(values, offsets, end)
