"""Record formats, without HTTP: bodies to columns and batches to bodies."""

import base64
import json
from contextlib import suppress

import orjson
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from http_api.formats import binary_v2, exact_json, json_v2, lines, v3_records
from http_api.formats.answers import Wanted, encode_records
from http_api.formats.envelope import decode_envelope, parse_time
from http_api.protocol.errors import InvalidFieldError, UnreadableRecordError
from http_api.protocol.media import records_type
from milena.model.batch.decode import check_batch, records_in
from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.batch.header import decode_header
from milena.model.batch.timestamps import TIMESTAMP_MS_MAX
from milena.model.batch.v2_checks import wrap_v2
from milena.model.columns import RecordColumns
from milena.model.errors import (
    MalformedRequestError,
    MilenaError,
    RequestTooLargeError,
    UnsupportedSchemaError,
)
from milena.model.requests import FetchResult
from milena.model.turns import at_once
from milena.model.types import COLUMN_CODECS, Codec
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.http.api_server import BATCH, BINARY_V2, JSON_V2

NOW_MS = 1_700_000_000_000


def body(*records, **envelope):
    return orjson.dumps({"records": list(records), **envelope})


def decode_json(text, *, records_max):
    return at_once(decode_envelope(json_v2.encode_items, text, records_max=records_max))


def decode_binary(text, *, records_max):
    return at_once(decode_envelope(binary_v2.decode_items, text, records_max=records_max))


def decode(*records, **envelope):
    return decode_json(body(*records, **envelope), records_max=1000)


def b64(data):
    return base64.b64encode(data).decode()


# -- requests


def test_json_is_stored_compact_with_quotes():
    records = decode_json(
        b'{"records": [{"key": "u1", "value": {"b" : [1, 2.50], "a": "\\u00e9"}}]}', records_max=9
    )
    assert records.keys == [b'"u1"']
    assert records.values == ['{"b":[1,2.50],"a":"é"}'.encode()]
    assert records.headers is records.timestamps is records.partitions is None


def test_null_and_absent_are_no_value():
    records = decode({"key": None, "value": 1}, {"value": None}, {"key": 0, "value": False}, {})
    assert records.keys == [None, None, b"0", None]
    assert records.values == [b"1", None, b"false", None]
    assert decode({}, {}).keys is None
    assert decode({}, {}).values == [None, None]


@pytest.mark.parametrize("value", ["", "\n", ",\n,", "a\n", "\\n", [], {}, 0, "\u2028", "null"])
def test_every_value_survives_beside_others(value):
    records = decode({"value": value}, {"value": [value]}, {"value": {"\n": value}})
    assert [orjson.loads(v) for v in records.values] == [value, [value], {"\n": value}]


@pytest.mark.parametrize(
    "number",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "1" + "0" * 300,
        "-" + "9" * 40,
        "18446744073709551615",
    ],
)
def test_integers_of_any_size_keep_their_digits(number):
    text = b'{"records":[{"key":%b,"value":{"n":[%b]}},{"value":null}]}' % (2 * (number.encode(),))
    records = decode_json(text, records_max=9)
    assert records.keys == [number.encode(), None]
    assert records.values == [b'{"n":[%b]}' % number.encode(), None]


def test_text_that_looks_like_a_rounded_number_is_left_alone():
    value = "1e+20 " + "9" * 30
    assert decode({"value": value}).values == [orjson.dumps(value)]


def test_numbers_that_no_float_holds_are_refused():
    with pytest.raises(MalformedRequestError, match="infinity"):
        decode_json(b'{"records":[{"value":1e999}]}', records_max=9)


def test_integers_without_end_are_refused():
    text = b'{"records":[{"value":1%b}]}' % (b"0" * 5000)
    with pytest.raises(MalformedRequestError):
        decode_json(text, records_max=9)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(json_values, json_values), min_size=1, max_size=8))
