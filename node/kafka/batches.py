"""Record batches between Kafka clients and the log.

A Kafka client's batch is stored as it came, in a batch of Milena's. A fetch sends it with 16 new bytes before it.
Batches that HTTP clients wrote are encoded for Kafka clients when they are fetched.

A log has offsets without records: markers of transactions, aborted records, and what compaction removed. If records
follow in the same response, clients pass over such a gap by themselves. A gap at the end is filled with a control
batch, from which a client takes its next offset.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from milena.disk.files import Buffer
from milena.model.batch import v2
from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.batch.encode import with_extensions
from milena.model.batch.header import (
    CODEC_MASK,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.batch.v2_checks import wrap_v2
from milena.model.errors import CorruptBatchError, RequestTooLargeError
from milena.model.requests import FetchResult
from node.metadata.topic_settings import stored_codec
from node.services.transactions.transactional_ids import LeaderTransaction
from raft_meta.machine.topics.configs import TopicSettings
from storage.state.producer_state import NO_SEQUENCE

THREAD_BYTES = 256 << 10
"""From this size on, a batch is the work of a thread."""
PLAIN_ON_LOOP_BYTES = 1 << 20
"""A smaller batch is the work of a thread, too, if its records have more bytes than this once decompressed."""
_ATTRIBUTES_POSITION = 22
"""The second byte of a Kafka batch's attributes; its lowest three bits are the codec."""


def is_transactional(records: memoryview) -> bool:
    """Return whether a Kafka batch claims to be part of a transaction; its header in the log does not tell."""
    return len(records) > _ATTRIBUTES_POSITION and bool(
        records[_ATTRIBUTES_POSITION] & TRANSACTIONAL_BIT
    )


async def stored(
    records: memoryview, settings: TopicSettings, *, now_ms: int, is_in_transaction: bool = False
) -> tuple[bytes, BatchHeader]:
    """Check everything in a batch of a Kafka client; return the batch that stores it, and its header.

    ``is_in_transaction``: the caller adds the transaction to the result (``in_transaction``).

    Raises:
        CorruptBatchError, RequestTooLargeError, InvalidRecordError: as ``wrap_v2``.
    """

    def wrapped(
        plain_bytes_max: int | None, pause: Callable[[], None] | None
    ) -> tuple[bytes, BatchHeader]:
        return wrap_v2(
            records,
            bytes_max=settings.max_message_bytes,
            now_ms=now_ms,
            timestamps=settings.timestamps,
            timestamp_type=settings.timestamp_type,
            needs_keys=settings.is_compacted,
            codec=stored_codec(settings, is_v2=True),
            plain_bytes_max=plain_bytes_max,
            pause=pause,
            is_in_transaction=is_in_transaction,
        )

    if len(records) < THREAD_BYTES:
        # Only a thread may unpack more than a little: some kilobytes may hold many megabytes.
        is_packed = len(records) > _ATTRIBUTES_POSITION and (
            records[_ATTRIBUTES_POSITION] & CODEC_MASK
        )
        if not is_packed:
            return wrapped(None, None)
        with suppress(RequestTooLargeError):
            return wrapped(PLAIN_ON_LOOP_BYTES, None)
    return await asyncio.to_thread(wrapped, None, _give_way)


def _give_way() -> None:
    """Let the loop's thread run."""
    time.sleep(0)


def in_transaction(
    batch: bytes, header: BatchHeader, found: LeaderTransaction
) -> tuple[bytes, BatchHeader]:
    """Return the result of ``stored`` as a part of an open transaction.

    The header names the transaction. The numbers of the client, by which a retry is recognised, go into an extension.
    """
    made = with_extensions(
        batch,
        transaction=TransactionExtension(-1, -1, found.timeout_ms),
        producer=ProducerStamp(*found.identity, NO_SEQUENCE),
        client=ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence),
    )
    return made, decode_header(made)


class KafkaBatches(NamedTuple):
    """The batches of a fetch for a Kafka client. Together they cover the offsets that were read."""

    pieces: list[Buffer]
    damaged_at: int | None = None
    """The offset of the first damaged batch, before which they end; None: no batch is damaged."""


async def sent(result: FetchResult) -> KafkaBatches:
    """Return the batches of a fetch for a Kafka client. Bytes that a Kafka client wrote are not copied."""
    if not result.batches:
        return KafkaBatches([])
    # A large response is the work of a thread only if batches must be encoded. To look for them first would cost more
    # than all checksums.
    found = _kafka_batches(result, may_encode=len(result.batches) < THREAD_BYTES)
    return await asyncio.to_thread(kafka_batches, result) if found is None else found


def kafka_batches(result: FetchResult) -> KafkaBatches:
    """Do the work of ``sent``."""
    found = _kafka_batches(result, may_encode=True)
    assert found is not None, "it may encode batches"
    return found


def _kafka_batches(result: FetchResult, *, may_encode: bool) -> KafkaBatches | None:
    """Do the work of ``sent``; return None if a batch must be encoded and ``may_encode`` is False.

    The checksum of every batch is verified. A batch that is encoded here gets a new checksum, so its reader could not
    find out that the stored records are damaged. Other batches keep the checksum of their producer, but librdkafka does
    not check it by default (``check.crcs``).
    """
    start, end = result.start_offset, result.readable_end
    pieces: list[Buffer] = []
    filled = covered = start
    """The ends (exclusive) of the offsets with batches in ``pieces``, and of those that were read."""
    damaged_at = None
    try:
        for position, header in iterate_batches(result.batches):
            if header.base_offset >= end:
                break
            if header.next_offset <= start:
                continue
            if header.record_count and not header.is_control:
                if header.is_v2:
                    pieces += v2.kafka_batch(result.batches, header, position)
                elif not may_encode:
                    return None
                else:
                    columns = decode_columns(result.batches, header, position)
                    pieces.append(v2.encode(header, columns))
                filled = min(header.next_offset, end)
            covered = min(header.next_offset, end)
    except CorruptBatchError:
        damaged_at = covered
    if filled < covered:
        filler = v2.encode_filler(
            base_offset=filled, last_offset=covered - 1, leader_epoch=max(0, result.leader_epoch)
        )
        pieces.append(filler)
    return KafkaBatches(pieces, damaged_at)
