"""What of a log is durable, and when: syncs, checkpoints, and the end of a log."""

from dataclasses import replace

import pytest

from milena.disk.os_files import OsFiles
from milena.model.errors import DiskFailedError
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name
from tests.support.disk.log_model import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    LogModel,
    make_batch,
    open_log,
    read_all,
)
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import LARGE, append, bases, fill


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


# Syncing.


def test_a_strict_log_stores_what_is_synced(log):
    append(log, make_batch(3))
    assert (log.log_end_offset, log.flushing.synced_end, log.stored_end_offset) == (3, 0, 0)
    assert log.flushing.is_due(NOW_MS)
    ticket = log.flushing.begin()
    append(log, make_batch(2))
    ticket.run()
    log.flushing.finish(ticket)
    assert log.flushing.synced_end == 3
    assert (log.log_end_offset, log.flushing.synced_end, log.stored_end_offset) == (5, 3, 3)
    assert log.flushing.is_due(NOW_MS)
    log.flushing.sync_all()
    assert log.flushing.synced_end == log.stored_end_offset == 5
    assert not log.flushing.is_due(NOW_MS)


def test_one_sync_is_under_way_at_a_time(log):
    assert log.flushing.begin() is None
    append(log, make_batch())
    ticket = log.flushing.begin()
    append(log, make_batch())
    assert log.flushing.begin() is None
    ticket.run()
    log.flushing.finish(ticket)
    assert log.flushing.begin() is not None


def test_a_sync_covers_segments_that_were_rolled(files, log):
    fill(log, 30)
    ticket = log.flushing.begin()
    ticket.run()
    log.flushing.finish(ticket)
    assert log.flushing.synced_end == 60
    files.crash()
    assert open_log(files).log_end_offset == 60


def test_a_relaxed_log_stores_what_is_written(files):
    config = replace(SMALL, flush_messages=5, flush_ms=1000)
    log = open_log(files, config=config, is_listed=False)
    append(log, make_batch(2))
    assert log.stored_end_offset == 2
    assert log.flushing.synced_end == 0


def test_a_relaxed_log_is_synced_by_count(files):
    log = open_log(files, config=replace(SMALL, flush_messages=5), is_listed=False)
    append(log, make_batch(4))
    assert not log.flushing.is_due(NOW_MS + 1_000_000_000)
    append(log, make_batch(1))
    assert log.flushing.is_due(NOW_MS)
    log.flushing.begin()
    append(log, make_batch(4))
    assert not log.flushing.is_due(NOW_MS)


def test_a_relaxed_log_is_synced_by_time(files):
    config = replace(SMALL, flush_messages=1000, flush_ms=500)
    log = open_log(files, config=config, is_listed=False)
    assert not log.flushing.is_due(NOW_MS)
    append(log, make_batch())
    assert not log.flushing.is_due(NOW_MS)
    assert not log.flushing.is_due(NOW_MS + 499)
    assert log.flushing.is_due(NOW_MS + 500)
    log.flushing.sync_all()
    append(log, make_batch())
    assert not log.flushing.is_due(NOW_MS + 600)
    assert log.flushing.is_due(NOW_MS + 1100)


def test_the_name_of_a_segment_that_retention_rolled_is_synced_with_its_first_batch(files, log):
    fill(log, 5)
    ticket = log.checkpointing.begin(10, is_forced=True)
    log.start.advance(10)
    ticket.run()
    log.checkpointing.finish(ticket)
    log.flushing.sync_all()
    ticket = log.checkpointing.begin(10, is_forced=True)
    fill(log, 1)
    log.flushing.sync_all()
    log.start.advance(12)
    assert bases(files) == [12]
    log.checkpointing.run(12)
    fill(log, 1)
    late = log.flushing.begin()
    late.run()
    log.flushing.finish(late)
    files.crash()
    log = open_log(files)
    assert (log.log_start_offset, log.log_end_offset) == (12, 14)


def test_a_failed_sync_is_passed_on(files, log):
    append(log, make_batch())
    files.fail_next_sync(LOG_SUFFIX)
    ticket = log.flushing.begin()
    with pytest.raises(DiskFailedError):
        ticket.run()
    assert log.flushing.synced_end == 0


def test_a_truncation_lowers_what_a_sync_under_way_will_mean(files, log):
    fill(log, 10)
    ticket = log.flushing.begin()
    log.cutting.truncate_to(8)
    append(log, make_batch(10))
    ticket.run()
    log.flushing.finish(ticket)
    assert log.flushing.synced_end == 8
    log.cutting.restart_at(50)
    assert log.flushing.synced_end == 50


