"""Kafka's messages as bytes, of the last versions before the compact encoding: requests, and a reader of fields."""

from struct import Struct

_SIZE = Struct(">i")
_HEAD = Struct(">hhih")
_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_CORRELATION_BYTES = 4


def frame(key: int, version: int, body: bytes) -> bytes:
    """Return a request without a client id, with its size."""
    found = _HEAD.pack(key, version, 1, -1) + body
    return _SIZE.pack(len(found)) + found


def text(value: str) -> bytes:
    """Return a text with its length."""
    return _INT16.pack(len(value)) + value.encode()


def data(value: bytes) -> bytes:
    """Return bytes with their length."""
    return _INT32.pack(len(value)) + value


def int16(value: int) -> bytes:
    """Return a number of two bytes."""
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    """Return a number of four bytes, such as the length of an array."""
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    """Return a number of eight bytes."""
    return _INT64.pack(value)


def is_whole(answer: bytes) -> bool:
    """Return whether a response is complete."""
    return len(answer) >= _SIZE.size and len(answer) >= _SIZE.size + _SIZE.unpack_from(answer)[0]


class KafkaFields:
    """Reads the fields of a message, one after the other, from the position ``at``: behind the head of a response."""

    def __init__(
        self, content: bytes | memoryview, at: int = _SIZE.size + _CORRELATION_BYTES
    ) -> None:
        self._content = content
        self._at = at

    def _number(self, layout: Struct) -> int:
        (found,) = layout.unpack_from(self._content, self._at)
        self._at += layout.size
        return int(found)

    def int16(self) -> int:
        """Return a number of two bytes."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Return a number of four bytes."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Return a number of eight bytes."""
        return self._number(_INT64)

    def text(self) -> str:
        """Return a text; empty for null."""
        return bytes(self._bytes(self.int16())).decode()

    def data(self) -> bytes | memoryview:
        """Return bytes, of the type of the content; none for null."""
        return self._bytes(self.int32())

    def _bytes(self, length: int) -> bytes | memoryview:
        began = self._at
        self._at += max(0, length)
        return self._content[began : self._at]
