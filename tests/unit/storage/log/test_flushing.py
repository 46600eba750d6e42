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
    made = Flushing(log.replica, log.state)
    made.synced_end = 0
    return made


def is_due(log, flushing, config, now_ms):
    log.config = config
    return flushing.is_due(now_ms)


def test_nothing_is_due_without_anything_unsynced(log, flushing):
    assert not is_due(log, flushing, STRICT, NOW_MS)
    assert flushing.begin() is None


def test_a_strict_log_is_due_at_once(log, flushing):
    flushing.note_append(log.state.table.active, 1, 100)
    assert is_due(log, flushing, STRICT, NOW_MS)
    assert not is_due(log, flushing, RELAXED, NOW_MS)


def test_a_relaxed_log_is_due_by_count_or_time(log, flushing):
    flushing.note_append(log.state.table.active, 9, 100)
    assert not is_due(log, flushing, RELAXED, NOW_MS)
    assert not is_due(log, flushing, RELAXED, NOW_MS + 499)
    assert is_due(log, flushing, RELAXED, NOW_MS + 500)
    flushing.note_append(log.state.table.active, 1, 100)
    assert is_due(log, flushing, RELAXED, NOW_MS)
    assert not is_due(log, flushing, LogConfig(flush_messages=100), NOW_MS + 1_000_000)


def test_a_new_name_is_something_to_sync(log, flushing):
    flushing.note_name()
    assert is_due(log, flushing, STRICT, NOW_MS)
    ticket = flushing.begin()
    ticket.run()
    flushing.finish(ticket)
    assert not is_due(log, flushing, STRICT, NOW_MS)


def test_a_ticket_covers_what_was_there_when_it_began(log, flushing):
    flushing.note_append(log.state.table.active, 1, 100)
    ticket = flushing.begin()
    flushing.note_append(log.state.table.active, 1, 100)
    assert flushing.begin() is None, "one is under way"
    assert is_due(log, flushing, STRICT, NOW_MS)
    flushing.finish(ticket)
    assert flushing.synced_end == 4
    log.state.end_offset = 5
    assert flushing.begin().end_offset == 5


def test_a_ticket_of_another_time_counts_for_nothing(log, flushing):
    stray = flushing.ticket_for_all()
    flushing.finish(stray)
    assert flushing.synced_end == 0


def test_a_checkpoint_leaves_names_that_came_after_it_to_the_next_sync(log, flushing):
    flushing.note_append(log.state.table.active, 1, 100)
    flushing.note_name()
    flushing.note_synced(4)
    assert flushing.synced_end == 4
    assert is_due(log, flushing, STRICT, NOW_MS)
    flushing.sync_all()
    assert not is_due(log, flushing, STRICT, NOW_MS)


def test_a_truncation_lowers_what_a_ticket_means(log, flushing):
    flushing.note_append(log.state.table.active, 1, 100)
    ticket = flushing.begin()
    flushing.note_truncation(2)
    flushing.finish(ticket)
    assert flushing.synced_end == 2


def test_a_restart_leaves_nothing_to_sync(log, flushing):
    flushing.note_append(log.state.table.active, 1, 100)
    ticket = flushing.begin()
    flushing.note_append(log.state.table.active, 1, 100)
    flushing.note_restart(100)
    assert not is_due(log, flushing, STRICT, NOW_MS)
    flushing.finish(ticket)
    assert flushing.synced_end == 100