def test_a_sync_under_way_survives_that_its_segments_go(files, log):
    fill(log, 30)
    ticket = log.flushing.begin()
    log.cutting.truncate_to(5)
    ticket.run()
    log.flushing.finish(ticket)
    fill(log, 30)
    ticket = log.flushing.begin()
    log.cutting.restart_at(100)
    ticket.run()
    log.flushing.finish(ticket)
    assert log.flushing.synced_end == 100
    log.flushing.finish(ticket)


def test_a_change_of_settings_takes_effect_at_once(log):
    append(log, make_batch())
    assert log.stored_end_offset == 0
    log.config = replace(log.config, flush_messages=100)
    assert log.stored_end_offset == 1
    assert log.config.flush_messages == 100


# Checkpoints.


def test_a_checkpoint_that_says_nothing_new_is_not_written(files):
    log = open_log(files, config=LARGE, is_listed=False)
    assert log.checkpointing.begin(0) is None
    fill(log, 3)
    log.flushing.sync_all()
    log.checkpointing.run(4)
    assert log.replica.checkpoint.high_watermark == 4
    before = files.operation_count
    log.checkpointing.run(4)
    log.checkpointing.run(2)
    assert files.operation_count == before
    assert log.replica.checkpoint.high_watermark == 4, "it never falls by itself"
    log.checkpointing.run(1000)
    assert log.replica.checkpoint.high_watermark == 6, "nor is it above the log end"


def test_the_recovery_point_moves_when_enough_was_appended(files):
    log = open_log(files, config=replace(LARGE, checkpoint_bytes=2000), is_listed=False)
    fill(log, 2)
    log.checkpointing.run(0)
    assert log.replica.checkpoint.recovery_point == 0
    fill(log, 10)
    log.checkpointing.run(0)
    assert log.replica.checkpoint.recovery_point == log.flushing.synced_end == 24
    assert files.exists(f"{DIRECTORY}/{offset_name(24, SNAPSHOT_SUFFIX)}")


def test_a_rolled_segment_is_sealed_and_trimmed(files):
    config = replace(SMALL, segment_bytes=2000, preallocate_bytes=2000)
    log = open_log(files, config=config, is_listed=False)
    fill(log, 7)
    path = f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}"
    assert files.open(path).size() > log.state.table.segments[0].size_bytes
    log.checkpointing.run(0)
    assert files.open(path).size() == log.state.table.segments[0].size_bytes
    assert files.exists(f"{DIRECTORY}/{offset_name(0, INDEX_SUFFIX)}")
    assert files.exists(f"{DIRECTORY}/{offset_name(log.state.table.bases[1], SNAPSHOT_SUFFIX)}")
    assert not log.state.table.unsealed


def test_appends_may_go_on_while_a_checkpoint_is_written(files, log):
    fill(log, 10)
    ticket = log.checkpointing.begin(0, is_forced=True)
    fill(log, 30)
    ticket.run()
    log.checkpointing.finish(ticket)
    assert log.replica.checkpoint.recovery_point == log.flushing.synced_end == 20
    log.flushing.sync_all()
    files.crash()
    log = open_log(files)
    assert len(read_all(log)) == 40


def test_a_checkpoint_is_void_after_a_truncation(files, log):
    fill(log, 10)
    log.flushing.sync_all()
    ticket = log.checkpointing.begin(20, is_forced=True)
    log.cutting.truncate_to(8)
    fill(log, 20)
    ticket.run()
    log.checkpointing.finish(ticket)
    assert log.replica.checkpoint.recovery_point == 0
    assert log.replica.checkpoint.high_watermark == 0
    late = log.checkpointing.begin(20, is_forced=True)
    late.run()
    log.cutting.truncate_to(9)
    log.checkpointing.finish(late)
    assert log.replica.checkpoint.recovery_point <= 8
    assert log.flushing.synced_end <= log.log_end_offset


def test_a_checkpoint_is_void_after_a_newer_one(files, log):
    """The older one knows less: its index of the segment that was active then covers a part of it."""
    fill(log, 2)
    old = log.checkpointing.begin(0, is_forced=True)
    fill(log, 10)
    log.checkpointing.run(0)
    assert log.replica.checkpoint.recovery_point == 24
    old.run()
    log.checkpointing.finish(old)
    assert log.replica.checkpoint.recovery_point == 24
    log.close(is_clean=True)
    files.crash()
    assert open_log(files, was_clean=True).recovery.was_clean


