"""``df.write.format("milena")``: what arrives in topics, and what is refused before a task starts."""

import datetime as dt
import time

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from milena.model.partitioner import partition_for_key
from spark_ext.errors import RowSchemaError
from spark_ext.options.parsing import parse_write_options
from spark_ext.rows.read_schema import HEADERS_TYPE, row_schema
from spark_ext.rows.write_schema import WriteColumns, write_columns
from spark_ext.writing.plain_sink import FEW_ROWS, MilenaWriter
from tests.support.clusters.live_cluster import (
    create_topic,
    in_background,
    leader_of,
    restart,
    wait_in_sync,
)

# -- columns ---------------------------------------------------------------------------------------


def columns_of(*fields, **options):
    schema = StructType([StructField(name, kind) for name, kind in fields])
    return write_columns(schema, parse_write_options({"url": "a", **options}))


def test_a_value_is_enough_when_an_option_names_the_topic():
    found = columns_of(("value", StringType()), topic="t")
    assert found == WriteColumns(
        value=0, key=None, headers=None, topic=None, partition=None, timestamp=None
    )


def test_the_rows_of_the_source_can_be_written():
    options = parse_write_options({"url": "a"})
    found = write_columns(row_schema(include_headers=True), options)
    assert (found.key, found.value, found.topic, found.partition) == (0, 1, 2, 3)
    assert (found.headers, found.timestamp) == (7, None)


def test_the_topic_of_the_option_wins_and_timestamps_are_asked_for():
    every = (("VALUE", BinaryType()), ("topic", StringType()), ("timestamp", TimestampType()))
    found = columns_of(*every, topic="t", includeTimestamps="true")
    assert (found.value, found.topic, found.timestamp) == (0, None, 2)


def rows_of(**columns):
    return pa.RecordBatch.from_pydict(columns)


class NotingProducer:
    """Notes how many records each call takes, and which."""

    def __init__(self):
        self.calls, self.values = [], []

    def send(self, topic, value, **_):
        self.send_many(topic, [value])

    def send_many(self, topic, values, **_):
        self.calls.append(len(values))
        self.values += values


def test_rows_with_times_of_their_own_do_not_pay_for_a_list_each():
    count, same = 3 * FEW_ROWS, FEW_ROWS
    values = [b"%d" % n for n in range(count)]
    times = [n if n < count - same else 10**6 for n in range(count)]
    rows = rows_of(value=values, timestamp=pa.array([t * 1000 for t in times], pa.timestamp("us")))
    fields = (("value", BinaryType()), ("timestamp", TimestampType()))
    options = parse_write_options({"url": "a", "topic": "t", "includeTimestamps": "true"})
    columns = columns_of(*fields, topic="t", includeTimestamps="true")
    producer = NotingProducer()
    MilenaWriter(options, columns)._send(producer, rows)
    assert producer.values == values
    assert producer.calls == [1] * (count - same) + [same]


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ([("body", StringType())], {"topic": "t"}, "column value is missing"),
        ([("value", LongType())], {"topic": "t"}, "value must be binary or string, not bigint"),
        ([("value", StringType())], {}, "no topic: give the option topic, or a column topic"),
        (
            [("value", StringType()), ("partition", LongType())],
            {"topic": "t"},
            "partition must be int, not bigint",
        ),
        (
            [("value", StringType()), ("headers", StringType())],
            {"topic": "t"},
            "headers must be array<struct<key:string,value:binary>>, not string",
        ),
        (
            [("value", StringType()), ("Value", StringType())],
            {"topic": "t"},
            "column value is there twice",
        ),
        (
            [("value", StringType())],
            {"topic": "t", "includeTimestamps": "true"},
            "column timestamp is missing",
        ),
    ],
)
def test_other_columns_are_refused(fields, options, words):
    with pytest.raises(RowSchemaError) as caught:
        columns_of(*fields, **options)
    assert words in caught.value.message


# -- a real write ----------------------------------------------------------------------------------

live = pytest.mark.integration


