"""What a partition's log promises to its owner. Crashes are in ``test_recovery``."""

import threading
from dataclasses import replace
from random import Random

import pytest

from storage.batch import (
    IdempotencyExtension,
    ProducerStamp,
    RecordColumns,
    decode_header,
    encode_batch,
)
from storage.errors import (
    CorruptBatchError,
    CorruptLogError,
    DiskFailedError,
    DiskFullError,
    InvalidProducerError,
    OffsetOutOfRangeError,
    RequestTooLargeError,
    StaleLeaderEpochError,
    StaleProducerEpochError,
)
from storage.os_files import OsFiles
from storage.partition_log import LogConfig, PartitionLog
from storage.producer_state import ACCEPT, PRODUCER_EXPIRY_MS, Duplicate
from storage.replica_meta import META_NAME
from storage.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name
from storage.types import ReplicaHealth, TimestampType
from tests.support.log_model import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    LogModel,
    make_batch,
    open_log,
    read_all,
    stamped,
)
from tests.support.memory_files import MemoryFiles, SimulatedCrashError

LARGE = LogConfig(segment_bytes=1 << 20, index_interval_bytes=300, preallocate_bytes=1 << 16)


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


def append(log, *batches, leader_epoch=0, now_ms=NOW_MS):
    return log.append_as_leader(batches, leader_epoch=leader_epoch, now_ms=now_ms)


def fill(log, count=20, **options):
    for _ in range(count):
        append(log, make_batch(2, value_bytes=150), **options)


def bases(files):
    names = [name for name in files.list_directory(DIRECTORY) if name.endswith(LOG_SUFFIX)]
    return [int(name.removesuffix(LOG_SUFFIX)) for name in names]


def producer_batch(sequence, *, records=2, producer_id=7, epoch=0):
    return make_batch(records, producer=ProducerStamp(producer_id, epoch, sequence))


def key(number):
    return IdempotencyExtension(bytes([number]) * 16, b"body-abc", 6)


# Appending.


def test_a_leader_assigns_dense_offsets_and_stamps_its_epoch_and_time(log):
    assert append(log, make_batch(3), make_batch(1), leader_epoch=4, now_ms=NOW_MS + 5) == (0, 3)
    assert append(log, make_batch(2), leader_epoch=4) == (4,)
    headers = [decode_header(batch) for batch in read_all(log)]
    assert [h.base_offset for h in headers] == [0, 3, 4]
    assert {h.leader_epoch for h in headers} == {4}
    assert [h.append_time_ms for h in headers] == [NOW_MS + 5, NOW_MS + 5, NOW_MS]
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (0, 6, 4)


def test_an_append_of_nothing_changes_nothing(log):
    assert append(log) == ()
    assert log.append_as_follower(b"") == 0
    assert log.log_end_offset == 0
    assert not log.needs_sync(NOW_MS)


def test_batches_of_one_append_go_out_in_one_write(files):
    log = open_log(files, config=LARGE, is_listed=False)
    append(log, make_batch())
    before = files.operations["write"]
    append(log, *[make_batch() for _ in range(50)])
    assert files.operations["write"] == before + 1


def test_headers_that_the_caller_knows_are_not_decoded_again(log, monkeypatch):
    batches = [make_batch(3), make_batch(2)]
    headers = [decode_header(batch) for batch in batches]
    monkeypatch.setattr("storage.partition_log.decode_header", None)
    assert log.append_as_leader(batches, leader_epoch=0, now_ms=NOW_MS, headers=headers) == (0, 3)


def test_a_segment_is_rolled_before_it_grows_too_large(files, log):
    fill(log, 40)
    assert log.segment_count == len(bases(files)) > 4
    assert all(segment.size_bytes <= SMALL.segment_bytes for segment in log._table.segments)
    append(log, make_batch(value_bytes=10_000))
    append(log, make_batch())
    assert log._table.segments[-2].size_bytes > 10_000, "a single batch may be larger"
    assert log.size_bytes == sum(segment.size_bytes for segment in log._table.segments)


def test_one_append_may_span_segments(files, log):
    offsets = append(log, *[make_batch(2, value_bytes=150) for _ in range(20)])
    assert offsets == tuple(range(0, 40, 2))
    assert log.segment_count > 2
    assert [decode_header(batch).base_offset for batch in read_all(log)] == list(range(0, 40, 2))


def test_preallocation_stays_within_the_segment(files):
    config = replace(SMALL, preallocate_bytes=4 << 20)
    log = open_log(files, config=config, is_listed=False)
    fill(log, 30)
    for base in bases(files):
        size = files.open(f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}").size()
        assert size <= SMALL.segment_bytes


def test_a_deposed_leader_cannot_append(log):
    append(log, make_batch(), leader_epoch=3)
    with pytest.raises(StaleLeaderEpochError, match="leader epoch 2 is older than epoch 3"):
        append(log, make_batch(), leader_epoch=2)
    assert log.log_end_offset == 1


