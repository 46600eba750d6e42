"""Compaction of a log: what is left, what is kept in mind, and what a crash in the middle of it does."""

from dataclasses import replace
from random import Random

import pytest

from milena.model.batch.encode import encode_batch
from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptLogError, DiskFullError
from milena.model.types import ReplicaHealth
from storage.state.producer_state import Duplicate
from tests.support.disk.compacted_log import (
    COMPACTED,
    append,
    compact,
    filled_log,
    finish,
    keyed_batch,
    records_of,
    roll,
    values_of,
)
from tests.support.disk.log_model import DIRECTORY, NOW_MS, open_log, read_all
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, config=COMPACTED, is_listed=False)


def test_the_last_record_of_each_key_is_left_at_its_offset(log):
    append(log, keyed_batch([(b"a", b"1"), (b"b", b"2")]), keyed_batch([(b"a", b"3")]))
    roll(log)
    assert compact(log)
    assert records_of(log) == {1: (b"b", b"2"), 2: (b"a", b"3")}
    assert log.log_end_offset == 3


def test_the_active_segment_is_left_alone(log):
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
    assert not compact(log)
    assert len(records_of(log)) == 2


def test_what_is_not_committed_is_left_alone(log):
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
    roll(log)
    assert log.compaction.begin(NOW_MS, 1) is None


def test_removed_batches_become_one_filler_within_a_leader_epoch(log):
    for number in range(10):
        append(log, keyed_batch([(b"a", b"%d" % number)]), epoch=number // 6)
    roll(log)
    compact(log)
    batches = [decode_header(batch) for batch in read_all(log)]
    assert [(h.base_offset, h.last_offset, h.record_count, h.leader_epoch) for h in batches] == [
        (0, 5, 0, 0),
        (6, 8, 0, 1),
        (9, 9, 1, 1),
    ]
    assert log.state.epoch_end(0) == (0, 6)


def test_fillers_of_two_runs_become_one(log):
    for _ in range(3):
        append(log, *(keyed_batch([(b"a", b"%d" % n)]) for n in range(4)))
        roll(log)
        assert compact(log)
    headers = [decode_header(batch) for batch in read_all(log)]
    assert [(h.base_offset, h.record_count) for h in headers] == [(0, 0), (11, 1)]
    assert len(log.state.table.segments) == 2, "small neighbours are merged"


def test_records_without_a_key_stay(log):
    append(log, keyed_batch([(None, b"1"), (b"a", b"2")]), keyed_batch([(b"a", b"3")]))
    roll(log)
    compact(log)
    assert records_of(log) == {0: (None, b"1"), 2: (b"a", b"3")}


def test_timestamps_and_headers_stay_with_their_records(log):
    columns = RecordColumns(
        None, [0, 5, 9], [b"a", b"b", b"a"], [b"1", b"2", b"3"], [None, [("h", b"x")], None]
    )
    append(log, encode_batch(columns, base_timestamp_ms=NOW_MS))
    roll(log)
    compact(log)
    assert log.offset_for_timestamp(NOW_MS + 1) == (1, NOW_MS + 5)
    assert log.offset_for_timestamp(NOW_MS) == (1, NOW_MS + 5), "the first record is gone"
    assert log.offset_for_timestamp(NOW_MS + 6) == (2, NOW_MS + 9)


# Tombstones.


def test_a_tombstone_goes_a_while_after_a_run_has_seen_it(log):
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", None)]))
    roll(log)
    compact(log, now_ms=NOW_MS)
    assert records_of(log) == {1: (b"a", None)}
    assert not compact(log, now_ms=NOW_MS + 999)
    assert compact(log, now_ms=NOW_MS + 1000), "it is worth a run of its own"
    assert records_of(log) == {}
    assert not compact(log, now_ms=NOW_MS + 5000)


def test_a_tombstone_stays_while_some_replica_may_not_have_it(log):
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", None)]))
    roll(log)
    compact(log)
    assert not compact(log, now_ms=NOW_MS + 5000, tombstone_end=1)
    append(log, keyed_batch([(b"b", b"1")]))
    roll(log)
    assert compact(log, now_ms=NOW_MS + 5000, tombstone_end=1)
    assert (b"a", None) in records_of(log).values()
    assert compact(log, now_ms=NOW_MS + 5000)
    assert (b"a", None) not in records_of(log).values()


def test_the_delete_horizon_outlives_a_later_run(log):
    append(log, keyed_batch([(b"a", None)]))
    roll(log)
    compact(log, now_ms=NOW_MS)
    append(log, keyed_batch([(b"b", b"1")]))
    roll(log)
    compact(log, now_ms=NOW_MS + 900)
    assert compact(log, now_ms=NOW_MS + 1000)
    assert records_of(log) == {1: (b"b", b"1")}


def test_a_key_that_is_written_again_needs_its_tombstone_no_more(log):
    append(log, keyed_batch([(b"a", None)]), keyed_batch([(b"a", b"2")]))
    roll(log)
    compact(log)
    assert records_of(log) == {1: (b"a", b"2")}
    assert not compact(log, now_ms=NOW_MS + 5000)


# Many keys.


def test_more_keys_than_memory_holds_take_several_passes(files):
    log, wanted = filled_log(files)
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    run._plan = replace(run._plan, keys_max=3)
    finish(log, run)
    assert values_of(log) == wanted
    values = [key for key, value in records_of(log).values()]
    assert len(values) == len(set(values)), "each key once"


def test_a_tombstone_that_a_pass_does_not_reach_waits_for_the_next_run(log):
    """Its horizon begins with the pass that removes what it deletes."""
    log.config = replace(COMPACTED, delete_retention_ms=0)
    append(
        log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"b", b"1")]), keyed_batch([(b"a", None)])
    )
    roll(log)
    run = log.compaction.begin(NOW_MS, log.log_end_offset, tombstone_end=log.log_end_offset)
    run._plan = replace(run._plan, keys_max=1)
    finish(log, run)
    assert records_of(log) == {1: (b"b", b"1"), 2: (b"a", None)}


