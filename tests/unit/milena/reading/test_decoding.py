"""From the bytes of records to objects, and what becomes of those that make no sense."""

import pytest

from milena.errors import UndecodableRecordError
from milena.model.types import TimestampType
from milena.producing.serializers import json_bytes, msgpack_bytes
from milena.reading.decoding import (
    DecodedRecord,
    Decoder,
    OnUndecodable,
    json_value,
    msgpack_value,
    text_value,
)
from milena.records import ConsumedRecord


def record(offset, value, key=None):
    return ConsumedRecord("t", 1, offset, 7, TimestampType.CREATE, key, value, (("h", b"x"),))


BAD = [record(0, b"1"), record(1, b"{"), record(2, b"2")]


@pytest.mark.parametrize(
    ("write", "read", "given"),
    [
        (json_bytes, json_value, {"a": [1, None, "é"]}),
        (msgpack_bytes, msgpack_value, {"a": [1, None, "é", b"\xff"], 7: 2**63}),
        (str.encode, text_value, "é"),
    ],
)
def test_what_was_written_is_read(write, read, given):
    assert read(write(given)) == given


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (text_value, b"\xff"),
        (json_value, b"[" * 100_000),
        (json_value, b""),
        (msgpack_value, b""),
        (msgpack_value, b"\xc1"),
        (msgpack_value, b"\x01\x02"),
        (msgpack_value, b"\x91" * 100_000),
        (msgpack_value, b"\xdd\xff\xff\xff\xff"),
        (msgpack_value, b"\x81\x90\x01"),
    ],
)
def test_bytes_that_make_no_sense_are_an_error_that_names_the_record(read, data):
    with pytest.raises(UndecodableRecordError, match=r"t-1, offset 5: the value") as caught:
        Decoder(value=read).decode(record(5, data))
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 1, 5)
    assert error.__cause__ is not None


def test_everything_but_key_and_value_stays():
    found = Decoder(key=text_value, value=json_value).decode(record(3, b"[]", b"k"))
    assert found == DecodedRecord("t", 1, 3, 7, TimestampType.CREATE, "k", [], (("h", b"x"),), None)


def test_no_deserializer_is_given_nothing():
    assert Decoder(key=json_value, value=json_value).decode(record(3, None)).value is None


def test_a_bad_key_is_told_as_such():
    with pytest.raises(UndecodableRecordError, match="the key"):
        Decoder(key=json_value).decode(record(3, b"v", b"k"))


def test_skipped_records_are_counted():
    decoder = Decoder(value=json_value, on_undecodable=OnUndecodable.SKIP)
    assert [found.value for found in decoder.records(BAD)] == [1, 2]
    assert decoder.skipped == 1


def test_raw_records_come_with_their_error():
    decoder = Decoder(value=json_value, on_undecodable=OnUndecodable.RAW)
    good, bad, _ = decoder.records(BAD)
    assert (good.value, good.error) == (1, None)
    assert bad.value == b"{"
    assert isinstance(bad.error, UndecodableRecordError)


class Source:
    """Read one by one, as a reader or a consumer is."""

    def __init__(self, records):
        self._records = iter(records)

    def __aiter__(self):
        return self

    async def __anext__(self):
        for found in self._records:
            return found
        raise StopAsyncIteration


async def test_after_an_error_a_stream_goes_on_behind_the_record():
    source, decoder = Source(BAD), Decoder(value=json_value)
    stream = decoder.stream(source)
    assert (await anext(stream)).value == 1
    with pytest.raises(UndecodableRecordError):
        await anext(stream)
    assert [found.value async for found in decoder.stream(source)] == [2]
