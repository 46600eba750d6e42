"""A partition log, and a plain list with its expected content, also after a crash within any change."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from milena.model.batch.decode import (
    check_batch,
    decode_columns,
    iterate_headers,
    offsets_of,
    timestamps_of,
)
from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.batch.header import (
    STAMP_BYTES,
    IdempotencyExtension,
    ProducerStamp,
    decode_header,
)
from milena.model.batch.timestamps import ANY_TIMESTAMP
from milena.model.batch.v2 import kafka_batch
from milena.model.batch.v2_checks import wrap_v2
from milena.model.columns import RecordColumns
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.segments.log_config import LogConfig
from storage.segments.uncommitted import UncommittedMemory
from storage.state.producer_state import WriterState
from tests.support.disk.kafka_batches import KafkaRecord, decoded, encoded, numbered
from tests.support.disk.memory_files import Keep, MemoryFiles, SimulatedCrashError

TOPIC_ID = "0123456789abcdef0123456789abcdef"
DIRECTORY = f"/data/topics/{TOPIC_ID}/3"
NOW_MS = 1_700_000_000_000

SMALL = LogConfig(
    segment_bytes=2500,
    index_interval_bytes=300,
    preallocate_bytes=1000,
    checkpoint_bytes=1500,
)
"""Limits so small that a few batches roll a segment and make several index entries."""


def make_batch(
    records: int = 1,
    *,
    value_bytes: int = 20,
    timestamp_ms: int = NOW_MS,
    timestamp_deltas: list[int] | None = None,
    producer: ProducerStamp | None = None,
    key: IdempotencyExtension | None = None,
    kafka: int | None = None,
) -> bytes:
    """Return a batch as a client would send it; ``kafka`` is the codec of a Kafka client's."""
    if kafka is not None:
        deltas = timestamp_deltas or [0] * records
        rows = [KafkaRecord(b"v" * value_bytes, time=delta) for delta in deltas]
        return wrapped_kafka(rows, codec=kafka, timestamp_ms=timestamp_ms, producer=producer)
    columns = RecordColumns(None, timestamp_deltas, None, [b"v" * value_bytes] * records, None)
    return encode_batch(
        columns,
        base_timestamp_ms=timestamp_ms,
        producer=producer,
        request_keys=() if key is None else (key,),
    )


def wrapped_kafka(
    rows: Sequence[KafkaRecord], *, codec: int, timestamp_ms: int, producer: ProducerStamp | None
) -> bytes:
    """A Kafka client's batch, as the node that takes it sends it to the leader."""
    stamp = (-1, -1, -1)
    if producer is not None:
        stamp = (producer.producer_id, producer.producer_epoch, producer.base_sequence)
    sent = encoded(numbered(*rows), attributes=codec, base_time=timestamp_ms, producer=stamp)
    return wrap_v2(sent, bytes_max=1 << 20, now_ms=timestamp_ms, timestamps=ANY_TIMESTAMP)[0]


def check_kafka_batches(batches: Iterable[bytes]) -> None:
    """Each batch of a Kafka client is the same to its clients as to all other readers."""
    for batch in batches:
        header = decode_header(batch)
        if not header.is_v2:
            continue
        head, view = kafka_batch(batch, header)
        got = decoded(head + view)
        columns = decode_columns(batch, header)
        count = len(columns.values)
        assert got.base_offset == header.base_offset
        assert got.last_offset_delta == header.last_offset_delta
        assert [row.offset for row in got.records] == [
            offset - header.base_offset for offset in offsets_of(header, columns)
        ]
        assert [row.value for row in got.records] == columns.values
        assert [row.key for row in got.records] == (columns.keys or [None] * count)
        times = [got.base_time + row.time for row in got.records]
        assert times == list(timestamps_of(header, columns))
        assert header.max_timestamp_ms == max(times)