def test_a_checkpoint_that_only_keeps_the_high_watermark_leaves_the_recovery_point(files):
    log = open_log(files, config=LARGE, is_listed=False)
    fill(log, 10)
    log.flushing.sync_all()
    light = log.checkpointing.begin(5)
    log.cutting.truncate_to(20)
    log.checkpointing.run(0, is_forced=True)
    assert log.replica.checkpoint.recovery_point == 20
    light.generation = log.checkpointing._generations.current
    light.run()
    log.checkpointing.finish(light)
    assert log.replica.checkpoint.recovery_point == 20
    assert log.replica.checkpoint.high_watermark == 5


def test_a_checkpoint_does_not_take_back_the_log_start(log):
    fill(log, 10)
    log.flushing.sync_all()
    ticket = log.checkpointing.begin(20, is_forced=True)
    log.start.advance(3)
    ticket.run()
    log.checkpointing.finish(ticket)
    assert log.replica.checkpoint.log_start_offset == 3


def test_a_full_disk_still_takes_the_high_watermark(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    files.capacity = files.used_bytes()
    log.checkpointing.run(50)
    assert log.replica.checkpoint.recovery_point == 0
    assert log.replica.checkpoint.high_watermark == 50
    files.capacity = None
    log.checkpointing.run(50)
    assert log.replica.checkpoint.recovery_point == 60


def test_snapshots_that_no_truncation_needs_go(files, log):
    for _ in range(6):
        fill(log, 10)
        log.flushing.sync_all()
        log.checkpointing.run(log.log_end_offset)
    names = [n for n in files.list_directory(DIRECTORY) if n.endswith(SNAPSHOT_SUFFIX)]
    assert names == [offset_name(120, SNAPSHOT_SUFFIX)]


# The end.


def test_a_clean_close_leaves_no_preallocated_zeros(files):
    log = open_log(files, config=LARGE, is_listed=False)
    fill(log, 5)
    log.close(is_clean=True)
    size = files.open(f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}").size()
    assert size == log.size_bytes


def test_a_clean_stop_after_a_truncation_is_still_clean(files):
    model = LogModel(files=files)
    model.append([make_batch(2, value_bytes=150) for _ in range(10)])
    model.sync()
    model.log.checkpointing.run(0, is_forced=True)
    model.truncate_to(7)
    model.reopen_cleanly()


def test_a_clean_stop_on_a_full_disk_is_not_clean(files, log):
    fill(log, 30)
    files.capacity = files.used_bytes()
    log.close(is_clean=True)
    files.crash()
    log = open_log(files, was_clean=True)
    assert not log.recovery.was_clean
    assert log.log_end_offset == 60


def test_files_are_closed(files, log):
    fill(log, 30)
    opened = [segment.file for segment in log.state.table.segments]
    log.close(is_clean=False)
    assert all(file.is_closed for file in opened)


def test_a_deleted_replica_is_gone(files, log):
    fill(log, 30)
    log.delete()
    assert not files.exists(DIRECTORY)
    again = open_log(files, is_listed=False)
    assert again.log_end_offset == 0


# On a real disk.


def test_the_same_on_a_real_disk(tmp_path):
    def opened(*, is_listed):
        return PartitionLog.open(
            OsFiles(),
            f"{tmp_path}/topics/{TOPIC_ID}/0",
            config=replace(SMALL, segment_bytes=20_000, preallocate_bytes=1 << 20),
            topic_id=TOPIC_ID,
            topic_name="orders",
            partition=0,
            is_listed=is_listed,
            was_clean=False,
            now_ms=NOW_MS,
        )

    log = opened(is_listed=False)
    fill(log, 200)
    append(log, *[make_batch(value_bytes=10) for _ in range(2000)])
    log.flushing.sync_all()
    log.checkpointing.run(300)
    fill(log, 20)
    log.cutting.truncate_to(log.log_end_offset - 3)
    assert log.start.apply_retention(NOW_MS, 300) == 0
    log.start.advance(150)
    wanted = read_all(log)
    assert b"".join(wanted[:5]) in log.read_span(150, max_bytes=1 << 20)
    log.close(is_clean=False)
    log = opened(is_listed=True)
    assert log.health is ReplicaHealth.SOUND
    is_same = read_all(log) == wanted
    assert is_same
    log.delete()
