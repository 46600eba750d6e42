"""When a log is compacted, what it remembers of it, and what others may do to it meanwhile."""

from dataclasses import replace
from random import Random

import pytest

from milena.model.batch.decode import iterate_headers
from milena.model.batch.header import decode_header
from milena.model.types import ReplicaHealth
from storage.compaction.mark import CompactionMark, read_mark, write_mark
from storage.segments.table import SegmentTable
from storage.state.producer_state import WriterState
from storage.state.sealed import seal
from storage.state.writer_snapshot import encode_snapshot
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
from tests.support.disk.log_model import DIRECTORY, NOW_MS, open_log
from tests.support.disk.memory_files import MemoryFiles


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, config=COMPACTED, is_listed=False)


# Lags and ratios.


def test_young_records_are_left_alone(files):
    log = open_log(files, config=replace(COMPACTED, min_compaction_lag_ms=1000), is_listed=False)
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
    roll(log)
    assert not compact(log, now_ms=NOW_MS + 999)
    assert compact(log, now_ms=NOW_MS + 1000)


def test_a_log_is_compacted_when_enough_of_it_is_new_or_some_of_it_is_old(files):
    config = replace(COMPACTED, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=60_000)
    log = open_log(files, config=config, is_listed=False)
    append(log, *(keyed_batch([(b"%d" % n, b"x" * 100)]) for n in range(10)))
    roll(log)
    assert compact(log)
    append(log, *(keyed_batch([(b"%d" % n, b"x" * 100)]) for n in range(5)))
    roll(log)
    need = log.compaction.need(NOW_MS, log.log_end_offset)
    assert 0.3 < need.dirty_ratio < 0.4
    assert not compact(log)
    assert not compact(log, now_ms=NOW_MS + 60_000)
    assert compact(log, now_ms=NOW_MS + 60_001)


def test_a_record_that_is_not_committed_replaces_nothing(files, log):
    """It may be cut yet: then what it replaced is the last word on its key."""
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
    roll(log)
    committed = log.log_end_offset
    append(log, keyed_batch([(b"a", b"3")]))
    roll(log)
    run = log.compaction.begin(NOW_MS, committed)
    assert run is not None
    finish(log, run)
    assert records_of(log) == {1: (b"a", b"2"), 2: (b"a", b"3")}
    assert log.compaction.begin(NOW_MS, committed) is None
    assert compact(log)
    assert records_of(log) == {2: (b"a", b"3")}


def test_a_log_that_does_not_delete_keeps_old_segments(files):
    log, _ = filled_log(files)
    log.start.apply_retention(NOW_MS * 2, log.log_end_offset)
    assert log.log_start_offset == 0
    log.config = replace(COMPACTED, is_deleting=True)
    compact(log)
    log.start.apply_retention(NOW_MS * 2, log.log_end_offset)
    assert log.log_start_offset == log.log_end_offset


# The mark.


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_mark_that_is_damaged_is_none(files, log, content):
    append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
    roll(log)
    compact(log)
    log.close(is_clean=True)
    files.write_atomically(f"{DIRECTORY}/compaction", content)
    again = open_log(files, config=COMPACTED)
    assert again.compaction.clean_end == 0
    assert compact(again)
    assert records_of(again) == {1: (b"a", b"2")}


def test_a_mark_of_another_log_is_removed(files, log):
    append(log, keyed_batch([(b"a", b"1")]))
    path = f"{DIRECTORY}/compaction"
    write_mark(log.replica, CompactionMark(500, None), WriterState())
    log.close(is_clean=True)
    again = open_log(files, config=COMPACTED, was_clean=True)
    assert again.compaction.clean_end == 0
    assert not files.exists(path), "it would fit once the log has grown"


@pytest.mark.parametrize(("horizon_ms", "stored"), [(None, -1), (NOW_MS, NOW_MS)])
def test_the_file_of_a_mark_is_that_of_earlier_releases(files, log, horizon_ms, stored):
    """Otherwise an upgrade would compact all logs again, from their beginning."""
    mark, writers = CompactionMark(5, horizon_ms), WriterState()
    write_mark(log.replica, mark, writers)
    content = seal(b"MCM1", [5, stored, encode_snapshot(writers.freeze(5))])
    assert files.read_bytes(f"{DIRECTORY}/compaction") == content
    assert read_mark(log.replica)[0] == mark


# While others use the log.


def test_a_read_begins_again_if_compaction_has_merged_the_next_batch_with_those_before(
    files, log, monkeypatch
):
    for _ in range(3):
        append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
        roll(log)
    first = log.state.table.segments[0]
    note_use = SegmentTable.note_use

    def compact_after_the_first(table, segment):
        note_use(table, segment)
        if segment is first:
            compact(log)

    monkeypatch.setattr(SegmentTable, "note_use", compact_after_the_first)
    span = log.read_span(0, max_bytes=1 << 20)
    assert first.is_replaced
    assert [header.next_offset for _, header in iterate_headers(span)] == [5, 6]


