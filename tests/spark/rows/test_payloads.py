"""Payloads as Arrow columns: the same as msgpack says, or nothing, whatever the bytes are."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milena.model.columns import RecordColumns, pack_columns, unpack_columns
from milena.model.errors import CorruptBatchError
from spark_ext.rows import payloads
from spark_ext.rows.payloads import RECORDS_MIN, RUNS_MAX, packed_payload, plain_columns

TEXTS = st.text(st.characters(max_codepoint=0x7F), max_size=300).map(str.encode)
ANYTHING = st.binary(max_size=40) | st.sampled_from([b"\xc4\x01", b"\xc5\x00\x02xx", b"\xdc\x00"])
TIMES = st.integers(0, 1 << 33) | st.integers(0, 300)


@pytest.fixture(autouse=True, scope="module")
def _small_ones_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "RECORDS_MIN", 1)
        yield


def packed(values, *, keys=None, times=None):
    return pack_columns(RecordColumns(None, times, keys, values, None))


def read(payload, count):
    """The lists of times, keys and values; None where it is left to msgpack."""
    found = plain_columns(payload, count)
    if found is None:
        return None
    times = found.timestamp_deltas
    return (
        None if times is None else times.tolist(),
        found.keys.to_pylist(),
        found.values.to_pylist(),
    )


def read_by_msgpack(payload, count):
    """The same, or None where it is no payload, or one that is not plain."""
    try:
        found = unpack_columns(payload, count)
    except CorruptBatchError:
        return None
    if found.offset_deltas is not None or found.headers is not None:
        return None
    return found.timestamp_deltas, found.keys or [None] * count, found.values


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1), st.booleans())
def test_text_is_read(rows, has_keys):
    keys, values = ([*column] for column in zip(*rows, strict=True))
    keys = keys if has_keys else None
    read_keys = keys or [None] * len(rows)
    assert read(packed(values, keys=keys), len(rows)) == (None, read_keys, values)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535])
def test_values_of_any_size_that_two_bytes_tell(size):
    values = [b"", b"v" * size, b"-", b"w" * size]
    assert read(packed(values), 4) == (None, [None] * 4, values)


@pytest.mark.parametrize(
    "times",
    [
        [0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1],
        [65_536, 3, 300, 3, 3],
        [n // 10 for n in range(3_000)],
    ],
)
def test_times_go_on(times):
    values = [b"v"] * len(times)
    assert read(packed(values, times=times), len(times)) == (times, [None] * len(times), values)


@pytest.mark.parametrize("times", [[0, -1], [1 << 32, 0], [0, 200] * RUNS_MAX])
def test_times_that_are_left_to_msgpack(times):
    assert read(packed([b"v"] * len(times), times=times), len(times)) is None


def test_what_is_not_plain_is_left_to_msgpack():
    columns = {
        "gaps": RecordColumns([0, 2], None, None, [b"a", b"b"], None),
        "headers": RecordColumns(None, None, None, [b"a", b"b"], [None, [("h", b"")]]),
        "a tombstone": RecordColumns(None, None, None, [b"a", None], None),
        "a missing key": RecordColumns(None, None, [None, b"k"], [b"a", b"b"], None),
        "a large one": RecordColumns(None, None, None, [b"a", b"b" * 65_536], None),
    }
    for name, each in columns.items():
        assert read(pack_columns(each), 2) is None, name


def test_small_ones_are_left_to_msgpack(monkeypatch):
    monkeypatch.setattr(payloads, "RECORDS_MIN", RECORDS_MIN)
    values = [b"v"] * RECORDS_MIN
    assert read(packed(values[1:]), RECORDS_MIN - 1) is None
    assert read(packed(values), RECORDS_MIN) is not None


@given(st.lists(st.tuples(ANYTHING, ANYTHING, TIMES), min_size=1), st.booleans(), st.booleans())
def test_bytes_that_look_like_heads_are_never_taken_for_them(rows, has_keys, has_times):
    keys, values, times = ([*column] for column in zip(*rows, strict=True))
    payload = packed(values, keys=keys if has_keys else None, times=times if has_times else None)
    found = read(payload, len(rows))
    assert found is None or found == read_by_msgpack(payload, len(rows))


@given(
    st.lists(TEXTS | ANYTHING, min_size=1, max_size=5),
    st.lists(TIMES, min_size=5, max_size=5),
    st.lists(st.tuples(st.integers(0, 2_000), st.binary(max_size=2)), max_size=3),
    st.integers(0, 2_000),
)
def test_damaged_and_hostile_bytes_say_what_msgpack_says_or_nothing(values, times, changes, end):
    payload = bytearray(packed(values, keys=values, times=times[: len(values)]))
    for place, new in changes:
        payload[place : place + len(new)] = new
    hostile = bytes(payload[: max(end, 1)]) if end < len(payload) else bytes(payload)
    for count in (len(values), len(values) + 1):
        found = read(hostile, count)
        assert found is None or found == read_by_msgpack(hostile, count)


@given(st.binary(max_size=60), st.integers(1, 70_000))
def test_any_bytes_at_all(data, count):
    found = read(b"\x95\xc0" + data, count)
    assert found is None or found == read_by_msgpack(b"\x95\xc0" + data, count)


@given(
    st.lists(st.tuples(st.none() | ANYTHING, st.none() | TEXTS, TIMES)),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.booleans(),
    st.integers(0, 3),
)
def test_what_is_packed_is_what_msgpack_packs(rows, kind, has_times, first):
    keys, values, times = ([row[place] for row in rows] for place in range(3))
    keys_column, values_column = (
        pa.array([b"-"] * first + column, kind)[first:] for column in (keys, values)
    )
    times = times if has_times else None
    wanted = packed(values, keys=keys if any(k is not None for k in keys) else None, times=times)
    assert packed_payload(times, keys_column, values_column) == wanted


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 70_000])
def test_items_of_any_size_are_packed(size):
    values = [b"v" * size, None, b"", b"w" * size]
    assert packed_payload(None, None, pa.array(values, pa.binary())) == packed(values)
