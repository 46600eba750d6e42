"""What is printed of a record."""

import base64
import json

import pytest

from milena.commands.formats import Format, Layout, json_line
from milena.model.types import TimestampType
from milena.records import ConsumedRecord


def record(**fields):
    return ConsumedRecord(
        **{
            "topic": "t",
            "partition": 1,
            "offset": 7,
            "timestamp_ms": 1700,
            "timestamp_type": TimestampType.CREATE,
            "key": b"k",
            "value": b"v",
            **fields,
        }
    )


def test_values_are_printed_as_they_are():
    layout = Layout()
    given = [record(value=v) for v in (b"a\r", b"", b"\xff\x00", None)]
    assert layout.encode(given) == b"a\r\n\n\xff\x00\nnull\n"


def test_raw_has_nothing_between_values():
    given = [record(value=v) for v in (b"a", b"\xff", None, b"\n")]
    assert Layout(format=Format.RAW, separator=b"|").encode(given) == b"a\xff\n"


def test_separators_and_the_sign_for_nothing_can_be_chosen():
    layout = Layout(
        format=Format.KEY_VALUE, separator=b"\0", key_separator=b"=", null_marker=b"\\N"
    )
    assert layout.encode([record(), record(key=None), record(value=None)]) == (
        b"k=v\0\\N=v\0k=\\N\0"
    )


def test_json_is_one_object_a_line():
    line = Layout(format=Format.JSON).encode([record(value="zwei\n£".encode())])
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1700,
        "key": "k",
        "value": "zwei\n£",
    }


@pytest.mark.parametrize(
    "text",
    ["", 'a "quote" \\ and /', "\0\x1f\x7f\r\n\t\b\f", "\u2028\u2029", "£ 😀 \ufeff\uffff", "{}"],
)
def test_json_is_what_the_encoder_of_the_language_makes_of_it(text):
    data = text.encode()
    given = record(topic="t.é", key=data, value=data, headers=((text, data), ("none", None)))
    expected = {
        "topic": "t.é",
        "partition": 1,
        "offset": 7,
        "timestamp": 1700,
        "key": text,
        "value": text,
        "headers": [{"key": text, "value": text}, {"key": "none", "value": None}],
    }
    line = json.dumps(expected, separators=(",", ":"), ensure_ascii=False)
    assert json_line(given) == line.encode()


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"ab\xc3"])
def test_what_is_no_text_is_base64_and_says_so(value):
    found = json.loads(json_line(record(key=value, value=value)))
    for name in ("key", "value"):
        assert found[f"{name}_encoding"] == "base64"
        assert base64.b64decode(found[name]) == value


def test_nothing_is_null_and_not_an_empty_text():
    found = json.loads(json_line(record(key=None, value=b"")))
    assert (found["key"], found["value"]) == (None, "")


def test_headers_keep_order_and_repeats():
    headers = (("a", b"1"), ("b", None), ("a", b"\xff"))
    assert json.loads(json_line(record(headers=headers)))["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "b", "value": None},
        {"key": "a", "value": "/w==", "value_encoding": "base64"},
    ]
