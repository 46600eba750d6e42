"""JSON whose numbers stay as they were written. Pure.

Most parsers read numbers into 64 bits: ``1.10`` becomes ``1.1``, and ``18446744073709551616`` loses digits. This module
keeps a number with a fraction or an exponent as text (a ``Fragment``), which is written unchanged. An integer may have
any number of digits. A number above the range of a 64-bit float is refused, because most readers could not parse it.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from http_api.describing.schemas import parse_json
from milena.model.errors import MalformedRequestError

_SHORT = 20
"""A number of up to this many characters, without an exponent, is always in range."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_MINUS_ZERO = re.compile(rb"-0(?![0-9.eE])")


def loads(text: bytes) -> Any:  # noqa: ANN401  (JSON)
    """Read a JSON text.

    Raises:
        MalformedRequestError: the text is empty or not JSON, or has a number that is too large; the message says where.
    """
    try:
        value = _decode(text)
    except _UNREADABLE as error:
        # This call raises an error that has the position.
        parse_json(text)
        raise MalformedRequestError(f"the body cannot be read: {error}") from None
    # msgspec reads ``-0`` as the integer 0, which loses the sign. Python's parser calls ``_integer`` with the text.
    if b"-" in text and _MINUS_ZERO.search(text) is not None:
        return json.loads(text, parse_float=orjson.Fragment, parse_int=_integer)
    return value


def loads_each(lines: list[bytes], text: bytes) -> list[Any]:
    """Read each line as JSON; ``text`` is all lines together. Faster than ``loads`` for each line.

    Raises:
        MalformedRequestError: a line is not JSON.
    """
    if b"-" in text and _MINUS_ZERO.search(text) is not None:
        return list(map(loads, lines))
    try:
        return list(map(_decode, lines))
    except _UNREADABLE as error:
        raise MalformedRequestError(f"a line cannot be read: {error}") from None


def dumps(value: object) -> bytes:
    """Write a value that this module has read.

    Raises:
        MalformedRequestError: the value is nested too deeply, or has a number that is too large.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        pass
    try:
        return orjson.dumps(_with_long_integers(value))
    except (TypeError, ValueError, RecursionError) as error:
        # A value may be nested more deeply than orjson can write.
        raise MalformedRequestError(f"a value cannot be stored: {error}") from None


def _number(text: str) -> orjson.Fragment:
    if (len(text) > _SHORT or "e" in text or "E" in text) and math.isinf(float(text)):
        raise ValueError(f"{text[:_SHORT]}… is too large")
    return orjson.Fragment(text)


_decode: Callable[[bytes], Any] = msgspec.json.Decoder(float_hook=_number).decode


def _integer(text: str) -> object:
    return orjson.Fragment(text) if text == "-0" else int(text)


def _with_long_integers(value: object) -> object:
    """Return the value with integers of more than 64 bits as fragments."""
    match value:
        case bool():
            return value
        case int():
            return _number(str(value))
        case list():
            return [_with_long_integers(item) for item in value]
        case dict():
            return {name: _with_long_integers(item) for name, item in value.items()}
        case _:
            return value
