"""A small file's content under a checksum: what recovery reads beside the log itself.

    offset  size  meaning
    0       4     magic: which file this is, and the version of its layout
    4       4     CRC-32C over bytes 8..end
    8       ..    payload, in msgpack

A content that does not match is refused as a whole, never half used: whoever reads it makes the payload anew from
the log. Encoding is canonical: equal values give equal bytes.
"""

from struct import Struct

import msgpack  # type: ignore[import-untyped]  # ships no types
from crc32c import crc32c

from milena.model.errors import CorruptLogError

_PREFIX = Struct(">4sI")


def seal(magic: bytes, value: object) -> bytes:
    """The content of a file that ``unseal`` takes; ``value`` is made of what msgpack knows."""
    payload: bytes = msgpack.packb(value)
    return _PREFIX.pack(magic, crc32c(payload)) + payload


def unseal(magic: bytes, content: bytes) -> object:
    """The value that was sealed; sequences come back as lists.

    Raises:
        CorruptLogError: too short, of another kind, or damaged.
    """
    if len(content) < _PREFIX.size:
        raise CorruptLogError(f"{len(content)} bytes are too few for a {magic!r} file")
    found, checksum = _PREFIX.unpack_from(content)
    payload = memoryview(content)[_PREFIX.size :]
    if found != magic:
        raise CorruptLogError(f"the file begins with {found!r} instead of {magic!r}")
    if crc32c(payload) != checksum:
        raise CorruptLogError(f"the checksum of the {magic!r} file does not match")
    try:
        value: object = msgpack.unpackb(payload)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CorruptLogError(f"the {magic!r} file is not msgpack: {error}") from error
    return value


def integers(value: object, count: int | None = None) -> list[int]:
    """``value``, if it is a list of (``count``) integers.

    Raises:
        CorruptLogError: it is something else.
    """
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise CorruptLogError("expected a list of integers")
    if count is not None and len(value) != count:
        raise CorruptLogError(f"expected {count} integers, found {len(value)}")
    return value


def binaries(value: object, count: int) -> list[bytes]:
    """``value``, if it is a list of ``count`` byte strings.

    Raises:
        CorruptLogError: it is something else.
    """
    if not isinstance(value, list) or any(type(item) is not bytes for item in value):
        raise CorruptLogError("expected a list of byte strings")
    if len(value) != count:
        raise CorruptLogError(f"expected {count} byte strings, found {len(value)}")
    return value


def columns(value: object, count: int) -> list[object]:
    """``value``, if it is a list of ``count`` items of any kind.

    Raises:
        CorruptLogError: it is something else.
    """
    if not isinstance(value, list) or len(value) != count:
        raise CorruptLogError(f"expected a list of {count} columns")
    return value