def stamped(batch: bytes, *, base_offset: int, leader_epoch: int, append_time_ms: int) -> bytes:
    """Return the batch as a leader stores it."""
    stamp = stamp_batch(
        batch, base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=append_time_ms
    )
    return stamp + batch[STAMP_BYTES:]


def open_log(
    files: MemoryFiles,
    *,
    config: LogConfig = SMALL,
    is_listed: bool = True,
    was_clean: bool = False,
    now_ms: int = NOW_MS,
    directory: str = DIRECTORY,
    memory: UncommittedMemory | None = None,
) -> PartitionLog:
    """Open the log of partition 3."""
    return PartitionLog.open(
        files,
        directory,
        config=config,
        topic_id=TOPIC_ID,
        topic_name="orders",
        partition=3,
        is_listed=is_listed,
        was_clean=was_clean,
        now_ms=now_ms,
        memory=memory,
    )


def split_span(span: bytes) -> list[bytes]:
    """Return the batches of a span, one by one."""
    return [span[at : at + header.batch_bytes] for at, header in iterate_headers(span)]


def read_batches(
    log: PartitionLog, offset: int, *, max_bytes: int, end_offset: int | None = None
) -> list[bytes]:
    """``log.read_span``, one by one."""
    return split_span(log.read_span(offset, max_bytes=max_bytes, end_offset=end_offset))


