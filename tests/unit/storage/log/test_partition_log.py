"""What a partition's log promises to those who append to it. Crashes are in ``test_recovery``."""

from dataclasses import replace
from random import Random

import pytest

from milena.model.batch.decode import iterate_headers
from milena.model.batch.header import ProducerStamp, decode_header
from milena.model.errors import (
    CorruptBatchError,
    DiskFullError,
    RequestTooLargeError,
    StaleLeaderEpochError,
)
from milena.model.types import ReplicaHealth
from storage.segments.segment import LOG_SUFFIX, offset_name
from tests.support.disk.log_model import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    LogModel,
    make_batch,
    open_log,
    read_all,
)
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError
from tests.support.disk.small_logs import (
    LARGE,
    append,
    bases,
    fill,
    key,
    leaders_batches,
    producer_batch,
)


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


# Appending.


def test_a_leader_assigns_dense_offsets_and_stamps_its_epoch_and_time(log):
    assert append(log, make_batch(3), make_batch(1), leader_epoch=4, now_ms=NOW_MS + 5) == (0, 3)
    assert append(log, make_batch(2), leader_epoch=4) == (4,)
    headers = [decode_header(batch) for batch in read_all(log)]
    assert [h.base_offset for h in headers] == [0, 3, 4]
    assert {h.leader_epoch for h in headers} == {4}
    assert [h.append_time_ms for h in headers] == [NOW_MS + 5, NOW_MS + 5, NOW_MS]
    assert (log.log_start_offset, log.log_end_offset, log.state.epochs.last_epoch) == (0, 6, 4)


def test_a_batch_that_goes_on_where_the_log_ends_is_kept_for_the_next_read(log):
    append(log, make_batch(3))
    append(log, make_batch(2))
    append(log, make_batch(1))
    assert [header.base_offset for _, header in iterate_headers(b"".join(read_all(log)))] == [
        0,
        3,
        5,
    ]
    assert log.read_span_cached(5, max_bytes=1 << 20) == read_all(log)[-1]
    log.flushing.sync_all()
    assert log.flushing.synced_end == 6


def test_a_lone_batch_of_an_older_epoch_or_too_large_is_not_taken(files):
    log = open_log(files, is_listed=False, config=replace(SMALL, max_message_bytes=200))
    append(log, make_batch(1), leader_epoch=3)
    with pytest.raises(StaleLeaderEpochError):
        append(log, make_batch(1), leader_epoch=2)
    with pytest.raises(RequestTooLargeError):
        append(log, make_batch(1, value_bytes=200), leader_epoch=3)
    assert log.log_end_offset == 1


def test_lone_batches_roll_segments_and_survive_a_full_disk(files):
    log = open_log(files, is_listed=False, config=replace(SMALL, segment_bytes=400))
    for _ in range(9):
        append(log, make_batch(1, value_bytes=40))
    assert len(log.state.table.segments) > 2
    files.capacity = files.used_bytes()
    before = read_all(log)
    with pytest.raises(DiskFullError):
        append(log, make_batch(1, value_bytes=300))
    assert read_all(log) == before
    files.capacity = None
    append(log, make_batch(1))
    assert len(read_all(log)) == len(before) + 1


def test_an_append_of_nothing_changes_nothing(log):
    assert append(log) == ()
    assert log.append_as_follower(b"") == 0
    assert log.log_end_offset == 0
    assert not log.flushing.is_due(NOW_MS)


def test_batches_of_one_append_go_out_in_one_write(files):
    log = open_log(files, config=LARGE, is_listed=False)
    append(log, make_batch())
    before = files.operations["write"]
    append(log, *[make_batch() for _ in range(50)])
    assert files.operations["write"] == before + 1


def test_headers_that_the_caller_knows_are_not_decoded_again(log, monkeypatch):
    batches = [make_batch(3), make_batch(2)]
    headers = [decode_header(batch) for batch in batches]
    monkeypatch.setattr("storage.log.partition_log.decode_header", None)
    assert log.append_as_leader(batches, leader_epoch=0, now_ms=NOW_MS, headers=headers) == (0, 3)


def test_a_segment_is_rolled_before_it_grows_too_large(files, log):
    fill(log, 40)
    assert len(log.state.table.segments) == len(bases(files)) > 4
    assert all(segment.size_bytes <= SMALL.segment_bytes for segment in log.state.table.segments)
    append(log, make_batch(value_bytes=10_000))
    append(log, make_batch())
    assert log.state.table.segments[-2].size_bytes > 10_000, "a single batch may be larger"
    assert log.size_bytes == sum(segment.size_bytes for segment in log.state.table.segments)


def test_one_append_may_span_segments(files, log):
    offsets = append(log, *[make_batch(2, value_bytes=150) for _ in range(20)])
    assert offsets == tuple(range(0, 40, 2))
    assert len(log.state.table.segments) > 2
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
            assert len(model.log.state.table.segments) == 1
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


