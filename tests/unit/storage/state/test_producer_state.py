"""What a producer may append next: accept, duplicate, out of order, fenced."""

import pytest

from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.batch.v2_checks import wrap_v2
from milena.model.errors import CorruptLogError, InvalidProducerError, StaleProducerEpochError
from storage.state.producer_state import (
    ACCEPT,
    PRODUCER_EXPIRY_MS,
    Duplicate,
    ProducerStates,
    WriterState,
)
from storage.state.sealed import seal
from storage.state.writer_snapshot import REMEMBERED_BATCHES, decode_snapshot, encode_snapshot
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.disk.log_model import NOW_MS, make_batch


def header(sequence, *, records=1, producer_id=7, epoch=0, key=None):
    stamp = None if producer_id is None else ProducerStamp(producer_id, epoch, sequence)
    return decode_header(make_batch(records, producer=stamp, key=key))


class Log:
    """Appends what is accepted, as a log would."""

    def __init__(self, **options):
        self.states = ProducerStates(**options)
        self.end = 0
        self.now_ms = NOW_MS

    def check(self, batch):
        return self.states.check(batch, self.now_ms)

    def send(self, batch):
        verdict = self.check(batch)
        if verdict is ACCEPT:
            self.states.record(batch, self.end, self.now_ms)
            self.end += batch.last_offset_delta + 1
        return verdict


def test_a_batch_without_a_producer_is_always_accepted():
    log = Log()
    assert log.send(header(0, producer_id=None)) is ACCEPT
    assert log.send(header(0, producer_id=None)) is ACCEPT
    assert len(log.states) == 0


def test_sequences_that_follow_each_other_are_accepted():
    log = Log()
    assert [log.send(header(s, records=3)) for s in (0, 3, 6)] == [ACCEPT] * 3


def test_a_retry_gets_the_offsets_of_the_first_attempt():
    log = Log()
    log.send(header(0, producer_id=None, records=10))
    log.send(header(0, records=3))
    log.send(header(3, records=2))
    assert log.send(header(0, records=3)) == Duplicate(10, 12)
    assert log.send(header(3, records=2)) == Duplicate(13, 14)


def test_the_last_five_batches_are_remembered():
    """KIP-98: a producer keeps five requests under way; any of them may be the one that is retried."""
    log = Log()
    for sequence in range(8):
        log.send(header(sequence))
    for sequence in range(8 - REMEMBERED_BATCHES, 8):
        assert log.check(header(sequence)) == Duplicate(sequence, sequence)
    with pytest.raises(InvalidProducerError, match="expected sequence 8, got 2"):
        log.check(header(2))


def test_a_retry_must_be_the_same_batch():
    log = Log()
    log.send(header(0, records=3))
    with pytest.raises(InvalidProducerError, match="expected sequence 3, got 0"):
        log.check(header(0, records=2))


def test_a_gap_is_refused_and_names_what_was_expected():
    log = Log()
    log.send(header(0, records=3))
    with pytest.raises(
        InvalidProducerError, match=r"producer 7 epoch 0: expected sequence 3, got 4"
    ):
        log.check(header(4))


def test_an_unknown_producer_begins_at_zero():
    with pytest.raises(InvalidProducerError, match="expected sequence 0, got 5"):
        Log().check(header(5))


def kafka_header(sequence, *, records=1, producer_id=7, epoch=0):
    rows = numbered(*(KafkaRecord(b"v") for _ in range(records)))
    sent = encoded(rows, producer=(producer_id, epoch, sequence))
    return wrap_v2(sent, bytes_max=1 << 20, now_ms=NOW_MS)[1]


def test_an_unknown_producer_of_a_kafka_client_begins_anywhere():
    """As in Kafka's ``ProducerAppendInfo``: a client does not notice that its topic was created again."""
    log = Log()
    assert log.send(kafka_header(5, records=2)) is ACCEPT
    assert log.send(kafka_header(5, records=2)) == Duplicate(0, 1)
    with pytest.raises(InvalidProducerError, match="expected sequence 7, got 8"):
        log.check(kafka_header(8))
    assert log.send(kafka_header(7)) is ACCEPT


def test_a_sequence_before_the_first_one_of_a_producer_is_no_repetition():
    """Clients take a repetition for success, but this batch was never written."""
    log = Log()
    for sequence in range(5, 5 + REMEMBERED_BATCHES - 1):
        log.send(kafka_header(sequence))
    with pytest.raises(InvalidProducerError, match="expected sequence 9, got 4") as never:
        log.check(kafka_header(4))
    assert not never.value.is_repeated
    with pytest.raises(InvalidProducerError, match="expected sequence 9, got 6") as other:
        log.check(kafka_header(6, records=2))
    assert other.value.is_repeated
    log.send(kafka_header(9))
    log.send(kafka_header(10))
    with pytest.raises(InvalidProducerError, match="expected sequence 11, got 5") as forgotten:
        log.check(kafka_header(5))
    assert forgotten.value.is_repeated


