"""Batch queries of a real Spark against real nodes: every record once, and what is refused before a task starts."""

import json
import time
from collections import Counter
from threading import Event

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import StructType

from spark_ext import register
from spark_ext.rows.read_schema import row_schema
from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    call,
    cluster_id,
    create_topic,
    delete_topic,
    end_offset,
    eventually,
    in_background,
    leader_of,
    ok,
    restart,
    wait_in_sync,
)
from tests.support.disk.stored_topics import fill, put

pytestmark = pytest.mark.integration


@pytest.fixture
def read(spark, cluster):
    """``read("topic", option=...)``, with ``_`` for ``.``; or without a topic."""

    def load(topic=None, *, schema=None, **options):
        given = {name.replace("_", "."): str(value) for name, value in options.items()}
        if topic is not None:
            given["subscribe"] = topic
        reader = spark.read.format("milena").option("url", cluster.node(1).url)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**given).load()

    return load


def rows_of(frame):
    """Partition, offset and value of every row, sorted; Spark's tasks end in any order."""
    found = frame.select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in found)


def message_of(caught) -> str:
    """What a user of Spark sees, without Spark's own code of the error."""
    return str(caught.value).replace("SQLSTATE: 38000", "").strip()


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_kafka_source(read, cluster):
    topic = create_topic(cluster.node(1), "rows", partitions=2)
    headers = [None, [("h", b"1"), ("h", None)]]
    put(cluster.node(1), topic, 1, [b"v", None], keys=[b"k", None], headers=headers)
    frame = read(topic, includeHeaders="true")
    assert frame.schema == row_schema(include_headers=True)
    first, second = frame.orderBy("offset").collect()
    assert first.timestamp.timestamp() * 1000 == BASE_TIMESTAMP_MS
    assert second.timestamp.timestamp() * 1000 == BASE_TIMESTAMP_MS + 1
    same = {"topic": topic, "partition": 1, "timestampType": 0}
    shown = [row.asDict() for row in frame.drop("timestamp").orderBy("offset").collect()]
    assert shown == [
        {**same, "offset": 0, "key": b"k", "value": b"v", "headers": None},
        {
            **same,
            "offset": 1,
            "key": None,
            "value": None,
            "headers": [Row(key="h", value=b"1"), Row(key="h", value=None)],
        },
    ]
    assert "headers" not in read(topic).columns


def test_a_schema_prunes_columns(read, cluster):
    topic = create_topic(cluster.node(1), "pruned")
    put(cluster.node(1), topic, 0, [b"a", b"b"])
    pruned = read(topic, schema="offset bigint, value binary")
    assert pruned.columns == ["offset", "value"]
    assert [(row.offset, bytes(row.value)) for row in pruned.collect()] == [(0, b"a"), (1, b"b")]
    assert read(topic, schema="partition int").count() == 2


# -- every record once -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(cluster):
    """A topic of six partitions, two of them empty, in batches of a hundred."""
    topic = create_topic(cluster.node(1), "filled", partitions=6)
    return topic, fill(cluster.node(1), topic, [1250, 0, 310, 7, 0, 2000])


@pytest.mark.parametrize(
    "hints",
    [{}, {"minPartitions": 7}, {"maxRecordsPerPartition": 333}, {"targetRecordsPerTask": 3000}],
)
def test_every_offset_is_read_once_however_tasks_are_cut(read, filled, hints):
    topic, records = filled
    frame = read(topic, fetchBytes=4096, **hints)
    assert rows_of(frame) == records
    if "minPartitions" in hints:
        assert frame.rdd.getNumPartitions() == 7


def test_ranges_may_begin_and_end_within_batches(read, filled):
    topic, records = filled
    starts = {"0": 150, "1": 0, "2": 299, "3": -2, "4": 0, "5": 1999}
    ends = {"0": 1151, "1": -1, "2": 301, "3": 5, "4": 0, "5": -1}
    frame = read(
        topic,
        startingOffsets=json.dumps({topic: starts}),
        endingOffsets=json.dumps({topic: ends}),
        minPartitions=5,
    )
    limits = {0: (150, 1151), 2: (299, 301), 3: (0, 5), 5: (1999, 2000)}
    wanted = [r for r in records if r[0] in limits and r[1] in range(*limits[r[0]])]
    assert rows_of(frame) == wanted