def read_all(log: PartitionLog, *, max_bytes: int = 700) -> list[bytes]:
    """Return every batch of the log, read in small pieces."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = read_batches(log, offset, max_bytes=max_bytes)
        assert found, offset
        offset = check_batch(found[-1]).next_offset
        batches += found
    return batches


@dataclass(frozen=True)
class Expected:
    """The required content of a log.

    ``batches`` has all batches that were appended since the log was created or restarted, including those below
    ``log_start``. ``durable_end`` is the end of the synced batches, which no crash may remove.
    """

    batches: tuple[bytes, ...] = field(default=(), repr=False)
    log_start: int = 0
    log_end: int = 0
    durable_end: int = 0

    @property
    def kept(self) -> list[bytes]:
        """Return the batches that can still be read, at least in part."""
        return [b for b in self.batches if decode_header(b).next_offset > self.log_start]

    def truncated_to(self, offset: int) -> "Expected":
        batches = tuple(b for b in self.batches if decode_header(b).next_offset <= offset)
        end = decode_header(batches[-1]).next_offset if batches else self.first_offset
        end = max(end, self.log_start)
        return replace(self, batches=batches, log_end=end, durable_end=min(self.durable_end, end))

    @property
    def first_offset(self) -> int:
        return decode_header(self.batches[0]).base_offset if self.batches else self.log_end


class LogModel:
    """Applies each change to both the log and the list, and compares them.

    ``crash_in`` runs a change and simulates a crash within it. After that it accepts the state before or after the
    change, or any prefix that has all durable batches.
    """

    def __init__(self, *, config: LogConfig = SMALL, files: MemoryFiles | None = None) -> None:
        self.files = files or MemoryFiles()
        self.config = config
        self.now_ms = NOW_MS
        self.leader_epoch = 0
        self.high_watermark = 0
        self.expected = self._planned = Expected()
        self.is_state_exact = True
        """Whether the producer state must equal a replay of the log: until an unclean truncation loses state."""
        self.log = open_log(self.files, config=config, is_listed=False, now_ms=self.now_ms)

    # Changes.

    def append(self, batches: list[bytes], *, as_follower: bool = False) -> None:
        self.now_ms += 10
        stored = self._stamped(batches)
        planned = replace(
            self.expected,
            batches=(*self.expected.batches, *stored),
            log_end=decode_header(stored[-1]).next_offset,
        )

        def run() -> None:
            if as_follower:
                self.log.append_as_follower(b"".join(stored))
            else:
                self.log.append_as_leader(
                    batches, leader_epoch=self.leader_epoch, now_ms=self.now_ms
                )

        self.change(planned, run)

    def _stamped(self, batches: list[bytes]) -> list[bytes]:
        offset = self.expected.log_end
        stored = []
        for batch in batches:
            stored.append(
                stamped(
                    batch,
                    base_offset=offset,
                    leader_epoch=self.leader_epoch,
                    append_time_ms=self.now_ms,
                )
            )
            offset = decode_header(stored[-1]).next_offset
        return stored

    def sync(self) -> None:
        self.change(
            replace(self.expected, durable_end=self.expected.log_end), self.log.flushing.sync_all
        )

    def checkpoint(self) -> None:
        self.high_watermark = max(self.high_watermark, self.expected.durable_end)
        self.change(
            self.expected,
            lambda: self.log.checkpointing.run(self.high_watermark),
        )

    def truncate_to(self, offset: int) -> None:
        self.high_watermark = min(self.high_watermark, offset)
        self.change(
            self.expected.truncated_to(offset), lambda: self.log.cutting.truncate_to(offset)
        )

    def advance_log_start(self, offset: int) -> None:
        self.change(
            replace(self.expected, log_start=max(offset, self.expected.log_start)),
            lambda: self.log.start.advance(offset),
        )

    def restart_at(self, offset: int) -> None:
        self.high_watermark = offset
        planned = Expected(log_start=offset, log_end=offset, durable_end=offset)
        self.change(planned, lambda: self.log.cutting.restart_at(offset))

    def change(self, planned: Expected, run: Callable[[], object]) -> None:
        """Run a change, after which the log must have ``planned``; a crash may interrupt the change."""
        self._planned = planned
        run()
        self.expected = planned

    # Crashes.

    def reopen_cleanly(self) -> None:
        self.log.checkpointing.run(self.high_watermark)
        self.log.close(is_clean=True)
        self.expected = replace(self.expected, durable_end=self.expected.log_end)
        self.files.crash()
        self.log = open_log(self.files, config=self.config, was_clean=True, now_ms=self.now_ms)
        assert self.log.recovery.was_clean
        assert self.log.recovery.scanned_bytes == 0
        assert self.log.health is ReplicaHealth.SOUND, self.log.recovery
        self.check()

    def crash(self, rng: Random, keep: Keep) -> None:
        """Cut the power between two changes."""
        was_synced = self.expected.durable_end == self.expected.log_end
        self.files.crash(rng, keep)
        self._recover([self.expected])
        if was_synced:
            assert self.log.recovery.health is ReplicaHealth.SOUND, self.log.recovery

    def kill(self) -> None:
        """Kill the process; the page cache survives."""
        self.files.kill()
        self._recover([self.expected])
        assert self.log.recovery.health is ReplicaHealth.SOUND, self.log.recovery
        assert self.log.log_end_offset == self.log.flushing.synced_end

    def crash_in(self, number: int, change: Callable[[], None], rng: Random, keep: Keep) -> bool:
        """Cut the power before the ``number``-th disk operation of a change; return False if it has fewer."""
        before = self._planned = self.expected
        self.files.crash_before(number)
        try:
            change()
        except SimulatedCrashError:
            is_cut_short = True
        else:
            is_cut_short = False
        self.files.crash(rng, keep)
        candidates = [self.expected]
        if is_cut_short:
            durable_end = min(before.durable_end, self._planned.durable_end)
            candidates = [self._planned, replace(before, durable_end=durable_end)]
        self._recover(candidates)
        return is_cut_short

    def _recover(self, candidates: list[Expected]) -> None:
        self.log = open_log(self.files, config=self.config, now_ms=self.now_ms)
        assert self.log.health is not ReplicaHealth.DAMAGED, self.log.recovery
        fitting = [c for c in candidates if self._fits(c)]
        assert fitting, (
            candidates,
            self.log.log_start_offset,
            self.log.log_end_offset,
            self.log.recovery,
        )
        end = self.log.log_end_offset
        # Recovery has synced what it accepted.
        self.expected = replace(fitting[0].truncated_to(end), durable_end=end)
        assert self.expected.log_end == end
        if self.log.health is not ReplicaHealth.SOUND:
            self.log.cutting.mark_sound()
        self.high_watermark = min(self.high_watermark, end)
        self.leader_epoch = max(self.leader_epoch, self.log.state.epochs.last_epoch)
        self.check()

    def _fits(self, candidate: Expected) -> bool:
        """Return whether the log has a prefix of the candidate that includes all durable batches."""
        log = self.log
        if (
            log.log_start_offset != candidate.log_start
            or log.log_end_offset < candidate.durable_end
        ):
            return False
        found = read_all(log)
        # Compare outside of an assertion, which would print both lists.
        return found == candidate.kept[: len(found)]

    # Comparison.

    def check(self) -> None:
        log, expected = self.log, self.expected
        assert log.log_start_offset == expected.log_start
        assert log.log_end_offset == expected.log_end
        assert log.flushing.synced_end >= expected.durable_end
        assert log.flushing.synced_end <= log.log_end_offset
        assert log.replica.checkpoint.recovery_point <= log.flushing.synced_end
        found = read_all(log)
        is_same = found == expected.kept
        assert is_same
        check_kafka_batches(found)
        self.check_epochs()
        self.check_writers()

    def check_epochs(self) -> None:
        headers = [decode_header(batch) for batch in self.expected.kept]
        for header in headers:
            start = max(header.base_offset, self.expected.log_start)
            assert self.log.state.epochs.epoch_at(start) == header.leader_epoch
        if headers:
            assert self.log.state.epochs.last_epoch == headers[-1].leader_epoch
        ends = {header.leader_epoch: header.next_offset for header in headers}
        for epoch, end in ends.items():
            assert self.log.state.epoch_end(epoch) == (epoch, end)

    def check_writers(self) -> None:
        if not self.is_state_exact:
            return
        replayed = WriterState()
        for batch in self.expected.batches:
            header = decode_header(batch)
            replayed.record(header, header.base_offset, header.append_time_ms)
        state = self.log.state.writers
        assert state.producers.freeze() == replayed.producers.freeze()
        assert state.idempotency.freeze() == replayed.idempotency.freeze()

    def check_read(self, offset: int, max_bytes: int, end_offset: int) -> None:
        """Compare a read of the log with a search of the list."""
        wanted: list[bytes] = []
        for batch in self.expected.kept:
            header = decode_header(batch)
            if header.next_offset <= offset or header.base_offset >= end_offset:
                continue
            if wanted and sum(map(len, wanted)) + len(batch) > max_bytes:
                break
            wanted.append(batch)
        found = read_batches(self.log, offset, max_bytes=max_bytes, end_offset=end_offset)
        if offset >= end_offset:
            assert found == []
            return
        assert found == wanted[: len(found)]
        assert found or not wanted
        if len(found) < len(wanted):
            # Only the end of a segment may make a read shorter than requested.
            next_offset = decode_header(found[-1]).next_offset
            assert next_offset in self.log.state.table.bases
        cached = self.log.read_span_cached(offset, max_bytes=max_bytes, end_offset=end_offset)
        assert cached in (None, b"".join(found))

    def check_search(self, timestamp_ms: int) -> None:
        """Compare a search by time with a search of the list."""
        found = self.log.offset_for_timestamp(timestamp_ms)
        for header, batch in ((decode_header(b), b) for b in self.expected.kept):
            columns = decode_columns(batch, header)
            for offset, timestamp in zip(
                offsets_of(header, columns), timestamps_of(header, columns), strict=True
            ):
                if offset >= self.expected.log_start and timestamp >= timestamp_ms:
                    assert found == (offset, timestamp)
                    return
        assert found is None

    def next_sequence(self, producer_id: int) -> int:
        """Return the next sequence of a producer."""
        state = self.log.state.writers.producers.get(producer_id)
        return 0 if state is None else (state.batches[-1].last_sequence + 1) % (1 << 31)
