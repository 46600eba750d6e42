"""Snapshot of a partition's memory of its writers: a file beside each segment, which a leader also sends to followers.

The module is not compiled: compilation would drop the types of the tuples' fields, which msgspec checks.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta

from storage.state.idempotency import (
    IdempotencyEntry,
    SharedTransactions,
    add_transactions,
    encode_idempotency,
)
from storage.state.sealed import seal, unseal
from storage.state.transactions import Transactions, TransactionTables

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
    batches: Annotated[
        tuple[SequencedBatch, ...], Meta(min_length=1, max_length=REMEMBERED_BATCHES)
    ]


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


def encode_snapshot(snapshot: WriterSnapshot) -> bytes:
    """Encode the content of a snapshot file; a leader sends it to followers in the same encoding."""
    idempotency, shared = encode_idempotency(snapshot.idempotency)
    tables = snapshot.transactions.tables()
    return seal(_MAGIC, (*snapshot[:3], idempotency, shared, tables))


def decode_snapshot(content: bytes) -> WriterSnapshot:
    """Decode the snapshot in ``content``.

    Raises:
        CorruptLogError: the content is damaged, or is not a snapshot.
    """
    offset, end, producers, idempotency, shared, tables = unseal(
        _MAGIC,
        content,
        tuple[
            int,
            int,
            dict[int, ProducerEntry],
            dict[bytes, IdempotencyEntry],
            SharedTransactions,
            TransactionTables,
        ],
    )
    add_transactions(idempotency, shared)
    transactions = Transactions(tables) if any(tables) else NO_TRANSACTIONS
    return WriterSnapshot(offset, end, producers, idempotency, transactions)