def test_a_batch_that_is_too_large_is_refused_with_all_that_came_along(files):
    log = open_log(files, config=replace(SMALL, max_message_bytes=500), is_listed=False)
    with pytest.raises(RequestTooLargeError, match=r"above max\.message\.bytes=500; send fewer"):
        append(log, make_batch(), make_batch(value_bytes=1000))
    assert log.log_end_offset == 0


def test_a_full_disk_refuses_the_whole_append_and_leaves_no_trace(files):
    """At any number of bytes left, in the first segment or in the third."""
    for room in range(0, 12_000, 370):
        files = MemoryFiles()
        model = LogModel(files=files)
        model.append([make_batch(2, value_bytes=150, producer=ProducerStamp(1, 0, 0))])
        model.sync()
        files.capacity = files.used_bytes() + room
        group = [make_batch(2, value_bytes=150, key=key(n)) for n in range(24)]
        try:
            model.append(group)
        except DiskFullError:
            model.check()
            assert model.log.segment_count == 1
            assert model.log.idempotency_lookup(bytes([3]) * 16, NOW_MS) is None
            files.crash(keep="all")
            model.log = open_log(files, now_ms=model.now_ms)
            assert model.log.health is ReplicaHealth.SOUND, "nothing of it comes back"
            model.check()
            files.capacity = None
            model.append(group)
            model.check()
        else:
            assert room > 9000


def test_a_nearly_full_disk_still_takes_small_writes(files, log):
    fill(log, 1)
    files.capacity = files.used_bytes() + 150
    append(log, make_batch(value_bytes=10))
    with pytest.raises(DiskFullError):
        fill(log, 20)


# Following.


def leaders_batches(count, *, base_offset=0, leader_epoch=0, records=2):
    return [
        stamped(
            make_batch(records),
            base_offset=base_offset + records * number,
            leader_epoch=leader_epoch,
            append_time_ms=NOW_MS,
        )
        for number in range(count)
    ]


def test_a_follower_stores_the_same_bytes(log):
    batches = leaders_batches(40)
    assert log.append_as_follower(b"".join(batches[:3])) == 6
    assert log.append_as_follower(memoryview(b"".join(batches[3:]))) == 80
    assert read_all(log) == batches


def test_a_follower_refuses_damaged_batches(log):
    data = bytearray(b"".join(leaders_batches(3)))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(bytes(data))
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(b"".join(leaders_batches(3))[:-1])
    assert log.log_end_offset == 0


@pytest.mark.parametrize("base_offset", [1, 3, 8])
def test_a_follower_refuses_batches_that_do_not_follow(log, base_offset):
    log.append_as_follower(b"".join(leaders_batches(3)))
    with pytest.raises(CorruptBatchError, match=rf"offset {base_offset} where 6 follows"):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=base_offset)))
    gap = leaders_batches(1, base_offset=6) + leaders_batches(1, base_offset=10)
    with pytest.raises(CorruptBatchError, match="offset 10 where 8 follows"):
        log.append_as_follower(b"".join(gap))
    assert log.log_end_offset == 6


def test_a_follower_refuses_an_epoch_that_falls(log):
    log.append_as_follower(b"".join(leaders_batches(1, leader_epoch=5)))
    with pytest.raises(CorruptBatchError, match="leader epoch 4 after 5"):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=2, leader_epoch=4)))


def test_a_full_disk_leaves_a_follower_where_it_was(files, log):
    log.append_as_follower(b"".join(leaders_batches(3)))
    files.capacity = files.used_bytes() + 2000
    with pytest.raises(DiskFullError):
        log.append_as_follower(b"".join(leaders_batches(40, base_offset=6)))
    assert log.log_end_offset == 6
    files.capacity = None
    assert log.append_as_follower(b"".join(leaders_batches(40, base_offset=6))) == 86


# A log start in the middle of a batch.


def test_a_follower_may_begin_with_the_batch_in_whose_middle_the_leaders_log_starts(files, log):
    fill(log, 3)
    log.restart_at(101)
    batches = leaders_batches(5, base_offset=100)
    assert log.append_as_follower(b"".join(batches)) == 110
    assert (log.log_start_offset, log.log_end_offset) == (101, 110)
    assert read_all(log) == batches
    assert bases(files) == [100]
    log.sync()
    files.crash()
    again = open_log(files)
    assert again.health is ReplicaHealth.SOUND
    assert (again.log_start_offset, again.log_end_offset) == (101, 110)
    assert read_all(again) == batches


