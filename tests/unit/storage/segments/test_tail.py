"""The last append is served from memory, and never when it is not what lies in the file."""

import pytest

from milena.model.errors import OffsetOutOfRangeError
from storage.segments.tail import TAIL_BYTES_MAX
from tests.support.disk.log_model import make_batch, open_log
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import append, fill

WHOLE = 1 << 20


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


def cold(files, log, offset, **bounds):
    """What a read gives that must not touch the disk, where nothing is in the page cache."""
    for path in files.paths():
        files.evict(path)
    return log.read_span_cached(offset, max_bytes=WHOLE, **bounds)


def test_the_last_append_needs_no_file_and_is_what_lies_in_it(files, log):
    fill(log, 3)
    log.flushing.sync_all()
    span = cold(files, log, 4)
    assert span == log.read_span(4, max_bytes=WHOLE)
    assert span
    assert cold(files, log, 2) is None, "only the last one is kept"


def test_it_comes_as_a_whole_or_from_the_file(files, log):
    fill(log, 2)
    log.flushing.sync_all()
    assert cold(files, log, 2, end_offset=4)
    assert cold(files, log, 2, end_offset=3) is None
    assert cold(files, log, 3) is None, "it begins before"
    files.evict(files.paths()[0])
    assert log.read_span_cached(4, max_bytes=WHOLE) == b""


def test_a_cut_forgets_it(files, log):
    fill(log, 3)
    log.flushing.sync_all()
    log.cutting.truncate_to(4)
    with pytest.raises(OffsetOutOfRangeError):
        log.read_span_cached(5, max_bytes=WHOLE)
    append(log, make_batch(2), leader_epoch=3)
    log.flushing.sync_all()
    assert cold(files, log, 4) == log.read_span(4, max_bytes=WHOLE)
    log.cutting.restart_at(4)
    assert log.read_span_cached(4, max_bytes=WHOLE) == b""


def test_what_is_deleted_is_not_served(log):
    fill(log, 3)
    log.flushing.sync_all()
    log.start.advance(5)
    with pytest.raises(OffsetOutOfRangeError):
        log.read_span_cached(4, max_bytes=WHOLE)


def test_what_follows_as_a_follower_forgets_it(files, log):
    fill(log, 2)
    other = open_log(MemoryFiles(), is_listed=False)
    fill(other, 3)
    log.append_as_follower(other.read_span(4, max_bytes=WHOLE))
    log.flushing.sync_all()
    assert cold(files, log, 2) is None
    assert cold(files, log, 4) is None


def test_a_large_append_is_not_kept(files, log):
    append(log, make_batch(1, value_bytes=TAIL_BYTES_MAX))
    log.flushing.sync_all()
    assert cold(files, log, 0) is None