def test_json_in_is_json_stored(rows):
    text = json.dumps({"records": [{"key": k, "value": v} for k, v in rows]}).encode()
    records = decode_json(text, records_max=9)

    def loads(column):
        return [None if item is None else json.loads(item) for item in column]

    assert loads(records.keys) == [k for k, _ in rows]
    assert loads(records.values) == [v for _, v in rows]


@pytest.mark.parametrize("depth", [100, 900, 1010])
def test_large_integers_in_deep_nesting_are_stored_or_refused(depth):
    value = b"[" * depth + b"9" * 30 + b"]" * depth
    with suppress(MalformedRequestError):
        records = decode_json(b'{"records":[{"value":' + value + b"}]}", records_max=9)
        assert records.values == [value]


@pytest.mark.parametrize("depth", [255, 1010])
def test_nesting_without_end_is_refused(depth):
    value = b"[" * depth + b"]" * depth
    with pytest.raises(
        MalformedRequestError, match=r"a value cannot be stored: Recursion limit|recursion depth"
    ):
        decode_json(b'{"records":[{"value":' + value + b"}]}", records_max=9)


def _by_v2(text):
    return decode_json(b'{"records":[{"value":%b}]}' % text, records_max=9).values


def _by_v2_as_a_key(text):
    records = decode_json(
        b'{"records":[{"key":1,"value":2},{"key":%b,"value":2}]}' % text, records_max=9
    )
    assert records.keys is not None
    return records.keys[1:]


def _by_lines(text):
    return at_once(lines.decode_json_steps(b"1\n" + text + b"\n", records_max=9)).values[1:]


def _by_v3(text):
    value = exact_json.loads(b'{"value":{"type":"JSON","data":%b}}' % text)
    return [v3_records.parse_record(value).value.stored]


