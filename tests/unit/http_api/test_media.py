"""Content-Type and Accept."""

import pytest

from http_api.media import (
    BATCH_TYPE,
    BINARY_V2_TYPE,
    JSON_TYPE,
    JSON_V2_TYPE,
    TEXT_V2_TYPE,
    V2_TYPE,
    RecordFormat,
    check_json_type,
    metadata_type,
    parse_accept,
    produce_format,
    records_type,
)
from milena.model.errors import NotAcceptableError, UnsupportedMediaTypeError


@pytest.mark.parametrize(
    ("accept", "order"),
    [
        ("a/b", ["a/b"]),
        ("a/b, c/d", ["a/b", "c/d"]),
        ("a/b;q=0.1, c/d", ["c/d", "a/b"]),
        ("*/*, a/*, a/b", ["a/b", "a/*", "*/*"]),
        ("a/b;level=1;q=0.5 , c/d; q=0.9,,", ["c/d", "a/b"]),
        ("A/B", ["a/b"]),
    ],
)
def test_accept_lists_are_ranked(accept, order):
    assert [media.name for media in parse_accept(accept)] == order


@pytest.mark.parametrize("quality", ["2", "-1", "x", "", "0.1234", "1.1", "nan"])
def test_refuses_a_quality_that_is_none(quality):
    with pytest.raises(NotAcceptableError, match="quality"):
        parse_accept(f"a/b;q={quality}")


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("", V2_TYPE),
        ("*/*", V2_TYPE),
        ("application/*", V2_TYPE),
        (V2_TYPE, V2_TYPE),
        (JSON_TYPE, JSON_TYPE),
        (JSON_V2_TYPE, V2_TYPE),
        ("application/vnd.kafka.v1+json", V2_TYPE),
        ("application/vnd.kafka+json", V2_TYPE),
        ("application/json, */*;q=0.5", JSON_TYPE),
        ("application/vnd.kafka.v2+json, application/vnd.kafka+json, application/json", V2_TYPE),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", V2_TYPE),
        ("*/*, application/vnd.kafka.v2+json;q=0", JSON_TYPE),
    ],
)
def test_type_of_metadata(accept, answered):
    assert metadata_type(accept) == answered


@pytest.mark.parametrize(
    "accept",
    ["text/html", "application/octet-stream", "application/vnd.kafka.v3+json", "*/*;q=0", "foo/*"],
)
def test_refuses_metadata_as_anything_but_json(accept):
    with pytest.raises(NotAcceptableError):
        metadata_type(accept)


@pytest.mark.parametrize(
    ("accept", "format_", "answered"),
    [
        ("", None, ""),
        ("*/*", None, ""),
        (V2_TYPE, None, ""),
        (JSON_V2_TYPE, RecordFormat.JSON, JSON_V2_TYPE),
        (BINARY_V2_TYPE, RecordFormat.BINARY, BINARY_V2_TYPE),
        ("application/vnd.kafka.binary.v1+json", RecordFormat.BINARY, BINARY_V2_TYPE),
        (TEXT_V2_TYPE, RecordFormat.TEXT, TEXT_V2_TYPE),
        (JSON_TYPE, RecordFormat.JSON, JSON_TYPE),
        (BATCH_TYPE, RecordFormat.BATCH, BATCH_TYPE),
        (f"{BATCH_TYPE}, {JSON_TYPE};q=0.5", RecordFormat.BATCH, BATCH_TYPE),
        (
            f"application/vnd.kafka.avro.v2+json, {BINARY_V2_TYPE};q=0.2",
            RecordFormat.BINARY,
            BINARY_V2_TYPE,
        ),
        ("text/html, */*;q=0.1", None, ""),
    ],
)
def test_type_of_records(accept, format_, answered):
    wanted = records_type(accept)
    assert (wanted.format, wanted.content_type) == (format_, answered)


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kafka.avro.v2+json", "*/*;q=0"])
def test_refuses_records_in_other_formats(accept):
    with pytest.raises(NotAcceptableError, match="records"):
        records_type(accept)


@pytest.mark.parametrize(
    ("content_type", "format_"),
    [
        ("", RecordFormat.JSON),
        (JSON_TYPE, RecordFormat.JSON),
        ("application/json; charset=utf-8", RecordFormat.JSON),
        ('application/json; charset="UTF-8"', RecordFormat.JSON),
        (JSON_V2_TYPE, RecordFormat.JSON),
        ("Application/Vnd.Kafka.JSON.v1+json", RecordFormat.JSON),
        (BINARY_V2_TYPE, RecordFormat.BINARY),
        (V2_TYPE, RecordFormat.BINARY),
        (TEXT_V2_TYPE, RecordFormat.TEXT),
        (BATCH_TYPE, RecordFormat.BATCH),
        ("text/plain; charset=utf-8", RecordFormat.TEXT_LINES),
        ("application/x-ndjson", RecordFormat.JSON_LINES),
        ("application/jsonl", RecordFormat.JSON_LINES),
    ],
)
def test_format_of_a_request(content_type, format_):
    assert produce_format(content_type) is format_


@pytest.mark.parametrize(
    ("content_type", "sentence"),
    [
        ("application/vnd.kafka.avro.v2+json", "schema registry"),
        ("application/vnd.kafka.protobuf.v2+json", "schema registry"),
        ("application/vnd.kafka.jsonschema.v2+json", "schema registry"),
        ("application/vnd.kafka.json.v3+json", "holds no records"),
        ("application/x-www-form-urlencoded", "holds no records"),
        ("application/json; charset=latin-1", "charset"),
    ],
)
def test_refuses_requests_in_other_formats(content_type, sentence):
    with pytest.raises(UnsupportedMediaTypeError, match=sentence):
        produce_format(content_type)


@pytest.mark.parametrize("content_type", ["", JSON_TYPE, V2_TYPE, JSON_V2_TYPE])
def test_takes_json_under_its_names(content_type):
    check_json_type(content_type)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_refuses_what_any_web_page_may_send(content_type):
    with pytest.raises(UnsupportedMediaTypeError):
        check_json_type(content_type)
