"""Inputs become JSON texts: flights with their types, lines as they are."""

import gzip
import json
from itertools import islice

import pytest

from loadtest.source import BINARY_TYPE, JSON_TYPE, SourceError, flight_record, flights, lines


def test_a_flight_has_numbers_texts_and_nulls():
    row = {
        "year": "2013",
        "dep_time": "NA",
        "arr_delay": "-12",
        "carrier": "UA",
        "tailnum": "N14228",
    }
    record = flight_record(row)
    assert record.key == '"N14228"'
    assert json.loads(record.value) == {
        "year": 2013, "dep_time": None, "arr_delay": -12, "carrier": "UA", "tailnum": "N14228",
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["NA", ""])
def test_a_flight_without_an_aeroplane_has_no_key(missing):
    record = flight_record({"tailnum": missing})
    assert record.key is None
    assert json.loads(record.value) == {"tailnum": None}


def test_the_package_has_the_flights_it_should_have():
    source = flights()
    assert (source.count, source.media_type) == (336_776, JSON_TYPE)
    first = next(source.open())
    assert json.loads(first.value)["time_hour"] == "2013-01-01T10:00:00Z"
    assert len(list(islice(source.open(), 1000))) == 1000


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
    assert [r.value for r in source.open()] == ['"//4="', '"cGxhaW4="']


def test_gzip_is_unpacked(tmp_path):
    path = tmp_path / "input.log.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    assert [r.value for r in lines(path).open()] == ['"a"', '"b"']


@pytest.mark.parametrize("content", [None, b"", b"not gzip"])
def test_unreadable_input_is_named(tmp_path, content):
    path = tmp_path / "input.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=r"input\.gz"):
        lines(path)