@pytest.mark.parametrize(
    ("keep", "seed"), [("none", 0), ("all", 0), *(("some", seed) for seed in range(12))]
)
def test_a_power_cut_while_it_begins_there(keep, seed):
    number = 0
    is_cut_short = True
    while is_cut_short:
        files = MemoryFiles()
        leader = open_log(files, is_listed=False, directory="/leader/0")
        append(leader, producer_batch(0))
        log = open_log(files, is_listed=False)
        log.restart_at(101, leader.producer_snapshot())
        files.crash_before(number)
        try:
            log.append_as_follower(b"".join(leaders_batches(5, base_offset=100)))
            log.sync()
            log._checkpoint(0, is_forced=True)
            is_cut_short = False
        except SimulatedCrashError:
            is_cut_short = True
        files.crash(Random(seed), keep)
        log = open_log(files)
        is_torn = keep == "some" and log.recovery.cut_bytes > 0
        assert is_torn or log.health is ReplicaHealth.SOUND, log.recovery
        assert log.log_start_offset == 101
        assert log._writers.producers.get(7) is not None
        batches = leaders_batches(5, base_offset=100)
        done = max(log.log_end_offset - 100, 0) // 2
        assert log.append_as_follower(b"".join(batches[done:])) == 110
        is_same = read_all(log) == batches
        assert is_same
        number += 1
    assert number > 5


def test_a_full_disk_leaves_it_empty(files, log):
    log.restart_at(101)
    files.capacity = files.used_bytes() + 100
    with pytest.raises(DiskFullError):
        log.append_as_follower(b"".join(leaders_batches(5, base_offset=100)))
    assert (log.log_start_offset, log.log_end_offset) == (101, 101)
    assert bases(files) == [101]
    files.capacity = None
    assert log.append_as_follower(b"".join(leaders_batches(5, base_offset=100))) == 110


def test_only_an_empty_log_may_begin_below_its_start(log):
    log.restart_at(101)
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=99)))
    append(log, make_batch())
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=101)))


def test_cutting_the_batch_that_holds_the_log_start_empties_the_log(log):
    append(log, producer_batch(0, records=4), producer_batch(4, records=4))
    log.advance_log_start(6)
    log.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert append(log, producer_batch(4, records=3)) == (6,)


# Syncing.


def test_a_strict_log_stores_what_is_synced(log):
    append(log, make_batch(3))
    assert (log.log_end_offset, log.synced_end_offset, log.stored_end_offset) == (3, 0, 0)
    assert log.needs_sync(NOW_MS)
    ticket = log.begin_sync()
    append(log, make_batch(2))
    ticket.run()
    assert log.finish_sync(ticket) == 3
    assert (log.log_end_offset, log.synced_end_offset, log.stored_end_offset) == (5, 3, 3)
    assert log.needs_sync(NOW_MS)
    assert log.sync() == log.stored_end_offset == 5
    assert not log.needs_sync(NOW_MS)


def test_one_sync_is_under_way_at_a_time(log):
    assert log.begin_sync() is None
    append(log, make_batch())
    ticket = log.begin_sync()
    append(log, make_batch())
    assert log.begin_sync() is None
    ticket.run()
    log.finish_sync(ticket)
    assert log.begin_sync() is not None


def test_a_sync_covers_segments_that_were_rolled(files, log):
    fill(log, 30)
    ticket = log.begin_sync()
    ticket.run()
    assert log.finish_sync(ticket) == 60
    files.crash()
    assert open_log(files).log_end_offset == 60


def test_a_relaxed_log_stores_what_is_written(files):
    config = replace(SMALL, flush_messages=5, flush_ms=1000)
    log = open_log(files, config=config, is_listed=False)
    append(log, make_batch(2))
    assert log.stored_end_offset == 2
    assert log.synced_end_offset == 0


def test_a_relaxed_log_is_synced_by_count(files):
    log = open_log(files, config=replace(SMALL, flush_messages=5), is_listed=False)
    append(log, make_batch(4))
    assert not log.needs_sync(NOW_MS + 1_000_000_000)
    append(log, make_batch(1))
    assert log.needs_sync(NOW_MS)
    log.begin_sync()
    append(log, make_batch(4))
    assert not log.needs_sync(NOW_MS)


def test_a_relaxed_log_is_synced_by_time(files):
    config = replace(SMALL, flush_messages=1000, flush_ms=500)
    log = open_log(files, config=config, is_listed=False)
    assert not log.needs_sync(NOW_MS)
    append(log, make_batch())
    assert not log.needs_sync(NOW_MS)
    assert not log.needs_sync(NOW_MS + 499)
    assert log.needs_sync(NOW_MS + 500)
    log.sync()
    append(log, make_batch())
    assert not log.needs_sync(NOW_MS + 600)
    assert log.needs_sync(NOW_MS + 1100)


