"""Which records travel together, and when."""

import pytest

from milena.errors import BadRecordError
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import SEQUENCE_MASK
from milena.producing.batching import (
    KEY_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RECORDS_PER_BATCH_MAX,
    Accumulator,
    record_size,
)
from milena.producing.delivery import RecordBatch
from milena.producing.sequences import LaneSequence
from milena.records import ProducerIdentity
from tests.support.fakes.scripted_cluster import ScriptedClock


def accumulator(clock=None, **limits):
    given = {"batch_bytes": 200, "linger_ms": 10, "buffer_bytes": 1000, "delivery_timeout_ms": 500}
    return Accumulator(**{**given, **limits}, clock=clock or ScriptedClock())


def add(acc, lane, value):
    size = record_size(None, value, None)
    return acc.add(lane, None, value, None, 5, size)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, None, None),
        (b"", b"", []),
        (b"k" * 70_000, b"v" * 70_000, [("n" * 300, b"x" * 300), ("é", None)]),
        (None, b"v", [("h", b"")] * 100),
    ],
)
def test_a_record_takes_no_more_than_its_size(key, value, headers):
    def encoded(count):
        batch = RecordBatch("t", 0, opened_ms=0)
        for n in range(count):
            # The most that a timestamp's delta takes.
            batch.add(key, value, headers, (1 << 62) * (n % 2), 0)
        columns, base = batch.columns(0, count)
        return len(encode_batch(columns, base_timestamp_ms=base))

    assert encoded(1001) - encoded(1) <= 1000 * record_size(key, value, headers)


def test_a_batch_opens_with_its_first_record_and_is_sealed_by_the_one_that_fills_it():
    acc = accumulator(batch_bytes=3 * (RECORD_OVERHEAD_BYTES + 10))
    lane = acc.lane("t", 0)
    assert lane is acc.lane("t", 0)
    found = [add(acc, lane, b"x" * 10) for _ in range(4)]
    assert [(number, is_due) for _, number, is_due in found] == [
        (0, True),
        (1, False),
        (2, True),
        (0, True),
    ]
    assert len(lane.waiting) == 1
    assert lane.open is found[3][0]


def test_a_record_that_does_not_fit_opens_the_next_batch():
    acc = accumulator(batch_bytes=100)
    lane = acc.lane("t", 0)
    first = add(acc, lane, b"x" * 50)[0]
    second = add(acc, lane, b"x" * 60)[0]
    assert first is not second
    assert [s.batch for s in lane.waiting] == [first]


def test_the_quick_way_adds_where_nothing_else_is_to_be_done_and_else_changes_nothing():
    acc = accumulator(batch_bytes=200, buffer_bytes=280)
    lane, other = acc.lane("t", 0), acc.lane("t", 1)
    size = record_size(None, b"x" * 30, None)

    def quick(place):
        before = acc.buffered_bytes
        found = acc.add_to_open(place, None, b"x" * 30, None, 5, size)
        assert acc.buffered_bytes == before + (size if found else 0)
        return found

    assert quick(lane) is None, "no batch is open"
    batch, _, _ = add(acc, lane, b"x" * 30)
    assert [quick(lane), quick(lane)] == [(batch, 1), (batch, 2)]
    assert quick(lane) is None, "it would fill the batch"
    assert (batch.record_count, lane.open) == (3, batch)
    add(acc, other, b"x" * 90)
    assert quick(other) is None, "the buffer has no room"


def test_a_batch_holds_no_more_records_than_readers_unpack_at_once():
    acc = accumulator(batch_bytes=1 << 30, buffer_bytes=1 << 30)
    lane = acc.lane("t", 0)
    for _ in range(RECORDS_PER_BATCH_MAX + 1):
        batch, number, _ = add(acc, lane, b"")
    assert number == 0
    assert lane.waiting[0].record_count == RECORDS_PER_BATCH_MAX
    assert batch is lane.open


def test_an_open_batch_waits_for_its_linger_and_no_longer():
    clock = ScriptedClock()
    acc = accumulator(clock=clock)
    lane = acc.lane("t", 0)
    assert acc.due_ms(lane) is None
    add(acc, lane, b"v")
    due = acc.due_ms(lane)
    assert due == clock.now_ms() + 10
    assert acc.take(lane, due - 1) is None
    taken = acc.take(lane, due)
    assert (taken.start, taken.stop, taken.deadline_ms) == (0, 1, clock.now_ms() + 500)
    assert lane.open is None
    assert acc.take(lane, due) is None


def test_what_waits_goes_before_what_gathers():
    acc = accumulator()
    lane = acc.lane("t", 0)
    first = add(acc, lane, b"1")[0]
    assert acc.seal_all() == [lane]
    second = add(acc, lane, b"2")[0]
    assert acc.take(lane, 1e9).batch is first
    assert acc.take(lane, 1e9).batch is second