def test_long_keys_are_told_apart(log):
    first, second = b"k" * 100 + b"1", b"k" * 100 + b"2"
    append(log, keyed_batch([(first, b"1"), (second, b"2"), (first, b"3")]))
    roll(log)
    compact(log)
    assert records_of(log) == {1: (second, b"2"), 2: (first, b"3")}


# Writers.


def producer(sequence, producer_id=7):
    return ProducerStamp(producer_id, 0, sequence)


def restarted(files, log):
    """The log after its snapshots were lost: all that it knows of its writers comes from its batches."""
    log.close(is_clean=False)
    for path in files.paths():
        if path.endswith((".producers", "/compaction")):
            files.remove(path)
    return open_log(files, config=COMPACTED)


def test_retries_are_recognised_after_their_records_are_gone(files, log):
    batches = [keyed_batch([(b"a", b"%d" % n)], producer=producer(n)) for n in range(8)]
    append(log, *batches, keyed_batch([(b"a", b"last")]))
    roll(log)
    compact(log)
    assert records_of(log) == {8: (b"a", b"last")}
    again = restarted(files, log)
    for n in range(3, 8):
        assert again.producer_check(decode_header(batches[n]), NOW_MS) == Duplicate(n, n)
    assert again.writers.producers.last_sequence(7) == 7
    headers = [decode_header(batch) for batch in read_all(again)]
    assert [h.base_offset for h in headers] == [0, 3, 4, 5, 6, 7, 8], "older ones are gone"


def test_a_later_run_lets_go_of_batches_that_nobody_retries_any_more(log):
    batches = [keyed_batch([(b"a", b"%d" % n)], producer=producer(n)) for n in range(20)]
    for first in range(0, 20, 4):
        append(log, *batches[first : first + 4])
        roll(log)
        compact(log)
    headers = [decode_header(batch) for batch in read_all(log)]
    assert [h.base_offset for h in headers] == [0, 15, 16, 17, 18, 19]


def test_producers_that_were_silent_for_long_are_forgotten(log):
    append(log, keyed_batch([(b"a", b"1")], producer=producer(0)), keyed_batch([(b"a", b"2")]))
    roll(log)
    compact(log, now_ms=NOW_MS + 3 * 24 * 3_600_000)
    assert [decode_header(batch).producer_id for batch in read_all(log)] == [-1, -1]


def test_idempotency_keys_are_remembered_within_their_window(files, log):
    key = IdempotencyExtension(b"k" * 16, b"b" * 8, 6)
    append(
        log,
        keyed_batch([(b"a", b"0")]),
        keyed_batch([(b"a", b"1"), (b"b", b"1")], key=key),
        keyed_batch([(b"a", b"2"), (b"b", b"2")]),
    )
    roll(log)
    compact(log)
    again = restarted(files, log)
    entry = again.idempotency_lookup(b"k" * 16, NOW_MS)
    assert entry is not None
    assert (entry.base_offset, entry.last_offset) == (1, 2)
    append(again, keyed_batch([(b"c", b"1")]))
    roll(again)
    compact(again, now_ms=NOW_MS + 25 * 3_600_000)
    assert all(not decode_header(batch).request_keys for batch in read_all(again))