def test_the_name_of_a_segment_that_retention_rolled_is_synced_with_its_first_batch(files, log):
    fill(log, 5)
    ticket = log.begin_checkpoint(10, is_forced=True)
    log.advance_log_start(10)
    ticket.run()
    log.finish_checkpoint(ticket)
    log.sync()
    ticket = log.begin_checkpoint(10, is_forced=True)
    fill(log, 1)
    log.sync()
    log.advance_log_start(12)
    assert bases(files) == [12]
    log.checkpoint(12)
    fill(log, 1)
    late = log.begin_sync()
    late.run()
    log.finish_sync(late)
    files.crash()
    log = open_log(files)
    assert (log.log_start_offset, log.log_end_offset) == (12, 14)


def test_a_failed_sync_is_passed_on(files, log):
    append(log, make_batch())
    files.fail_next_sync(LOG_SUFFIX)
    ticket = log.begin_sync()
    with pytest.raises(DiskFailedError):
        ticket.run()
    assert log.synced_end_offset == 0


def test_a_truncation_lowers_what_a_sync_under_way_will_mean(files, log):
    fill(log, 10)
    ticket = log.begin_sync()
    log.truncate_to(8)
    append(log, make_batch(10))
    ticket.run()
    assert log.finish_sync(ticket) == 8
    log.restart_at(50)
    assert log.synced_end_offset == 50


def test_a_sync_under_way_survives_that_its_segments_go(files, log):
    fill(log, 30)
    ticket = log.begin_sync()
    log.truncate_to(5)
    ticket.run()
    log.finish_sync(ticket)
    fill(log, 30)
    ticket = log.begin_sync()
    log.restart_at(100)
    ticket.run()
    assert log.finish_sync(ticket) == 100
    log.finish_sync(ticket)


def test_a_change_of_settings_takes_effect_at_once(log):
    append(log, make_batch())
    assert log.stored_end_offset == 0
    log.config = replace(log.config, flush_messages=100)
    assert log.stored_end_offset == 1
    assert log.config.flush_messages == 100


# Reading.


def test_reads_stop_before_the_end_offset_and_within_max_bytes(log):
    fill(log, 10)
    size = len(read_all(log)[0])
    assert len(log.read(0, max_bytes=1 << 20, end_offset=6)) == 3
    assert len(log.read(0, max_bytes=1 << 20, end_offset=5)) == 3, "a batch is never divided"
    assert len(log.read(3, max_bytes=2 * size)) == 2
    assert len(log.read(0, max_bytes=0)) == 1
    assert log.read(20, max_bytes=1) == []
    assert log.read(4, max_bytes=1, end_offset=4) == []


def test_a_span_is_the_same_in_one_piece(log):
    fill(log, 30)
    offset = 0
    while offset < 60:
        batches = log.read(offset, max_bytes=900)
        assert log.read_span(offset, max_bytes=900) == b"".join(batches)
        offset = decode_header(batches[-1]).next_offset
    assert log.read_span(60, max_bytes=900) == b""


def test_a_read_out_of_range_says_what_the_range_is(log):
    fill(log, 10)
    log.sync()
    log.advance_log_start(5)
    for offset in (4, 21):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} .* goes from 5 to 20"):
            log.read(offset, max_bytes=1)
        with pytest.raises(OffsetOutOfRangeError):
            log.read_cached(offset, max_bytes=1)


def test_a_cached_read_never_touches_the_disk(files, log):
    fill(log, 30)
    log.sync()
    log._checkpoint(0, is_forced=True)
    files.kill()
    log = open_log(files)
    assert log.read_cached(0, max_bytes=900) is None, "the index is not in memory"
    batches = log.read(0, max_bytes=900)
    assert log.read_cached(0, max_bytes=900) == batches
    files.evict(f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}")
    assert log.read_cached(0, max_bytes=900) is None
    assert log.read_span_cached(0, max_bytes=900) is None
    assert log.read(0, max_bytes=900) == batches


def test_only_a_few_old_segments_stay_open(files, log):
    fill(log, 100)
    log.sync()
    log._checkpoint(0, is_forced=True)
    assert log.segment_count > 12
    for _ in range(2):
        assert len(read_all(log)) == 100
        opened = [segment for segment in log._table.segments if segment._file is not None]
        assert len(opened) <= 5
        indexed = [segment for segment in log._table.segments if segment.has_index]
        assert len(indexed) <= 5


def test_a_reader_that_comes_after_retention_is_told_that_its_offset_is_gone(files, log):
    fill(log, 30)
    log.sync()
    log._checkpoint(0, is_forced=True)
    table = log._table._table
    log.advance_log_start(40)
    log._table._table = table
    log._log_start_offset = 0
    for segment in log._table.segments:
        segment.let_go()
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, max_bytes=1)


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
        log.sync()
        log._checkpoint(0, is_forced=True)
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
    log.advance_log_start(2)
    assert log.offset_for_timestamp(101) == (2, 120)


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


def test_an_empty_log_has_no_records(log):
    assert log.offset_for_timestamp(0) is None


# Epochs.


