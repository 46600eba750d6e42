"""What a log remembers of those who wrote to it."""

import pytest

from milena.model.batch.header import decode_header
from milena.model.errors import (
    CorruptLogError,
    DiskFullError,
    InvalidProducerError,
    StaleProducerEpochError,
)
from storage.state.producer_state import ACCEPT, PRODUCER_EXPIRY_MS, Duplicate
from tests.support.disk.log_model import NOW_MS, LogModel, make_batch, open_log, read_all
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.small_logs import append, bases, key, producer_batch


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


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


def test_the_last_sequence_of_a_producer_is_known(log):
    assert log.writers.producers.last_sequence(7) is None
    append(log, producer_batch(0, records=3))
    assert log.writers.producers.last_sequence(7) == 2


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
    log.cutting.truncate_to(3)
    assert log.producer_check(decode_header(producer_batch(2)), NOW_MS) is ACCEPT
    assert log.idempotency_lookup(key(1).key_hash, NOW_MS) is not None
    assert log.idempotency_lookup(key(2).key_hash, NOW_MS) is None


def test_cutting_the_batch_that_holds_the_log_start_keeps_what_is_known_below(log):
    append(log, producer_batch(0, records=1), now_ms=NOW_MS)
    append(log, producer_batch(1, records=2), now_ms=NOW_MS + 5)
    log.start.advance(2)
    log.cutting.truncate_to(2)
    assert log.state.writers.producers.get(7).append_time_ms == NOW_MS
    assert log.writers.producers.last_sequence(7) == 0


def test_truncation_brings_back_what_the_cut_batches_had_pushed_out(log):
    """Five batches are remembered; forgetting the newest must not leave fewer than there were before them."""
    for sequence in range(0, 20, 2):
        append(log, producer_batch(sequence))
    log.cutting.truncate_to(12)
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
    log.start.apply_retention(NOW_MS + 2 * PRODUCER_EXPIRY_MS + 1, 0)
    with pytest.raises(InvalidProducerError, match="knows nothing"):
        log.producer_check(decode_header(producer_batch(90)), late)


def test_a_follower_that_starts_above_takes_over_the_leaders_writers(files):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    for sequence in range(0, 20, 2):
        append(leader, producer_batch(sequence), make_batch(key=key(sequence)))
    follower = open_log(files, is_listed=False)
    follower.cutting.restart_at(15, leader.producer_snapshot(leader.log_end_offset))
    for batch in read_all(leader):
        if decode_header(batch).next_offset > 15:
            follower.append_as_follower(batch)
    follower.flushing.sync_all()
    assert follower.log_end_offset == leader.log_end_offset
    assert follower.state.writers.producers.freeze() == leader.state.writers.producers.freeze()
    assert follower.state.writers.idempotency.freeze() == leader.state.writers.idempotency.freeze()
    files.crash()
    follower = open_log(files)
    assert follower.state.writers.idempotency.lookup(key(0).key_hash, NOW_MS) is not None
    header = decode_header(producer_batch(18))
    assert follower.producer_check(header, NOW_MS) == Duplicate(27, 28)


def test_a_follower_that_becomes_leader_before_it_has_everything_forgets_the_rest(files):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    for sequence in range(0, 20, 2):
        append(leader, producer_batch(sequence))
    follower = open_log(files, is_listed=False)
    follower.cutting.restart_at(10, leader.producer_snapshot(leader.log_end_offset))
    follower.append_as_follower(leader.read_span(10, max_bytes=1 << 20, end_offset=14))
    assert follower.log_end_offset == 14
    with pytest.raises(InvalidProducerError, match="expected sequence 14, got 18"):
        follower.producer_check(decode_header(producer_batch(18)), NOW_MS)


def test_a_follower_is_told_of_no_batch_that_may_yet_be_cut(files):
    deposed = open_log(files, is_listed=False, directory="/deposed/0")
    for sequence in range(0, 10, 2):
        append(deposed, producer_batch(sequence), make_batch(key=key(sequence)))
    follower = open_log(files, is_listed=False)
    follower.cutting.restart_at(6, deposed.producer_snapshot(high_watermark=9))
    # Another leader, which never had what lay above, and whose batches take the follower's log beyond it.
    elected = open_log(files, is_listed=False, directory="/elected/0")
    elected.append_as_follower(deposed.read_span(0, max_bytes=1 << 20, end_offset=9))
    append(elected, *(make_batch() for _ in range(10)))
    follower.append_as_follower(elected.read_span(6, max_bytes=1 << 20, end_offset=19))
    assert follower.idempotency_lookup(key(4).key_hash, NOW_MS) is not None
    assert follower.idempotency_lookup(key(6).key_hash, NOW_MS) is None
    assert follower.writers.producers.last_sequence(7) == 5


def test_a_leader_answers_no_retry_by_what_it_never_got(files):
    deposed = open_log(files, is_listed=False, directory="/deposed/0")
    append(deposed, make_batch(key=key(1)), make_batch(key=key(2)))
    follower = open_log(files, is_listed=False)
    follower.cutting.restart_at(1, deposed.producer_snapshot(high_watermark=2))
    assert follower.idempotency_lookup(key(1).key_hash, NOW_MS) is not None
    assert follower.idempotency_lookup(key(2).key_hash, NOW_MS) is None


def test_a_snapshot_that_does_not_fit_on_the_disk_changes_nothing(files, log):
    leader = open_log(files, is_listed=False, directory="/leader/0")
    append(leader, producer_batch(0))
    append(log, make_batch(6))
    log.flushing.sync_all()
    log.checkpointing.run(0, is_forced=True)
    files.capacity = files.used_bytes()
    with pytest.raises(DiskFullError):
        log.cutting.restart_at(50, leader.producer_snapshot(leader.log_end_offset))
    assert log.writers.producers.last_sequence(7) is None
    assert log.log_end_offset == 6
    assert len(read_all(log)) == 1


def test_a_damaged_snapshot_changes_nothing(log):
    append(log, producer_batch(0))
    content = bytearray(log.producer_snapshot(log.log_end_offset))
    content[-1] ^= 1
    with pytest.raises(CorruptLogError):
        log.cutting.restart_at(50, bytes(content))
    assert log.log_end_offset == 2
    assert log.producer_check(decode_header(producer_batch(0)), NOW_MS) == Duplicate(0, 1)