def test_partitions_may_be_assigned(read, filled):
    topic, records = filled
    frame = read(assign=json.dumps({topic: [3, 1]}))
    assert rows_of(frame) == [record for record in records if record[0] == 3]


def test_a_pattern_reads_all_topics_that_match(read, cluster):
    for name in ("pattern-a", "pattern-b", "other-pattern-c"):
        create_topic(cluster.node(1), name)
        put(cluster.node(1), name, 0, [name.encode()])
    found = read(subscribePattern="pattern-.").collect()
    assert sorted((row.topic, bytes(row.value)) for row in found) == [
        ("pattern-a", b"pattern-a"),
        ("pattern-b", b"pattern-b"),
    ]


def test_nothing_to_read_is_no_row(read, cluster):
    assert read(create_topic(cluster.node(1), "empty", partitions=3)).collect() == []
    assert read(subscribePattern="no-topic-is-called-so").count() == 0


def test_times_say_where_to_begin_and_end(read, cluster):
    topic = create_topic(cluster.node(1), "times", partitions=2)
    second = 1000
    for number in range(4):
        when = BASE_TIMESTAMP_MS + number * second
        put(cluster.node(1), topic, 0, [b"%d" % number], timestamp_ms=when)
    put(cluster.node(1), topic, 1, [b"early"], timestamp_ms=BASE_TIMESTAMP_MS)
    after = BASE_TIMESTAMP_MS + second

    def offsets(**options):
        return [row[:2] for row in rows_of(read(topic, **options))]

    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(startingTimestamp=after, **lenient) == [(0, 1), (0, 2), (0, 3)]
    by_partition = json.dumps({topic: {"0": after + 1, "1": BASE_TIMESTAMP_MS}})
    assert offsets(startingOffsetsByTimestamp=by_partition) == [(0, 2), (0, 3), (1, 0)]
    assert offsets(endingTimestamp=after) == [(0, 0), (1, 0)]
    with pytest.raises(PySparkException) as caught:
        offsets(startingTimestamp=after)
    assert "times-1: no record is at or after the starting time" in message_of(caught)


def test_a_query_reads_what_was_there_when_it_was_planned_while_producers_go_on(read, cluster):
    topic = create_topic(cluster.node(1), "busy", partitions=2)
    fill(cluster.node(1), topic, [500, 500])
    is_over = Event()

    def produce():
        written = 0
        while not is_over.is_set():
            put(cluster.nodes[written % 3], topic, written % 2, [b"more"] * 20)
            written += 1
        return written

    with in_background(produce) as producer:
        try:
            eventually(lambda: end_offset(cluster.node(1), topic, 1) > 520)
            frame = read(topic, minPartitions=4)
            seen = rows_of(frame)
            eventually(lambda: end_offset(cluster.node(1), topic, 1) > len(seen))
            assert rows_of(frame) == seen, "the ranges of a DataFrame stay as they were pinned"
        finally:
            is_over.set()
        assert producer.result() > 0
    for partition in (0, 1):
        offsets = [offset for p, offset, _ in seen if p == partition]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) > 500


def test_a_leader_that_is_killed_while_it_is_read_costs_no_record_and_doubles_none(
    read, cluster, tmp_path
):
    topic = create_topic(cluster.node(1), "killed-in-a-task", partitions=2, min_insync_replicas=1)
    records = fill(cluster.node(1), topic, [12_000, 12_000], batch_records=500, size=1024)
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def pause(rows):
        for row in rows:
            if not begun.exists():
                begun.touch()
                while not killed.exists():
                    time.sleep(0.01)
            yield (row.partition, row.offset)

    def kill():
        eventually(begun.exists)
        leader.process.kill()
        killed.touch()

    frame = read(topic, fetchBytes=65_536, kafkaConsumer_pollTimeoutMs=60_000)
    with in_background(kill) as killer:
        rows = frame.select("partition", "offset").rdd.mapPartitions(pause).collect()
        killer.result()
    restart(cluster, leader)
    assert Counter(rows) == Counter(record[:2] for record in records)


# -- lost data -------------------------------------------------------------------------------------


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_that_was_planned(read, cluster):
    frames = []
    for strict in ("true", "false"):
        topic = create_topic(cluster.node(1), f"again-{strict}")
        fill(cluster.node(1), topic, [10])
        frame = read(topic, failOnDataLoss=strict)
        assert frame.count() == 10
        delete_topic(cluster.node(1), topic)
        create_topic(cluster.node(1), topic)
        fill(cluster.node(1), topic, [10])
        frames.append(frame)
    with pytest.raises(PySparkException) as caught:
        frames[0].count()
    assert "again-true was deleted and made again since the query was planned" in str(caught.value)
    assert frames[1].count() == 0