def test_a_pass_lets_go_of_no_writer_that_it_has_not_reached(files, log):
    retried = keyed_batch([(b"a", b"1")], producer=producer(0))
    append(log, keyed_batch([(b"b", b"1")]), retried, keyed_batch([(b"a", b"2")]))
    roll(log)
    compact(log)
    log = restarted(files, log)
    append(log, keyed_batch([(b"c", b"1")]))
    roll(log)
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    run._plan = replace(run._plan, keys_max=1)
    finish(log, run)
    again = restarted(files, log)
    assert again.producer_check(decode_header(retried), NOW_MS) == Duplicate(1, 1)


def test_a_mark_that_is_lost_costs_work_and_no_memory_of_writers(files, log):
    batches = [keyed_batch([(b"a", b"%d" % n)], producer=producer(n)) for n in range(8)]
    append(log, *batches, keyed_batch([(b"a", b"last")]))
    roll(log)
    compact(log)
    files.remove(f"{DIRECTORY}/compaction")
    append(log, keyed_batch([(b"b", b"1")]))
    roll(log)
    compact(log)
    again = restarted(files, log)
    for n in range(3, 8):
        assert again.producer_check(decode_header(batches[n]), NOW_MS) == Duplicate(n, n)


# The disk.


def test_a_full_disk_ends_a_run_and_leaves_the_log(files):
    log, wanted = filled_log(files)
    before = read_all(log)
    files.capacity = files.used_bytes() + 100
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    with pytest.raises(DiskFullError, match="needs"):
        finish(log, run)
    log.compaction.note(run)
    assert read_all(log) == before
    files.capacity = None
    assert compact(log)
    assert values_of(log) == wanted


def test_damage_ends_a_run_before_it_spreads(files):
    log, _ = filled_log(files)
    files.flip_bit(f"{DIRECTORY}/{0:020d}.log", 300)
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    with pytest.raises(CorruptLogError):
        finish(log, run)
    log.compaction.note(run)
    assert not any(path.endswith(".cleaned") for path in files.paths())
    assert log.compaction.begin(NOW_MS, log.log_end_offset) is not None


def test_a_log_with_an_index_that_could_not_be_written_is_read_all_the_same(files):
    log, wanted = filled_log(files)
    assert compact(log)
    log.close(is_clean=True)
    for path in files.paths():
        if path.endswith(".index"):
            files.remove(path)
    again = open_log(files, config=COMPACTED, was_clean=True)
    assert again.health is ReplicaHealth.SOUND
    assert values_of(again) == wanted


def log_to_crash(*, is_merged):
    """A log that is about to be compacted: its segments one by one, or all of them into one."""
    files = MemoryFiles()
    log, wanted = filled_log(files, batches=40, config=replace(COMPACTED, segment_bytes=900))
    if is_merged:
        compact(log)
        append(log, *(keyed_batch([(b"key-%d" % n, b"new")]) for n in range(4)), epoch=4)
        wanted |= {b"key-%d" % n: b"new" for n in range(4)}
        roll(log)
        log.config = COMPACTED
    return files, log, wanted


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_crash_before_any_operation_leaves_a_whole_log(keep, is_merged):
    number = 0
    while True:
        files, log, wanted = log_to_crash(is_merged=is_merged)
        end, before, segments = log.log_end_offset, records_of(log), len(log.state.table.segments)
        files.crash_before(number)
        try:
            compact(log)
        except SimulatedCrashError:
            is_cut_short = True
        else:
            is_cut_short = False
            assert len(log.state.table.segments) == (2 if is_merged else segments)
        files.crash(Random(number), keep)
        again = open_log(files, config=COMPACTED)
        assert again.health is ReplicaHealth.SOUND, (number, again.recovery)
        assert again.log_end_offset == end
        found = records_of(again)
        assert found.items() <= before.items()
        assert values_of(again) == wanted, number
        assert [again.state.epoch_end(epoch) for epoch in range(5)] == [
            log.state.epoch_end(epoch) for epoch in range(5)
        ]
        assert not any(path.endswith((".cleaned", ".swap")) for path in files.paths())
        # At most the segment whose swap was cut short has no index.
        assert again.recovery.scanned_bytes <= (COMPACTED.segment_bytes if is_cut_short else 0)
        # It is compacted further as if nothing had been.
        compact(again)
        assert values_of(again) == wanted
        if not is_cut_short:
            break
        number += 1
    assert number > 15


# Followers.


def test_a_follower_takes_a_compacted_log_from_any_position():
    source, wanted = filled_log(MemoryFiles(), config=replace(COMPACTED, segment_bytes=900))
    original = read_all(source)
    compact(source)
    for count in range(len(original)):
        follower = open_log(MemoryFiles(), config=COMPACTED, is_listed=False)
        if count:
            follower.append_as_follower(b"".join(original[:count]))
        while follower.log_end_offset < source.log_end_offset:
            follower.append_as_follower(source.read_span(follower.log_end_offset, max_bytes=200))
        assert values_of(follower) == wanted, count
        assert follower.state.epochs.entries == source.state.epochs.entries
