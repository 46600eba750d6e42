"""Stored batches to Arrow: columns, cuts, gaps, types, and Spark's own idea of the schema."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.batch.header import STAMP_BYTES
from milena.model.batch.v2_checks import wrap_v2
from milena.model.columns import RecordColumns
from milena.model.types import COLUMN_CODECS, Codec, TimestampType
from milena.records import FetchedChunk
from spark_ext.errors import RowSchemaError
from spark_ext.rows import decode, payloads
from spark_ext.rows.decode import ArrowRows
from spark_ext.rows.read_schema import project, row_schema
from tests.support.disk.kafka_batches import NOW_MS as KAFKA_MS
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered

ALL = project(row_schema(include_headers=True), include_headers=True)


def batch(base, values, *, keys=None, deltas=None, times=None, headers=None, **options):
    """One stored batch whose first offset is ``base``."""
    columns = RecordColumns(deltas, times, keys, values, headers)
    encoded = encode_batch(columns, base_timestamp_ms=1_000, **options)
    stamp = stamp_batch(encoded, base_offset=base, leader_epoch=1, append_time_ms=9_000)
    return stamp + encoded[len(stamp) :]


def chunk(*batches, start=0, end=1_000, topic="t", partition=0):
    return FetchedChunk(
        topic=topic,
        partition=partition,
        data=b"".join(batches),
        start_offset=start,
        end_offset=end,
        next_offset=end,
        high_watermark=end,
        log_start_offset=0,
    )


def rows_of(*chunks, projection=ALL):
    """All rows, as dictionaries."""
    rows = ArrowRows(projection)
    found = [full for each in chunks for full in rows.add(each)]
    return [row for one in (*found, rows.take()) for row in one.to_pylist()]


def schema_of(*fields):
    return StructType([StructField(name, kind) for name, kind in fields])


def test_a_record_is_a_row_of_the_kafka_source():
    stored = batch(
        7,
        [b"v", None],
        keys=[None, b"k"],
        times=[5, 6],
        headers=[None, [("h", b"1"), ("h", None)]],
    )
    first, second = rows_of(chunk(stored, topic="orders", partition=3))
    assert first.pop("timestamp").timestamp() == 1.005
    assert second.pop("timestamp").timestamp() == 1.006
    same = {"topic": "orders", "partition": 3, "timestampType": 0}
    assert first == {**same, "key": None, "value": b"v", "offset": 7, "headers": None}
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert second == {**same, "key": b"k", "value": None, "offset": 8, "headers": headers}


def test_empty_headers_are_null():
    assert rows_of(chunk(batch(0, [b"v"], headers=[[]])))[0]["headers"] is None


def test_a_topic_that_keeps_append_time_says_so():
    row = rows_of(chunk(batch(0, [b"v"], timestamp_type=TimestampType.APPEND)))[0]
    assert row["timestampType"] == 1
    assert row["timestamp"].timestamp() == 9.0


def test_what_lies_outside_of_the_chunk_is_cut_off():
    stored = (batch(0, [b"a", b"b"]), batch(2, [b"c", b"d", b"e"]), batch(5, [b"f"]))
    cut = chunk(*stored, start=1, end=4)
    assert [row["value"] for row in rows_of(cut)] == [b"b", b"c", b"d"]


def test_gaps_of_compaction_keep_their_offsets():
    stored = batch(10, [b"a", b"b", b"c"], deltas=[0, 4, 9])
    assert [row["offset"] for row in rows_of(chunk(stored, start=11))] == [14, 19]


def test_control_batches_and_empty_batches_are_no_rows():
    stored = (batch(0, [b"x"], is_control=True), batch(1, [], deltas=[]), batch(2, [b"y"]))
    assert [row["value"] for row in rows_of(chunk(*stored))] == [b"y"]


@pytest.mark.parametrize("codec", COLUMN_CODECS)
def test_every_codec_is_read(codec):
    assert rows_of(chunk(batch(0, [b"v" * 500], codec=codec)))[0]["value"] == b"v" * 500


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_kafka_clients_are_rows_as_others(codec):
    sent = encoded(numbered(KafkaRecord(b"v" * 500, b"k"), KafkaRecord(None)), attributes=codec)
    made, _ = wrap_v2(sent, bytes_max=1 << 20, now_ms=KAFKA_MS)
    stored = stamp_batch(made, base_offset=3, leader_epoch=1, append_time_ms=9) + made[STAMP_BYTES:]
    found = [(row["offset"], row["key"], row["value"]) for row in rows_of(chunk(stored))]
    assert found == [(3, b"k", b"v" * 500), (4, None, None)]


def test_large_and_small_batches_are_rows_alike(monkeypatch):
    """A large one becomes arrays as it is, a small one by way of lists."""
    monkeypatch.setattr(payloads, "RECORDS_MIN", 3)
    stored = (
        batch(0, [b"a"], keys=[b"k"], times=[7]),
        batch(1, [b"b", b"c", b"d", b"e"], times=[1, 2, 2, 300]),
        batch(5, [b"f", b"g", b"h"], keys=[b"x", b"", b"z"], codec=Codec.ZSTD),
        batch(8, [b"i", None, b"j"], keys=[b"1", b"2", None]),
    )
    rows = rows_of(chunk(*stored, start=2, end=7), chunk(*stored))
    values = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", None, b"j"]
    keys = [b"k", None, None, None, None, b"x", b"", b"z", b"1", b"2", None]
    times = [1_007, 1_001, 1_002, 1_002, 1_300, *[1_000] * 6]
    wanted = [*zip(range(11), keys, values, times, strict=True)]
    found = [
        (row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000))
        for row in rows
    ]
    assert found == [*wanted[2:7], *wanted]
    assert all(row["headers"] is None for row in rows)


def test_chunks_of_several_partitions_share_a_record_batch():
    rows = ArrowRows(ALL)
    for topic, partition in (("b", 1), ("a", 0), ("b", 2)):
        assert not list(rows.add(chunk(batch(0, [b"v"] * 2), topic=topic, partition=partition)))
    found = rows.take()
    assert found.column("topic").to_pylist() == ["b", "b", "a", "a", "b", "b"]
    assert found.column("partition").to_pylist() == [1, 1, 0, 0, 2, 2]


def test_record_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(decode, "RECORDS_PER_ARROW_BATCH", 4)
    rows = ArrowRows(ALL)
    stored = [batch(2 * n, [b"v", b"v"]) for n in range(5)]
    full = list(rows.add(chunk(*stored)))
    assert [one.num_rows for one in full] == [4, 4]
    assert rows.record_count == 2


def test_record_batches_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(decode, "BYTES_PER_ARROW_BATCH", 1000)
    stored = [batch(n, [b"v" * 600]) for n in range(4)]
    assert [one.num_rows for one in ArrowRows(ALL).add(chunk(*stored))] == [2, 2]


# -- projection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_what_spark_makes_of_the_rows(include_headers):
    spark_schema = row_schema(include_headers=include_headers)
    ours = project(spark_schema, include_headers=include_headers).arrow_schema()
    assert ours.equals(to_arrow_schema(spark_schema, timezone="UTC"))
    assert pa.RecordBatch.from_pylist([], schema=ours).schema.equals(ours)


def test_a_schema_picks_columns_in_its_order_and_spelling():
    picked = project(
        schema_of(("OFFSET", LongType()), ("value", BinaryType())), include_headers=False
    )
    rows = rows_of(chunk(batch(3, [b"v"], keys=[b"k"])), projection=picked)
    assert rows == [{"OFFSET": 3, "value": b"v"}]


def test_a_column_that_must_not_be_null_keeps_that():
    strict = StructType([StructField("offset", LongType(), nullable=False)])
    arrow_schema = project(strict, include_headers=False).arrow_schema()
    assert arrow_schema.equals(to_arrow_schema(strict, timezone="UTC"))


def test_payloads_are_left_alone_when_headers_tell_all(monkeypatch):
    monkeypatch.setattr(decode, "plain_payload", None)
    fields = (("topic", StringType()), ("partition", IntegerType()), ("offset", LongType()))
    picked = project(schema_of(*fields), include_headers=False)
    found = rows_of(chunk(batch(3, [b"v"] * 4), start=4, end=6), projection=picked)
    assert [row["offset"] for row in found] == [4, 5]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (("body", BinaryType()), "no column body; there are key, value"),
        (("value", StringType()), "column value is binary, not string; cast it"),
        (row_schema(include_headers=True)["headers"], "includeHeaders=true"),
        (StructField("value", BinaryType(), nullable=False), "column value may be null"),
        (StructField("KEY", BinaryType(), nullable=False), "column key may be null"),
    ],
)
def test_a_schema_of_other_columns_is_refused(field, words):
    fields = [field] if isinstance(field, StructField) else [StructField(*field)]
    with pytest.raises(RowSchemaError, match=words):
        project(StructType(fields), include_headers=False)


def test_a_schema_that_names_a_column_twice_is_refused():
    fields = (("offset", LongType()), ("OFFSET", LongType()))
    with pytest.raises(RowSchemaError, match="schema: column offset is there twice"):
        project(schema_of(*fields), include_headers=False)


# -- property --------------------------------------------------------------------------------------

small_bytes = st.none() | st.binary(max_size=5)
header_rows = st.none() | st.lists(st.tuples(st.text(max_size=3), small_bytes), max_size=3)


@st.composite
def stored_logs(draw):
    """Batches with gaps, and the rows that they hold as (offset, key, value, headers)."""
    batches, rows, base = [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 5))
        steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
        deltas = [sum(steps[: n + 1]) - 1 for n in range(count)]
        values = draw(st.lists(small_bytes, min_size=count, max_size=count))
        keys = draw(st.none() | st.lists(small_bytes, min_size=count, max_size=count))
        headers = draw(st.none() | st.lists(header_rows, min_size=count, max_size=count))
        is_dense = deltas == list(range(count))
        batches.append(
            batch(base, values, keys=keys, deltas=None if is_dense else deltas, headers=headers)
        )
        rows += zip(
            [base + delta for delta in deltas],
            keys or [None] * count,
            values,
            headers or [None] * count,
            strict=True,
        )
        base += deltas[-1] + 1
    return batches, rows, base


@given(log=stored_logs(), cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_rows_are_the_records_of_the_range(log, cuts):
    batches, records, end = log
    start, stop = min(*cuts, end), min(max(cuts), end)
    found = [
        (
            row["offset"],
            row["key"],
            row["value"],
            [(h["key"], h["value"]) for h in row["headers"] or ()],
        )
        for row in rows_of(chunk(*batches, start=start, end=stop))
    ]
    wanted = [(o, k, v, h or []) for o, k, v, h in records if start <= o < stop]
    assert found == wanted