def test_records_that_retention_took_fail_a_query_unless_it_may_lose_data(read, cluster):
    topic = create_topic(cluster.node(1), "retained", segment_bytes=65_536)
    fill(cluster.node(1), topic, [400], batch_records=20, size=1024)
    strict, lenient = read(topic), read(topic, failOnDataLoss="false")
    assert strict.count() == lenient.count() == 400
    path = f"/v3/clusters/{cluster_id(cluster.node(1))}/topics/{topic}/configs/retention.bytes"
    ok(call(cluster.node(1), f"PUT {path}", {"value": "65536"}))

    def first() -> int:
        answer = call(cluster.node(1), f"GET /topics/{topic}/partitions/0/offsets")
        return int(ok(answer)["beginning_offset"])

    start = eventually(first)
    with pytest.raises(PySparkException) as caught:
        strict.count()
    assert "offset 0 was deleted" in str(caught.value)
    assert "set failOnDataLoss to false" in str(caught.value)
    left = [offset for _, offset, _ in rows_of(lenient)]
    assert left == list(range(left[0], 400))
    assert left[0] >= start

    named = json.dumps({topic: {"0": 0}})
    with pytest.raises(PySparkException) as caught:
        read(topic, startingOffsets=named).count()
    assert "retained-0: offset 0 is gone, the first that can be read is" in message_of(caught)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOffset": "earliest"}, "startingoffset: no such option; did you mean starting"),
        (
            {"assign": '{"t":[0]}'},
            "subscribe, assign: give only one of subscribe, subscribePattern",
        ),
    ],
)
def test_a_bad_option_is_one_line_at_load(read, options, line):
    with pytest.raises(PySparkException) as caught:
        read("t", **options)
    message = message_of(caught)
    assert "\n" not in message
    assert f"OptionError: {line}" in message


@pytest.mark.parametrize(
    ("topic", "options", "schema", "line"),
    [
        ("no-such-topic", {}, "value binary", "OffsetError: no such topic: no-such-topic"),
        ("filled", {"startingOffsets": '{"filled":{"0":1}}'}, None, "missing: filled-1, filled-2"),
        ("filled", {"minPartitions": "x"}, "value binary", "minPartitions: expected a number"),
        ("filled", {"startingOffsets": "latest"}, None, "latest is not possible in a batch query"),
        ("filled", {}, "body string", "RowSchemaError: schema: there is no column body"),
    ],
)
def test_what_cannot_be_read_is_one_line_before_a_task_starts(
    spark, read, filled, topic, options, schema, line
):
    del filled
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    frame = read(topic, schema=schema, **options)
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    message = message_of(caught)
    assert "\n" not in message
    assert line in message
    assert tracker.getJobIdsForGroup(None) == before


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "not-there"}, "OffsetError: no such topic: not-there"),
        ({"assign": '{"filled":[0,99]}'}, "OffsetError: no such partition: filled-99"),
        (
            {"subscribe": "t", "url": "127.0.0.1:1"},
            "cannot reach http://127.0.0.1:1: connection refused",
        ),
    ],
)
def test_what_is_not_there_is_one_line_at_load(spark, cluster, filled, is_stream, options, line):
    del filled
    reader = (spark.readStream if is_stream else spark.read).format("milena")
    with pytest.raises(PySparkException) as caught:
        reader.options(**{"url": cluster.node(1).url, **options}).load()
    assert message_of(caught).endswith(line)
    assert "\n" not in message_of(caught)


def test_what_may_be_lost_need_not_be_there_at_load(spark, cluster):
    """As a stream that is started again after one of its topics was deleted."""
    reader = spark.readStream.format("milena").options(url=cluster.node(1).url, subscribe="gone")
    assert reader.option("failOnDataLoss", "false").load().isStreaming


def test_a_session_can_be_told_of_the_format(spark, read, cluster):
    """The other tests rely on Spark's finding ``pyspark_milena``."""
    register(spark)
    topic = create_topic(cluster.node(1), "registered")
    assert isinstance(read(topic).schema, StructType)
