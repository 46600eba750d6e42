"""Truncation, restarts, and what retention takes."""

from dataclasses import replace

import pytest

from milena.model.batch.encode import encode_marker, with_extensions
from milena.model.batch.header import Marker, ProducerStamp, TransactionExtension, decode_header
from milena.model.errors import DiskFailedError, OffsetOutOfRangeError
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.replica.meta import META_NAME
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name
from tests.support.disk.log_model import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    make_batch,
    open_log,
    read_all,
    read_batches,
)
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import LARGE, append, bases, fill, key


def transactional_batch() -> bytes:
    batch = make_batch(producer=ProducerStamp(7, 0, 0))
    return with_extensions(batch, transaction=TransactionExtension(-1, -1, 30_000))


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


# Cutting.


def test_truncation_is_durable_when_it_returns(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    log.cutting.truncate_to(21)
    assert log.log_end_offset == log.flushing.synced_end == 20
    assert bases(files)[-1] < 20
    files.crash()
    log = open_log(files)
    assert log.log_end_offset == 20
    assert log.health is ReplicaHealth.SOUND


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_transaction_whose_marker_is_cut_off_is_open_again(files, log, has_snapshot):
    fill(log, 3)
    first = log.log_end_offset
    append(log, transactional_batch())
    end = Marker(is_commit=False, first_offset=first, end_offset=0)
    opened = dict(log.writers.transactions.open)
    if has_snapshot:
        log.rolling.close_segment(first)
        log.checkpointing.run(first, is_forced=True)
    append(log, encode_marker(end, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS))
    assert log.writers.transactions.aborted
    log.cutting.truncate_to(first + 1)
    assert log.writers.transactions.open == opened
    assert not log.writers.transactions.aborted
    assert log.writers.transactions.stable_end(first + 1) == first
    assert log.writers.producers.epoch_of(7) == 0


def log_without_snapshots(files: MemoryFiles) -> PartitionLog:
    """Several segments, the last two batches under keys; what a cut leaves of the writers is read from offset 0."""
    log = open_log(files, is_listed=False)
    fill(log, 30)
    log.checkpointing.run(log.log_end_offset)
    log.cutting.truncate_to(log.log_end_offset - 1)
    assert not any(name.endswith(SNAPSHOT_SUFFIX) for name in files.list_directory(DIRECTORY))
    append(log, make_batch(key=key(1)))
    append(log, make_batch(key=key(2)))
    log.flushing.sync_all()
    return log


def test_a_cut_that_meets_rotten_bytes_is_finished_by_the_next_start(files):
    """It stops the process: half cut, the log would take a retry of what is gone for a duplicate."""
    log = log_without_snapshots(files)
    held = read_all(log)
    files.flip_bit(f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}", 900, 1)
    with pytest.raises(DiskFailedError, match="cannot cut orders/3 at offset 58"):
        log.cutting.truncate_to(58)
    files.crash()
    log = open_log(files)
    assert log.health is ReplicaHealth.DAMAGED
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None
    rest = [b for b in held if log.log_end_offset <= decode_header(b).base_offset < 58]
    log.append_as_follower(b"".join(rest))
    log.flushing.sync_all()
    log.cutting.mark_sound()
    assert log.log_end_offset == 58
    assert log.idempotency_lookup(key(1).key_hash, NOW_MS) is None
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None


def cut_at(files: MemoryFiles, log: PartitionLog, cut: int) -> tuple[PartitionLog, bool]:
    """Cut as a node does that is started again where that stops it: the log then, and whether it was."""
    is_stopped = False
    try:
        log.cutting.truncate_to(cut)
    except DiskFailedError:
        is_stopped = True
        files.crash()
        log = open_log(files)
        if log.health is not ReplicaHealth.DAMAGED:
            # What rotted was cut: the same cut is not refused again and again.
            log.cutting.truncate_to(cut)
    assert log.log_end_offset <= cut
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None
    return log, is_stopped


@pytest.mark.parametrize("cut", [58, 59, 41])
def test_wherever_bytes_rot_a_cut_is_whole_or_the_next_start_knows(cut):
    sound = MemoryFiles()
    log_without_snapshots(sound)
    for base in bases(sound):
        name = f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}"
        for byte in range(5, len(sound.read_bytes(name)), 97):
            files = MemoryFiles()
            log = log_without_snapshots(files)
            files.flip_bit(name, byte, byte % 8)
            log, _ = cut_at(files, log, cut)
            is_kept = log.idempotency_lookup(key(1).key_hash, NOW_MS) is not None
            assert is_kept == (log.log_end_offset == 59)


@pytest.mark.parametrize("snapshots", ["with", "without"])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_wherever_bytes_rot_no_cut_is_refused_by_start_after_start(is_rolled, snapshots):
    """The checkpoint's index tells recovery of what the cut has to read."""

    def begin():
        files = MemoryFiles()
        log = open_log(files, is_listed=False)
        fill(log, 30)
        if snapshots == "without":
            log.checkpointing.run(log.log_end_offset)
            log.cutting.truncate_to(log.log_end_offset - 1)
        append(log, make_batch(key=key(1)))
        append(log, make_batch(key=key(3)))
        if is_rolled:
            log.rolling.close_segment(log.log_end_offset - 1)
        log.flushing.sync_all()
        cut = log.log_end_offset
        log.checkpointing.run(cut)
        append(log, make_batch(key=key(2)))
        log.flushing.sync_all()
        return files, log, cut

    sound = begin()[0]
    refused = 0
    for base in bases(sound):
        name = f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}"
        for byte in range(5, len(sound.read_bytes(name)), 61):
            files, log, cut = begin()
            files.flip_bit(name, byte, byte % 8)
            refused += cut_at(files, log, cut)[1]
    assert refused


