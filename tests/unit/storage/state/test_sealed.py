"""Small files under a checksum."""

import pytest
from crc32c import crc32c

from milena.model.errors import CorruptLogError
from storage.state.sealed import seal, unseal


def test_a_value_comes_back():
    value = (1, "a", b"b", {"k": -1})
    kind = tuple[int, str, bytes, dict[str, int]]
    assert unseal(b"TEST", seal(b"TEST", value), kind) == value


def test_equal_values_give_equal_bytes():
    assert seal(b"TEST", [1, [2, 3]]) == seal(b"TEST", [1, [2, 3]])


def test_any_flipped_bit_is_noticed():
    content = seal(b"TEST", [1, 2, 3])
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptLogError):
            unseal(b"TEST", bytes(damaged), list[int])


@pytest.mark.parametrize("content", [b"", b"TEST", b"TEST\0\0\0"])
def test_too_few_bytes_are_refused(content):
    with pytest.raises(CorruptLogError, match="too few"):
        unseal(b"TEST", content, list[int])


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(CorruptLogError, match="begins with b'ELSE'"):
        unseal(b"TEST", seal(b"ELSE", 1), int)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\x91\xa1\xff"])
def test_what_is_no_msgpack_is_refused(payload):
    content = b"TEST" + crc32c(payload).to_bytes(4, "big") + payload
    with pytest.raises(CorruptLogError, match="does not hold"):
        unseal(b"TEST", content, list[str])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("12", list[int]),
        ([1, "2"], list[int]),
        ([True], list[int]),
        ([1], tuple[int, int]),
        (["a"], list[bytes]),
        ({}, list[int]),
    ],
)
def test_a_value_of_another_type_is_refused(value, kind):
    with pytest.raises(CorruptLogError, match="Expected"):
        unseal(b"TEST", seal(b"TEST", value), kind)
