"""Rows of a task cut into requests: the same rows make the same bytes, and nothing is too large for its topic."""

import json
from base64 import b64decode

import pytest

from spark_ext.chunks import (
    BATCH_FRAME_BYTES,
    CHUNK_BYTES,
    RECORD_FRAME_BYTES,
    Chunker,
    TopicShape,
)
from spark_ext.errors import RecordError
from spark_ext.write_schema import RowRun

SHAPE = TopicShape(partition_count=3, batch_bytes_max=8 << 20)


def run(*values, topic=None, partition=None, headers=None, timestamp_ms=None, keys=None):
    return RowRun(
        topic=topic,
        partition=partition,
        headers=headers,
        timestamp_ms=timestamp_ms,
        keys=keys,
        values=list(values),
    )


def chunks_of(*runs, topic="t", seed=0, shape=SHAPE):
    chunker = Chunker(topic=topic, seed=seed, shape_of=lambda _: shape)
    return [chunk for each in runs for chunk in chunker.add(each)] + [*chunker.finish()]


def records_of(chunk):
    return json.loads(chunk.body())["records"]


def values_of(chunk):
    return [b64decode(record["value"]) for record in records_of(chunk)]


def test_every_part_of_a_record_is_said():
    headers = [("h", b"1"), ('\u00fc"', None)]
    (chunk,) = chunks_of(
        run(b"\xff", None, keys=[b"k", None], headers=headers, timestamp_ms=17),
        run(b"", partition=2, keys=[b"k"]),
        run(b"v", partition=2),
    )
    told = {
        "timestamp": 17,
        "headers": [{"key": "h", "value": "MQ=="}, {"key": '\u00fc"', "value": None}],
    }
    assert records_of(chunk) == [
        {"value": "/w==", "key": "aw==", **told},
        {"value": None, "partition": chunk.turn, **told},
        {"value": "", "key": "aw==", "partition": 2},
        {"value": "dg==", "partition": 2},
    ]


def test_chunks_take_turns_where_records_may_go_anywhere():
    large = [b"x" * CHUNK_BYTES] * 5
    found = chunks_of(run(*large), seed=4)
    assert [(chunk.number, chunk.turn) for chunk in found] == [
        (0, 1),
        (1, 2),
        (2, 0),
        (3, 1),
        (4, 2),
    ]


def test_rows_of_topics_that_alternate_share_the_chunks_of_each():
    names = ["a", "b"] * 10
    found = chunks_of(*(run(b"%d" % n, topic=name) for n, name in enumerate(names)), topic=None)
    assert [(chunk.topic, chunk.number) for chunk in found] == [("a", 0), ("b", 1)]
    assert values_of(found[0]) == [b"%d" % n for n in range(0, 20, 2)]


def test_a_chunk_is_cut_before_it_is_too_large_for_a_batch_of_the_topic():
    size = 100
    fit = 5
    limit = BATCH_FRAME_BYTES + fit * (RECORD_FRAME_BYTES + size)
    rows = [b"%d" % n * size for n in range(9)] + [b"9" * 10 * size]
    found = chunks_of(run(*rows), shape=TopicShape(partition_count=1, batch_bytes_max=limit))
    assert [len(chunk.items) for chunk in found] == [fit, 4, 1]
    assert [value for chunk in found for value in values_of(chunk)] == rows


def test_a_chunk_has_no_more_records_than_a_request_may_have():
    found = chunks_of(run(*[None] * 100_000))
    assert sum(len(chunk.items) for chunk in found) == 100_000
    assert max(len(chunk.items) for chunk in found) == CHUNK_BYTES // RECORD_FRAME_BYTES


def test_the_same_rows_make_the_same_bytes_however_spark_cuts_them():
    rows = [b"%d" % n * 3000 for n in range(1000)]
    whole = chunks_of(run(*rows))
    pieces = chunks_of(*(run(*rows[n : n + 7]) for n in range(0, 1000, 7)))
    assert len(whole) > 3
    assert [(c.number, c.turn, c.body()) for c in whole] == [
        (c.number, c.turn, c.body()) for c in pieces
    ]


def test_a_row_without_a_topic_is_refused():
    with pytest.raises(RecordError, match="a row without a topic"):
        chunks_of(run(b"v"), topic=None)