def test_batches_that_come_one_by_one_make_the_same_log_as_all_at_once():
    # They take a short way unless an epoch begins, a segment is full, or what comes is not one batch.
    batches = leaders_batches(40) + leaders_batches(40, base_offset=80, leader_epoch=9)
    at_once, one_by_one = MemoryFiles(), MemoryFiles()
    log = open_log(at_once, is_listed=False)
    log.append_as_follower(b"".join(batches))
    other = open_log(one_by_one, is_listed=False)
    for number, batch in enumerate(batches):
        assert other.append_as_follower(batch) == 2 * number + 2
        assert other.flushing.is_due(NOW_MS)
        other.flushing.sync_all()
    assert read_all(other) == batches
    assert bases(one_by_one) == bases(at_once)
    assert len(bases(at_once)) > 2
    for looked_up in (log, other):
        assert [looked_up.state.epoch_end(epoch) for epoch in (5, 8, 9)] == [
            log.state.epoch_end(epoch) for epoch in (5, 8, 9)
        ]
        assert looked_up.offset_for_timestamp(NOW_MS) == log.offset_for_timestamp(NOW_MS)
        assert (looked_up.state.epochs.last_epoch, looked_up.size_bytes) == (9, log.size_bytes)
        assert looked_up.flushing.synced_end == (160 if looked_up is other else 0)


def test_a_full_disk_leaves_a_follower_that_takes_one_batch_where_it_was(files, log):
    log.append_as_follower(b"".join(leaders_batches(3)))
    [batch] = leaders_batches(1, base_offset=6)
    files.capacity = files.used_bytes()
    while True:  # what was preallocated is used up first
        try:
            end = log.append_as_follower(batch)
        except DiskFullError:
            break
        [batch] = leaders_batches(1, base_offset=end)
    assert log.log_end_offset == end
    files.capacity = None
    assert log.append_as_follower(batch) == end + 2
    assert len(read_all(log)) == (end + 2) // 2


# A log start in the middle of a batch.


def test_a_follower_may_begin_with_the_batch_in_whose_middle_the_leaders_log_starts(files, log):
    fill(log, 3)
    log.cutting.restart_at(101)
    batches = leaders_batches(5, base_offset=100)
    assert log.append_as_follower(b"".join(batches)) == 110
    assert (log.log_start_offset, log.log_end_offset) == (101, 110)
    assert read_all(log) == batches
    assert bases(files) == [100]
    log.flushing.sync_all()
    files.crash()
    again = open_log(files)
    assert again.health is ReplicaHealth.SOUND
    assert (again.log_start_offset, again.log_end_offset) == (101, 110)
    assert read_all(again) == batches


def test_its_stored_part_never_ends_below_the_log_start(log):
    log.cutting.restart_at(101)
    assert log.flushing.synced_end == 101
    log.append_as_follower(b"".join(leaders_batches(5, base_offset=100)))
    assert log.flushing.synced_end == 101
    log.flushing.sync_all()
    assert log.flushing.synced_end == 110


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
        log.cutting.restart_at(101, leader.producer_snapshot(leader.log_end_offset))
        files.crash_before(number)
        try:
            log.append_as_follower(b"".join(leaders_batches(5, base_offset=100)))
            log.flushing.sync_all()
            log.checkpointing.run(0, is_forced=True)
            is_cut_short = False
        except SimulatedCrashError:
            is_cut_short = True
        files.crash(Random(seed), keep)
        log = open_log(files)
        is_torn = keep == "some" and log.recovery.cut_bytes > 0
        assert is_torn or log.health is ReplicaHealth.SOUND, log.recovery
        assert log.log_start_offset == 101
        assert log.state.writers.producers.get(7) is not None
        batches = leaders_batches(5, base_offset=100)
        done = max(log.log_end_offset - 100, 0) // 2
        assert log.append_as_follower(b"".join(batches[done:])) == 110
        is_same = read_all(log) == batches
        assert is_same
        number += 1
    assert number > 5


def test_a_full_disk_leaves_it_empty(files, log):
    log.cutting.restart_at(101)
    files.capacity = files.used_bytes() + 100
    with pytest.raises(DiskFullError):
        log.append_as_follower(b"".join(leaders_batches(5, base_offset=100)))
    assert (log.log_start_offset, log.log_end_offset) == (101, 101)
    assert bases(files) == [101]
    files.capacity = None
    assert log.append_as_follower(b"".join(leaders_batches(5, base_offset=100))) == 110


def test_only_an_empty_log_may_begin_below_its_start(log):
    log.cutting.restart_at(101)
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=99)))
    append(log, make_batch())
    with pytest.raises(CorruptBatchError):
        log.append_as_follower(b"".join(leaders_batches(1, base_offset=101)))


def test_cutting_the_batch_that_holds_the_log_start_empties_the_log(log):
    append(log, producer_batch(0, records=4), producer_batch(4, records=4))
    log.start.advance(6)
    log.cutting.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert append(log, producer_batch(4, records=3)) == (6,)
