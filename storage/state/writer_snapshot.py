"""Snapshot of a partition's memory of its writers: a file beside each segment, which a leader also sends to followers.

The module is not compiled: compilation would drop the types of the tuples' fields, which msgspec checks.
"""

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from milena.model.errors import CorruptLogError
from storage.state.idempotency import (
    IdempotencyEntry,
    KeyColumns,
    KeyedRow,
    SharedRow,
    decode_idempotency,
    encode_idempotency,
)
from storage.state.sealed import seal, unseal
from storage.state.transactions import TransactionRows, Transactions

REMEMBERED_BATCHES = 5
"""Batches per producer whose retries are recognised. A client has at most this many requests in flight per producer."""

_MAGIC = b"MPS1"

NO_TRANSACTIONS = Transactions()
"""An empty state that is shared by all logs without transactions; never changed."""


class SequencedBatch(NamedTuple):
    """Sequences and offsets of one batch, all inclusive."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry(NamedTuple):
    """One producer's state; ``batches`` has its last one to ``REMEMBERED_BATCHES`` batches, oldest first."""

    producer_epoch: int
    append_time_ms: int
    batches: tuple[SequencedBatch, ...]


class WriterSnapshot(NamedTuple):
    """Producers, idempotency keys and transactions of one partition after all batches below ``offset``.

    ``covers_offset`` is the end of the log from which the state was taken. It lies above ``offset`` if the snapshot
    came from a leader: it then also has the state of the leader's committed batches above ``offset``.
    """

    offset: int
    covers_offset: int
    producers: Mapping[int, ProducerEntry]
    idempotency: Mapping[bytes, IdempotencyEntry]
    transactions: Transactions = NO_TRANSACTIONS


class _Transactions(NamedTuple):
    """The part of a snapshot that exists if there are any transactions."""

    rows: TransactionRows = ([], [], [])
    keyed: tuple[KeyedRow, ...] = ()
    shared: tuple[SharedRow, ...] = ()


class _Content(NamedTuple):
    """A snapshot as it travels to followers, which may run another release."""

    end_offset: int
    covers_offset: int
    producers: list[list[int]]
    keys: KeyColumns
    transactions: _Transactions = _Transactions()


def encode_snapshot(snapshot: WriterSnapshot) -> bytes:
    """Encode the content of a snapshot file; a leader sends it to followers in the same encoding."""
    producers = [
        (producer_id, *entry[:2], *chain.from_iterable(entry.batches))
        for producer_id, entry in snapshot.producers.items()
    ]
    keys, keyed, shared = encode_idempotency(snapshot.idempotency)
    content = [snapshot.offset, snapshot.covers_offset, producers, keys]
    if snapshot.transactions or keyed or shared:
        content.append([snapshot.transactions.rows(), keyed, *([shared] if shared else [])])
    return seal(_MAGIC, content)


def decode_snapshot(content: bytes) -> WriterSnapshot:
    """Decode the snapshot in ``content``.

    Raises:
        CorruptLogError: the content is damaged, or is not a snapshot.
    """
    found = unseal(_MAGIC, content, _Content)
    rows = found.transactions.rows
    return WriterSnapshot(
        found.end_offset,
        found.covers_offset,
        dict(map(_producer, found.producers)),
        decode_idempotency(found.keys, found.transactions.keyed, found.transactions.shared),
        Transactions.of(rows) if any(rows) else NO_TRANSACTIONS,
    )


def _producer(row: list[int]) -> tuple[int, ProducerEntry]:
    width = len(SequencedBatch._fields)
    batch_count, rest = divmod(len(row) - 3, width)
    if not 1 <= batch_count <= REMEMBERED_BATCHES or rest:
        raise CorruptLogError(f"a producer of {len(row)} numbers is not one")
    batches = tuple(
        SequencedBatch._make(row[start : start + width]) for start in range(3, len(row), width)
    )
    return row[0], ProducerEntry(row[1], row[2], batches)
