"""What was appended under which idempotency key."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milena.model.errors import TooManyRequestsError
from storage.state.idempotency import (
    IDEMPOTENCY_KEPT_MS,
    IDEMPOTENCY_WINDOW_MS,
    IdempotencyEntry,
    IdempotencyTable,
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


def test_no_key_makes_room_that_may_come_again():
    table = IdempotencyTable(keys_max=3)
    for number in range(3):
        table.check_room(NOW_MS, coming=0)
        table.record(key(number), entry(number, number, time_ms=NOW_MS + number * 1_000))
    with pytest.raises(TooManyRequestsError, match="may go, in 600 s"):
        table.check_room(NOW_MS + 1, coming=0)
    with pytest.raises(TooManyRequestsError, match="may go, in 1 s"):
        table.check_room(NOW_MS + IDEMPOTENCY_KEPT_MS - 1, coming=0)
    table.check_room(NOW_MS + IDEMPOTENCY_KEPT_MS, coming=0)
    # Each of those that are coming takes an older one's place.
    with pytest.raises(TooManyRequestsError, match="may go, in 1 s"):
        table.check_room(NOW_MS + IDEMPOTENCY_KEPT_MS, coming=1)
    table.check_room(NOW_MS + IDEMPOTENCY_KEPT_MS + 1_000, coming=1)
    with pytest.raises(TooManyRequestsError):
        table.check_room(NOW_MS + 10 * IDEMPOTENCY_KEPT_MS, coming=3)


def test_keys_of_a_clock_that_was_days_ahead_make_room_once_it_is_repaired():
    table = IdempotencyTable(keys_max=3)
    ahead_ms = 8 * 24 * 3_600_000
    for number in range(3):
        table.record(key(number), entry(number, number, time_ms=NOW_MS + ahead_ms))
    table.check_room(NOW_MS, coming=0)
    assert table.lookup(key(0), NOW_MS) is not None, "it is remembered until it goes"


def test_no_key_makes_room_while_the_time_is_not_known():
    table = IdempotencyTable(keys_max=1)
    table.record(key(0), entry(0, 0, time_ms=NOW_MS))
    with pytest.raises(TooManyRequestsError):
        table.check_room(0, coming=0)


@given(
    st.lists(st.tuples(st.integers(0, IDEMPOTENCY_KEPT_MS // 2), st.integers(1, 4)), max_size=60)
)
def test_whoever_was_let_in_is_remembered_for_so_long(turns):
    """Turns of a leader: time passes, and some keys come at once."""
    table, now_ms, offset = IdempotencyTable(keys_max=5), NOW_MS, 0
    taken: dict[bytes, int] = {}
    for passed_ms, count in turns:
        now_ms += passed_ms
        coming = []
        for _ in range(count):
            with suppress(TooManyRequestsError):
                table.check_room(now_ms, coming=len(coming))
                coming.append(key(offset + len(coming)))
        for key_hash in coming:
            table.record(key_hash, entry(offset, offset, time_ms=now_ms))
            taken[key_hash] = now_ms
            offset += 1
        for key_hash, at_ms in taken.items():
            if now_ms - at_ms < IDEMPOTENCY_KEPT_MS:
                assert table.lookup(key_hash, now_ms) is not None


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
