"""``df.writeStream.format("milena")``: batches appear once, as a whole, and what cannot be is refused in a sentence."""

import copy
import itertools
import time
from threading import Event
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_ext import MilenaDataSource, check_write_stream, register
from spark_ext.errors import OptionError, RowSchemaError
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    in_background,
    leader_of,
    ok,
    restart,
    wait_in_sync,
)
from tests.support.spark.committed_rows import rows_in, values_in
from tests.support.spark.stream_query import write_files

SCHEMA = StructType([StructField("value", StringType())])
NAMES = (f"of-streams-{number}" for number in itertools.count())


# -- the check on the driver -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "options", "error", "words"),
    [
        (SCHEMA, {}, OptionError, "transactionalId: required"),
        (SCHEMA, {"transactionalId": "i"}, RowSchemaError, "no topic: give the option topic"),
        (
            StructType([StructField("value", LongType())]),
            {"transactionalId": "i", "topic": "t"},
            RowSchemaError,
            "value must be binary or string, not bigint",
        ),
    ],
)
def test_the_check_refuses_what_the_first_batch_would(schema, options, error, words):
    with pytest.raises(error, match=words):
        check_write_stream(schema, {"url": "a", **options})


def test_a_transaction_begins_where_a_batch_is_planned_and_not_where_it_is_committed(monkeypatch):
    """Spark plans with a data source that it makes, and commits with one that it has kept as bytes."""
    begun = []

    def begin(options, *, is_stream):
        assert is_stream
        begun.append(options)
        return SimpleNamespace(shipped=lambda options: options)

    monkeypatch.setattr("spark_ext.writing.transaction.begin", begin)
    made = MilenaDataSource({"url": "a", "topic": "t", "checkpointLocation": "c"})
    kept = copy.copy(made)
    kept.streamWriter(SCHEMA, overwrite=False)
    assert begun == []
    made.streamWriter(SCHEMA, overwrite=False)
    assert [options.transactional_id for options in begun] == ["spark:c"]


# -- a real query ------------------------------------------------------------------------------------

live = pytest.mark.integration


@pytest.fixture
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def start(session, cluster, tmp_path):
    """``start(topic, frame)`` starts a query with a checkpoint of the test."""
    queries = []

    def started(topic, frame, *, output_mode="append", **options):
        # All of them: a batch begins at one that answers, and what one batch has learnt the next does not know.
        urls = ",".join(node.url for node in cluster.nodes)
        writer = frame.writeStream.format("milena").option("url", urls)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{topic}"))
        writer = writer.options(topic=topic, **options).outputMode(output_mode)
        queries.append(writer.start())
        return queries[-1]

    yield started
    for query in queries:
        query.stop()


def files(session, directory):
    reader = session.readStream.schema("file int, row int, filler string")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(directory))


@live
def test_every_row_is_written_once_and_a_batch_appears_as_a_whole(
    session, cluster, start, tmp_path
):
    """The third and fifth of the files are empty."""
    node = cluster.node(1)
    topic = create_topic(node, next(NAMES))
    counts = [300, 200, 0, 1, 0, 100]
    write_files(tmp_path / "input", counts)
    rows = files(session, tmp_path / "input").selectExpr("concat_ws(' ', file, row) as value")
    ended, seen = Event(), []

    def watch():
        while not ended.wait(0.02):
            seen.append(len(rows_in(node.url, topic)))

    with in_background(watch) as watcher:
        query = start(topic, rows)
        try:
            query.processAllAvailable()
        finally:
            ended.set()
        watcher.result()
    found = rows_in(node.url, topic)
    assert sorted(found) == [(file, row) for file, n in enumerate(counts) for row in range(n)]
    whole = set(itertools.accumulate(counts, initial=0))
    assert set(seen) <= whole
    group = ok(call(node, f"GET /groups/spark-{query.id}/offsets"))
    assert group["offsets"][topic]["0"]["offset"] == len(counts)


