"""Records out of Arrow batches: every column as it stands, sizes, and runs to the same place."""

import pyarrow as pa
import pytest

from spark_ext.errors import RecordError
from spark_ext.rows.blocks import HEADER_FRAME_BYTES, RUN_BYTES_MAX, block_of, items_of, runs_in
from spark_ext.rows.read_schema import ARROW_HEADERS_ITEM
from spark_ext.rows.write_schema import WriteColumns


def blocked(**columns):
    """The block of a batch with these columns."""
    rows = pa.RecordBatch.from_pydict(columns)
    names = ("value", "key", "headers", "topic", "partition", "timestamp")
    at = {name: rows.schema.get_field_index(name) for name in names}
    return block_of(rows, WriteColumns(**{n: None if i < 0 else i for n, i in at.items()}))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_values_and_keys_are_bytes(kind):
    found = blocked(value=pa.array(["ä", None, ""], kind), key=pa.array([None, "k", "kk"], kind))
    assert items_of(found.values) == ["ä".encode(), None, b""]
    assert items_of(found.keys) == [None, b"k", b"kk"]
    assert found.sizes.tolist() == [2, 1, 2]
    assert (found.topics, found.partitions, found.headers, found.times_ms) == (None,) * 4


def test_headers_are_pairs_and_have_a_size():
    rows = [None, [{"key": "ü", "value": b"xyz"}, {"key": "n", "value": None}]]
    found = blocked(value=[b"v", b"v"], headers=pa.array(rows, pa.list_(ARROW_HEADERS_ITEM)))
    assert found.headers == [None, [("ü", b"xyz"), ("n", None)]]
    assert found.sizes.tolist() == [1, 1 + 2 * HEADER_FRAME_BYTES + 2 + 3 + 1]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"v"}])
def test_a_header_without_a_key_is_refused(header):
    rows = pa.array([[{"key": "n", "value": None}, header]], pa.list_(ARROW_HEADERS_ITEM))
    with pytest.raises(RecordError, match="column headers: a header has no key"):
        blocked(value=[b"v"], headers=rows)


def test_times_are_milliseconds_from_before_1970_too():
    times = pa.array([1_999, None, -1], pa.timestamp("us", tz="UTC"))
    assert blocked(value=[b"v"] * 3, timestamp=times).times_ms == [1, None, -1]


def test_rows_that_follow_one_another_to_the_same_place_are_a_run():
    found = blocked(
        value=["a", "b", "c", None, "e"],
        topic=["t", "t", "u", "t", "t"],
        partition=pa.array([None, None, None, None, 1], pa.int32()),
    )
    assert [(run.topic, run.partition, run.keys, run.values) for run in runs_in(found)] == [
        ("t", None, None, [b"a", b"b"]),
        ("u", None, None, [b"c"]),
        ("t", None, None, [None]),
        ("t", 1, None, [b"e"]),
    ]


def test_a_run_is_cut_where_it_is_large():
    values = [b"x" * (RUN_BYTES_MAX // 2 - 1), b"y", b"z", b"w" * 2 * RUN_BYTES_MAX, b"v"]
    runs = list(runs_in(blocked(value=values, key=[b"kk"] * 5)))
    assert [len(run.values) for run in runs] == [4, 1]
    assert [value for run in runs for value in run.values] == values
    assert [run.keys for run in runs] == [[b"kk"] * 4, [b"kk"]]


def test_no_rows_are_no_run():
    assert not list(runs_in(blocked(value=pa.array([], pa.binary()))))
