"""Large batches stay in memory from their append to their commit, and are served from there as they lie in the file."""

import pytest

from storage.segments.log_config import LogConfig
from storage.segments.segment import LOG_SUFFIX, offset_name
from storage.segments.uncommitted import BATCH_BYTES_MIN, UNCOMMITTED_BYTES_MAX, UncommittedMemory
from tests.support.disk.log_model import DIRECTORY, make_batch, open_log
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import append

LARGE = 20_000
WHOLE = 1 << 20
END = 1 << 40


@pytest.fixture
def memory():
    return UncommittedMemory()


@pytest.fixture
def log(memory):
    return opened(memory)


def opened(memory, files=None):
    return open_log(
        MemoryFiles() if files is None else files,
        is_listed=False,
        memory=memory,
        config=LogConfig(segment_bytes=1 << 20),
    )


def large(count=1):
    return make_batch(count, value_bytes=LARGE)


def found(log, offset, *, max_bytes=WHOLE, end_offset=END):
    return b"".join(log.read_uncommitted(offset, max_bytes=max_bytes, end_offset=end_offset))


def test_it_is_what_lies_in_the_file_and_was_not_copied(log):
    batch = large()
    append(log, batch)
    append(log, large(2))
    assert found(log, 0) == log.read_span(0, max_bytes=WHOLE)
    assert found(log, 1) == log.read_span(1, max_bytes=WHOLE)
    _, body = log.read_uncommitted(0, max_bytes=len(batch), end_offset=END)
    assert body.obj is batch


def test_it_is_served_in_whole_batches_within_the_bounds(log):
    first, second = large(), large(2)
    append(log, first, second)
    whole = log.read_span(0, max_bytes=WHOLE)
    assert found(log, 0, max_bytes=len(whole)) == whole
    assert found(log, 0, max_bytes=len(whole) - 1) == whole[: len(first)]
    assert found(log, 0, max_bytes=len(first) - 1) == b""
    assert found(log, 0, end_offset=3) == whole
    assert found(log, 0, end_offset=2) == whole[: len(first)]
    assert found(log, 2) == b"", "inside of a batch"
    assert found(log, 3) == b"", "the end"


def test_what_lies_between_two_that_are_kept_is_not_passed_over(log):
    append(log, large(), make_batch(1), large())
    first = log.read_span(0, max_bytes=1)
    assert found(log, 0) == first
    assert found(log, 1) == b""
    assert found(log, 2) == log.read_span(2, max_bytes=1)


def test_one_that_goes_on_where_the_log_ends_is_kept_as_well(log):
    append(log, make_batch(1))
    append(log, large())
    assert found(log, 1) == log.read_span(1, max_bytes=1)


def test_what_is_committed_goes(log, memory):
    append(log, large())
    append(log, large(2))
    log.state.uncommitted.forget_below(2)
    assert found(log, 0) == b""
    assert found(log, 1), "its last record is not committed"
    log.state.uncommitted.forget_below(3)
    assert found(log, 1) == b""
    assert memory.free_bytes == UNCOMMITTED_BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.cutting.truncate_to(1),
        lambda log: log.cutting.restart_at(9),
        lambda log: log.state.uncommitted.forget(),
        lambda log: log.close(is_clean=False),
        lambda log: log.delete(),
    ],
)
def test_a_cut_and_the_end_forget_all_of_it(log, memory, change):
    append(log, large())
    append(log, large())
    assert memory.free_bytes < UNCOMMITTED_BYTES_MAX
    change(log)
    assert memory.free_bytes == UNCOMMITTED_BYTES_MAX


def test_what_is_deleted_is_not_served(log):
    append(log, large())
    append(log, large())
    log.flushing.sync_all()
    log.start.advance(1)
    assert found(log, 0) == b""
    assert found(log, 1)


def test_a_copy_that_is_given_up_serves_nothing(memory):
    files = MemoryFiles()
    log = opened(memory, files)
    append(log, large())
    append(log, large())
    log.rolling.close_segment(1)
    log.checkpointing.run(0, is_forced=True)
    files.flip_bit(f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}", 500)
    scrub = log.begin_scrub(0)
    while not scrub.is_done:
        scrub.step()
    assert scrub.damage is not None
    log.give_up_from(scrub.damage)
    assert log.read_uncommitted(0, max_bytes=WHOLE, end_offset=END) == []
    assert memory.free_bytes == UNCOMMITTED_BYTES_MAX


def test_small_batches_are_not_kept(log, memory):
    append(log, *[make_batch(1, value_bytes=BATCH_BYTES_MIN // 2)] * 20)
    assert found(log, 0) == b""
    assert memory.free_bytes == UNCOMMITTED_BYTES_MAX


def test_logs_share_what_there_is(memory):
    memory.free_bytes = 2 * LARGE
    one = opened(memory)
    other = opened(memory)
    append(one, large())
    append(other, large())
    assert found(one, 0)
    assert found(other, 0) == b"", "no room: it is read from the file"
    one.state.uncommitted.forget_below(1)
    append(other, large())
    assert found(other, 1)


def test_what_a_follower_appends_is_not_kept(log, memory):
    append(log, large())
    other = opened(UncommittedMemory())
    other.append_as_follower(log.read_span(0, max_bytes=WHOLE))
    assert found(other, 0) == b""