def test_truncation_above_the_end_does_nothing(files, log):
    fill(log, 3)
    before = files.operation_count
    log.cutting.truncate_to(6)
    log.cutting.truncate_to(100)
    assert files.operation_count == before
    assert log.log_end_offset == 6


def test_truncation_of_the_unsynced_tail_costs_one_sync(files):
    """After a change of leader many followers cut their tails at the same time."""
    log = open_log(files, config=LARGE, is_listed=False)
    fill(log, 10)
    log.flushing.sync_all()
    fill(log, 3)
    before = files.operations.copy()
    log.cutting.truncate_to(20)
    assert files.operations - before == {"truncate": 1, "sync": 1}


def test_truncation_across_segments_is_announced_before_anything_goes(files, log):
    """Whatever of it survives a power cut, recovery knows where the log must end."""
    fill(log, 30)
    log.flushing.sync_all()
    done = []
    files.on_operation = lambda kind, path: done.append((kind, path))
    log.cutting.truncate_to(21)
    meta = f"{DIRECTORY}/{META_NAME}"
    assert done[:2] == [("write", meta), ("sync", meta)]
    assert done[-2:] == [("write", meta), ("sync", meta)]
    assert ("sync_directory", DIRECTORY) in done


def test_a_log_that_was_cut_to_nothing_forgets_its_epochs_over_a_crash(files, log):
    fill(log, 3, leader_epoch=4)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    log.cutting.truncate_to(0)
    assert log.state.epochs.last_epoch == -1
    files.crash()
    assert open_log(files).state.epochs.last_epoch == -1


def test_truncation_works_on_a_full_disk(files, log):
    fill(log, 10, leader_epoch=1)
    fill(log, 20, leader_epoch=2)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    files.capacity = files.used_bytes()
    log.cutting.truncate_to(13)
    files.capacity = files.used_bytes()
    assert log.state.epochs.last_epoch == 1
    files.crash()
    log = open_log(files)
    assert log.log_end_offset == 12
    assert log.state.epoch_end(9) == (1, 12)


def test_truncation_below_the_log_start_starts_again_there(log):
    fill(log, 10)
    log.flushing.sync_all()
    log.start.advance(10)
    log.cutting.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)


def test_a_restart_drops_everything(files, log):
    fill(log, 30, leader_epoch=3)
    log.cutting.restart_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.flushing.synced_end) == (1000, 1000, 1000)
    assert (log.state.epochs.last_epoch, log.replica.checkpoint.high_watermark) == (-1, 1000)
    assert bases(files) == [1000]
    assert append(log, make_batch(), leader_epoch=1) == (1000,)


def test_the_log_start_moves_within_a_segment(files, log):
    fill(log, 4)
    log.flushing.sync_all()
    log.start.advance(3)
    assert log.log_start_offset == 3
    assert bases(files) == [0]
    assert decode_header(read_batches(log, 3, max_bytes=1)[0]).base_offset == 2
    log.start.advance(2)
    assert log.log_start_offset == 3
    with pytest.raises(OffsetOutOfRangeError):
        log.start.advance(9)


def test_segments_below_the_log_start_go(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    log.start.advance(25)
    assert bases(files)[0] <= 25 < bases(files)[1]
    log.start.advance(60)
    assert bases(files) == [60]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (60, 60, 0)
    files.crash()
    log = open_log(files)
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    assert log.health is ReplicaHealth.SOUND


def test_the_log_start_moves_on_a_full_disk_too(files, log):
    """Retention is how a full disk recovers."""
    fill(log, 30)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    fill(log, 10)
    log.flushing.sync_all()
    files.capacity = files.used_bytes()
    used = files.used_bytes()
    log.start.advance(80)
    assert log.log_start_offset == 80
    assert files.used_bytes() < used - 5000
    files.capacity = None
    log.checkpointing.run(80)
    log.start.apply_retention(NOW_MS, 80)
    assert bases(files)[0] > 60


# Retention.


def test_old_segments_go_below_the_high_watermark(files):
    log = open_log(files, config=replace(SMALL, retention_ms=1000), is_listed=False)
    for number in range(40):
        append(log, make_batch(2, value_bytes=150, timestamp_ms=NOW_MS + 100 * number))
    log.flushing.sync_all()
    now_ms = NOW_MS + 3000
    assert log.start.apply_retention(now_ms, 0) == 0
    start = log.start.apply_retention(now_ms, 80)
    assert 30 < start <= 42
    assert bases(files)[0] == start
    assert log.start.apply_retention(now_ms, 80) == start
    assert log.start.apply_retention(NOW_MS + 100_000, 80) == 80
    assert bases(files) == [80]


def test_what_is_not_synced_does_not_go(log):
    log.config = replace(log.config, retention_bytes=0)
    fill(log, 20)
    assert log.start.apply_retention(NOW_MS, 40) == 0
    log.flushing.sync_all()
    assert log.start.apply_retention(NOW_MS, 40) == 40


def test_a_log_is_held_to_its_size(log):
    log.config = replace(log.config, retention_bytes=6000, retention_ms=None)
    fill(log, 60)
    log.flushing.sync_all()
    log.start.apply_retention(NOW_MS, 120)
    assert 6000 <= log.size_bytes < 6000 + SMALL.segment_bytes
