"""Rows of a task cut into batches: the same rows make the same bytes, and nothing is too large for its topic."""

import random
from operator import attrgetter

import pyarrow as pa
import pytest

from milena.model.batch.decode import decode_columns
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import decode_header
from milena.model.columns import RecordColumns
from milena.model.partitioner import partition_for_key
from milena.model.types import Codec
from spark_ext.errors import RecordError
from spark_ext.rows.blocks import block_of
from spark_ext.rows.read_schema import ARROW_HEADERS_ITEM
from spark_ext.rows.write_schema import WriteColumns
from spark_ext.writing.chunks import (
    BATCH_FRAME_BYTES,
    CHUNK_BYTES,
    OPEN_BYTES_MAX,
    RECORD_FRAME_BYTES,
    Chunker,
    TopicShape,
)

SHAPE = TopicShape(partition_count=3, batch_bytes_max=8 << 20)
BEGAN_MS = 1_700_000_000_000


def block(*values, topic=None, partition=None, headers=None, timestamp_ms=None, keys=None):
    """Rows that have everything but their values and keys in common."""
    count = len(values)
    fields = {
        "key": (keys, pa.binary()),
        "headers": (headers and [headers] * count, pa.list_(ARROW_HEADERS_ITEM)),
        "topic": (topic and [topic] * count, pa.string()),
        "partition": (None if partition is None else [partition] * count, pa.int32()),
        "timestamp": (timestamp_ms and [timestamp_ms * 1000] * count, pa.int64()),
    }
    given = {name: pa.array(*field) for name, field in fields.items() if field[0] is not None}
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **given})
    places = {name: rows.schema.get_field_index(name) for name in given}
    return block_of(rows, WriteColumns(value=0, **(dict.fromkeys(fields) | places)))


def chunks_of(*blocks, topic="t", seed=0, shape=SHAPE):
    chunker = Chunker(topic=topic, seed=seed, shape_of=lambda _: shape)
    return [chunk for each in blocks for chunk in chunker.add(each)] + [*chunker.finish()]


def batch_of(chunk, codec=Codec.NONE):
    return chunk.batch(codec=codec, time_ms=BEGAN_MS)


def columns_of(chunk, codec=Codec.NONE):
    batch = batch_of(chunk, codec)
    header = decode_header(batch)
    return header, decode_columns(batch, header, bytes_max=64 << 20)


def values_of(chunk):
    return columns_of(chunk)[1].values


def test_every_part_of_a_record_is_said():
    headers = [("h", b"1"), ('\u00fc"', None)]
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"\xff", None, b"", b"elsewhere"], pa.binary()),
            "key": pa.array([b"k", None, b"k", b"l"], pa.binary()),
            "partition": pa.array([2, 2, 2, 1], pa.int32()),
            "headers": pa.array([headers, headers, None, None], pa.list_(ARROW_HEADERS_ITEM)),
            "timestamp": pa.array([17_000, 17_000, None, 5_000], pa.int64()),
        }
    )
    places = {"value": 0, "key": 1, "partition": 2, "headers": 3, "timestamp": 4, "topic": None}
    there, here = chunks_of(block_of(rows, WriteColumns(**places)))
    assert (there.where, values_of(there)) == (("t", 1), [b"elsewhere"])
    header, columns = columns_of(here, Codec.ZSTD)
    assert (here.where, here.key) == (("t", 2), "0")
    assert (header.codec, header.record_count, header.producer_id) == (Codec.ZSTD, 3, -1)
    assert (columns.keys, columns.values) == ([b"k", None, b"k"], [b"\xff", None, b""])
    assert columns.headers == [headers, headers, None]
    times = [header.base_timestamp_ms + delta for delta in columns.timestamp_deltas]
    assert times == [17, 17, BEGAN_MS]
    assert header.latest_timestamp_ms == BEGAN_MS


def test_a_batch_is_byte_for_byte_what_its_lists_make():
    """A task that is run again by another release must say the same under a key."""
    keys = [b"k", None, b"", b"l" * 300]
    values = [b"", b"v" * 255, None, b"w" * 70_000]
    (chunk,) = chunks_of(block(*values, keys=keys, partition=0))
    columns = RecordColumns(None, None, keys, values, None)
    for codec in (Codec.NONE, Codec.LZ4):
        made = encode_batch(columns, base_timestamp_ms=BEGAN_MS, codec=codec)
        assert batch_of(chunk, codec) == made


def test_records_that_say_little_make_batches_that_say_little():
    (chunk,) = chunks_of(block(b"a", b"b"))
    header, columns = columns_of(chunk)
    assert header.base_timestamp_ms == BEGAN_MS
    assert (columns.keys, columns.headers, columns.timestamp_deltas) == (None, None, None)


