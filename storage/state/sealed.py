"""The content of a small file, with a checksum; recovery reads these files in addition to the log.

    offset  size  meaning
    0       4     magic: which file this is, and the version of its layout
    4       4     CRC-32C over bytes 8..end
    8       ..    payload, in msgpack

If the checksum does not match, the whole file is refused, and recovery rebuilds its content from the log. Equal values
give equal bytes.
"""

from struct import Struct

import msgpack  # type: ignore[import-untyped]  # ships no types
from crc32c import crc32c

from milena.model.errors import CorruptLogError

_PREFIX = Struct(">4sI")


def seal(magic: bytes, value: object) -> bytes:
    """Encode ``value``, which msgpack must support, as content for ``unseal``."""
    payload: bytes = msgpack.packb(value)
    return _PREFIX.pack(magic, crc32c(payload)) + payload


def unseal(magic: bytes, content: bytes) -> object:
    """Return the sealed value; sequences become lists.

    Raises:
        CorruptLogError: the content is too short, has another magic, or is damaged.
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
    """Return ``value`` if it is a list of integers (``count`` of them, if given).

    Raises:
        CorruptLogError: ``value`` is something else.
    """
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise CorruptLogError("expected a list of integers")
    if count is not None and len(value) != count:
        raise CorruptLogError(f"expected {count} integers, found {len(value)}")
    return value


def binaries(value: object, count: int) -> list[bytes]:
    """Return ``value`` if it is a list of ``count`` byte strings.

    Raises:
        CorruptLogError: ``value`` is something else.
    """
    if not isinstance(value, list) or any(type(item) is not bytes for item in value):
        raise CorruptLogError("expected a list of byte strings")
    if len(value) != count:
        raise CorruptLogError(f"expected {count} byte strings, found {len(value)}")
    return value


def columns(value: object, count: int) -> list[object]:
    """Return ``value`` if it is a list of ``count`` items of any kind.

    Raises:
        CorruptLogError: ``value`` is something else.
    """
    if not isinstance(value, list) or len(value) != count:
        raise CorruptLogError(f"expected a list of {count} columns")
    return value
