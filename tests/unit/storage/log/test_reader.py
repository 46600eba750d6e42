"""Where a span of stored batches has records, after compaction."""

from milena.model.batch.encode import encode_batch, encode_filler, rewrite_batch
from milena.model.batch.header import decode_header
from milena.model.columns import RecordColumns
from storage.log.reader import end_of_span, first_with_records, tally_span
from tests.support.disk.log_model import make_batch, stamped


def filler(first, last):
    return encode_filler(
        base_offset=first, last_offset=last, leader_epoch=0, append_time_ms=0, timestamp_ms=0
    )


def dense(base_offset, records=2, **options):
    batch = make_batch(records, **options)
    return stamped(batch, base_offset=base_offset, leader_epoch=0, append_time_ms=0)


def sparse(base_offset, records, *kept):
    header = decode_header(dense(base_offset, records))
    values = [b"v"] * len(kept)
    return rewrite_batch(header, RecordColumns(list(kept), None, None, values, None))


def control(base_offset):
    columns = RecordColumns(None, None, None, [b"v"], None)
    batch = encode_batch(columns, base_timestamp_ms=0, is_control=True)
    return stamped(batch, base_offset=base_offset, leader_epoch=0, append_time_ms=0)


def test_a_batch_that_is_whole_has_the_offset_that_was_asked_for():
    assert first_with_records(dense(4), 4, 10) == 4
    assert first_with_records(dense(4), 5, 10) == 5


def test_batches_without_records_are_passed_over():
    assert first_with_records(filler(0, 9), 3, 100) is None
    assert first_with_records(filler(0, 9) + dense(10), 3, 100) == 10
    assert first_with_records(control(0) + dense(1), 0, 100) == 1


def test_records_outside_of_what_is_wanted_do_not_count():
    assert first_with_records(sparse(0, 10, 2), 2, 100) == 0
    assert first_with_records(sparse(0, 10, 2), 3, 100) is None
    assert first_with_records(sparse(0, 10, 8), 3, 8) is None
    assert first_with_records(sparse(0, 10, 2) + sparse(10, 5, 4), 3, 100) == 10


def test_records_of_a_span_are_counted_from_where_it_was_asked_for():
    span = dense(0, 5) + filler(5, 9) + control(10) + dense(11, 3)
    assert tally_span(span, 0, 100)[0] == 8
    # The first batch is there as a whole, and the last one may be, whatever of them was wanted.
    assert tally_span(dense(0, 5), 3, 100)[0] == 2
    assert tally_span(dense(0, 5) + dense(5, 5), 3, 7)[0] == 4
    assert tally_span(sparse(0, 10, 2, 8) + dense(10, 1), 0, 100)[0] == 3
    assert tally_span(filler(0, 9), 3, 100)[0] == 0
    assert tally_span(b"", 3, 100)[0] == 0


def test_counting_ends_at_what_is_no_batch():
    span = dense(0, 2)
    for damaged in (bytes(200), b"\xff" * 200, span[:-1], span[:50]):
        assert 0 <= tally_span(span + damaged, 0, 100)[0] <= 100
        assert 0 <= tally_span(damaged + span, 0, 100)[0] <= 100


def test_a_span_ends_after_its_last_batch():
    assert end_of_span(filler(0, 9) + dense(10)) == 12
