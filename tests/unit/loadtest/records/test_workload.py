"""Records name themselves, in both forms, and no change of theirs goes unseen."""

from random import Random

import pytest

from loadtest.records.fingerprints import fingerprint
from loadtest.records.workload import (
    WRITER_BITS,
    DamagedValueError,
    Dialect,
    ForeignValueError,
    RecordId,
    RecordMaker,
    identify,
)
from tests.support.spark.load_runs import stored

WRITER = (1 << WRITER_BITS) - 5


def maker(dialect, *, size=100, keys=0, writer=WRITER):
    return RecordMaker(writer, dialect, record_bytes=size, key_count=keys, rng=Random(7))


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("keys", [0, 3])
def test_what_is_stored_tells_whose_it_is(dialect, keys):
    made = maker(dialect, keys=keys)
    for first in (0, 5):
        request = made.request(5)
        assert request.first_sequence == first
        records = list(stored(dialect, request))
        assert [identify(*record) for record in records] == [
            RecordId(WRITER, first + i) for i in range(5)
        ]
        assert b"".join(fingerprint(*record) for record in records) == request.fingerprints
        assert sum(len(value) for _, value in records) == request.value_bytes
        assert all((key is None) == (not keys) for key, _ in records)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("size", [1, 100, 1000, 200_000])
def test_values_have_the_size_asked_for_where_that_is_possible(dialect, size):
    request = maker(dialect, size=size, writer=1).request(1)
    # The checksum in JSON has up to ten digits.
    assert max(size - 9, 20) <= request.value_bytes <= max(size, 60)


@pytest.mark.parametrize("dialect", Dialect)
def test_every_flipped_bit_is_seen(dialect):
    request = maker(dialect, keys=2).request(1)
    ((key, value),) = stored(dialect, request)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1
        with pytest.raises((DamagedValueError, ForeignValueError)):
            identify(key, bytes(damaged))


@pytest.mark.parametrize("dialect", Dialect)
def test_a_record_under_another_key_is_damaged(dialect):
    request = maker(dialect, keys=2).request(1)
    ((_, value),) = stored(dialect, request)
    with pytest.raises(DamagedValueError):
        identify(b"other", value)


@pytest.mark.parametrize("value", [None, b"", b"hello", b'{"a":1}', b"\xc3LT2..."])
def test_what_no_load_test_wrote_is_foreign(value):
    with pytest.raises(ForeignValueError):
        identify(None, value)


@pytest.mark.parametrize("value", [b'{"w":1', b'{"w":"x","s":1,"c":1,"p":""}', b"\xc3LT1short"])
def test_what_was_cut_is_damaged(value):
    with pytest.raises(DamagedValueError):
        identify(None, value)


def test_a_key_cannot_pass_for_a_part_of_the_value():
    assert fingerprint(None, b"1:kv") != fingerprint(b"k", b"v")
    assert fingerprint(b"k", b"v") != fingerprint(b"kv", b"")
