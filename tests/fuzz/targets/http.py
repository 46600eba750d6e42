"""Decoders of requests."""

import asyncio
from functools import cache

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpRequestParser

from http_api.describing.schemas import parse_query
from http_api.formats import binary_v2, json_v2, text_v2
from http_api.formats.envelope import decode_envelope
from http_api.protocol.media import metadata_type, produce_format, records_type
from http_api.quick.strangers import asked
from http_api.records.produce_head import parse_options
from http_api.routes import ROUTES
from http_api.serving.routing import Router
from milena.model.batch.decode import check_batch, decode_columns
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.errors import MalformedRequestError, MilenaError
from milena.model.turns import at_once
from tests.fuzz.targets.target import Target

_ROUTER = Router(ROUTES)


def _json_records(data: bytes) -> object:
    return _encoded(at_once(decode_envelope(json_v2.encode_items, data, records_max=1000)))


def _binary_records(data: bytes) -> object:
    return _encoded(at_once(decode_envelope(binary_v2.decode_items, data, records_max=1000)))


def _text_records(data: bytes) -> object:
    return _encoded(at_once(decode_envelope(text_v2.decode_items, data, records_max=1000)))


def _encoded(records: object) -> bytes:
    """As the node packs them."""
    stamps = None
    if records.timestamps is not None:
        stamps = [0 if stamp is None else stamp for stamp in records.timestamps]
    columns = RecordColumns(None, stamps, records.keys, records.values, records.headers)
    batch = encode_batch(columns, base_timestamp_ms=0)
    header = check_batch(batch)
    assert decode_columns(batch, header).values == records.values
    return batch


def _json_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"k","value":{"a":[1,2.5e300,null,true,"\\u00e9"]}}]}',
        b'{"records":[{"value":1},{"value":null,"partition":0,"timestamp":1700000000000}]}',
        b'{"records":[{"value":"x","headers":[{"key":"h","value":"aGk="}],"timestamp":"2026-01-31T12:00:00Z"}]}',
        b'{"records":[{"value":123456789012345678901234567890}],"key_schema":null}',
        b'{"records":[{"value":"\\ud800"},{"value":{"a":1,"a":2}}]}',
        b'{"records":[{"value":' + b"[" * 300 + b"]" * 300 + b"}]}",
    ]


def _binary_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"aw==","value":"dmFsdWU="},{"value":null}]}',
        b'{"records":[{"value":"","partition":1,"headers":[]}]}',
    ]


def _text_seeds() -> list[bytes]:
    return [
        b'{"records":[{"key":"k","value":"\\u00e9"},{"value":null}]}',
        b'{"records":[{"value":"","partition":1,"headers":[]}]}',
    ]


def _path(data: bytes) -> object:
    text = data.decode("latin-1")
    method, _, path = text.partition(" ")
    match = _ROUTER.find.__wrapped__(method, path)
    assert all(name.isprintable() or name for name in match.names.values())
    return match.names


def _path_seeds() -> list[bytes]:
    return [
        b"GET /topics/orders/partitions/3/records",
        b"POST /topics/%F0%9F%98%80%2F..",
        b"DELETE /v3/clusters/c/topics/a%00b/",
        b"GET //v3//clusters",
    ]


def _query(data: bytes) -> object:
    text = data.decode("latin-1")
    parse_query(text)
    return parse_options.__wrapped__(text)


def _media(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    found = []
    for parse in (metadata_type, records_type, produce_format):
        try:
            found.append(parse.__wrapped__(text))
        except MilenaError as error:
            found.append(error)
    return found


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _guess(data: bytes) -> object:
    """What is turned away unparsed is the one request that aiohttp finds there, and ends where it ends."""
    found = asked(data)
    if found is None:
        raise MalformedRequestError("it goes the usual way")
    method, target, authorization = found
    parser = HttpRequestParser(BaseProtocol(_loop()), _loop(), 1 << 16)
    try:
        messages, is_upgraded, tail = parser.feed_data(data)
    except BadHttpMessage:
        # A header twice that may be there once: refused in other words, and nothing is done either way.
        return found
    assert not is_upgraded
    assert not tail
    [(message, payload)] = messages
    assert (message.method, message.path) == (method, target)
    assert message.headers.getall("Authorization") == [authorization]
    assert not message.should_close
    assert not message.chunked
    assert payload.is_eof()
    return found


def _guess_seeds() -> list[bytes]:
    head = b" /topics/t?a=b HTTP/1.1\r\nHost: h\r\nauthorization: Basic Z3Vlc3M6MQ==\r\n"
    return [
        b"GET" + head + b"\r\n",
        b"POST" + head + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /topics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer mln_token123_x\r\n\r\n",
        b"PUT" + head + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"DELETE" + head + b"Accept: a\r\n b\r\nX: y\nContent-Length: 4\r\n\r\n",
    ]


HTTP: tuple[Target, ...] = (
    Target("json-records", _json_records, (MilenaError,), _json_seeds),
    Target("binary-records", _binary_records, (MilenaError,), _binary_seeds),
    Target("text-records", _text_records, (MilenaError,), _text_seeds),
    Target("guess", _guess, (MalformedRequestError,), _guess_seeds),
    Target("path", _path, (MilenaError,), _path_seeds),
    Target(
        "query",
        _query,
        (MilenaError,),
        lambda: [b"acks=all&timeout_ms=5000", b"acks=%31&timeout_ms=+7&&=&x=%ff"],
    ),
    Target(
        "media",
        _media,
        (),
        lambda: [
            b"application/vnd.kafka.json.v2+json; q=0.5, */*;q=0.001",
            b"application/vnd.kafka.v2+json;charset=UTF-8",
        ],
    ),
)