def test_halves_take_the_place_of_their_whole():
    acc = accumulator()
    lane = acc.lane("t", 0)
    for n in range(3):
        add(acc, lane, b"%d" % n)
    acc.seal(lane)
    add(acc, lane, b"later")
    acc.seal(lane)
    whole = acc.take(lane, 0)
    acc.put_back(lane, *whole.halves())
    taken = [acc.take(lane, 0) for _ in range(3)]
    assert [(s.start, s.stop) for s in taken] == [(0, 1), (1, 3), (0, 1)]
    assert taken[0].batch is taken[1].batch is whole.batch
    assert taken[0].deadline_ms == whole.deadline_ms


def test_the_buffer_counts_until_all_is_settled():
    acc = accumulator(buffer_bytes=2 * RECORD_OVERHEAD_BYTES + 40)
    lane = acc.lane("t", 0)
    batch = add(acc, lane, b"x" * 20)[0]
    assert acc.has_room(RECORD_OVERHEAD_BYTES + 20)
    assert not acc.has_room(RECORD_OVERHEAD_BYTES + 21)
    acc.seal(lane)
    acc.settled(batch)
    acc.settled(batch)
    assert acc.buffered_bytes == 0
    assert not acc.unsettled
    assert acc.has_room(10**9), "a record always fits into an empty buffer"


def test_columns_hold_only_what_records_have():
    batch = RecordBatch("t", 0, opened_ms=0)
    batch.add(None, b"a", None, 5, 1)
    columns, base = batch.columns(0, 1)
    assert (columns.keys, columns.headers, columns.timestamp_deltas, base) == (None, None, None, 5)
    batch.add(b"k", None, [("h", b"x")], 3, 1)
    columns, base = batch.columns(0, 2)
    assert columns.keys == [None, b"k"]
    assert columns.headers == [None, [("h", b"x")]]
    assert columns.timestamp_deltas == [0, -2]
    assert batch.columns(1, 2)[1] == 3


def test_each_record_of_a_batch_in_pieces_has_its_own_outcome():
    batch = RecordBatch("t", 4, opened_ms=0)
    for n in range(5):
        batch.add(None, b"", None, n, 1)
    woken = []
    batch.waiters.append(lambda: woken.append(1))
    error = BadRecordError("no")
    for start, stop, base, failure in ((0, 2, 10, None), (4, 5, 77, None), (2, 4, None, error)):
        assert not batch.is_settled
        assert not woken
        batch.note(start, stop, base_offset=base, error=failure)
        batch.settle(start, stop)
    assert batch.is_settled
    assert woken == [1]
    offsets = [batch.outcome(n) for n in (0, 1, 4)]
    assert [(r.partition, r.offset, r.timestamp_ms) for r in offsets] == [
        (4, 10, 0),
        (4, 11, 1),
        (4, 77, 4),
    ]
    assert batch.outcome(2) is batch.outcome(3) is error


def test_callbacks_are_those_of_the_records_that_have_their_outcome():
    batch = RecordBatch("t", 0, opened_ms=0)
    calls = [lambda r, e: None for _ in range(4)]
    for n, call in enumerate(calls):
        batch.add(None, b"", None, n, 1)
        batch.call_back(n, call)
    assert [n for n, _ in batch.note(1, 3, base_offset=0, error=None)] == [1, 2]


def test_sizes_count_keys():
    assert record_size(b"kk", b"vvv", None) == RECORD_OVERHEAD_BYTES + KEY_OVERHEAD_BYTES + 5


# -- sequences ---------------------------------------------------------------------------------------


def test_batches_are_numbered_by_their_records():
    sequence = LaneSequence()
    sequence.begin(ProducerIdentity(3, 1))
    stamps = [sequence.take(n) for n in (5, 1, 2)]
    assert [s.base_sequence for s in stamps] == [0, 5, 6]
    assert {(s.producer_id, s.producer_epoch) for s in stamps} == {(3, 1)}


def test_numbers_wrap():
    sequence = LaneSequence()
    sequence.begin(ProducerIdentity(3, 1))
    sequence.next_sequence = SEQUENCE_MASK
    sequence.take(3)
    assert sequence.next_sequence == 2


def test_a_number_that_was_not_used_is_the_next_ones():
    sequence = LaneSequence()
    sequence.begin(ProducerIdentity(3, 1))
    sequence.take(5)
    sequence.take_back(sequence.take(7))
    assert sequence.take(1).base_sequence == 5


def test_after_doubt_another_identity_begins_at_0():
    sequence = LaneSequence()
    sequence.begin(ProducerIdentity(3, 1))
    doubtful = sequence.take(5)
    sequence.spoil()
    assert sequence.identity is None
    assert sequence.spoiled == ProducerIdentity(3, 1)
    sequence.begin(ProducerIdentity(4, 0))
    sequence.take_back(doubtful)
    assert sequence.take(1).base_sequence == 0
    with pytest.raises(AssertionError):
        sequence.begin(ProducerIdentity(3, 1))