def test_epochs_end_where_the_next_begins(log):
    fill(log, 3, leader_epoch=2)
    fill(log, 3, leader_epoch=5)
    assert log.epoch_end(1) == (-1, -1)
    assert log.epoch_end(2) == log.epoch_end(4) == (2, 6)
    assert log.epoch_end(5) == log.epoch_end(9) == (5, 12)
    assert [log.epoch_at(offset) for offset in (0, 5, 6, 11)] == [2, 2, 5, 5]
    log.truncate_to(6)
    assert log.epoch_end(9) == (2, 6)


def test_an_emptied_log_remembers_its_last_epoch_over_a_crash(files, log):
    fill(log, 3, leader_epoch=2)
    log.sync()
    log.advance_log_start(6)
    assert log.epoch_end(9) == (2, 6)
    files.crash()
    log = open_log(files)
    assert log.last_epoch == 2
    append(log, make_batch(), leader_epoch=3)
    assert log.epoch_end(9) == (3, 7)


# Writers.


def test_duplicates_are_seen_before_they_are_synced(log):
    header = decode_header(producer_batch(0))
    assert log.producer_check(header, NOW_MS) is ACCEPT
    append(log, make_batch(3), producer_batch(0))
    assert log.producer_check(header, NOW_MS) == Duplicate(3, 4)
    with pytest.raises(InvalidProducerError):
        log.producer_check(decode_header(producer_batch(3)), NOW_MS)
    append(log, producer_batch(0, epoch=1))
    with pytest.raises(StaleProducerEpochError):
        log.producer_check(decode_header(producer_batch(2)), NOW_MS)


def test_a_queue_judges_batches_that_will_be_appended_together(log):
    append(log, producer_batch(0))
    queue = log.producer_queue(NOW_MS)
    batches = [producer_batch(2), producer_batch(4)]
    offsets = []
    for batch in batches:
        header = decode_header(batch)
        assert queue.check(header) is ACCEPT
        offsets.append(queue.add(header))
    assert queue.check(decode_header(producer_batch(2))) == Duplicate(2, 3)
    assert append(log, *batches) == tuple(offsets)


def test_the_last_sequence_of_a_producer_is_known(log):
    assert log.last_sequence(7) is None
    append(log, producer_batch(0, records=3))
    assert log.last_sequence(7) == 2


def test_a_key_is_looked_up_before_it_is_synced(log):
    append(log, make_batch(3), make_batch(2, key=key(1)))
    entry = log.idempotency_lookup(key(1).key_hash, NOW_MS)
    assert (entry.base_offset, entry.last_offset) == (3, 4)
    assert (entry.body_hash, entry.partition_count) == (b"body-abc", 6)
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None
    assert log.idempotency_lookup(key(1).key_hash, NOW_MS + 25 * 3_600_000) is None


def test_truncation_takes_back_what_was_known_of_writers(log):
    append(log, producer_batch(0), make_batch(key=key(1)))
    append(log, producer_batch(2), make_batch(key=key(2)), producer_batch(0, epoch=1))
    log.truncate_to(3)
    assert log.producer_check(decode_header(producer_batch(2)), NOW_MS) is ACCEPT
    assert log.idempotency_lookup(key(1).key_hash, NOW_MS) is not None
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None


def test_cutting_the_batch_that_holds_the_log_start_keeps_what_is_known_below(log):
    append(log, producer_batch(0, records=1), now_ms=NOW_MS)
    append(log, producer_batch(1, records=2), now_ms=NOW_MS + 5)
    log.advance_log_start(2)
    log.truncate_to(2)
    assert log._writers.producers.get(7).append_time_ms == NOW_MS
    assert log.last_sequence(7) == 0


def test_truncation_brings_back_what_the_cut_batches_had_pushed_out(log):
    """Five batches are remembered; forgetting the newest must not leave fewer than there were before them."""
    for sequence in range(0, 20, 2):
        append(log, producer_batch(sequence))
    log.truncate_to(12)
    for sequence in (2, 4, 6, 8, 10):
        verdict = log.producer_check(decode_header(producer_batch(sequence)), NOW_MS)
        assert verdict == Duplicate(sequence, sequence + 1)


def test_writers_outlive_the_segments_they_wrote(files):
    model = LogModel(files=files)
    model.append([producer_batch(0)])
    model.append([make_batch(key=key(1))])
    for _ in range(40):
        model.append([make_batch(2, value_bytes=150)])
    model.sync()
    model.advance_log_start(model.expected.log_end - 5)
    assert bases(files)[0] > 50
    model.check()
    model.kill()
    model.truncate_to(model.expected.log_end - 1)
    model.check()
    assert model.log.producer_check(decode_header(producer_batch(0)), NOW_MS) == Duplicate(0, 1)


