"""Kafka's primitive types: what is written is read again, and hostile bytes raise one error only."""

import random

import pytest

from node.kafka.wire.primitives import ITEMS_MAX, MalformedFrameError, WireReader, WireWriter


@pytest.mark.parametrize("is_flexible", [False, True])
def test_what_is_written_is_read_again(is_flexible: bool) -> None:
    writer = WireWriter(is_flexible=is_flexible)
    writer.int8(-1)
    writer.boolean(True)
    writer.int16(-2)
    writer.int32(-3)
    writer.int64(1 << 40)
    writer.uvarint(0xFFFFFFFF)
    writer.raw(bytes(range(16)))
    writer.string("zażółć")
    writer.nullable_string(None)
    writer.int32s((1, -1))
    writer.records([b"ab", memoryview(b"cd")])
    writer.records([])
    writer.no_tags()
    data = b"".join(writer.pieces())
    reader = WireReader(data, 0, is_flexible=is_flexible)
    assert reader.int8() == -1
    assert reader.boolean() is True
    assert reader.int16() == -2
    assert reader.int32() == -3
    assert reader.int64() == 1 << 40
    assert reader.uvarint() == 0xFFFFFFFF
    assert reader.uuid() == bytes(range(16))
    assert reader.string() == "zażółć"
    assert reader.nullable_string() is None
    assert reader.int32s() == [1, -1]
    assert bytes(reader.records() or b"") == b"abcd"
    assert bytes(reader.records() or b"") == b""
    reader.skip_tags()
    assert bytes(reader.rest()) == b""


def test_records_are_not_copied() -> None:
    writer = WireWriter(is_flexible=False)
    records = memoryview(b"records")
    writer.records([records])
    assert writer.pieces()[1] is records


@pytest.mark.parametrize("is_flexible", [False, True])
def test_tagged_fields_are_passed_over(is_flexible: bool) -> None:
    data = b"\x02\x00\x01a\x05\x02bc" if is_flexible else b""
    reader = WireReader(data, 0, is_flexible=is_flexible)
    reader.skip_tags()
    assert bytes(reader.rest()) == b""


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"\xff\xff\xff\xff\x7f", WireReader.uvarint),
        (b"\xff\xff\xff\xff\xff\x01", WireReader.uvarint),
        (b"\x80", WireReader.uvarint),
        (b"\x03a", WireReader.string),
        (b"\x00", WireReader.string),
        (b"\x02\xff", WireReader.string),
        (b"\xff\xff\xff\xff\x0f", lambda reader: reader.array(1)),
        (b"\x04ab", lambda reader: reader.array(1)),
        (b"\xff\xff\xff\x0f", WireReader.skip_tags),
        (b"\x65" + bytes(300), WireReader.skip_tags),
        (b"\x01\x00\xff\xff\xff\x0f", WireReader.skip_tags),
        (b"\x0a", WireReader.records),
        (b"", WireReader.int8),
        (b"\0", WireReader.int16),
        (b"\0" * 15, WireReader.uuid),
    ],
)
def test_what_cannot_be_is_malformed(data: bytes, read: object) -> None:
    reader = WireReader(data, 0, is_flexible=True)
    with pytest.raises(MalformedFrameError):
        read(reader)  # type: ignore[operator]  # a method of the reader


def test_lengths_below_null_are_malformed() -> None:
    for read in (WireReader.records, WireReader.int32s):
        with pytest.raises(MalformedFrameError):
            read(WireReader(b"\xff\xff\xff\xfe", 0, is_flexible=False))
    with pytest.raises(MalformedFrameError):
        WireReader(b"\xff\xfe", 0, is_flexible=False).nullable_string()


def test_the_arrays_of_a_request_share_a_bound() -> None:
    half = (ITEMS_MAX // 2).to_bytes(4, "big")
    array = half + bytes(4 * (ITEMS_MAX // 2))
    reader = WireReader(array * 2 + (1).to_bytes(4, "big") + bytes(4), 0, is_flexible=False)
    reader.int32s()
    reader.int32s()
    with pytest.raises(MalformedFrameError, match="items"):
        reader.int32s()


@pytest.mark.parametrize("is_flexible", [False, True])
def test_random_bytes_raise_this_error_only(is_flexible: bool) -> None:
    rng = random.Random(1)
    reads = [
        WireReader.string, WireReader.nullable_string, WireReader.records, WireReader.int32s,
        WireReader.skip_tags, WireReader.uvarint, WireReader.int64, WireReader.uuid,
    ]  # fmt: skip
    raised = 0
    for _ in range(5_000):
        reader = WireReader(rng.randbytes(rng.randint(0, 40)), 0, is_flexible=is_flexible)
        try:
            for _ in range(5):
                rng.choice(reads)(reader)
        except MalformedFrameError:
            raised += 1
    assert 1_000 < raised < 5_000
