"""Turn a program's objects into the bytes of a record (pure).

A serializer is a function from an object to bytes. It is not called for None: a key None means no key, and a value None
is a tombstone.
"""

import json
from collections.abc import Callable

import msgpack  # type: ignore[import-untyped]  # ships no types

from milena.errors import BadRecordError

Serializer = Callable[[object], bytes]


def plain_bytes(given: object) -> bytes:
    """Return bytes unchanged, and text as UTF-8; the default.

    Raises:
        BadRecordError: the object is neither bytes nor text, or the text is not valid Unicode.
    """
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str):
        return _utf8(given)
    raise BadRecordError(
        f"{type(given).__name__} is neither bytes nor text; give the producer a serializer for it"
    )


def json_bytes(given: object) -> bytes:
    """Return compact JSON in UTF-8: the same bytes that the HTTP API stores for the same JSON key or value.

    So records with one key go to the same partition, whether they are written here or over HTTP, and compaction sees
    one key. Text has quotes: the key ``u1`` becomes ``"u1"``. Numbers have the digits that Python's ``json`` writes.
    The HTTP API keeps the digits of the request.

    Raises:
        BadRecordError: JSON cannot hold the object.
    """
    try:
        text = json.dumps(given, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"cannot be JSON: {error}") from error
    return _utf8(text)


def msgpack_bytes(given: object) -> bytes:
    """Return MessagePack, which is smaller than JSON and can hold bytes.

    Raises:
        BadRecordError: MessagePack cannot hold the object.
    """
    try:
        made: bytes = msgpack.packb(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecordError(f"cannot be MessagePack: {error}") from error
    return made


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRecordError(f"the text is not valid Unicode: {error}") from error


def serialize(serializer: Serializer, given: object, what: str) -> bytes | None:
    """Return the bytes of a key or value; ``what`` names it in errors.

    Raises:
        BadRecordError: the serializer failed, or returned something other than bytes.
    """
    if given is None:
        return None
    try:
        made: object = serializer(given)
    except BadRecordError as error:
        raise BadRecordError(f"{what}: {error.message}") from error
    except Exception as error:
        raise BadRecordError(f"{what}: its serializer failed: {error!r}") from error
    if isinstance(made, bytes):
        return made
    raise BadRecordError(f"{what}: its serializer made {type(made).__name__} in place of bytes")