def test_producers_expire_by_time(files, log):
    append(log, producer_batch(0))
    late = NOW_MS + PRODUCER_EXPIRY_MS + 1
    assert log.producer_check(decode_header(producer_batch(90)), late) is ACCEPT
    log.maybe_apply_retention(NOW_MS + 2 * PRODUCER_EXPIRY_MS + 1, 0)
    with pytest.raises(InvalidProducerError, match="knows nothing"):
        log.producer_check(decode_header(producer_batch(90)), late)


def test_a_follower_that_starts_above_takes_over_the_leaders_writers(files):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    for sequence in range(0, 20, 2):
        append(leader, producer_batch(sequence), make_batch(key=key(sequence)))
    follower = open_log(files, is_listed=False)
    follower.restart_at(15, leader.producer_snapshot())
    for batch in read_all(leader):
        if decode_header(batch).next_offset > 15:
            follower.append_as_follower(batch)
    follower.sync()
    assert follower.log_end_offset == leader.log_end_offset
    assert follower._writers.producers.freeze() == leader._writers.producers.freeze()
    assert follower._writers.idempotency.freeze() == leader._writers.idempotency.freeze()
    files.crash()
    follower = open_log(files)
    assert follower._writers.idempotency.lookup(key(0).key_hash, NOW_MS) is not None
    header = decode_header(producer_batch(18))
    assert follower.producer_check(header, NOW_MS) == Duplicate(27, 28)


def test_a_follower_that_becomes_leader_before_it_has_everything_forgets_the_rest(files):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    for sequence in range(0, 20, 2):
        append(leader, producer_batch(sequence))
    follower = open_log(files, is_listed=False)
    follower.restart_at(10, leader.producer_snapshot())
    follower.append_as_follower(b"".join(leader.read(10, max_bytes=1 << 20, end_offset=14)))
    assert follower.log_end_offset == 14
    with pytest.raises(InvalidProducerError, match="expected sequence 14, got 18"):
        follower.producer_check(decode_header(producer_batch(18)), NOW_MS)


def test_a_snapshot_may_be_installed_into_a_log_that_has_batches(files, log):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    append(leader, producer_batch(0), make_batch(4, value_bytes=150))
    append(log, make_batch(6))
    log.sync()
    log.install_producer_snapshot(leader.producer_snapshot())
    files.crash()
    log = open_log(files)
    assert log.producer_check(decode_header(producer_batch(0)), NOW_MS) == Duplicate(0, 1)


def test_a_snapshot_that_does_not_fit_on_the_disk_changes_nothing(files, log):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    append(leader, producer_batch(0))
    append(log, make_batch(6))
    log.sync()
    log._checkpoint(0, is_forced=True)
    files.capacity = files.used_bytes()
    for install in (log.install_producer_snapshot, lambda content: log.restart_at(50, content)):
        with pytest.raises(DiskFullError):
            install(leader.producer_snapshot())
        assert log.last_sequence(7) is None
        assert log.log_end_offset == 6
        assert len(read_all(log)) == 1


def test_a_damaged_snapshot_changes_nothing(log):
    append(log, producer_batch(0))
    content = bytearray(log.producer_snapshot())
    content[-1] ^= 1
    for install in (log.install_producer_snapshot, lambda content: log.restart_at(50, content)):
        with pytest.raises(CorruptLogError):
            install(bytes(content))
    assert log.log_end_offset == 2
    assert log.producer_check(decode_header(producer_batch(0)), NOW_MS) == Duplicate(0, 1)


# Cutting.


def test_truncation_is_durable_when_it_returns(files, log):
    fill(log, 30)
    log.sync()
    log.truncate_to(21)
    assert log.log_end_offset == log.synced_end_offset == 20
    assert bases(files)[-1] < 20
    files.crash()
    log = open_log(files)
    assert log.log_end_offset == 20
    assert log.health is ReplicaHealth.SOUND


def test_truncation_above_the_end_does_nothing(files, log):
    fill(log, 3)
    before = files.operation_count
    log.truncate_to(6)
    log.truncate_to(100)
    assert files.operation_count == before
    assert log.log_end_offset == 6


def test_truncation_of_the_unsynced_tail_costs_one_sync(files):
    """After a change of leader many followers cut their tails at the same time."""
    log = open_log(files, config=LARGE, is_listed=False)
    fill(log, 10)
    log.sync()
    fill(log, 3)
    before = files.operations.copy()
    log.truncate_to(20)
    assert files.operations - before == {"truncate": 1, "sync": 1}


def test_truncation_across_segments_is_announced_before_anything_goes(files, log):
    """Whatever of it survives a power cut, recovery knows where the log must end."""
    fill(log, 30)
    log.sync()
    done = []
    files.on_operation = lambda kind, path: done.append((kind, path))
    log.truncate_to(21)
    meta = f"{DIRECTORY}/{META_NAME}"
    assert done[:2] == [("write", meta), ("sync", meta)]
    assert done[-2:] == [("write", meta), ("sync", meta)]
    assert ("sync_directory", DIRECTORY) in done