@pytest.fixture
def save(cluster):
    def append(frame, mode="append", **options):
        writer = frame.write.format("milena").option("url", cluster.node(2).url)
        writer.options(**options).mode(mode).save()

    return append


@pytest.fixture
def rows_in(spark, cluster):
    def read(topic):
        reader = spark.read.format("milena").options(url=cluster.node(1).url, includeHeaders="true")
        return reader.option("subscribe", topic).load().orderBy("partition", "offset").collect()

    return read


@live
def test_every_part_of_a_record_is_written(spark, cluster, save, rows_in):
    topics = [create_topic(cluster.node(1), f"parts-{n}", partitions=3) for n in range(2)]
    schema = StructType(
        [
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("key", StringType()),
            StructField("value", BinaryType()),
            StructField("headers", HEADERS_TYPE),
            StructField("timestamp", TimestampType()),
        ]
    )
    when = dt.datetime.fromtimestamp(time.time() // 1 - 60, dt.UTC)
    pairs = [("h", b"1"), ("h", None)]
    rows = [
        (topics[0], 2, "k", b"v", pairs, when),
        (topics[0], None, "by its hash", b"w", None, when),
        (topics[1], 0, None, None, [], when),
    ]
    save(spark.createDataFrame(rows, schema), includeTimestamps="true")
    found = sorted(rows_in(topics[0]), key=lambda row: row.value)
    assert [row.timestamp.replace(tzinfo=dt.UTC) for row in found] == [when, when]
    assert (found[0].partition, found[0].key) == (2, b"k")
    assert [tuple(pair) for pair in found[0].headers] == pairs
    assert found[1].partition == partition_for_key(b"by its hash", 3)
    assert found[1].headers is None
    (row,) = rows_in(topics[1])
    assert (row.partition, row.key, row.value, row.headers) == (0, None, None, None)


@live
def test_a_leader_that_is_killed_during_a_write_costs_and_doubles_nothing(
    spark, cluster, save, rows_in, tmp_path
):
    topic = create_topic(cluster.node(1), "written", partitions=2)
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    begun = tmp_path / "begun"

    def slowly(rows):
        for number, row in enumerate(rows):
            if number == 500:
                begun.touch()
            if number % 500 == 0:
                time.sleep(0.1)
            yield (f"{row.id}".ljust(200),)

    def kill():
        while not begun.exists():
            time.sleep(0.01)
        leader.process.kill()

    frame = spark.range(20_000, numPartitions=2).rdd.mapPartitions(slowly).toDF("value string")
    with in_background(kill) as killer:
        save(frame, topic=topic)
        killer.result()
    restart(cluster, leader)
    found = sorted(int(row.value) for row in rows_in(topic))
    assert found == list(range(20_000))


@live
@pytest.mark.parametrize(
    ("mode", "options", "line"),
    [
        ("append", {"topic": "no-such-topic"}, "OptionError: topic: no such topic: no-such-topic"),
        ("append", {}, "RowSchemaError: no topic: give the option topic"),
        ("append", {"topic": "t", "kafka.acks": "1"}, "kafka.acks: not possible"),
        ("overwrite", {"topic": "t"}, "mode overwrite is not possible"),
    ],
)
def test_a_write_that_cannot_be_is_refused_in_one_line_before_a_task_starts(
    spark, save, mode, options, line
):
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    with pytest.raises(PySparkException) as caught:
        save(spark.range(1).selectExpr("cast(id as string) as value"), mode=mode, **options)
    message = str(caught.value).replace("SQLSTATE: 38000", "").strip()
    assert "\n" not in message
    assert line in message
    assert tracker.getJobIdsForGroup(None) == before


@live
def test_spark_refuses_the_save_modes_that_look_at_what_is_there(spark, save):
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(spark.range(1).selectExpr("cast(id as string) as value"), mode=mode, topic="t")


@live
def test_a_row_without_a_topic_fails_the_write(spark, save):
    frame = spark.createDataFrame([("v", None)], "value string, topic string")
    with pytest.raises(PySparkException) as caught:
        save(frame)
    assert "RecordError: a row without a topic" in str(caught.value)
