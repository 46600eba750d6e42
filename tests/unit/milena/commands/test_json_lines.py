"""Records as JSON, one a line: whatever ``consume`` prints, ``produce`` reads back."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.formats.envelope import decode_envelope
from http_api.formats.json_v2 import encode_items
from http_api.formats.text_v2 import decode_items
from milena.commands.formats import json_line
from milena.commands.producing.json_lines import JsonLines, partitions_needed
from milena.commands.producing.line_producer import LineOptions, LineProducer
from milena.commands.producing.lines import Placing
from milena.model.turns import at_once
from milena.model.types import TimestampType
from milena.records import ConsumedRecord
from tests.support.time.fake_clock import FakeClock

CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=2).map(tuple)
RECORDS = st.builds(
    ConsumedRecord,
    topic=st.just("t"),
    partition=st.integers(0, 2),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(0, 2),
    key=CONTENT,
    value=CONTENT,
    headers=HEADERS,
)


def parsed(*lines: bytes, is_skipping: bool = False):
    return JsonLines().parse_all([*lines], first=1, is_skipping=is_skipping)


@given(st.lists(RECORDS, max_size=6))
def test_every_record_that_is_printed_is_read_back_whole_and_in_its_place(records):
    found = parsed(*map(json_line, records))
    assert not found.bad
    rows = [
        (run.placing, key, value)
        for run in found.runs
        for key, value in zip(run.keys, run.values, strict=True)
    ]
    assert rows == [
        (
            Placing(partition=r.partition, headers=r.headers, timestamp_ms=r.timestamp_ms),
            r.key,
            r.value,
        )
        for r in records
    ]
    assert [n for run in found.runs for n in run.numbers] == [*range(1, len(records) + 1)]


@pytest.mark.parametrize(
    "key", ["u1", 'say "a"', "\u00e9\u2028", 5, -0.5, {"a": [1, None]}, True, "\x7f\x00"]
)
def test_json_as_text_is_stored_as_http_stores_the_same_json(key):
    body = orjson.dumps({"records": [{"key": key, "value": key}]})
    (stored,) = at_once(decode_envelope(encode_items, body, records_max=1)).keys
    record = ConsumedRecord("t", 0, 0, 0, TimestampType.CREATE, key=stored, value=stored)
    (printed,) = parsed(json_line(record)).runs
    (written,) = parsed(
        json.dumps({"key": stored.decode(), "value": stored.decode()}).encode()
    ).runs
    for run in (printed, written):
        assert ([*run.keys], [*run.values]) == ([stored], [stored])


def test_a_key_is_the_text_that_http_stores_in_its_text_format():
    body = b'{"records":[{"key":"u1","value":"tea"}]}'
    (run,) = parsed(b'{"key":"u1","value":"tea"}').runs
    stored = at_once(decode_envelope(decode_items, body, records_max=1))
    assert ([*run.keys], [*run.values]) == (stored.keys, stored.values) == ([b"u1"], [b"tea"])
    assert at_once(decode_envelope(encode_items, body, records_max=1)).keys == [b'"u1"']


def test_records_that_share_their_place_are_one_run():
    line = b'{"key":"k","value":"v","partition":1,"timestamp":5}'
    assert len(parsed(line, line, line).runs) == 1


def test_only_the_value_is_needed():
    (run,) = parsed(b'{"value":null}').runs
    assert (run.keys, run.values, run.placing) == ([None], [None], Placing())


BAD = {
    "": "--format json needs JSON",
    "text": "--format json needs JSON",
    "[]": "a record is not a JSON object",
    "{}": "no field value (null is a tombstone)",
    '{"value":1}': "value is not text (JSON is given as its text, in quotes)",
    '{"value":{"a":1}}': "value is not text",
    '{"value":"v","key":7}': "key is not text",
    '{"value":"v","ke":"k"}': "a record has no field 'ke' (but topic, partition,",
    '{"value":"/w=","value_encoding":"base64"}': "value is not valid base64",
    '{"value":"é","value_encoding":"base64"}': "value is not valid base64",
    '{"value":"v","value_encoding":"hex"}': "value_encoding is not base64, the only one",
    '{"value":"\\ud800"}': "value is not valid text",
    '{"value":"v","partition":-1}': "partition is not a whole number of 0 or more",
    '{"value":"v","partition":1.0}': "partition is not a whole number of 0 or more",
    '{"value":"v","partition":true}': "partition is not a whole number of 0 or more",
    '{"value":"v","timestamp":"now"}': "timestamp is not a whole number of 0 or more",
    '{"value":"v","headers":{"a":"b"}}': "headers is not a list",
    '{"value":"v","headers":["a"]}': "a header is not a JSON object",
    '{"value":"v","headers":[{"value":"b"}]}': "a header's key is not text",
    '{"value":"v","headers":[{"key":"a","name":"b"}]}': "a header has no field 'name'",
    "[" * 100_000: "--format json needs JSON",
}


@pytest.mark.parametrize(("line", "told"), BAD.items(), ids=lambda text: text[:20])
def test_a_line_that_is_no_record_says_what_to_change(line, told):
    found = parsed(b'{"value":"v"}', line.encode(), b'{"value":"w"}')
    ((number, error),) = found.bad
    assert number == found.last == 2
    assert told in str(error)
    assert str(error).endswith("; mend the line, or say --on-bad-line skip")
    assert [run.values for run in found.runs] == [[b"v"]]


def test_bad_lines_and_too_long_ones_may_be_skipped():
    found = JsonLines().parse_all([b"bad", None, b'{"value":"w"}'], first=5, is_skipping=True)
    assert [number for number, _ in found.bad] == [5, 6]
    assert "longer than" in str(found.bad[1][1])
    assert (found.runs[0].numbers, found.last) == ([7], 7)


class Sent:
    """Keeps what it is called with."""

    def __init__(self):
        self.calls = []

    async def send_many(self, topic, values, **rest):
        del rest["on_delivery"]
        self.calls.append((topic, values, rest))

    async def flush(self):
        pass


class Once:
    def __init__(self, text):
        self._pieces = [text, b""]

    def read(self):
        return self._pieces.pop(0), 0


@pytest.mark.parametrize("partition", [None, 9])
async def test_a_record_goes_where_it_says_with_its_time_and_headers(partition):
    record = {"value": "v", "key": "k", "partition": 1, "timestamp": 5, "headers": [{"key": "a"}]}
    sent = Sent()
    options = LineOptions(
        topic="t", rule=JsonLines(), partition=partition, headers=(("via", b"x"),)
    )
    await LineProducer(options, sent, FakeClock()).run(
        Once(json.dumps(record).encode()), lambda _: None
    )
    rest = {
        "keys": [b"k"],
        "partition": 1 if partition is None else partition,
        "headers": (("a", None), ("via", b"x")),
        "timestamp_ms": 5,
    }
    assert sent.calls == [("t", [b"v"], rest)]


RECORD_2 = b'{"value":"v","partition": 2}'


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        (RECORD_2, 3),
        (b'{"partition":12,"value":null}', 13),
        (b'{"value":"v"}', 1),
        (b'{"value":"v","partition":null}', 1),
        (rb'{"value":"\"partition\":7"}', 1),
        (b'{"value":"\\\\","partition":7}', 8),
        (b'{"value":"v","partition":7', 1),
        (b'{"value":"v","partition":7,"other":1}', 1),
        (b'{"value":"v","partition":' + b"9" * 5_000 + b"}", 1),
        (None, 1),
    ],
)
def test_a_topic_needs_the_partitions_that_the_lines_that_are_records_name(line, needed):
    assert partitions_needed([line], 1) == needed
    assert partitions_needed([line, RECORD_2, line], 1) == max(3, needed)
    assert partitions_needed([line], 50) == 50