@pytest.mark.parametrize("stored", [_by_v2, _by_v2_as_a_key, _by_lines, _by_v3])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_every_format_takes_the_same_nesting(stored, brackets):
    opening, closing = brackets
    levels = opening.count(b"[") + opening.count(b"{")

    def nested(depth):
        return opening * (depth // levels) + b"1" + closing * (depth // levels)

    for depth in (2, 254):
        assert stored(nested(depth)) == [nested(depth)]
    wide = b"[" + b"[]," * 600 + b"{}]"
    assert stored(wide) == [wide]
    for depth in (256, 300, 1000, 1022, 1024, 1026, 5000):
        with pytest.raises(MalformedRequestError):
            stored(nested(depth))
    if levels == 1:
        with pytest.raises(MalformedRequestError):
            stored(nested(255))


def test_binary_is_base64():
    text = body({"key": b64(b"\xff"), "value": b64(b"")}, {"key": None, "value": b64(b"ab")})
    records = decode_binary(text, records_max=9)
    assert records.keys == [b"\xff", None]
    assert records.values == [b"", b"ab"]


@pytest.mark.parametrize("value", ["a", "ab=", "a b=", "YQ==\n", "é", "YQ", "Y===", "YQ==YQ=="])
def test_refuses_what_is_not_base64_and_says_where(value):
    text = body({"value": b64(b"good")}, {"value": value})
    with pytest.raises(
        MalformedRequestError, match=r"(?s)records\[1\].value: data=.* is not a valid base64 string"
    ):
        decode_binary(text, records_max=9)


@pytest.mark.parametrize("value", [1, True, [], {}])
def test_base64_is_a_string(value):
    with pytest.raises(MalformedRequestError, match="base64 must be a string"):
        decode_binary(body({"value": value}), records_max=9)


def test_headers_have_a_key_or_a_name():
    records = decode(
        {
            "value": 1,
            "headers": [
                {"key": "a", "value": b64(b"1")},
                {"name": "a", "value": None},
                {"key": "b"},
            ],
        },
        {"value": 2},
        {"value": 3, "headers": []},
        {"value": 4, "headers": None},
    )
    assert records.headers == [[("a", b"1"), ("a", None), ("b", None)], None, None, None]


@pytest.mark.parametrize(
    ("headers", "error", "sentence"),
    [
        ([{"key": "a", "name": "a"}], InvalidFieldError, "give 'key' or 'name', not both"),
        ({}, MalformedRequestError, "must be a list"),
        ([1], MalformedRequestError, "must hold objects"),
        ([{"value": ""}], MalformedRequestError, "needs a 'key'"),
        ([{"key": 1}], MalformedRequestError, "needs a 'key'"),
        ([{"key": "a", "value": "?"}], MalformedRequestError, "base64"),
        ([{"key": "a", "value": 1}], MalformedRequestError, "base64"),
        ([{"key": "a", "foo": 1}], InvalidFieldError, "Unrecognized field: foo"),
    ],
)
def test_refuses_bad_headers(headers, error, sentence):
    with pytest.raises(error, match=sentence):
        decode({"value": 1, "headers": headers})


def test_timestamps_are_ms_or_iso():
    records = decode(
        {"timestamp": 5},
        {"timestamp": None},
        {},
        {"timestamp": "2021-02-05T19:14:42.5Z"},
        {"timestamp": "1970-01-01T01:00:00+01:00"},
    )
    assert records.timestamps == [5, None, None, 1_612_552_482_500, 0]
    assert parse_time("9999-12-31T23:59:59.999Z", "x") == TIMESTAMP_MS_MAX


@pytest.mark.parametrize("time", [-1, TIMESTAMP_MS_MAX + 1, (1 << 64) - 1, "1969-12-31T23:59:59Z"])
def test_a_time_out_of_bounds_is_the_matter_of_its_record(time):
    first, second = decode({"timestamp": time}, {}).timestamps
    assert (first, second) == (-1000 if isinstance(time, str) else time, None)


@pytest.mark.parametrize(
    ("timestamp", "error"),
    [
        ("yesterday", MalformedRequestError),
        (1.5, MalformedRequestError),
        (True, MalformedRequestError),
    ],
)
def test_refuses_bad_timestamps(timestamp, error):
    with pytest.raises(error, match="timestamp"):
        decode({"value": 1, "timestamp": timestamp})


def test_partitions():
    assert decode({"partition": 2}, {"partition": None}, {}).partitions == [2, None, None]
    # It is not there, which is the matter of its record.
    assert decode({"partition": -1}, {}).partitions == [-1, None]


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        ("1", MalformedRequestError),
        (1.0, MalformedRequestError),
        (True, MalformedRequestError),
    ],
)
def test_refuses_bad_partitions(partition, error):
    with pytest.raises(error):
        decode({"value": 1}, {"value": 1, "partition": partition})


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        (b"[]", MalformedRequestError, 'must be a JSON object {"records": ...}, not a list'),
        (b"{}", InvalidFieldError, "records may not be empty"),
        (b'{"records":null}', InvalidFieldError, "records may not be empty"),
        (b'{"records":[]}', InvalidFieldError, "records may not be empty"),
        (b'{"records":{}}', MalformedRequestError, "records must be a list, not an object"),
        (
            b'{"records":[{},1]}',
            MalformedRequestError,
            r"records\[1\] must be an object, not a number",
        ),
        (
            b'{"records":["key"]}',
            MalformedRequestError,
            r"records\[0\] must be an object, not a string",
        ),
        (b'{"records":[{}],"foo":1}', InvalidFieldError, "Unrecognized field: foo"),
        (b'{"records":[{},{"value":1,"foo":1}]}', InvalidFieldError, "Unrecognized field: foo"),
        (b'{"records":[{}],"value_schema":"x"}', UnsupportedSchemaError, "value_schema"),
        (b'{"records":[{}],"key_schema_id":1}', UnsupportedSchemaError, "key_schema_id"),
        (b"{", MalformedRequestError, "not JSON"),
        (b"", MalformedRequestError, "empty"),
    ],
)
def test_refuses_bad_envelopes(text, error, sentence):
    sentence = sentence.replace("{", r"\{").replace("}", r"\}").replace(": ...", r": \[...\]")
    with pytest.raises(error, match=sentence):
        decode_json(text, records_max=9)


