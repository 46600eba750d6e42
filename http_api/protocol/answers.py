"""Build the responses of handlers: bodies are bytes, headers a list of pairs."""

from collections.abc import Sequence

import orjson
from aiohttp import web

from http_api.protocol.errors import error_headers, row_of
from http_api.protocol.media import JSON_TYPE
from milena.model.errors import MilenaError, PreconditionFailedError, TopicNotFoundError

Pairs = Sequence[tuple[str, str]]

SERVER = "milena"
"""The header ``Server`` of responses. aiohttp's default would reveal the versions of aiohttp and Python."""


def bytes_answer(
    body: bytes, content_type: str, *, status: int = 200, headers: Pairs = ()
) -> web.Response:
    """Return a response with these bytes as its body."""
    return web.Response(
        body=body, status=status, headers=[("Content-Type", content_type), *headers]
    )


def json_answer(
    value: object, *, content_type: str = JSON_TYPE, status: int = 200, headers: Pairs = ()
) -> web.Response:
    """Return a response with a value as compact JSON."""
    return bytes_answer(orjson.dumps(value), content_type, status=status, headers=headers)


def empty_answer(status: int = 204, headers: Pairs = ()) -> web.Response:
    """Return a response without a body."""
    return web.Response(status=status, headers=list(headers))


def error_answer(error: MilenaError, *, topic_missing_code: int) -> web.Response:
    """Return an error's response: the envelope ``{"error_code", "message"}``, and further fields of the error."""
    status = row_of(error).status
    return json_answer(
        error_envelope(error, topic_missing_code=topic_missing_code),
        status=status,
        headers=error_headers(error, status),
    )


def error_envelope(error: MilenaError, *, topic_missing_code: int) -> dict[str, object]:
    """Return the envelope of an error."""
    error_code = row_of(error).error_code
    if isinstance(error, TopicNotFoundError):
        error_code = topic_missing_code
    envelope: dict[str, object] = {"error_code": error_code, "message": printable(error.message)}
    if isinstance(error, PreconditionFailedError) and error.end_offset is not None:
        envelope["end_offset"] = error.end_offset
    return envelope


def printable(text: str) -> str:
    """Return the text with lone surrogates replaced, which UTF-8 cannot encode; header bytes may be read as such."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
