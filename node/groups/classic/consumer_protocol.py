"""The bytes that consumers of a classic group exchange: subscriptions and assignments. Pure; accepts hostile bytes.

Both are of protocol type ``consumer``. All numbers are big-endian; a text is i16 length and UTF-8, an array i32 length
and items:

    subscription  i16 version, array of topics (text), ...
    assignment    i16 version, array of (topic (text), array of partitions (i32)), ...

Later versions only add fields at the end. Source: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json.
"""

import struct
from collections.abc import Sequence

PROTOCOL_TYPE = "consumer"

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def short(self) -> int:
        (value,) = _SHORT.unpack_from(self._data, self._at)
        self._at += _SHORT.size
        return int(value)

    def integer(self) -> int:
        (value,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return int(value)

    def count(self, item_bytes: int) -> int:
        """Return the length of an array whose items have at least ``item_bytes``."""
        count = self.integer()
        if not 0 <= count <= (len(self._data) - self._at) // item_bytes:
            raise ValueError(f"an array of {count} items")
        return count

    def text(self) -> str:
        length = self.short()
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"a text of {length} bytes")
        text = self._data[self._at : end].decode()
        self._at = end
        return text


def subscribed_topics(metadata: bytes) -> Sequence[str] | None:
    """Return the topics of a subscription; None if the bytes are no subscription."""
    reader = _Fields(metadata)
    try:
        reader.short()
        return [reader.text() for _ in range(reader.count(2))]
    except (ValueError, struct.error):
        return None


def assigned_partitions(assignment: bytes) -> Sequence[tuple[str, int]] | None:
    """Return the (topic, partition)s of an assignment, in ascending order; None if the bytes are no assignment."""
    if not assignment:
        return ()
    reader = _Fields(assignment)
    try:
        reader.short()
        found: list[tuple[str, int]] = []
        for _ in range(reader.count(6)):
            topic = reader.text()
            found += [(topic, reader.integer()) for _ in range(reader.count(4))]
    except (ValueError, struct.error):
        return None
    return sorted(found)
