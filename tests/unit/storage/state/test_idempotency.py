"""What was appended under which idempotency key."""

import pytest

from milena.model.errors import CorruptLogError
from storage.state.idempotency import (
    IDEMPOTENCY_WINDOW_MS,
    IdempotencyEntry,
    IdempotencyTable,
    decode_idempotency,
    encode_idempotency,
)

NOW_MS = 1_700_000_000_000


def key(number):
    return number.to_bytes(16, "big")


def entry(base_offset, last_offset, *, time_ms=NOW_MS, body=b"body-one"):
    return IdempotencyEntry(body, 6, base_offset, last_offset, time_ms)


def test_a_key_finds_its_first_answer():
    table = IdempotencyTable()
    table.record(key(1), entry(10, 12))
    assert table.lookup(key(1), NOW_MS) == entry(10, 12)
    assert table.lookup(key(2), NOW_MS) is None


def test_a_key_is_forgotten_after_its_window():
    table = IdempotencyTable()
    table.record(key(1), entry(10, 12))
    assert table.lookup(key(1), NOW_MS + IDEMPOTENCY_WINDOW_MS) is not None
    assert table.lookup(key(1), NOW_MS + IDEMPOTENCY_WINDOW_MS + 1) is None
    assert len(table) == 1
    table.expire(NOW_MS + IDEMPOTENCY_WINDOW_MS + 1)
    assert len(table) == 0


def test_expiry_stops_at_the_first_key_that_is_young_enough():
    table = IdempotencyTable()
    table.record(key(1), entry(0, 0, time_ms=NOW_MS))
    table.record(key(2), entry(1, 1, time_ms=NOW_MS + 10))
    table.expire(NOW_MS + IDEMPOTENCY_WINDOW_MS + 5)
    assert list(table.freeze()) == [key(2)]


def test_the_oldest_key_makes_room():
    table = IdempotencyTable(keys_max=3)
    for number in range(5):
        table.record(key(number), entry(number, number))
    assert list(table.freeze()) == [key(2), key(3), key(4)]


def test_batches_of_one_request_make_one_answer():
    """A body that fills several batches is one request; its batches follow each other."""
    table = IdempotencyTable()
    table.record(key(1), entry(10, 12))
    table.record(key(1), entry(13, 20))
    assert table.lookup(key(1), NOW_MS) == entry(10, 20)


@pytest.mark.parametrize(
    "later",
    [
        entry(14, 20),
        entry(13, 20, body=b"body-two"),
        entry(13, 20, time_ms=NOW_MS + IDEMPOTENCY_WINDOW_MS + 1),
    ],
)
def test_what_does_not_belong_to_the_request_replaces_it(later):
    table = IdempotencyTable()
    table.record(key(1), entry(10, 12))
    table.record(key(1), later)
    assert table.freeze() == {key(1): later}


def test_an_append_that_is_covered_changes_nothing():
    """A follower that took over its leader's table then gets the batches themselves."""
    table = IdempotencyTable({key(1): entry(10, 20)})
    table.record(key(1), entry(10, 12))
    assert table.freeze() == {key(1): entry(10, 20)}


def test_truncated_appends_are_forgotten():
    table = IdempotencyTable()
    table.record(key(1), entry(0, 9))
    table.record(key(2), entry(10, 12))
    table.forget_from(12)
    assert list(table.freeze()) == [key(1)]
    table.clear()
    assert len(table) == 0


def test_a_snapshot_holds_the_table():
    entries = {key(1): entry(0, 9), key(2): entry(10, 12)}
    assert decode_idempotency(encode_idempotency(entries)) == entries
    assert list(decode_idempotency(encode_idempotency(entries))) == list(entries)
    assert decode_idempotency(encode_idempotency({})) == {}


def test_a_snapshot_of_another_shape_is_refused():
    whole = encode_idempotency({key(1): entry(0, 9)})
    for damaged in (None, [], whole[:5], [None, *whole[1:]], [*whole[:5], []], [[1], *whole[1:]]):
        with pytest.raises(CorruptLogError):
            decode_idempotency(damaged)