def test_a_log_that_was_cut_to_nothing_forgets_its_epochs_over_a_crash(files, log):
    fill(log, 3, leader_epoch=4)
    log.sync()
    log._checkpoint(0, is_forced=True)
    log.truncate_to(0)
    assert log.last_epoch == -1
    files.crash()
    assert open_log(files).last_epoch == -1


def test_truncation_works_on_a_full_disk(files, log):
    fill(log, 10, leader_epoch=1)
    fill(log, 20, leader_epoch=2)
    log.sync()
    log._checkpoint(0, is_forced=True)
    files.capacity = files.used_bytes()
    log.truncate_to(13)
    files.capacity = files.used_bytes()
    assert log.last_epoch == 1
    files.crash()
    log = open_log(files)
    assert log.log_end_offset == 12
    assert log.epoch_end(9) == (1, 12)


def test_truncation_below_the_log_start_starts_again_there(log):
    fill(log, 10)
    log.sync()
    log.advance_log_start(10)
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)


def test_a_restart_drops_everything(files, log):
    fill(log, 30, leader_epoch=3)
    log.restart_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.synced_end_offset) == (1000, 1000, 1000)
    assert (log.last_epoch, log.high_watermark_checkpoint) == (-1, 1000)
    assert bases(files) == [1000]
    assert append(log, make_batch(), leader_epoch=1) == (1000,)


def test_the_log_start_moves_within_a_segment(files, log):
    fill(log, 4)
    log.sync()
    log.advance_log_start(3)
    assert log.log_start_offset == 3
    assert bases(files) == [0]
    assert decode_header(log.read(3, max_bytes=1)[0]).base_offset == 2
    log.advance_log_start(2)
    assert log.log_start_offset == 3
    with pytest.raises(OffsetOutOfRangeError):
        log.advance_log_start(9)


def test_segments_below_the_log_start_go(files, log):
    fill(log, 30)
    log.sync()
    log.advance_log_start(25)
    assert bases(files)[0] <= 25 < bases(files)[1]
    log.advance_log_start(60)
    assert bases(files) == [60]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (60, 60, 0)
    files.crash()
    log = open_log(files)
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    assert log.health is ReplicaHealth.SOUND


def test_the_log_start_moves_on_a_full_disk_too(files, log):
    """Retention is how a full disk recovers."""
    fill(log, 30)
    log.sync()
    log._checkpoint(0, is_forced=True)
    fill(log, 10)
    log.sync()
    files.capacity = files.used_bytes()
    used = files.used_bytes()
    log.advance_log_start(80)
    assert log.log_start_offset == 80
    assert files.used_bytes() < used - 5000
    files.capacity = None
    log.checkpoint(80)
    log.maybe_apply_retention(NOW_MS, 80)
    assert bases(files)[0] > 60


# Retention.


def test_old_segments_go_below_the_high_watermark(files):
    log = open_log(files, config=replace(SMALL, retention_ms=1000), is_listed=False)
    for number in range(40):
        append(log, make_batch(2, value_bytes=150, timestamp_ms=NOW_MS + 100 * number))
    log.sync()
    now_ms = NOW_MS + 3000
    assert log.maybe_apply_retention(now_ms, 0) == 0
    start = log.maybe_apply_retention(now_ms, 80)
    assert 30 < start <= 42
    assert bases(files)[0] == start
    assert log.maybe_apply_retention(now_ms, 80) == start
    assert log.maybe_apply_retention(NOW_MS + 100_000, 80) == 80
    assert bases(files) == [80]


def test_what_is_not_synced_does_not_go(log):
    log.config = replace(log.config, retention_bytes=0)
    fill(log, 20)
    assert log.maybe_apply_retention(NOW_MS, 40) == 0
    log.sync()
    assert log.maybe_apply_retention(NOW_MS, 40) == 40


def test_a_log_is_held_to_its_size(log):
    log.config = replace(log.config, retention_bytes=6000, retention_ms=-1)
    fill(log, 60)
    log.sync()
    log.maybe_apply_retention(NOW_MS, 120)
    assert 6000 <= log.size_bytes < 6000 + SMALL.segment_bytes


# Checkpoints.


def test_a_checkpoint_that_says_nothing_new_is_not_written(files):
    log = open_log(files, config=LARGE, is_listed=False)
    assert log.begin_checkpoint(0) is None
    fill(log, 3)
    log.sync()
    log.checkpoint(4)
    assert log.high_watermark_checkpoint == 4
    before = files.operation_count
    log.checkpoint(4)
    log.checkpoint(2)
    assert files.operation_count == before
    assert log.high_watermark_checkpoint == 4, "it never falls by itself"
    log.checkpoint(1000)
    assert log.high_watermark_checkpoint == 6, "nor is it above the log end"


