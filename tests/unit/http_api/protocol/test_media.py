"""Content-Type and Accept."""

import pytest

from http_api.protocol.media import (
    BATCH_TYPE,
    BINARY_V2_TYPE,
    EVENTS_TYPE,
    JSON_TYPE,
    JSON_V2_TYPE,
    NDJSON_TYPE,
    TEXT_V2_TYPE,
    V2_TYPE,
    RecordFormat,
    StreamFraming,
    check_json_type,
    framing_type,
    metadata_type,
    parse_accept,
    produce_format,
    records_type,
    type_in_format,
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


@pytest.mark.parametrize(
    "quality",
    ["2", "-1", "x", "", ".", "1.1", "1.001", "nan", "inf", "1e-1", "00.5", ".\u0661", "\u0661"],
)
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


@pytest.mark.parametrize(
    ("written", "quality"),
    [
        ("q=.2", 0.2),
        ("q=1.", 1.0),
        ("q=0.", 0.0),
        ("q=0.3333", 0.3333),
        (" q = 0.5 ", 0.5),
        ("Q=0.5", 0.5),
        ('q="0.5"', 0.5),
        ("level=1;q=0.5;extension", 0.5),
        ('title="a;q=0,b";q=0.5', 0.5),
        ('title="a\\";q=0";q=0.5', 0.5),
        ('title="open', 1.0),
        (";;", 1.0),
    ],
)
def test_takes_a_quality_as_old_clients_write_it(written, quality):
    (media,) = parse_accept(f", a/b;{written}")
    assert media.quality == quality


OLD_CLIENTS = {
    "Java HttpURLConnection": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    "curl, wget, requests, Net::HTTP, LWP": "*/*",
    "a lone star": "*",
    "stars with spaces": " * ; q = .1 , ",
    "Internet Explorer": "image/gif, image/x-xbitmap, image/jpeg, application/x-ms-application, */*",
    "Chrome": (
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,"
        "application/signed-exchange;v=b3;q=0.7"
    ),
    "Firefox of 2008": (
        "text/xml,application/xml,application/xhtml+xml,text/html;q=0.9,text/plain;q=0.8,image/png,*/*;q=0.5"
    ),
    "Opera": "text/html;q=0.9, application/xml;q=0.9, image/jpeg, image/x-xbitmap, */*;q=0.1",
    "w3m": "text/html, text/*;q=0.5, image/*, application/*, audio/*",
    "lynx": "text/html, text/plain, text/sgml, text/css, application/xhtml+xml, */*;q=0.01",
    "JAX-RS": "text/xml, multipart/related, text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    "quoted parameters": 'application/xml;profile="a, b;q=0", */*;q=0.5',
}


@pytest.mark.parametrize("accept", OLD_CLIENTS.values(), ids=OLD_CLIENTS)
def test_a_client_that_takes_anything_gets_it(accept):
    assert metadata_type(accept) == V2_TYPE
    assert records_type(accept).is_any
    assert framing_type(accept) is StreamFraming.LINES
    for own in (RecordFormat.JSON, RecordFormat.BINARY, RecordFormat.TEXT):
        assert type_in_format(accept, own, "").format is own


@pytest.mark.parametrize("accept", OLD_CLIENTS.values(), ids=OLD_CLIENTS)
@pytest.mark.parametrize(
    "path",
    [
        "/topics",
        "/topics/t",
        "/topics/t/records",
        "/topics/t/partitions/0/records?offset=0",
        "/v3/clusters",
    ],
)
async def test_old_clients_are_answered(api, path, accept):
    answer = await api.get(path, headers={"Accept": accept})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (f"application/vnd.kafka.json.v2+json; q=0.9, {JSON_TYPE}", JSON_TYPE),
        (f"{V2_TYPE}; q=0.5, {JSON_TYPE}; q=0.25, *; q=.1", V2_TYPE),
        (f"{JSON_TYPE};odata=verbose", JSON_TYPE),
        (f"{JSON_TYPE};charset=utf-8, text/javascript, */*; q=0.01", JSON_TYPE),
        (f"*, {V2_TYPE};q=0.", JSON_TYPE),
    ],
)
def test_a_client_gets_what_it_wants_most(accept, answered):
    assert metadata_type(accept) == answered


@pytest.mark.parametrize(
    "accept",
    [
        f"*/*, {V2_TYPE};q=0, {JSON_TYPE};q=0",
        "*/*, application/*;q=0",
        "*;q=0",
    ],
)
def test_what_a_client_excludes_is_not_its_answer(accept):
    with pytest.raises(NotAcceptableError):
        metadata_type(accept)


def test_an_excluded_format_is_not_what_a_wildcard_means():
    wanted = records_type(f"*/*, {JSON_V2_TYPE};q=0")
    assert wanted.content_type == JSON_TYPE
    with pytest.raises(NotAcceptableError):
        records_type("*/*, application/*;q=0")
    assert framing_type(f"*/*, {NDJSON_TYPE};q=0") is StreamFraming.EVENTS
    assert framing_type("*/*, application/*;q=0") is StreamFraming.EVENTS


def test_a_stream_is_the_best_type_that_is_a_stream():
    assert framing_type(f"{JSON_TYPE}, {EVENTS_TYPE};q=0.5, {NDJSON_TYPE};q=0.4") is (
        StreamFraming.EVENTS
    )
    with pytest.raises(NotAcceptableError, match="whole topic"):
        framing_type(JSON_TYPE)


@pytest.mark.parametrize(
    "parameters",
    [
        "",
        ";",
        "; charset=UTF-8",
        ";charset=utf8",
        " ; charset = 'utf-8' ;",
        '; charset="UTF-8"; version=1',
        "; charset=US-ASCII",
        '; boundary="a; charset=latin-1"',
        "; odata=verbose",
    ],
)
def test_parameters_of_a_type_change_nothing(parameters):
    for name in ("Application/JSON", JSON_V2_TYPE):
        assert produce_format(name + parameters) is RecordFormat.JSON
        check_json_type(name + parameters)


@pytest.mark.parametrize(
    "charset", ["latin-1", "iso-8859-1", "utf-16", "utf-16le", '"windows-1252"', "", "utf-8x"]
)
def test_another_charset_is_refused(charset):
    for check in (produce_format, check_json_type):
        with pytest.raises(UnsupportedMediaTypeError, match="send UTF-8"):
            check(f"application/json; charset={charset}")
