"""Kafka's primitive types: a reader that believes nothing, and a writer.

A *compact* encoding writes a length plus one as an unsigned varint; 0 means null. The flexible versions of a message
use it, and end each structure with tagged fields. The older versions write lengths as int16 or int32; -1 means null.

Bytes behind a message are ignored, as Kafka does: librdkafka 2.16 sends three of them when it asks for all topics.

Source: Kafka's protocol guide (primitive types), KIP-482 (flexible versions).
"""

from collections.abc import Sequence
from struct import Struct

from milena.disk.files import Buffer

ITEMS_MAX = 10_000
"""Items of all arrays of one request together. An array's length is checked before anything is made of it."""
TAGS_MAX = 100
"""Tagged fields of one structure."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_VARINT_BYTES_MAX = 5
NULL_UUID = bytes(16)


class MalformedFrameError(Exception):
    """A client's bytes are not the message that they claim to be. It ends the connection and never leaves the node."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WireReader:
    """Reads a message from the front.

    Every method raises ``MalformedFrameError`` if the bytes end too early or say something that cannot be.
    """

    def __init__(self, data: bytes, at: int, *, is_flexible: bool) -> None:
        """Start at byte ``at`` of a frame."""
        self._data = data
        self._at = at
        self._end = len(data)
        self._items_left = ITEMS_MAX
        self.is_flexible = is_flexible

    def _take(self, count: int) -> int:
        at = self._at
        if count < 0 or count > self._end - at:
            raise MalformedFrameError(f"{count} bytes expected at {at}, {self._end - at} are left")
        self._at = at + count
        return at

    @property
    def position(self) -> int:
        """The place of the next byte in the frame."""
        return self._at

    def fork(self) -> "WireReader":
        """Return another reader of the same bytes that starts at the present place."""
        return WireReader(self._data, self._at, is_flexible=self.is_flexible)

    def rest(self) -> memoryview:
        """Return a view of all that is left."""
        return memoryview(self._data)[self._at :]

    def int8(self) -> int:
        """Return the next signed byte."""
        value = self._data[self._take(1)]
        return value - 256 if value > 127 else value

    def boolean(self) -> bool:
        """Return the next byte as a truth value."""
        return self._data[self._take(1)] != 0

    def int16(self) -> int:
        """Return the next two bytes, signed."""
        value: int = _INT16.unpack_from(self._data, self._take(2))[0]
        return value

    def int32(self) -> int:
        """Return the next four bytes, signed."""
        value: int = _INT32.unpack_from(self._data, self._take(4))[0]
        return value

    def int64(self) -> int:
        """Return the next eight bytes, signed."""
        value: int = _INT64.unpack_from(self._data, self._take(8))[0]
        return value

    def uvarint(self) -> int:
        """Return the next unsigned varint of 32 bits."""
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self._data[self._take(1)]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise MalformedFrameError("a varint has more than 32 bits")

    def uuid(self) -> bytes:
        """Return the next 16 bytes."""
        at = self._take(16)
        return self._data[at : at + 16]

    def nullable_string(self) -> str | None:
        """Return the next text, or None for null."""
        length = self.uvarint() - 1 if self.is_flexible else self.int16()
        return self._text(length)

    def header_string(self) -> str | None:
        """Return the next text in the old encoding: request headers never use the compact one."""
        return self._text(self.int16())

    def _text(self, length: int) -> str | None:
        if length == -1:
            return None
        at = self._take(length)
        try:
            return self._data[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise MalformedFrameError(f"a text is not UTF-8: {error}") from error

    def string(self) -> str:
        """Return the next text; null is malformed."""
        value = self.nullable_string()
        if value is None:
            raise MalformedFrameError("a text is null")
        return value

    def records(self) -> memoryview | None:
        """Return a view of the next bytes, or None for null."""
        length = self.uvarint() - 1 if self.is_flexible else self.int32()
        if length == -1:
            return None
        at = self._take(length)
        return memoryview(self._data)[at : at + length]

    def array(self, item_bytes: int) -> int:
        """Return the length of the next array; -1: null. ``item_bytes``: the least size of an item."""
        length = self.uvarint() - 1 if self.is_flexible else self.int32()
        if length <= 0:
            if length < -1:
                raise MalformedFrameError(f"an array has {length} items")
            return length
        if length > self._items_left:
            raise MalformedFrameError(f"the arrays of a request have more than {ITEMS_MAX} items")
        if length * item_bytes > self._end - self._at:
            raise MalformedFrameError(f"an array of {length} items does not fit into its frame")
        self._items_left -= length
        return length

    def int32s(self) -> list[int]:
        """Return an array of integers; null is an empty one."""
        return [self.int32() for _ in range(self.array(4))]

    def skip_tags(self) -> None:
        """Pass over the tagged fields of a structure, if the version has them."""
        if self.is_flexible:
            for _ in range(self._tag_count()):
                self.uvarint()
                self._take(self.uvarint())

    def _tag_count(self) -> int:
        count = self.uvarint()
        if count > TAGS_MAX:
            raise MalformedFrameError(f"a structure has {count} tagged fields")
        return count


class WireWriter:
    """Builds a message. Records are kept as they are, as pieces of their own, and are not copied."""

    def __init__(self, *, is_flexible: bool) -> None:
        self.is_flexible = is_flexible
        self._pieces: list[Buffer] = []
        self._tail = bytearray()

    def raw(self, data: bytes) -> None:
        """Add encoded bytes."""
        self._tail += data

    def int8(self, value: int) -> None:
        """Add a signed byte."""
        self._tail.append(value & 0xFF)

    def boolean(self, value: bool) -> None:
        """Add a truth value."""
        self._tail.append(1 if value else 0)

    def int16(self, value: int) -> None:
        """Add two bytes, signed."""
        self._tail += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Add four bytes, signed."""
        self._tail += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Add eight bytes, signed."""
        self._tail += _INT64.pack(value)

    def uvarint(self, value: int) -> None:
        """Add an unsigned varint."""
        while value > 0x7F:
            self._tail.append(value & 0x7F | 0x80)
            value >>= 7
        self._tail.append(value)

    def nullable_string(self, value: str | None) -> None:
        """Add a text; None is null."""
        if value is None:
            if self.is_flexible:
                self._tail.append(0)
            else:
                self._tail += b"\xff\xff"
            return
        data = value.encode()
        if self.is_flexible:
            self.uvarint(len(data) + 1)
        else:
            self._tail += _INT16.pack(len(data))
        self._tail += data

    def string(self, value: str) -> None:
        """Add a text."""
        self.nullable_string(value)

    def array(self, length: int) -> None:
        """Start an array of this length."""
        if self.is_flexible:
            self.uvarint(length + 1)
        else:
            self._tail += _INT32.pack(length)

    def int32s(self, values: tuple[int, ...]) -> None:
        """Add an array of integers."""
        self.array(len(values))
        for value in values:
            self._tail += _INT32.pack(value)

    def records(self, pieces: Sequence[Buffer]) -> None:
        """Add records that lie in pieces; none is an empty sequence of records."""
        size = sum(map(len, pieces))
        if self.is_flexible:
            self.uvarint(size + 1)
        else:
            self._tail += _INT32.pack(size)
        if size:
            self._pieces.append(bytes(self._tail))
            self._pieces += pieces
            self._tail = bytearray()

    def no_tags(self) -> None:
        """End a structure that has no tagged fields."""
        if self.is_flexible:
            self._tail.append(0)

    def tagged(self, tag: int, value: bytes) -> None:
        """End a structure that has one tagged field."""
        self._tail.append(1)
        self.uvarint(tag)
        self.uvarint(len(value))
        self._tail += value

    def pieces(self) -> list[Buffer]:
        """Return all that was added, in order."""
        if self._tail:
            self._pieces.append(bytes(self._tail))
            self._tail = bytearray()
        return self._pieces
