"""What readers of a log find, by offset, by time and by leader epoch."""

import threading

import pytest

from milena.model.batch.decode import check_batch
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import BODY_POSITION, HEADER_BYTES, decode_header
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptLogError, OffsetOutOfRangeError
from milena.model.types import TimestampType
from storage.log.reader import end_of_span
from storage.segments.segment import LOG_SUFFIX, offset_name
from storage.segments.table import SegmentTable
from tests.support.disk.log_model import (
    DIRECTORY,
    NOW_MS,
    make_batch,
    open_log,
    read_all,
    read_batches,
)
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import append, fill
from tests.support.disk.transactions import marker, transactional


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


# Reading.


def test_reads_stop_before_the_end_offset_and_within_max_bytes(log):
    fill(log, 10)
    size = len(read_all(log)[0])
    assert len(read_batches(log, 0, max_bytes=1 << 20, end_offset=6)) == 3
    assert len(read_batches(log, 0, max_bytes=1 << 20, end_offset=5)) == 3, (
        "a batch is never divided"
    )
    assert len(read_batches(log, 3, max_bytes=2 * size)) == 2
    assert len(read_batches(log, 0, max_bytes=0)) == 1
    assert read_batches(log, 20, max_bytes=1) == []
    assert read_batches(log, 4, max_bytes=1, end_offset=4) == []


def test_a_span_is_the_same_in_one_piece(log):
    fill(log, 30)
    offset = 0
    while offset < 60:
        batches = read_batches(log, offset, max_bytes=900)
        assert log.read_span(offset, max_bytes=900) == b"".join(batches)
        offset = decode_header(batches[-1]).next_offset
    assert log.read_span(60, max_bytes=900) == b""


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_read_goes_on_in_the_next_segments(files, log, is_cached):
    fill(log, 30)
    assert len(log.state.table.segments) > 3
    read = log.read_span_cached if is_cached else log.read_span
    everything = b"".join(read_batches(log, 0, max_bytes=1 << 20))
    size = len(everything) // 30
    assert read(0, max_bytes=1 << 20) == everything
    for first in range(30):
        for count in (1, 2, 7, 12):
            for slack in (0, size - 1):
                span = read(2 * first, max_bytes=count * size + slack)
                assert span == everything[first * size : (first + count) * size], (first, count)
    assert read(0, max_bytes=1 << 20, end_offset=41) == everything[: 21 * size]


def test_a_read_ends_before_a_damaged_segment(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    log = open_log(files, is_listed=False, was_clean=True)
    first, second = log.state.table.segments[:2]
    path = f"{DIRECTORY}/{offset_name(second.base_offset, LOG_SUFFIX)}"
    files.flip_bit(path, 4)
    assert end_of_span(log.read_span(0, max_bytes=1 << 20)) == first.next_offset
    with pytest.raises(CorruptLogError):
        log.read_span(first.next_offset, max_bytes=1 << 20)


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("byte", range(7, 15))
def test_a_damaged_offset_is_reported_as_damage(files, log, byte, is_cached):
    """A batch that claims a higher offset than wanted must not look deleted, nor a lower one merged by compaction."""
    fill(log, 30)
    read = log.read_span_cached if is_cached else log.read_span
    second = log.state.table.segments[1]
    for bit in range(8):
        for segment in (second, log.state.table.segments[0]):
            files.flip_bit(segment.path(LOG_SUFFIX), byte, bit)
        with pytest.raises(CorruptLogError):
            read(0, max_bytes=1 << 20)
        files.flip_bit(log.state.table.segments[0].path(LOG_SUFFIX), byte, bit)
        assert end_of_span(read(0, max_bytes=1 << 20)) == second.base_offset
        with pytest.raises(CorruptLogError):
            read(second.base_offset, max_bytes=1 << 20)
        files.flip_bit(second.path(LOG_SUFFIX), byte, bit)
        assert end_of_span(read(0, max_bytes=1 << 20)) == 60


def test_a_read_ends_where_retention_goes_on_before_it(log, monkeypatch):
    """It is on another thread. A segment that begins above the next offset must not be taken for the next one."""
    fill(log, 40)
    segments = log.state.table.segments
    note_use = SegmentTable.note_use

    def retain_after_the_first(table, segment):
        note_use(table, segment)
        if segment is segments[0]:
            log.start.advance(segments[3].base_offset)

    monkeypatch.setattr(SegmentTable, "note_use", retain_after_the_first)
    assert end_of_span(log.read_span(0, max_bytes=1 << 20)) == segments[0].next_offset
    assert log.log_start_offset == segments[3].base_offset


def test_a_read_of_a_batch_that_retention_has_just_removed_is_out_of_range(log, monkeypatch):
    fill(log, 40)
    later = log.state.table.segments[3]
    find = SegmentTable.find

    def find_after_retention(table, offset):
        log.start.advance(later.base_offset)
        return find(table, offset)

    monkeypatch.setattr(SegmentTable, "find", find_after_retention)
    with pytest.raises(OffsetOutOfRangeError):
        log.read_span(12, max_bytes=1 << 20)


def test_a_read_out_of_range_says_what_the_range_is(log):
    fill(log, 10)
    log.flushing.sync_all()
    log.start.advance(5)
    for offset in (4, 21):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} .* goes from 5 to 20"):
            read_batches(log, offset, max_bytes=1)
        with pytest.raises(OffsetOutOfRangeError):
            log.read_span_cached(offset, max_bytes=1)


