"""Decode records from the lines of a file, one record per line, without keys. Pure.

Plain text keeps the bytes of a line unchanged, and an empty line is a record. Each line of NDJSON must be JSON, and
every character of it is kept. In NDJSON an empty line is ignored, and ``null`` means no value (a tombstone).
"""

from collections.abc import Iterator

import orjson

from http_api.describing.schemas import json_fault
from http_api.protocol.errors import InvalidFieldError
from milena.model.errors import MalformedRequestError, RequestTooLargeError
from milena.model.requests import Records
from milena.model.turns import Steps

STEP_LINES = 8192
"""The number of lines that are decoded in one step."""

DEPTH_MAX = 254
"""The deepest nesting of a value. It is the limit of orjson's serializer, which the other JSON formats use."""

_SPACES = b" \t\r"


def decode_text_steps(body: bytes, *, records_max: int) -> Steps[Records]:
    """Decode one record from each line of text.

    Raises:
        InvalidFieldError: there is no line.
        RequestTooLargeError: more than ``records_max`` lines.
    """
    lines = _lines_of(body, records_max)
    yield
    return _records(lines)


def decode_json_steps(body: bytes, *, records_max: int) -> Steps[Records]:
    """Decode one record from each line of JSON.

    Raises:
        MalformedRequestError: a line is not JSON, or is nested too deeply; the message has its number.
        InvalidFieldError, RequestTooLargeError: as ``decode_text_steps``.
    """
    values: list[bytes | None] = []
    lines = _lines_of(body, records_max)
    for first in range(0, len(lines), STEP_LINES):
        values += _json_values(lines[first : first + STEP_LINES], first + 1)
        yield
    if not values:
        raise InvalidFieldError("the body has no line with a record")
    return _records(values)


def _lines_of(body: bytes, records_max: int) -> list[bytes]:
    if not body:
        raise InvalidFieldError("the body is empty; a record a line is expected")
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    if count > records_max:
        raise RequestTooLargeError(f"{count} lines; at most {records_max} are taken in one request")
    return body.removesuffix(b"\n").split(b"\n")


def _json_values(lines: list[bytes], first: int) -> Iterator[bytes | None]:
    for number, line in enumerate(lines, first):
        text = line.strip(_SPACES)
        if not text:
            continue
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            # The parser counts each line as the first.
            fault = json_fault(text, error).replace("line 1 column", "column")
            raise MalformedRequestError(f"line {number} is not JSON: {fault}") from None
        # The parser accepts deeper nesting than ``DEPTH_MAX``. Check only lines that are long enough for that.
        if len(text) > 2 * DEPTH_MAX and text.count(b"[") + text.count(b"{") > DEPTH_MAX:
            try:
                orjson.dumps(value)
            except orjson.JSONEncodeError:
                raise MalformedRequestError(
                    f"line {number} is nested deeper than {DEPTH_MAX}"
                ) from None
        yield None if value is None else text


def _records(values: list[bytes] | list[bytes | None]) -> Records:
    return Records(keys=None, values=[*values], headers=None, timestamps=None, partitions=None)
