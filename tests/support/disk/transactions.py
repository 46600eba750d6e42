"""Batches of transactions, and markers, as leaders append them."""

from collections.abc import Sequence

from milena.model.batch.encode import encode_batch, encode_marker
from milena.model.batch.header import (
    Extent,
    IdempotencyExtension,
    Marker,
    ProducerStamp,
    TransactionExtension,
)
from milena.model.columns import RecordColumns
from tests.support.disk.log_model import NOW_MS

Pair = tuple[bytes | None, bytes | None]


def transactional(
    producer_id: int,
    producer_epoch: int,
    *pairs: Pair,
    sequence: int = -1,
    keys: Sequence[IdempotencyExtension] = (),
    timeout_ms: int = 30_000,
    owner: int = -1,
    timestamp_ms: int = NOW_MS,
) -> bytes:
    """Return a batch of records (key, value) of the transaction (producer_id, producer_epoch)."""
    return encode_batch(
        RecordColumns(None, None, [k for k, _ in pairs], [v for _, v in pairs], None),
        base_timestamp_ms=timestamp_ms,
        producer=ProducerStamp(producer_id, producer_epoch, sequence),
        request_keys=keys,
        transaction=TransactionExtension(owner, owner, timeout_ms),
    )


def marker(
    producer_id: int,
    producer_epoch: int,
    first_offset: int,
    *,
    commit: int | None = None,
    extents: Sequence[Extent] = (),
) -> bytes:
    """Return a transaction's marker: committed below the offset ``commit``, or aborted."""
    return encode_marker(
        Marker(commit is not None, first_offset, commit or 0, tuple(extents)),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp_ms=NOW_MS,
    )
