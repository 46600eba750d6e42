"""Helpers for tests of a small log: append batches, fill it, and list its files."""

from milena.model.batch.header import IdempotencyExtension, ProducerStamp
from storage.log.partition_log import PartitionLog
from storage.segments.log_config import LogConfig
from storage.segments.segment import LOG_SUFFIX
from tests.support.disk.log_model import DIRECTORY, NOW_MS, make_batch, stamped
from tests.support.disk.memory_files import MemoryFiles

LARGE = LogConfig(segment_bytes=1 << 20, index_interval_bytes=300, preallocate_bytes=1 << 16)


def append(
    log: PartitionLog, *batches: bytes, leader_epoch: int = 0, now_ms: int = NOW_MS
) -> tuple[int, ...]:
    """Append as leader."""
    return log.append_as_leader(batches, leader_epoch=leader_epoch, now_ms=now_ms)


def fill(
    log: PartitionLog, count: int = 20, *, leader_epoch: int = 0, now_ms: int = NOW_MS
) -> None:
    """Append batches of two records; a few of them roll a segment."""
    for _ in range(count):
        append(log, make_batch(2, value_bytes=150), leader_epoch=leader_epoch, now_ms=now_ms)


def bases(files: MemoryFiles) -> list[int]:
    """Return the base offsets of the segments on the disk."""
    names = [name for name in files.list_directory(DIRECTORY) if name.endswith(LOG_SUFFIX)]
    return [int(name.removesuffix(LOG_SUFFIX)) for name in names]


def producer_batch(
    sequence: int, *, records: int = 2, producer_id: int = 7, epoch: int = 0
) -> bytes:
    """A batch of an idempotent producer."""
    return make_batch(records, producer=ProducerStamp(producer_id, epoch, sequence))


def key(number: int) -> IdempotencyExtension:
    """Return an idempotency key."""
    return IdempotencyExtension(bytes([number]) * 16, b"body-abc", 6)


def leaders_batches(
    count: int, *, base_offset: int = 0, leader_epoch: int = 0, records: int = 2
) -> list[bytes]:
    """Return batches as a leader sends them."""
    return [
        stamped(
            make_batch(records),
            base_offset=base_offset + records * number,
            leader_epoch=leader_epoch,
            append_time_ms=NOW_MS,
        )
        for number in range(count)
    ]