def test_schemas_may_be_null():
    assert decode({"value": 1}, value_schema=None, key_schema_id=None).values == [b"1"]


def test_refuses_too_many_records():
    with pytest.raises(RequestTooLargeError, match="at most 2"):
        decode_json(body({}, {}, {}), records_max=2)


hostile = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["records", "key", "value", "partition", "timestamp", "headers", "name", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(hostile)
def test_hostile_bodies_are_taken_or_refused(value):
    text = json.dumps({"records": [value]} if not isinstance(value, dict) else value).encode()
    for decode_text in (decode_json, decode_binary):
        with suppress(MilenaError):
            assert decode_text(text, records_max=5).values


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_hostile_bytes_are_taken_or_refused(noise):
    for text in (noise, b'{"records":[' + noise + b"]}", b'{"records":[{"value":' + noise + b"}]}"):
        with suppress(MilenaError):
            assert decode_json(text, records_max=5).values


# -- answers


def batch(
    values,
    base_offset=0,
    *,
    keys=None,
    headers=None,
    deltas=None,
    codec=Codec.NONE,
    time=NOW_MS,
    control=False,
):
    made = encode_batch(
        RecordColumns(deltas, None, keys, values, headers),
        base_timestamp_ms=time,
        codec=codec,
        is_control=control,
    )
    stamp = stamp_batch(made, base_offset=base_offset, leader_epoch=1, append_time_ms=NOW_MS)
    return stamp + made[len(stamp) :]


def result(*batches, start=0, high_watermark=None):
    if high_watermark is None:
        high_watermark = max((decode_header(b).next_offset for b in batches), default=0)
    return FetchResult(
        start_offset=start,
        high_watermark=high_watermark,
        log_start_offset=0,
        leader_epoch=1,
        batches=b"".join(batches),
    )


def encode(fetched, accept="", *, count=None, bytes_max=1 << 20):
    wanted = Wanted(
        topic="t", partition=3, type=records_type(accept), count=count, bytes_max=bytes_max
    )
    return encode_records(fetched, wanted)


def rows(fetched, accept="", **options):
    return orjson.loads(encode(fetched, accept, **options).body)


def test_five_keys_first_then_the_timestamp():
    (row,) = rows(result(batch([b'{"a":1}'], 7, keys=[b'"k"']), start=7))
    assert list(row.items()) == [
        ("topic", "t"),
        ("key", "k"),
        ("value", {"a": 1}),
        ("partition", 3),
        ("offset", 7),
        ("timestamp", NOW_MS),
    ]


def test_headers_are_there_only_when_there_are_any():
    with_headers, without = rows(
        result(batch([b"1", b"2"], headers=[[("h", b"\xff"), ("h", None)], None]))
    )
    assert with_headers["headers"] == [
        {"key": "h", "value": b64(b"\xff")},
        {"key": "h", "value": None},
    ]
    assert "headers" not in without


def test_no_timestamp_no_field():
    (row,) = rows(result(batch([b"1"], time=-1)))
    assert list(row) == ["topic", "key", "value", "partition", "offset"]


def test_stored_json_is_written_as_it_is():
    assert (
        b'"value":123456789012345678901234567890,'
        in encode(result(batch([b"123456789012345678901234567890"]))).body
    )


def test_tombstones_and_missing_keys_are_null_in_both_formats():
    fetched = result(batch([None, b"1"], keys=[b"2", None]))
    assert [(r["key"], r["value"]) for r in rows(fetched, JSON_V2)] == [(2, None), (None, 1)]
    assert [(r["key"], r["value"]) for r in rows(fetched, BINARY_V2)] == [
        (b64(b"2"), None),
        (None, b64(b"1")),
    ]


def test_without_a_wish_it_is_json_whatever_the_records_are():
    for fetched, faults in (
        (result(), 0),
        (result(batch([b"1"])), 0),
        (result(batch([b"1", b"x"])), 1),
        (result(batch([b"1"], keys=[b"x"])), 1),
        (result(batch([b"1"]), batch([b""], 1)), 1),
        (result(batch([b"x"]), batch([b"2"], 1)), 1),
    ):
        made = encode(fetched)
        assert made.content_type == JSON_V2
        shown = orjson.loads(made.body)
        assert [row["offset"] for row in shown] == [*range(fetched.high_watermark)]
        assert sum(row.get("error_code") == 42203 for row in shown) == faults
        assert made.next_offset == fetched.high_watermark


def test_json_ends_before_the_first_record_that_is_none():
    fetched = result(batch([b"1", b"2"]), batch([b"3", b"x", b"4"], 2))
    made = encode(fetched, JSON_V2)
    assert [row["value"] for row in orjson.loads(made.body)] == [1, 2, 3]
    assert made.next_offset == 3


@pytest.mark.parametrize("keys", [None, [b"k"]])
def test_json_is_refused_when_the_first_record_is_none(keys):
    value = b"x" if keys is None else b"1"
    with pytest.raises(
        UnreadableRecordError, match=r"offset 5 of t-3 is not JSON.*go on at offset 6"
    ):
        encode(result(batch([value], 5, keys=keys), start=5), JSON_V2)


@pytest.mark.parametrize(
    "value", [b"1,2", b'1}],[{"x":1', b'"a":1', b" ", b"nan", b"1 2", b'{"a":1,}']
)
def test_bytes_that_would_break_the_answer_are_not_json(value):
    with pytest.raises(UnreadableRecordError):
        encode(result(batch([value])), JSON_V2)
    assert rows(result(batch([value])))[0]["value_text"] == value.decode()


def test_records_outside_the_range_are_left_out():
    fetched = result(
        batch([b"0", b"1", b"2"]), batch([b"3", b"4", b"5"], 3), start=1, high_watermark=5
    )
    made = encode(fetched)
    assert [row["offset"] for row in orjson.loads(made.body)] == [1, 2, 3, 4]
    assert made.next_offset == 5


def test_offsets_with_gaps():
    fetched = result(batch([b"0", b"1"], 10, deltas=[2, 5]), start=11)
    assert [row["offset"] for row in rows(fetched)] == [12, 15]
    fetched = result(batch([b"0", b"1"], 10, deltas=[2, 5]), start=13)
    assert [row["offset"] for row in rows(fetched)] == [15]


def test_control_batches_are_passed_over():
    fetched = result(batch([b"x"], control=True), batch([b"1"], 1), batch([b"x"], 2, control=True))
    made = encode(fetched, JSON_V2)
    assert [row["offset"] for row in orjson.loads(made.body)] == [1]
    assert made.next_offset == 3


def test_count_bounds_records():
    fetched = result(batch([b"0", b"1"]), batch([b"2", b"3"], 2))
    for count, offsets, next_offset in (
        (1, [0], 1),
        (2, [0, 1], 2),
        (3, [0, 1, 2], 3),
        (9, [0, 1, 2, 3], 4),
    ):
        made = encode(fetched, count=count)
        assert [row["offset"] for row in orjson.loads(made.body)] == offsets
        assert made.next_offset == next_offset


def test_decompressed_bytes_are_bounded_but_the_first_batch_is_taken():
    big = [b'"' + b"x" * 10_000 + b'"']
    fetched = result(*(batch(big, i, codec=Codec.ZSTD) for i in range(5)))
    assert [row["offset"] for row in rows(fetched, bytes_max=25_000)] == [0, 1]
    assert [row["offset"] for row in rows(fetched, bytes_max=1)] == [0]


@pytest.mark.parametrize("codec", COLUMN_CODECS)
def test_batches_go_out_as_they_are(codec):
    fetched = result(batch([b"x", b"y"], codec=codec), batch([b"z"], 2), start=1)
    made = encode(fetched, BATCH)
    assert (made.body, made.content_type, made.next_offset) == (fetched.batches, BATCH, 3)


def kafka_batch(values, base_offset=0, *, codec=0, **options):
    """A Kafka client's batch, as it is stored."""
    rows = numbered(*(KafkaRecord(value, b'"k"', [(b"h", None)]) for value in values))
    made, _ = wrap_v2(
        encoded(rows, attributes=codec, base_time=NOW_MS), bytes_max=1 << 20, now_ms=NOW_MS
    )
    stamp = stamp_batch(made, base_offset=base_offset, leader_epoch=1, append_time_ms=NOW_MS)
    return stamp + made[len(stamp) :]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("accept", [JSON_V2, BINARY_V2])
def test_batches_of_kafka_clients_are_shown_as_others(codec, accept):
    fetched = result(kafka_batch([b"1", b"2"], codec=codec), start=1)
    of_columns = result(
        batch([b"1", b"2"], keys=[b'"k"'] * 2, headers=[[("h", None)], [("h", None)]]), start=1
    )
    assert encode(fetched, accept) == encode(of_columns, accept)


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_kafka_clients_go_out_as_columns(codec):
    before, after = batch([b"x", b"y"]), batch([b"z"], 4)
    fetched = result(before, kafka_batch([b"1", b"2"], 2, codec=codec), after, start=1)
    made = encode(fetched, BATCH)
    assert (made.content_type, made.next_offset, made.damaged_at) == (BATCH, 5, None)
    assert made.body.startswith(before)
    assert made.body.endswith(after)
    header = check_batch(made.body, len(before))
    assert not header.is_v2
    assert header.codec is (Codec.LZ4 if codec is Codec.SNAPPY else codec)
    assert list(records_in(made.body, 2, 4)) == [
        (2, NOW_MS, b'"k"', b"1", [("h", None)]),
        (3, NOW_MS, b'"k"', b"2", [("h", None)]),
    ]
    assert encode(fetched, BATCH, count=2).body == made.body[: -len(after)]


def test_columns_of_kafka_batches_are_bounded_but_the_first_is_taken():
    big = [b"x" * 10_000]
    fetched = result(*(kafka_batch(big, place, codec=Codec.ZSTD) for place in range(5)))
    assert encode(fetched, BATCH, bytes_max=25_000).next_offset == 2
    assert encode(fetched, BATCH, bytes_max=1).next_offset == 1


@pytest.mark.parametrize("codec", Codec)
def test_a_damaged_batch_of_a_kafka_client_ends_the_answer_before_it(codec):
    fetched = result(batch([b"x"]), rotten(kafka_batch([b"1"], 1, codec=codec)), batch([b"z"], 2))
    made = encode(fetched, BATCH)
    assert (made.body, made.next_offset, made.damaged_at) == (batch([b"x"]), 1, 1)


def rotten(whole, position=-2):
    damaged = bytearray(whole)
    damaged[position] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize("accept", ["", JSON_V2, BINARY_V2])
def test_damaged_batches_are_never_shown(accept):
    made = encode(result(rotten(batch([b'"abc"'])), high_watermark=1), accept)
    assert (made.body, made.next_offset) == (b"[]", 0)
    assert (made.damaged_at, made.is_barren) == (0, True)


@pytest.mark.parametrize("accept", ["", JSON_V2, BINARY_V2])
@pytest.mark.parametrize("position", [20, 40, -2])
def test_what_lies_before_a_damaged_batch_is_shown_and_nothing_behind_it(accept, position):
    fetched = result(
        batch([b"0", b"1"]),
        batch([b"x"], 2, control=True),
        rotten(batch([b"3", b"4"], 3), position),
        batch([b"5"], 5),
        high_watermark=6,
    )
    made = encode(fetched, accept)
    assert [row["offset"] for row in orjson.loads(made.body)] == [0, 1]
    assert (made.next_offset, made.damaged_at, made.is_barren) == (3, 3, False)


def test_who_asked_for_less_is_given_it_and_the_damage_is_known():
    fetched = result(batch([b"0", b"1"]), rotten(batch([b"2"], 2)), high_watermark=3)
    made = encode(fetched, count=1)
    assert [row["offset"] for row in orjson.loads(made.body)] == [0]
    assert (made.next_offset, made.is_barren) == (1, False)
    whole = encode(result(batch([b"0"])))
    assert (whole.damaged_at, whole.is_barren) == (None, False)


def test_a_batch_that_holds_no_records_is_not_passed_over_though_its_checksum_is_right():
    whole = bytearray(batch([b"2"], 2))
    whole[79] ^= 0x10
    whole[31:35] = crc32c(bytes(whole[35:])).to_bytes(4)
    made = encode(result(batch([b"0", b"1"]), bytes(whole), batch([b"3"], 3), high_watermark=4))
    assert [row["offset"] for row in orjson.loads(made.body)] == [0, 1]
    assert (made.next_offset, made.damaged_at) == (2, 2)


def test_batches_that_cannot_be_told_apart_are_not_sent():
    first, second = batch([b"0", b"1"]), batch([b"2"], 2)
    made = encode(result(first, rotten(second, 20), high_watermark=3), BATCH)
    assert (made.body, made.next_offset, made.damaged_at) == (first, 2, 2)
    assert not made.is_barren
    made = encode(result(rotten(first, 3), second, high_watermark=3), BATCH)
    assert (made.body, made.next_offset, made.damaged_at, made.is_barren) == (b"", 0, 0, True)


def _dumped(value):
    return json.dumps(value).encode()


stored_rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=8) | json_values.map(_dumped),
        st.none() | st.binary(max_size=8) | json_values.map(_dumped),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(stored_rows, min_size=1, max_size=3), st.integers(0, 5))