def test_sequences_wrap():
    log = Log()
    last = (1 << 31) - 1
    log.states.record(header(last - 1), 0, NOW_MS)
    log.end = 1
    assert log.send(header(last, records=3)) is ACCEPT
    assert log.send(header(last, records=3)) == Duplicate(1, 3)
    assert log.send(header(2)) is ACCEPT


def test_an_older_epoch_is_fenced():
    log = Log()
    log.send(header(0, epoch=2))
    with pytest.raises(StaleProducerEpochError, match="epoch 1, but epoch 2 has taken over"):
        log.check(header(1, epoch=1))


def test_a_newer_epoch_begins_at_zero():
    log = Log()
    log.send(header(0, epoch=2))
    with pytest.raises(InvalidProducerError, match=r"expected sequence 0, got 1 .*epoch 3 is new"):
        log.check(header(1, epoch=3))
    assert log.send(header(0, epoch=3)) is ACCEPT
    assert log.send(header(0, epoch=3)) == Duplicate(1, 1)


def test_a_producer_that_was_silent_too_long_may_go_on_anywhere():
    log = Log()
    log.send(header(0))
    log.now_ms += PRODUCER_EXPIRY_MS
    with pytest.raises(InvalidProducerError):
        log.check(header(50))
    log.now_ms += 1
    assert log.check(header(50)) is ACCEPT
    assert log.check(header(0)) == Duplicate(0, 0)


def test_a_producer_is_forgotten_in_the_end():
    log = Log()
    log.send(header(0))
    log.now_ms += 1
    log.send(header(0, producer_id=8))
    log.states.expire(NOW_MS + 2 * PRODUCER_EXPIRY_MS)
    assert len(log.states) == 2
    log.states.expire(NOW_MS + 2 * PRODUCER_EXPIRY_MS + 1)
    assert list(log.states.freeze()) == [8]


def test_the_producer_that_was_silent_longest_makes_room():
    log = Log(producers_max=2)
    for producer_id in (1, 2):
        log.send(header(0, producer_id=producer_id))
    log.send(header(1, producer_id=1))
    log.send(header(0, producer_id=3))
    assert list(log.states.freeze()) == [1, 3]


def test_a_batch_that_is_covered_changes_nothing():
    """A follower that took over its leader's state then gets the batches themselves."""
    log = Log()
    for sequence in range(3):
        log.send(header(sequence))
    before = log.states.freeze()
    log.states.record(header(1), 1, NOW_MS)
    log.states.record(header(0, epoch=-1), 5, NOW_MS)
    assert log.states.freeze() == before


def test_clocks_of_leaders_that_disagree_do_not_age_a_producer():
    log = Log()
    log.send(header(0))
    log.states.record(header(1), 1, NOW_MS - 1000)
    assert log.states.get(7).append_time_ms == NOW_MS


def test_truncated_batches_are_forgotten():
    log = Log()
    log.send(header(0))
    log.send(header(1))
    log.send(header(0, producer_id=8))
    log.states.forget_from(1)
    assert log.check(header(1)) is ACCEPT
    assert list(log.states.freeze()) == [7]


def key(number):
    return IdempotencyExtension(bytes([number]) * 16, b"body-abc", 6)


def filled():
    state = WriterState()
    state.record(header(0, records=3), 0, NOW_MS)
    state.record(header(0, producer_id=8, key=key(1)), 3, NOW_MS + 1)
    state.record(header(3), 4, NOW_MS + 2)
    state.record(header(0, producer_id=None, key=key(2)), 5, NOW_MS + 3)
    return state


def test_a_snapshot_holds_producers_and_keys():
    snapshot = filled().freeze(6)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    assert snapshot.offset == snapshot.covers_offset == 6
    restored = WriterState()
    restored.install(snapshot)
    assert restored.freeze(6) == snapshot


def test_a_snapshot_is_a_copy():
    state = filled()
    snapshot = state.freeze(6)
    before = encode_snapshot(snapshot)
    state.record(header(4, key=key(3)), 6, NOW_MS)
    state.expire(NOW_MS + 10 * PRODUCER_EXPIRY_MS)
    assert encode_snapshot(snapshot) == before
    assert len(state.producers) == len(state.idempotency) == 0


def test_state_that_came_from_a_leader_stays_marked():
    """It may stem from batches that this log never gets: they are forgotten when it goes its own way."""
    state = WriterState()
    state.install(filled().freeze(6))
    assert state.freeze(2).covers_offset == 6
    state.forget_from(5)
    assert state.covers_offset == 5
    assert state.producers.get(7).batches[-1].last_offset == 4
    assert len(state.idempotency) == 1


def test_a_damaged_snapshot_is_refused():
    content = encode_snapshot(filled().freeze(6))
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 4
        with pytest.raises(CorruptLogError):
            decode_snapshot(bytes(damaged))


@pytest.mark.parametrize(
    "producers",
    [None, [None], [[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, *range(24)]], [[1, "2", 3, 4, 5, 6, 7]]],
)
def test_a_snapshot_of_another_shape_is_refused(producers):
    empty = [[], [], [], [], [], []]
    with pytest.raises(CorruptLogError):
        decode_snapshot(seal(b"MPS1", [0, 0, producers, empty]))
