"""Batches of transactions, and markers, as leaders append them."""

from collections.abc import Sequence

from milena.model.batch.encode import encode_batch, encode_marker, with_extensions
from milena.model.batch.header import (
    TRANSACTIONAL_BIT,
    Extent,
    IdempotencyExtension,
    Marker,
    ProducerStamp,
    TransactionExtension,
)
from milena.model.batch.v2_checks import wrap_v2
from milena.model.columns import RecordColumns
from storage.state.producer_state import NO_SEQUENCE
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
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


def kafka_transactional(
    own: tuple[int, int],
    client: tuple[int, int, int],
    *pairs: Pair,
    timeout_ms: int = 30_000,
) -> bytes:
    """Return a Kafka client's batch in the transaction ``own``; ``client``: its producer id, epoch and sequence."""
    rows = numbered(*(KafkaRecord(value, key=key) for key, value in pairs))
    sent = encoded(
        rows, attributes=TRANSACTIONAL_BIT, producer=client, base_time=NOW_MS, max_time=NOW_MS
    )
    made, _ = wrap_v2(sent, bytes_max=1 << 20, now_ms=NOW_MS, is_in_transaction=True)
    return with_extensions(
        made,
        transaction=TransactionExtension(-1, -1, timeout_ms),
        producer=ProducerStamp(*own, NO_SEQUENCE),
        client=ProducerStamp(*client),
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