def test_whatever_is_stored_comes_out_in_binary_and_never_breaks_json(batches, start):
    made, expected, offset = [], [], 0
    for pairs in batches:
        made.append(batch([v for _, v in pairs], offset, keys=[k for k, _ in pairs]))
        expected += [(offset + i, k, v) for i, (k, v) in enumerate(pairs) if offset + i >= start]
        offset += len(pairs)
    start = min(start, offset)
    fetched = result(*made, start=start)

    def unbase(value):
        return None if value is None else base64.b64decode(value)

    shown = rows(fetched, BINARY_V2)
    assert [(r["offset"], unbase(r["key"]), unbase(r["value"])) for r in shown] == expected
    try:
        as_json = encode(fetched, JSON_V2)
    except UnreadableRecordError:
        return
    parsed = json.loads(as_json.body)
    assert [r["offset"] for r in parsed] == [o for o, _, _ in expected[: len(parsed)]]
    for row, (_, key, value) in zip(parsed, expected, strict=False):
        assert row["key"] == (None if key is None else json.loads(key))
        assert row["value"] == (None if value is None else json.loads(value))


@pytest.mark.parametrize(
    "value",
    ["null", '"x"', '"a,b"', "1e+400", "1e+2", "12345678901234567890123", "[1,[2]]", '{"a":null}'],
)
def test_a_value_alone_is_stored_as_among_others(value):
    alone = b'{"records":[{"value":%s}]}' % value.encode()
    twice = b'{"records":[{"value":%s},{"value":%s}]}' % ((value.encode(),) * 2)
    one, two = (_decoded(decode_json, text) for text in (alone, twice))
    assert one is two if isinstance(one, type) else one * 2 == two


@pytest.mark.parametrize("value", ["null", '"eA=="', '"no base64"', "1"])
def test_a_binary_value_alone_is_stored_as_among_others(value):
    alone = b'{"records":[{"value":%s}]}' % value.encode()
    twice = b'{"records":[{"value":%s},{"value":%s}]}' % ((value.encode(),) * 2)
    one, two = (_decoded(decode_binary, text) for text in (alone, twice))
    assert one is two if isinstance(one, type) else one * 2 == two


def _decoded(decode, text):
    """The values, or the kind of refusal."""
    try:
        return decode(text, records_max=9).values
    except MilenaError as error:
        return type(error)
