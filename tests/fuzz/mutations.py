"""Ways to spoil bytes: flips, cuts, repeats, splices, and the numbers at which code goes wrong."""

from typing import NamedTuple

EXTREMES: tuple[bytes, ...] = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x10\x00\x00",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\x00" * 7,
    # msgpack: nil, true, a long array, a long map, a long text, an extension, a float, 2**64 - 1, a map as a key.
    b"\xc0",
    b"\xc3",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xd8\xff" + bytes(16),
    b"\xcb\x7f\xf8" + bytes(6),
    b"\xcf" + b"\xff" * 8,
    b"\x81\x80\xc0",
    b"\x81\x90\xc0",
    b"\x91" * 40,
    b"\xa2\xed\xa0",
    b"\xd6\xff\x00\x00\x00\x00",
    # JSON.
    b'"\\ud800"',
    b'"\xff\xfe"',
    b"1e999",
    b"-0",
    b"NaN",
    b"18446744073709551616",
    b'{"a":1,"a":2}',
    b"[" * 200,
    b"\xef\xbb\xbf",
)


class Edit(NamedTuple):
    """One change: ``at`` and ``length`` are shares of 65536; ``kind`` picks what happens."""

    kind: int
    at: int
    length: int
    value: int


KINDS = 8


def mutated(data: bytes, edits: list[Edit], other: bytes) -> bytes:
    """The bytes after all edits; ``other`` is another sound input, for splices."""
    for edit in edits:
        data = _edited(data, edit, other)
    return data


def _edited(data: bytes, edit: Edit, other: bytes) -> bytes:
    at = len(data) * edit.at >> 16
    end = min(len(data), at + 1 + (min(len(data), 64) * edit.length >> 16))
    extreme = EXTREMES[edit.value % len(EXTREMES)]
    match edit.kind % KINDS:
        case 0:
            flipped = bytes(byte ^ (1 << edit.value % 8) for byte in data[at : at + 1])
            return data[:at] + flipped + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[end:]
        case 3:
            return data[:at] + extreme + data[at + len(extreme) :]
        case 4:
            return data[:at] + extreme + data[at:]
        case 5:
            return data[:end] + data[at:]
        case 6:
            return data[:at] + other[len(other) * edit.length >> 16 :]
        case _:
            return data[:at] + bytes([edit.value % 256]) + data[at + 1 :]
