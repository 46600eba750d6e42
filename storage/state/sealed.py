"""The content of a small file, with a checksum; recovery reads these files in addition to the log.

    offset  size  meaning
    0       4     magic: which file this is, and the version of its layout
    4       4     CRC-32C over bytes 8..end
    8       ..    payload, in msgpack

If the checksum does not match, the whole file is refused, and recovery rebuilds its content from the log. Equal values
give equal bytes.
"""

from struct import Struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from milena.model.errors import CorruptLogError

_PREFIX = Struct(">4sI")

Value = TypeVar("Value")


def seal(magic: bytes, value: object) -> bytes:
    """Encode ``value``, which msgspec must support, as content for ``unseal``."""
    payload = msgspec.msgpack.encode(value)
    return _PREFIX.pack(magic, crc32c(payload)) + payload


def unseal(magic: bytes, content: bytes, kind: type[Value]) -> Value:
    """Return the sealed value, which must be of this type; msgspec checks it.

    Raises:
        CorruptLogError: the content is too short, has another magic, is damaged, or holds a value of another type.
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
        return msgspec.msgpack.decode(payload, type=kind)
    except ValueError as error:
        raise CorruptLogError(
            f"the {magic!r} file does not hold what it should: {error}"
        ) from error