def test_chunks_take_turns_where_records_may_go_anywhere():
    large = [b"x" * CHUNK_BYTES] * 5
    found = chunks_of(block(*large), seed=4)
    assert [chunk.key for chunk in found] == [f"any-{n}" for n in range(5)]
    assert [chunk.where.partition for chunk in found] == [1, 2, 0, 1, 2]


def test_records_with_keys_go_where_keys_go_and_keep_their_order():
    keys = [b"%d" % (n % 50) for n in range(5000)]
    values = [b"%d" % n * 300 for n in range(5000)]
    found = chunks_of(block(*values, keys=keys))
    assert len(found) > 3
    for partition in range(3):
        mine = [v for c in found if c.where.partition == partition for v in values_of(c)]
        wanted = [
            v for k, v in zip(keys, values, strict=True) if partition_for_key(k, 3) == partition
        ]
        assert mine == wanted


def test_records_that_may_go_anywhere_keep_to_themselves_and_in_order():
    """So that where they go depends on them alone, and not on what has filled a partition's chunk meanwhile."""
    keys = [b"k" if n % 3 else None for n in range(3000)]
    values = [b"%d" % n * 900 for n in range(3000)]
    found = chunks_of(block(*values, keys=keys))
    for is_keyed in (True, False):
        mine = [v for c in found if c.key.isdecimal() == is_keyed for v in values_of(c)]
        assert mine == [v for k, v in zip(keys, values, strict=True) if (k is None) != is_keyed]
    anywhere = [c.where.partition for c in found if not c.key.isdecimal()]
    assert len(anywhere) > 2
    assert anywhere == [n % 3 for n in range(len(anywhere))]


def test_of_many_partitions_chunks_are_sent_before_they_are_full():
    """Else a task would hold a chunk of each."""
    shape = TopicShape(partition_count=300, batch_bytes_max=8 << 20)
    value, count = b"x" * 10_000, 5_000
    chunker = Chunker(topic="t", seed=0, shape_of=lambda _: shape)
    held = sent = 0
    for n in range(count):
        for chunk in chunker.add(block(value, keys=[b"%d" % n])):
            sent += chunk.records
        held = max(held, (n + 1 - sent) * len(value))
    assert OPEN_BYTES_MAX // 2 < held <= OPEN_BYTES_MAX
    assert sent + sum(chunk.records for chunk in chunker.finish()) == count


def test_rows_of_topics_that_alternate_share_the_chunks_of_each():
    names = ["a", "b"] * 10
    found = chunks_of(*(block(b"%d" % n, topic=name) for n, name in enumerate(names)), topic=None)
    assert [(chunk.where.topic, chunk.key) for chunk in found] == [("a", "any-0"), ("b", "any-0")]
    assert values_of(found[0]) == [b"%d" % n for n in range(0, 20, 2)]


def test_a_chunk_is_cut_before_it_is_too_large_for_a_batch_of_the_topic():
    size = 100
    fit = 5
    limit = BATCH_FRAME_BYTES + fit * (RECORD_FRAME_BYTES + size)
    rows = [b"%d" % n * size for n in range(9)] + [b"9" * 10 * size]
    found = chunks_of(block(*rows), shape=TopicShape(partition_count=1, batch_bytes_max=limit))
    assert [chunk.records for chunk in found] == [fit, 4, 1]
    assert [value for chunk in found for value in values_of(chunk)] == rows
    assert all(len(batch_of(chunk)) <= limit for chunk in found[:2])


def test_records_of_nothing_are_counted_too():
    found = chunks_of(block(*[None] * 100_000))
    assert sum(chunk.records for chunk in found) == 100_000
    assert max(chunk.records for chunk in found) == CHUNK_BYTES // RECORD_FRAME_BYTES


def test_the_same_rows_make_the_same_bytes_however_spark_cuts_them():
    """Keys, none, places of their own, and more partitions than may have a full chunk."""
    dice = random.Random(7)
    shape = TopicShape(partition_count=40, batch_bytes_max=8 << 20)
    keys = [dice.choice([None, b"%d" % n]) for n in range(4000)]
    rows = [b"%d" % n * dice.randrange(3000) for n in range(4000)]
    whole = chunks_of(block(*rows, keys=keys), shape=shape)
    cuts = (slice(n, n + 7) for n in range(0, 4000, 7))
    pieces = chunks_of(*(block(*rows[cut], keys=keys[cut]) for cut in cuts), shape=shape)
    assert len(whole) > 45
    # What of one partition follows on what is the same; which partition comes first need not be.
    by_key = attrgetter("where", "key")
    assert [(by_key(c), batch_of(c)) for c in sorted(whole, key=by_key)] == [
        (by_key(c), batch_of(c)) for c in sorted(pieces, key=by_key)
    ]


def test_a_row_without_a_topic_is_refused():
    with pytest.raises(RecordError, match="a row without a topic"):
        chunks_of(block(b"v"), topic=None)
