"""When a log is synced, and what that makes durable."""

import pytest

from storage.log.flushing import Flushing
from storage.segments.log_config import LogConfig
from tests.support.disk.log_model import NOW_MS, make_batch, open_log
from tests.support.disk.memory_files import MemoryFiles

STRICT = LogConfig()
RELAXED = LogConfig(flush_messages=10, flush_ms=500)


@pytest.fixture
def log():
    return open_log(MemoryFiles(), is_listed=False)


@pytest.fixture
def flushing(log):
    log.append_as_leader([make_batch(4)], leader_epoch=0, now_ms=NOW_MS)
    return Flushing(log._replica, log._table, 0)


def test_nothing_is_due_without_anything_unsynced(flushing):
    assert not flushing.is_due(STRICT, NOW_MS)
    assert flushing.begin(4) is None


def test_a_strict_log_is_due_at_once(log, flushing):
    flushing.note_append(log._active, 1, 100)
    assert flushing.is_due(STRICT, NOW_MS)
    assert not flushing.is_due(RELAXED, NOW_MS)


def test_a_relaxed_log_is_due_by_count_or_time(log, flushing):
    flushing.note_append(log._active, 9, 100)
    assert not flushing.is_due(RELAXED, NOW_MS)
    assert not flushing.is_due(RELAXED, NOW_MS + 499)
    assert flushing.is_due(RELAXED, NOW_MS + 500)
    flushing.note_append(log._active, 1, 100)
    assert flushing.is_due(RELAXED, NOW_MS)
    assert not flushing.is_due(LogConfig(flush_messages=100), NOW_MS + 1_000_000)


def test_a_new_name_is_something_to_sync(flushing):
    flushing.note_name()
    assert flushing.is_due(STRICT, NOW_MS)
    ticket = flushing.begin(0)
    ticket.run()
    flushing.finish(ticket)
    assert not flushing.is_due(STRICT, NOW_MS)


def test_a_ticket_covers_what_was_there_when_it_began(log, flushing):
    flushing.note_append(log._active, 1, 100)
    ticket = flushing.begin(4)
    flushing.note_append(log._active, 1, 100)
    assert flushing.begin(5) is None, "one is under way"
    assert flushing.is_due(STRICT, NOW_MS)
    flushing.finish(ticket)
    assert flushing.synced_end == 4
    assert flushing.begin(5).end_offset == 5


def test_a_ticket_of_another_time_counts_for_nothing(log, flushing):
    stray = flushing.ticket_for_all(4)
    flushing.finish(stray)
    assert flushing.synced_end == 0


def test_a_checkpoint_leaves_names_that_came_after_it_to_the_next_sync(log, flushing):
    flushing.note_append(log._active, 1, 100)
    flushing.note_name()
    flushing.note_synced(4)
    assert flushing.synced_end == 4
    assert flushing.is_due(STRICT, NOW_MS)
    flushing.note_all_synced(4)
    assert not flushing.is_due(STRICT, NOW_MS)


def test_a_truncation_lowers_what_a_ticket_means(log, flushing):
    flushing.note_append(log._active, 1, 100)
    ticket = flushing.begin(4)
    flushing.note_truncation(2)
    flushing.finish(ticket)
    assert flushing.synced_end == 2


def test_a_restart_leaves_nothing_to_sync(log, flushing):
    flushing.note_append(log._active, 1, 100)
    ticket = flushing.begin(4)
    flushing.note_append(log._active, 1, 100)
    flushing.note_restart(100)
    assert not flushing.is_due(STRICT, NOW_MS)
    flushing.finish(ticket)
    assert flushing.synced_end == 100
