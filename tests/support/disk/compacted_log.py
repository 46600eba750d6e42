"""A compacted log, and a dict with the expected last value of each key."""

from collections.abc import Sequence
from random import Random

from milena.model.batch.decode import records_in
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.columns import RecordColumns
from storage.compaction.run import CompactionRun
from storage.log.partition_log import PartitionLog
from storage.segments.log_config import LogConfig
from tests.support.disk.kafka_batches import KafkaRecord
from tests.support.disk.log_model import (
    NOW_MS,
    check_kafka_batches,
    open_log,
    read_all,
    wrapped_kafka,
)
from tests.support.disk.memory_files import MemoryFiles

COMPACTED = LogConfig(
    segment_bytes=2500,
    index_interval_bytes=300,
    preallocate_bytes=1000,
    checkpoint_bytes=1,
    is_compacted=True,
    is_deleting=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
"""The settings of a log that is always due for compaction; a tombstone stays for a second."""

KAFKA_CODECS = range(5)

Pair = tuple[bytes | None, bytes | None]


def keyed_batch(
    pairs: Sequence[Pair],
    *,
    timestamp_ms: int = NOW_MS,
    producer: ProducerStamp | None = None,
    key: IdempotencyExtension | None = None,
    kafka: int | None = None,
) -> bytes:
    """Return a batch of keys and values, as a client would send it; ``kafka`` is the codec of a Kafka client's."""
    if kafka is not None:
        rows = [KafkaRecord(value, key) for key, value in pairs]
        return wrapped_kafka(rows, codec=kafka, timestamp_ms=timestamp_ms, producer=producer)
    columns = RecordColumns(None, None, [k for k, _ in pairs], [v for _, v in pairs], None)
    return encode_batch(
        columns,
        base_timestamp_ms=timestamp_ms,
        producer=producer,
        request_keys=() if key is None else (key,),
    )


def append(log: PartitionLog, *batches: bytes, epoch: int = 0, now_ms: int = NOW_MS) -> list[int]:
    """Append, sync and checkpoint; return the batches' base offsets."""
    offsets = [
        log.append_as_leader([batch], leader_epoch=epoch, now_ms=now_ms)[0] for batch in batches
    ]
    log.flushing.sync_all()
    log.checkpointing.run(log.log_end_offset)
    return offsets


def roll(log: PartitionLog) -> None:
    """Close the active segment, and let a checkpoint seal it: only sealed segments are compacted."""
    log.rolling.close_segment(log.log_end_offset)
    log.checkpointing.run(log.log_end_offset)


def compact(log: PartitionLog, *, now_ms: int = NOW_MS, tombstone_end: int | None = None) -> bool:
    """Run a compaction to its end; return False if none is due."""
    end = log.log_end_offset
    run = log.compaction.begin(
        now_ms, end, tombstone_end=end if tombstone_end is None else tombstone_end
    )
    if run is None:
        return False
    finish(log, run)
    return True


def finish(log: PartitionLog, run: CompactionRun) -> None:
    """Run the steps of a compaction to its end."""
    while not run.is_done:
        run.step()
        log.compaction.note(run)


def records_of(log: PartitionLog) -> dict[int, Pair]:
    """Return the remaining keys and values by offset, after a check that the batches have no gap to the log end."""
    found: dict[int, Pair] = {}
    next_offset = None
    batches = read_all(log)
    check_kafka_batches(batches)
    for batch in batches:
        header = decode_header(batch)
        assert next_offset in (None, header.base_offset), (next_offset, header)
        next_offset = header.next_offset
        for offset, _, key, value, _ in records_in(batch, log.log_start_offset):
            found[offset] = (key, value)
    assert next_offset in (None, log.log_end_offset)
    return found


def values_of(log: PartitionLog) -> dict[bytes | None, bytes]:
    """Return the state after a full read: the last value of each key, without deleted ones."""
    values: dict[bytes | None, bytes] = {}
    for key, value in records_of(log).values():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def filled_log(
    files: MemoryFiles, *, batches: int = 60, seed: int = 1, config: LogConfig = COMPACTED
) -> tuple[PartitionLog, dict[bytes | None, bytes]]:
    """Return a log with many updates of few keys, in several epochs and closed segments, and the expected values."""
    log = open_log(files, config=config, is_listed=False)
    rng = Random(seed)
    wanted: dict[bytes | None, bytes] = {}
    for number in range(batches):
        pairs: list[Pair] = []
        for _ in range(rng.randint(1, 4)):
            key = b"key-%d" % rng.randint(0, 9)
            value = None if rng.random() < 0.2 else b"%d" % rng.randint(0, 1 << 40)
            pairs.append((key, value))
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value
        # Some are of Kafka clients, with every codec.
        batch = keyed_batch(pairs, kafka=number % 10 if number % 10 in KAFKA_CODECS else None)
        log.append_as_leader([batch], leader_epoch=number * 4 // batches, now_ms=NOW_MS + number)
    append(log, keyed_batch([(b"last", b"1")]), epoch=4, now_ms=NOW_MS + batches)
    wanted[b"last"] = b"1"
    roll(log)
    return log, wanted
