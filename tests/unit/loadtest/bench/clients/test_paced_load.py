"""Records that become due by the clock: who is late does not make the next one look quick."""

from loadtest.bench.clients.paced_load import Pace, delays_s, encode_stamp
from loadtest.bench.servers.subject import batch_of
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns


def test_a_free_connection_sends_at_once():
    pace = Pace()
    assert not pace.is_busy
    assert pace.on_due(1.0)
    assert pace.is_busy
    assert pace.on_answer(1.5) == (0.5, None)
    assert not pace.is_busy


def test_what_becomes_due_meanwhile_counts_from_when_it_was_due():
    pace = Pace()
    assert pace.on_due(1.0)
    assert not pace.on_due(2.0)
    assert not pace.on_due(3.0)
    assert pace.on_answer(5.0) == (4.0, 2.0)
    assert pace.on_answer(5.5) == (3.5, 3.0)
    assert pace.on_answer(5.75) == (2.75, None)


def test_the_oldest_is_the_one_under_way():
    pace = Pace()
    assert pace.oldest_s(7.0) == 0.0
    pace.on_due(1.0)
    pace.on_due(2.0)
    assert pace.oldest_s(7.0) == 6.0


def test_stamps_are_of_one_length_and_are_found_in_stored_batches():
    stamps = [encode_stamp(due_s) for due_s in (0.5, 86_400.0, 9_999_999.25)]
    assert len({len(stamp) for stamp in stamps}) == 1
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None,
        values=[b'"' + stamp + b'xx"' for stamp in stamps],
        headers=None,
    )
    stored = encode_batch(columns, base_timestamp_ms=1) + batch_of(3, 100)
    assert delays_s(stored, 10_000_000.0) == [9_999_999.5, 9_913_600.0, 0.75]
