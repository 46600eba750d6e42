"""Small files under a checksum."""

import pytest
from crc32c import crc32c

from milena.model.errors import CorruptLogError
from storage.state.sealed import binaries, columns, integers, seal, unseal


def test_a_value_comes_back():
    assert unseal(b"TEST", seal(b"TEST", [1, "a", b"b", None, {"k": -1}])) == [
        1,
        "a",
        b"b",
        None,
        {"k": -1},
    ]


def test_equal_values_give_equal_bytes():
    assert seal(b"TEST", [1, [2, 3]]) == seal(b"TEST", [1, [2, 3]])


def test_any_flipped_bit_is_noticed():
    content = seal(b"TEST", [1, 2, 3])
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptLogError):
            unseal(b"TEST", bytes(damaged))


@pytest.mark.parametrize("content", [b"", b"TEST", b"TEST\0\0\0"])
def test_too_few_bytes_are_refused(content):
    with pytest.raises(CorruptLogError, match="too few"):
        unseal(b"TEST", content)


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(CorruptLogError, match="begins with b'ELSE'"):
        unseal(b"TEST", seal(b"ELSE", 1))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", b"\x01\x02"])
def test_what_is_no_msgpack_is_refused(payload):
    content = b"TEST" + crc32c(payload).to_bytes(4, "big") + payload
    with pytest.raises(CorruptLogError, match="not msgpack"):
        unseal(b"TEST", content)


def test_shapes_are_checked():
    assert integers([1, 2]) == [1, 2]
    assert integers([1, 2], 2) == [1, 2]
    assert binaries([b"a"], 1) == [b"a"]
    assert columns([1, None], 2) == [1, None]
    for check in (
        lambda: integers("12"),
        lambda: integers([1, "2"]),
        lambda: integers([True]),
        lambda: integers([1], 2),
        lambda: binaries(b"a", 1),
        lambda: binaries(["a"], 1),
        lambda: binaries([b"a"], 2),
        lambda: columns({}, 0),
        lambda: columns([1], 2),
    ):
        with pytest.raises(CorruptLogError):
            check()
