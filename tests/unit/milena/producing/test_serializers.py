"""From what a program holds to bytes."""

import pytest

from milena.errors import BadRecordError
from milena.producing.serializers import json_bytes, msgpack_bytes, plain_bytes, serialize


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ("é", b"\xc3\xa9"),
        ("", b""),
    ],
)
def test_bytes_stay_and_text_is_utf_8(given, made):
    assert plain_bytes(given) == made
    assert type(plain_bytes(given)) is bytes


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        ("u1", b'"u1"'),
        (2**70, b"1180591620717411303424"),
    ],
)
def test_json_is_compact(given, made):
    assert json_bytes(given) == made


@pytest.mark.parametrize(
    ("serializer", "given"),
    [
        (plain_bytes, 7),
        (msgpack_bytes, object()),
        (msgpack_bytes, 2**70),
        (msgpack_bytes, "\ud800"),
        (plain_bytes, "\ud800"),
        (json_bytes, {1, 2}),
        (json_bytes, float("nan")),
        (json_bytes, "\ud800"),
        (lambda _: 1 // 0, "x"),
        (lambda given: given, "text"),
        (lambda _: None, "x"),
    ],
)
def test_what_cannot_be_bytes_is_named(serializer, given):
    with pytest.raises(BadRecordError, match=r"^the value: "):
        serialize(serializer, given, "the value")


def test_json_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(BadRecordError, match="cannot be JSON"):
        json_bytes(loop)


def test_none_is_never_given_to_a_serializer():
    assert serialize(lambda _: 1 // 0, None, "the key") is None
