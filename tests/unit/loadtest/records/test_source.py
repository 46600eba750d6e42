"""Inputs become records: flights as JSON with their types, lines as they are."""

import gzip
import json
from itertools import islice

import pytest

from loadtest.records.source import (
    BINARY_TYPE,
    JSON_TYPE,
    Record,
    SourceError,
    flight_maker,
    flights,
    json_text,
    lines,
    request_body,
)

COLUMNS = ["year", "dep_time", "arr_delay", "carrier", "tailnum"]


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        (
            "2013,517,-12,UA,N14228",
            b'"N14228"',
            b'{"year":2013,"dep_time":517,"arr_delay":-12,"carrier":"UA","tailnum":"N14228"}',
        ),
        (
            "2013,NA,NA,UA,N14228",
            b'"N14228"',
            b'{"year":2013,"dep_time":null,"arr_delay":null,"carrier":"UA","tailnum":"N14228"}',
        ),
        (
            "2013,517,-12,UA,NA",
            None,
            b'{"year":2013,"dep_time":517,"arr_delay":-12,"carrier":"UA","tailnum":null}',
        ),
    ],
)
def test_a_flight_has_numbers_texts_and_nulls(row, key, value):
    assert flight_maker(COLUMNS)(row.split(",")) == (key, value)


def test_the_package_has_the_flights_it_should_have():
    source = flights()
    assert (source.count, source.media_type) == (336_776, JSON_TYPE)
    records = list(islice(source.open(), 5000))
    assert json.loads(records[0].value)["time_hour"] == "2013-01-01T10:00:00Z"
    for record in records:
        assert record.value == json_text(json.loads(record.value))
        tail_number = json.loads(record.value)["tailnum"]
        assert record.key == (None if tail_number is None else json_text(tail_number))


def test_lines_become_json_strings(tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes('one\r\ntw"o\n\nföur'.encode())
    source = lines(path)
    assert (source.count, source.media_type) == (4, JSON_TYPE)
    assert [json.loads(r.value) for r in source.open()] == ["one", 'tw"o', "", "föur"]
    assert [r.key for r in source.open()] == [None] * 4


def test_lines_that_are_not_text_become_bytes(tmp_path):
    path = tmp_path / "input.bin"
    path.write_bytes(b"\xff\xfe\nplain\n")
    source = lines(path)
    assert (source.count, source.media_type) == (2, BINARY_TYPE)
    assert [r.value for r in source.open()] == [b"\xff\xfe", b"plain"]


def test_gzip_is_unpacked(tmp_path):
    path = tmp_path / "input.log.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    assert [r.value for r in lines(path).open()] == [b'"a"', b'"b"']


@pytest.mark.parametrize("content", [None, b"", b"not gzip"])
def test_unreadable_input_is_named(tmp_path, content):
    path = tmp_path / "input.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=r"input\.gz"):
        lines(path)


def test_a_body_of_json_is_the_json_that_its_records_are():
    body = json.loads(request_body(JSON_TYPE, [Record(b'"k"', b"1"), Record(None, b'{"a":null}')]))
    assert body == {"records": [{"key": "k", "value": 1}, {"value": {"a": None}}]}


def test_bytes_go_as_base64():
    body = json.loads(request_body(BINARY_TYPE, [Record(b"k", b"\xff"), Record(None, b"plain")]))
    assert body == {"records": [{"key": "aw==", "value": "/w=="}, {"value": "cGxhaW4="}]}
