"""Segments that are closed by age."""

from dataclasses import replace

import pytest

from milena.model.batch.encode import encode_batch
from milena.model.batch.header import IdempotencyExtension
from milena.model.columns import RecordColumns
from tests.support.disk.compacted_log import COMPACTED, append, keyed_batch
from tests.support.disk.log_model import NOW_MS, open_log
from tests.support.disk.memory_files import MemoryFiles


@pytest.fixture
def files():
    return MemoryFiles()


def test_the_active_segment_is_closed_by_age(files):
    log = open_log(files, config=replace(COMPACTED, segment_ms=1000), is_listed=False)
    log.rolling.roll_by_age(NOW_MS + 5000)
    assert len(log.state.table.segments) == 1, "an empty one is not"
    append(log, keyed_batch([(b"a", b"1")]))
    log.rolling.roll_by_age(NOW_MS + 999)
    assert len(log.state.table.segments) == 1
    log.rolling.roll_by_age(NOW_MS + 1000)
    assert len(log.state.table.segments) == 2
    log.config = replace(COMPACTED, max_compaction_lag_ms=10)
    append(log, keyed_batch([(b"a", b"1")]))
    log.rolling.roll_by_age(NOW_MS + 10)
    assert len(log.state.table.segments) == 3, "or its records would never be looked at"


def test_a_segment_that_a_clock_dated_days_ahead_is_closed_once_the_clock_is_right(files):
    log = open_log(files, config=replace(COMPACTED, segment_ms=1000), is_listed=False)
    append(log, keyed_batch([(b"a", b"1")]))
    log.rolling.roll_by_age(0)
    assert len(log.state.table.segments) == 1, "the time is not known"
    log.rolling.roll_by_age(NOW_MS - 8 * 24 * 3_600_000)
    assert len(log.state.table.segments) == 2


def test_a_segment_whose_first_batch_has_an_idempotency_key_is_closed_by_age(files):
    log = open_log(files, config=replace(COMPACTED, segment_ms=1000), is_listed=False)
    key = IdempotencyExtension(key_hash=b"k" * 16, body_hash=b"b" * 8, partition_count=1)
    columns = RecordColumns(
        offset_deltas=None, timestamp_deltas=None, keys=[b"a"], values=[b"1"], headers=None
    )
    append(log, encode_batch(columns, base_timestamp_ms=NOW_MS, producer=None, request_keys=(key,)))
    log.rolling.roll_by_age(NOW_MS + 1000)
    assert len(log.state.table.segments) == 2


def test_a_segment_whose_first_batch_is_damaged_is_closed_later(files):
    log = open_log(files, config=replace(COMPACTED, segment_ms=1000), is_listed=False)
    append(log, keyed_batch([(b"a", b"1")]))
    files.flip_bit(f"{log.replica.directory}/{0:020d}.log", 40)
    log.rolling.roll_by_age(NOW_MS + 5000)
    assert len(log.state.table.segments) == 1
    log.rolling.roll_by_age(NOW_MS + 6000)
    assert len(log.state.table.segments) == 2
