"""A page is read the same in either form, and a reader sees at once what is wrong with it."""

import json
from base64 import b64encode

import pytest

from loadtest.records.fingerprints import fingerprint
from loadtest.records.pages import Page, PageError, PageFormat, StoredRecord, parse_page
from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.batch.header import STAMP_BYTES
from milena.model.columns import RecordColumns
from tests.support.spark.load_runs import LoadRun


@pytest.fixture
def log():
    run = LoadRun(partitions=1)
    run.write(2, count=3)
    run.write(3, count=3)
    return run.logs[0]


def as_batches(records):
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=[r.key for r in records],
        values=[r.value for r in records],
        headers=None,
    )
    batch = encode_batch(columns, base_timestamp_ms=1)
    stamp = stamp_batch(batch, base_offset=records[0].offset, leader_epoch=1, append_time_ms=1)
    return stamp + batch[STAMP_BYTES:]


def as_base64(records):
    def text(data):
        return None if data is None else b64encode(data).decode()

    items = [{"offset": r.offset, "key": text(r.key), "value": text(r.value)} for r in records]
    return json.dumps(items).encode()


FORMS = {PageFormat.BATCHES: as_batches, PageFormat.BASE64: as_base64}


@pytest.mark.parametrize("page_format", PageFormat)
def test_both_forms_give_the_stored_records(log, page_format):
    page = parse_page(page_format, FORMS[page_format](log), 0)
    assert list(page.records) == log
    assert page.offsets == (0, 1, 2, 3, 4, 5)
    assert page.fingerprints[8:16] == fingerprint(log[1].key, log[1].value)
    assert page.value_bytes == sum(len(r.value) for r in log)
    assert list(page.troubles(0)) == []


def test_a_batch_may_begin_before_what_was_asked_for(log):
    assert parse_page(PageFormat.BATCHES, as_batches(log), 2).offsets == (2, 3, 4, 5)


def test_a_page_can_be_cut_at_an_end(log):
    page = Page(records=tuple(log))
    assert page.before(6) is page
    assert page.before(4).offsets == (0, 1, 2, 3)


@pytest.mark.parametrize("page_format", PageFormat)
def test_an_empty_answer_is_an_empty_page(page_format):
    body = b"" if page_format is PageFormat.BATCHES else b"[]"
    assert parse_page(page_format, body, 5).records == ()


@pytest.mark.parametrize(
    ("page_format", "body"),
    [
        (PageFormat.BATCHES, b"\0" * 100),
        (PageFormat.BASE64, b"{"),
        (PageFormat.BASE64, b"[{}]"),
        (PageFormat.BASE64, b'[{"offset":1,"key":null,"value":"#"}]'),
    ],
)
def test_what_is_no_page_is_an_error(page_format, body):
    with pytest.raises(PageError, match="from offset 7 is damaged"):
        parse_page(page_format, body, 7)


def test_a_flipped_byte_in_a_batch_is_an_error(log):
    body = bytearray(as_batches(log))
    body[-1] ^= 1
    with pytest.raises(PageError):
        parse_page(PageFormat.BATCHES, bytes(body), 0)


@pytest.mark.parametrize(
    ("order", "asked", "name"),
    [([1, 2], 0, "poll-skip"), ([0, 2], 0, "poll-skip"), ([0, 1], 1, "nonmonotonic-poll")],
)
def test_offsets_must_follow_each_other_from_what_was_asked_for(log, order, asked, name):
    page = Page(records=tuple(log[at] for at in order))
    assert name in next(page.troubles(asked))


def test_a_damaged_record_is_told_and_a_foreign_one_is_not(log):
    damaged = log[0]._replace(value=log[0].value[:-3])
    foreign = StoredRecord(1, None, b"hello")
    troubles = list(Page(records=(damaged, foreign)).troubles(0))
    assert len(troubles) == 1
    assert troubles[0].startswith("corrupt-record: offset 0")