def test_the_recovery_point_moves_when_enough_was_appended(files):
    log = open_log(files, config=replace(LARGE, checkpoint_bytes=2000), is_listed=False)
    fill(log, 2)
    log.checkpoint(0)
    assert log.recovery_point == 0
    fill(log, 10)
    log.checkpoint(0)
    assert log.recovery_point == log.synced_end_offset == 24
    assert files.exists(f"{DIRECTORY}/{offset_name(24, SNAPSHOT_SUFFIX)}")


def test_a_rolled_segment_is_sealed_and_trimmed(files):
    config = replace(SMALL, segment_bytes=2000, preallocate_bytes=2000)
    log = open_log(files, config=config, is_listed=False)
    fill(log, 7)
    path = f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}"
    assert files.open(path).size() > log._table.segments[0].size_bytes
    log.checkpoint(0)
    assert files.open(path).size() == log._table.segments[0].size_bytes
    for suffix in ("index", "timeindex"):
        assert files.exists(f"{DIRECTORY}/{offset_name(0, '.' + suffix)}")
    assert files.exists(f"{DIRECTORY}/{offset_name(log._table.bases[1], SNAPSHOT_SUFFIX)}")
    assert not log._table.unsealed


def test_appends_may_go_on_while_a_checkpoint_is_written(files, log):
    fill(log, 10)
    ticket = log.begin_checkpoint(0, is_forced=True)
    fill(log, 30)
    ticket.run()
    log.finish_checkpoint(ticket)
    assert log.recovery_point == log.synced_end_offset == 20
    log.sync()
    files.crash()
    log = open_log(files)
    assert len(read_all(log)) == 40


def test_a_checkpoint_is_void_after_a_truncation(files, log):
    fill(log, 10)
    log.sync()
    ticket = log.begin_checkpoint(20, is_forced=True)
    log.truncate_to(8)
    fill(log, 20)
    ticket.run()
    log.finish_checkpoint(ticket)
    assert log.recovery_point == 0
    assert log.high_watermark_checkpoint == 0
    late = log.begin_checkpoint(20, is_forced=True)
    late.run()
    log.truncate_to(9)
    log.finish_checkpoint(late)
    assert log.recovery_point <= 8
    assert log.synced_end_offset <= log.log_end_offset


def test_a_checkpoint_is_void_after_a_newer_one(files, log):
    """The older one knows less: its index of the segment that was active then covers a part of it."""
    fill(log, 2)
    old = log.begin_checkpoint(0, is_forced=True)
    fill(log, 10)
    log.checkpoint(0)
    assert log.recovery_point == 24
    old.run()
    log.finish_checkpoint(old)
    assert log.recovery_point == 24
    log.close(is_clean=True)
    files.crash()
    assert open_log(files, was_clean=True).recovery.was_clean


def test_a_checkpoint_that_only_keeps_the_high_watermark_leaves_the_recovery_point(files):
    log = open_log(files, config=LARGE, is_listed=False)
    fill(log, 10)
    log.sync()
    light = log.begin_checkpoint(5)
    log.truncate_to(20)
    log._checkpoint(0, is_forced=True)
    assert log.recovery_point == 20
    light.generation = log._generations.current
    light.run()
    log.finish_checkpoint(light)
    assert log.recovery_point == 20
    assert log.high_watermark_checkpoint == 5


def test_a_checkpoint_does_not_take_back_the_log_start(log):
    fill(log, 10)
    log.sync()
    ticket = log.begin_checkpoint(20, is_forced=True)
    log.advance_log_start(3)
    ticket.run()
    log.finish_checkpoint(ticket)
    assert log._replica.checkpoint.log_start_offset == 3


def test_a_full_disk_still_takes_the_high_watermark(files, log):
    fill(log, 30)
    log.sync()
    files.capacity = files.used_bytes()
    log.checkpoint(50)
    assert log.recovery_point == 0
    assert log.high_watermark_checkpoint == 50
    files.capacity = None
    log.checkpoint(50)
    assert log.recovery_point == 60


def test_snapshots_that_no_truncation_needs_go(files, log):
    for _ in range(6):
        fill(log, 10)
        log.sync()
        log.checkpoint(log.log_end_offset)
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
    model.log._checkpoint(0, is_forced=True)
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
    opened = [segment.file for segment in log._table.segments]
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
    log.sync()
    log.checkpoint(300)
    fill(log, 20)
    log.truncate_to(log.log_end_offset - 3)
    assert log.maybe_apply_retention(NOW_MS, 300) == 0
    log.advance_log_start(150)
    wanted = read_all(log)
    assert b"".join(wanted[:5]) in log.read_span(150, max_bytes=1 << 20)
    log.close(is_clean=False)
    log = opened(is_listed=True)
    assert log.health is ReplicaHealth.SOUND
    is_same = read_all(log) == wanted
    assert is_same
    log.delete()