def test_readers_of_old_segments_go_on(files):
    log, wanted = filled_log(files)
    before = records_of(log)
    old = log.state.table.segments[0]
    file = old.pin()
    assert compact(log)
    assert old.is_replaced
    span, _ = old.read(file, 0, max_bytes=1 << 20, end_offset=1000, is_cached=False)
    assert len(span) == old.size_bytes
    old.unpin()
    assert file.is_closed
    assert values_of(log) == wanted
    assert set(records_of(log).items()) < set(before.items())


def test_a_reader_that_comes_between_disk_and_table_gets_the_old_records(files):
    log, _ = filled_log(files)
    before = records_of(log)
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    while run.swap is None:
        run.step()
    assert records_of(log) == before
    assert log.offset_for_timestamp(NOW_MS) is not None
    log.compaction.note(run)
    finish(log, run)
    assert len(records_of(log)) < len(before)


def test_a_segment_that_was_looked_up_before_it_was_replaced_is_looked_up_again(files):
    log, _ = filled_log(files)
    table = log.state.table
    stale = table.segments[0]
    compact(log)
    find, answers = table.find, [stale]

    class StaleTable:
        segments = table.segments
        note_use = table.note_use

        def find(self, offset):
            return answers.pop() if answers else find(offset)

    log.state.table = StaleTable()
    assert decode_header(log.read_span(0, max_bytes=1)).base_offset == 0


def test_appends_rolls_and_checkpoints_go_on_during_a_run(files):
    log, wanted = filled_log(files)
    run = log.compaction.begin(NOW_MS, log.log_end_offset)
    run._plan = replace(run._plan, slice_bytes=1)
    number = 0
    while not run.is_done:
        run.step()
        number += 1
        append(log, keyed_batch([(b"key-1", b"%d" % number)]), epoch=4)
        log.compaction.note(run)
    wanted[b"key-1"] = b"%d" % number
    assert len(log.state.table.segments) > 5
    assert values_of(log) == wanted
    compact(log)
    assert values_of(log) == wanted


CUTS = {
    "truncate": lambda log: log.cutting.truncate_to(log.log_end_offset - 1),
    "restart": lambda log: log.cutting.restart_at(5000),
    "advance": lambda log: log.start.advance(log.log_end_offset // 2),
    "retention": lambda log: log.start.apply_retention(NOW_MS * 2, log.log_end_offset),
    "close": lambda log: log.close(is_clean=False),
    "delete": lambda log: log.delete(),
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_the_owner_does_to_the_log_ends_a_run(cut):
    for stop_at in range(0, 40, 3):
        files = MemoryFiles()
        log, wanted = filled_log(files, config=replace(COMPACTED, is_deleting=True))
        append(log, keyed_batch([(b"open", b"1")]), epoch=4)
        run = log.compaction.begin(NOW_MS, log.log_end_offset)
        run._plan = replace(run._plan, slice_bytes=300)
        for _ in range(stop_at):
            if not run.is_done:
                run.step()
                log.compaction.note(run)
        if not run.is_done:
            run.step()  # a swap on the disk that the table has not heard of
        CUTS[cut](log)
        assert run.is_done
        assert run.step() == 0
        assert not any(path.endswith((".cleaned", ".swap")) for path in files.paths())
        if cut in ("close", "delete"):
            continue
        records_of(log)
        files.crash(Random(stop_at), "none")
        again = open_log(files, config=COMPACTED)
        assert again.health is ReplicaHealth.SOUND, again.recovery
        assert again.log_start_offset == log.log_start_offset
        records_of(again)
        if cut == "truncate":
            assert values_of(again) == wanted


def _restarted(files, log):
    """The log after its snapshots were lost: all that it knows of its writers comes from its batches."""
    log.close(is_clean=False)
    for path in files.paths():
        if path.endswith((".producers", "/compaction")):
            files.remove(path)
    return open_log(files, config=COMPACTED)


def test_a_truncation_below_what_was_compacted_forgets_that_it_was(files):
    log, _ = filled_log(files)
    compact(log)
    end = log.compaction.clean_end
    assert end > 100
    log.cutting.truncate_to(50)
    assert log.compaction.clean_end == 0
    append(log, *(keyed_batch([(b"key-1", b"%d" % n)]) for n in range(120)), epoch=9)
    roll(log)
    again = _restarted(files, log)
    compact(again)
    assert values_of(again)[b"key-1"] == b"119"
