"""Records as lines of a file, one a line, without keys; and as text in the place of JSON. Pure.

Plain text keeps the bytes of a line as they are, and an empty line is a record. Each line of NDJSON must be JSON, of
which every character is kept; empty lines mean nothing there, and ``null`` is no value at all (a tombstone).
"""

from collections.abc import Iterator, Sequence

import orjson

from http_api.errors import InvalidFieldError
from http_api.formats.rows import RowWriter
from http_api.formats.selection import Selection
from milena.model.errors import MalformedRequestError, RequestTooLargeError
from milena.model.requests import Records
from milena.model.turns import Steps

STEP_LINES = 8192
"""Lines that are looked at in one step."""

_SPACES = b" \t\r"


def decode_text_steps(body: bytes, *, records_max: int) -> Steps[Records]:
    """A record a line of text.

    Raises:
        InvalidFieldError: no line.
        RequestTooLargeError: more than ``records_max``.
    """
    lines = _lines_of(body, records_max)
    yield
    return _records(lines)


def decode_json_steps(body: bytes, *, records_max: int) -> Steps[Records]:
    """A record a line of JSON.

    Raises:
        MalformedRequestError: a line is not JSON; the message has its number.
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


def encode_text(writer: RowWriter, selection: Selection) -> list[bytes]:
    """All records, keys and values as JSON strings; an error in the place of one that is not UTF-8."""
    rows: list[bytes] = []
    for piece in selection.slices:
        values = [_shown(value) for value in piece.values]
        keys = None if piece.keys is None else [_shown(key) for key in piece.keys]
        faults = _faults(piece.values, values)
        if keys is not None and piece.keys is not None:
            faults |= _faults(piece.keys, keys)
        whole = list(writer.rows(piece, keys, values))
        for index in faults:
            whole[index] = writer.fault_row(piece, index, _shown, "text in UTF-8")
        rows += whole
    return rows


def _faults(stored: Sequence[bytes | None], shown: Sequence[bytes | None]) -> set[int]:
    """Positions of items that are there, and cannot be shown."""
    pairs = enumerate(zip(stored, shown, strict=True))
    return {index for index, (item, text) in pairs if item is not None and text is None}


def _shown(item: bytes | None) -> bytes | None:
    try:
        return None if item is None else orjson.dumps(item.decode())
    except UnicodeDecodeError:
        return None


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
            raise MalformedRequestError(f"line {number} is not JSON: {error}") from None
        yield None if value is None else text


def _records(values: list[bytes] | list[bytes | None]) -> Records:
    return Records(keys=None, values=[*values], headers=None, timestamps=None, partitions=None)