def test_a_cached_read_never_touches_the_disk(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    files.kill()
    log = open_log(files)
    assert log.read_span_cached(0, max_bytes=900) is None, "the index is not in memory"
    span = log.read_span(0, max_bytes=900)
    assert log.read_span_cached(0, max_bytes=900) == span
    files.evict(f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}")
    assert log.read_span_cached(0, max_bytes=900) is None
    assert log.read_span(0, max_bytes=900) == span


def test_only_a_few_old_segments_stay_open(files, log):
    fill(log, 100)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    assert len(log.state.table.segments) > 12
    for _ in range(2):
        assert len(read_all(log)) == 100
        opened = [segment for segment in log.state.table.segments if segment._file is not None]
        assert len(opened) <= 5
        indexed = [segment for segment in log.state.table.segments if segment.has_index]
        assert len(indexed) <= 5


def test_a_reader_that_comes_after_retention_is_told_that_its_offset_is_gone(files, log):
    fill(log, 30)
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    table = log.state.table._table
    log.start.advance(40)
    log.state.table._table = table
    log.state.start_offset = 0
    for segment in log.state.table.segments:
        segment.let_go()
    with pytest.raises(OffsetOutOfRangeError):
        read_batches(log, 0, max_bytes=1)


def test_readers_on_other_threads_see_whole_batches_while_the_owner_appends(files):
    log = open_log(files, is_listed=False)
    fill(log, 5)
    failures = []
    is_done = threading.Event()

    def read():
        try:
            while not is_done.is_set():
                batches = read_all(log, max_bytes=500)
                offsets = [decode_header(batch).base_offset for batch in batches]
                assert offsets == list(range(0, 2 * len(offsets), 2))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(40):
        fill(log, 3)
        log.flushing.sync_all()
        log.checkpointing.run(0, is_forced=True)
    is_done.set()
    for reader in readers:
        reader.join()
    assert failures == []


# Searching by time.


def test_the_first_record_that_is_not_older_is_found(log):
    for base, deltas in ((100, [0, 50, 20]), (90, [0, 5, 10]), (200, [0, 1, 2])):
        append(log, make_batch(3, timestamp_ms=base, timestamp_deltas=deltas))
    assert log.offset_for_timestamp(0) == (0, 100)
    assert log.offset_for_timestamp(101) == (1, 150)
    assert log.offset_for_timestamp(151) == (6, 200)
    assert log.offset_for_timestamp(202) == (8, 202)
    assert log.offset_for_timestamp(203) is None
    log.start.advance(2)
    assert log.offset_for_timestamp(101) == (2, 120)


def test_a_search_by_time_passes_over_no_damaged_batch(files, log):
    """A batch whose damaged times look too early would be skipped by its reader."""
    for number in range(20):
        append(log, make_batch(2, value_bytes=150, timestamp_ms=NOW_MS + number))
    segment = log.state.table.segments[1]
    first = decode_header(log.read_span(segment.base_offset, max_bytes=1))
    wanted = (first.base_offset, first.base_timestamp_ms)
    assert log.offset_for_timestamp(first.base_timestamp_ms) == wanted
    for byte in range(BODY_POSITION, HEADER_BYTES):
        for bit in range(8):
            files.flip_bit(segment.path(LOG_SUFFIX), byte, bit)
            with pytest.raises(CorruptLogError):
                log.offset_for_timestamp(first.base_timestamp_ms)
            files.flip_bit(segment.path(LOG_SUFFIX), byte, bit)


@pytest.mark.parametrize("byte", range(5))
def test_batches_before_a_damaged_one_are_read(files, log, byte):
    for _ in range(20):
        append(log, make_batch(2, value_bytes=150))
    log.close(is_clean=True)
    log = open_log(files)
    segment = log.state.table.active
    first = log.read_span(segment.base_offset, max_bytes=1)
    files.flip_bit(segment.path(LOG_SUFFIX), len(first) + byte)
    span = log.read_span(segment.base_offset, max_bytes=1 << 20)
    assert span.startswith(first)
    next_offset = decode_header(first).next_offset
    with pytest.raises(CorruptLogError):
        check_batch(log.read_span(next_offset, max_bytes=1 << 20))


def test_records_under_append_time_are_found_by_it(log):
    columns = RecordColumns(None, None, None, [b"v"] * 2, None)
    batch = encode_batch(columns, base_timestamp_ms=5, timestamp_type=TimestampType.APPEND)
    append(log, batch, now_ms=1000)
    append(log, batch, now_ms=2000)
    assert log.offset_for_timestamp(5) == (0, 1000)
    assert log.offset_for_timestamp(1001) == (2, 2000)
    assert log.offset_for_timestamp(2001) is None


def test_control_batches_are_not_found(log):
    columns = RecordColumns(None, None, None, [b"v"], None)
    append(log, encode_batch(columns, base_timestamp_ms=500, is_control=True))
    append(log, make_batch(timestamp_ms=400))
    assert log.offset_for_timestamp(300) == (1, 400)
    assert log.offset_for_timestamp(450) is None


def test_records_of_aborted_transactions_are_found_by_who_may_see_them_alone(log):
    append(log, transactional(1, 0, (None, b"v"), timestamp_ms=900))
    append(log, transactional(2, 0, (None, b"v"), timestamp_ms=800))
    append(log, marker(1, 0, 0))
    append(log, make_batch(timestamp_ms=100))
    assert log.offset_for_timestamp(500) == (1, 800), "the second may be committed yet"
    append(log, marker(2, 0, 1))
    assert log.offset_for_timestamp(500) is None
    assert log.offset_for_timestamp(50) == (3, 100)
    assert log.offset_for_timestamp(500, is_uncommitted=True) == (0, 900)
    append(log, make_batch(timestamp_ms=600))
    assert log.offset_for_timestamp(500) == (5, 600)


@pytest.mark.parametrize("timestamp_ms", [0, -1, -2, -(1 << 63), (1 << 63) - 1, 1 << 64])
def test_an_empty_log_has_no_records_at_any_time(log, timestamp_ms):
    assert log.offset_for_timestamp(timestamp_ms) is None


@pytest.mark.parametrize("timestamp_ms", [-1, -2, -(1 << 63)])
def test_an_expired_log_has_no_records_at_any_time(log, timestamp_ms):
    fill(log, 10)
    log.flushing.sync_all()
    log.start.advance(log.log_end_offset)
    assert log.offset_for_timestamp(timestamp_ms) is None


@pytest.mark.parametrize("timestamp_ms", [-1, -2, -(1 << 63)])
def test_a_time_before_1970_is_before_every_record(log, timestamp_ms):
    fill(log, 10)
    assert log.offset_for_timestamp(timestamp_ms)[0] == 0


# Epochs.


def test_epochs_end_where_the_next_begins(log):
    fill(log, 3, leader_epoch=2)
    fill(log, 3, leader_epoch=5)
    assert log.state.epoch_end(1) == (-1, -1)
    assert log.state.epoch_end(2) == log.state.epoch_end(4) == (2, 6)
    assert log.state.epoch_end(5) == log.state.epoch_end(9) == (5, 12)
    assert [log.state.epochs.epoch_at(offset) for offset in (0, 5, 6, 11)] == [2, 2, 5, 5]
    log.cutting.truncate_to(6)
    assert log.state.epoch_end(9) == (2, 6)


def test_an_emptied_log_remembers_its_last_epoch_over_a_crash(files, log):
    fill(log, 3, leader_epoch=2)
    log.flushing.sync_all()
    log.start.advance(6)
    assert log.state.epoch_end(9) == (2, 6)
    files.crash()
    log = open_log(files)
    assert log.state.epochs.last_epoch == 2
    append(log, make_batch(), leader_epoch=3)
    assert log.state.epoch_end(9) == (3, 7)


# Searching for the greatest time.


def test_the_first_record_of_the_greatest_time_is_found(log):
    assert log.greatest_timestamp() is None
    for base, deltas in ((100, [0, 50, 20]), (90, [0, 60, 10])):
        append(log, make_batch(3, timestamp_ms=base, timestamp_deltas=deltas))
    assert log.greatest_timestamp() == (1, 150)
    log.start.advance(2)
    assert log.greatest_timestamp() == (4, 150)
    log.start.advance(5)
    assert log.greatest_timestamp() == (5, 100)


def test_a_control_batch_is_never_the_greatest(log):
    columns = RecordColumns(None, None, None, [b"v"], None)
    append(log, make_batch(2, timestamp_ms=0, timestamp_deltas=[400, 7]))
    append(log, encode_batch(columns, base_timestamp_ms=500, is_control=True))
    assert log.greatest_timestamp() == (0, 400)