@live
def test_a_node_that_is_killed_costs_and_doubles_nothing(session, cluster, start, tmp_path):
    topic = create_topic(cluster.node(1), next(NAMES), partitions=2)
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    rows = session.readStream.format("rate-micro-batch").options(
        rowsPerBatch=2000, numPartitions=2, advanceMillisPerBatch=1
    )
    values = rows.load().selectExpr("concat_ws(' ', value, 0, repeat('.', 500)) as value")
    query = start(topic, values)
    while query.lastProgress is None or query.lastProgress.batchId < 1:
        assert query.exception() is None
        time.sleep(0.1)
    leader.process.kill()
    last = query.lastProgress.batchId + 4
    while query.lastProgress.batchId < last:
        assert query.exception() is None
        time.sleep(0.1)
    query.stop()
    restart(cluster, leader)
    found = sorted(row for row, _ in rows_in(cluster.node(1).url, topic, 2))
    assert found == list(range(len(found)))
    assert len(found) >= 2000 * last


@live
def test_a_stream_whose_options_are_wrong_fails_at_its_first_batch_in_one_line(
    session, cluster, start
):
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = start("no-such-topic", rows.selectExpr("cast(value as string) as value"))
    with pytest.raises(PySparkException, match="topic: no such topic: no-such-topic") as caught:
        query.awaitTermination(120)
    assert "Traceback" not in str(caught.value)


def counted(session, directory):
    """How many rows were seen of each file number modulo two: a batch, of one file, changes one of two rows."""
    counts = files(session, directory).selectExpr("file % 2 as kind").groupBy("kind").count()
    return counts.selectExpr("cast(kind as string) as key", "concat_ws(' ', kind, count) as value")


@live
def test_complete_mode_appends_the_whole_result_of_each_batch(session, cluster, start, tmp_path):
    topic = create_topic(cluster.node(1), next(NAMES))
    write_files(tmp_path / "input", [3, 2, 1])
    query = start(topic, counted(session, tmp_path / "input"), output_mode="complete")
    query.processAllAvailable()
    query.stop()
    assert sorted(values_in(cluster.node(1).url, topic)) == sorted(
        [b"0 3", b"0 3", b"1 2", b"0 4", b"1 2"]
    )


@live
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_a_batch_that_is_written_by_foreach_batch_is_written_once_in_each_mode(
    session, cluster, tmp_path, mode
):
    """As the documents have it for ``update``, which Spark allows no Python sink; repeated as after a crash."""
    url = cluster.node(1).url
    topic = create_topic(cluster.node(1), next(NAMES))
    write_files(tmp_path / "input", [3, 2, 1])
    rows = counted(session, tmp_path / "input")
    if mode == "append":
        rows = files(session, tmp_path / "input").selectExpr("concat_ws(' ', file, row) as value")

    def write(batch, batch_id):
        writer = batch.write.format("milena").options(url=url, topic=topic, transactionalId=topic)
        for _ in range(2):
            writer.option("batchId", batch_id).mode("append").save()

    query = rows.writeStream.outputMode(mode).foreachBatch(write)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    wanted = {
        "append": [b"0 0", b"0 1", b"0 2", b"1 0", b"1 1", b"2 0"],
        "update": [b"0 3", b"0 4", b"1 2"],
        "complete": [b"0 3", b"0 3", b"0 4", b"1 2", b"1 2"],
    }
    assert sorted(values_in(url, topic)) == wanted[mode]


@live
def test_a_batch_query_under_a_number_is_written_once(session, cluster):
    node = cluster.node(1)
    topic = create_topic(node, next(NAMES), partitions=2)

    def save(count, **options):
        frame = session.range(count).selectExpr("concat_ws(' ', id, 0) as value")
        writer = frame.write.format("milena").options(url=node.url, topic=topic, **options)
        writer.option("transactionalId", topic).mode("append").save()

    for batch_id in (7, 7, 6, 8):
        save(10 + batch_id, batchId=batch_id)
    assert len(rows_in(node.url, topic, 2)) == 17 + 18
    save(5)
    save(5)
    assert len(rows_in(node.url, topic, 2)) == 17 + 18 + 10


@live
def test_a_batch_query_that_fails_leaves_nothing(session, cluster):
    node = cluster.node(1)
    topic = create_topic(node, next(NAMES))
    ids = session.range(0, 1000, numPartitions=2)
    frame = ids.selectExpr(
        "if(id = 999, raise_error('no more'), cast(id as string)) as value",
    )
    writer = frame.write.format("milena").options(url=node.url, topic=topic)
    with pytest.raises(PySparkException, match="no more"):
        writer.option("transactionalId", topic).mode("append").save()
    assert values_in(node.url, topic) == []
    assert topic not in str(ok(call(node, "GET /transactions")))
