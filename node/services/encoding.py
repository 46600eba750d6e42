"""Encode records of one partition: as one batch, or as several to stay below ``max.message.bytes``. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from milena.model.batch.encode import encode_batch
from milena.model.batch.header import (
    IdempotencyExtension,
    ProducerStamp,
    TransactionExtension,
)
from milena.model.errors import InvalidRecordError, MilenaError, RequestTooLargeError
from milena.model.requests import IdempotencyKey
from milena.model.turns import Steps
from node.metadata.topic_settings import record_codec
from node.services.record_batches import PartitionBatch, halve, size_of_columns
from raft_meta.machine.image import Topic
from raft_meta.machine.topics.configs import TopicSettings


class TransactionStamp(NamedTuple):
    """The fields that make a batch part of a transaction."""

    producer: ProducerStamp
    extension: TransactionExtension


class EncodedPiece(NamedTuple):
    """An encoded batch, and the number of its records."""

    batch: bytes
    record_count: int


def encode_each(
    topic: Topic,
    settings: TopicSettings,
    part: PartitionBatch,
    size: int,
    errors: dict[int, MilenaError],
) -> Steps[list[EncodedPiece]]:
    """Encode the records that may be stored. ``errors`` gets the error of each other one, by its place in ``part``."""
    if len(part.columns.values) == 1 or size <= settings.max_message_bytes:
        try:
            return (yield from encode(topic, settings, part, size))
        except (RequestTooLargeError, InvalidRecordError) as error:
            if len(part.columns.values) == 1:
                errors[0] = error
                return []
    pieces: list[EncodedPiece] = []
    first = 0
    for half in halve(part):
        own: dict[int, MilenaError] = {}
        pieces += yield from encode_each(topic, settings, half, size_of_columns(half.columns), own)
        errors |= {first + place: error for place, error in own.items()}
        first += len(half.columns.values)
    return pieces


def encode(
    topic: Topic,
    settings: TopicSettings,
    part: PartitionBatch,
    size: int,
    keys: Sequence[IdempotencyExtension] = (),
    *,
    is_conditional: bool = False,
    transaction: TransactionStamp | None = None,
) -> Steps[list[EncodedPiece]]:
    """Encode records that take about ``size`` bytes: a request may be larger than a batch.

    One batch is all or nothing. So records with a key or a condition are one batch. The records of a transaction are
    one batch, too, because the batch says how far the transaction has come in the partition.

    Raises:
        RequestTooLargeError: a single record is too large, or the records of one key, condition or write of a
            transaction are.
    """
    count = len(part.columns.values)
    bytes_max = settings.max_message_bytes
    is_whole = count == 1 or bool(keys) or is_conditional or transaction is not None
    if not is_whole and size > bytes_max:
        # Encoding all of it first would be wasted work.
        return (yield from _encode_halves(topic, settings, part))
    batch = _encode_whole(settings, part, keys, transaction)
    yield
    if len(batch) <= bytes_max:
        return [EncodedPiece(batch, count)]
    if is_whole:
        named = "If-Match" if is_conditional else "idempotency key"
        named = "transaction" if transaction is not None else named
        what = "a record" if count == 1 else f"the records of one {named}"
        takes = "takes" if count == 1 else "take"
        raise RequestTooLargeError(
            f"{what} for {topic.name}-{part.partition} {takes} {len(batch)} bytes, max.message.bytes is "
            f"{bytes_max}; send less at once or raise it"
        )
    return (yield from _encode_halves(topic, settings, part))


def _encode_halves(
    topic: Topic, settings: TopicSettings, part: PartitionBatch
) -> Steps[list[EncodedPiece]]:
    pieces: list[EncodedPiece] = []
    for half in halve(part):
        pieces += yield from encode(topic, settings, half, size_of_columns(half.columns))
    return pieces


def _encode_whole(
    settings: TopicSettings,
    part: PartitionBatch,
    keys: Sequence[IdempotencyExtension],
    transaction: TransactionStamp | None,
) -> bytes:
    return encode_batch(
        part.columns,
        base_timestamp_ms=part.base_timestamp_ms,
        codec=record_codec(settings),
        timestamp_type=settings.timestamp_type,
        request_keys=keys,
        producer=None if transaction is None else transaction.producer,
        transaction=None if transaction is None else transaction.extension,
    )


def request_keys(key: IdempotencyKey | None, topic: Topic) -> tuple[IdempotencyExtension, ...]:
    """Return the extension that marks a whole batch as written under this key; empty without a key."""
    if key is None:
        return ()
    return (IdempotencyExtension(key.key_hash, key.body_hash, topic.partition_count),)
