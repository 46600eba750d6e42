"""Streams of a real Spark from real nodes: every record once, whatever happens to topics, nodes and queries."""

import json
from contextlib import contextmanager, suppress

import pytest
from pyspark.errors import PySparkException

import milena.sync
from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    delete_topic,
    end_offset,
    eventually,
    leader_of,
    ok,
    restart,
    wait_in_sync,
)
from tests.support.disk.stored_topics import fill, put

pytestmark = pytest.mark.integration

DEADLINE_S = 120


class Batches:
    """Rows of each batch, as ``foreachBatch`` is given them."""

    def __init__(self):
        self.by_id = {}

    def take(self, frame, batch_id):
        self.by_id[batch_id] = [
            (row.topic, row.partition, row.offset)
            for row in frame.select("topic", "partition", "offset").collect()
        ]

    @property
    def sizes(self):
        return [len(rows) for _, rows in sorted(self.by_id.items()) if rows]

    @property
    def rows(self):
        return sorted(row for rows in self.by_id.values() for row in rows)


@pytest.fixture
def stream(spark, cluster, tmp_path):
    """``with stream("topic", option=...) as (query, batches)``; all of a test go on from one checkpoint."""

    def load(topic=None, *, schema=None, **options):
        given = {name.replace("_", "."): str(value) for name, value in options.items()}
        if topic is not None:
            given["subscribe"] = topic
        reader = spark.readStream.format("milena").option("url", cluster.node(1).url)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**given).load()

    @contextmanager
    def run(topic=None, *, trigger=None, checkpoint="checkpoint", **options):
        batches = Batches()
        writer = load(topic, **options).writeStream.foreachBatch(batches.take)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).start()
        try:
            yield query, batches
        finally:
            query.stop()

    run.load = load
    return run


@pytest.fixture
def available(stream):
    """``available("topic", option=...)``: the batches of a run that ends by itself."""

    def run(topic=None, **options):
        with stream(topic, trigger={"availableNow": True}, **options) as (query, batches):
            assert query.awaitTermination(DEADLINE_S)
        return batches

    return run


def offsets(topic, *ranges):
    """Rows of a topic: (partition, start, end) each."""
    return [(topic, partition, n) for partition, start, end in ranges for n in range(start, end)]


def failure_of(query):
    """What ends a query, in a line: a sentence of ours among Spark's own words, without anybody's stack."""
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(DEADLINE_S)
    failure = str(caught.value)
    assert "Traceback" not in failure
    return failure


def delete_records(node, topic, before):
    path = f"/topics/{topic}/partitions/0/records:delete"
    ok(call(node, f"POST {path}", {"before_offset": before}))


def seen_ends(query, topic):
    """Where partitions end, as the query's progress says."""
    progress = query.lastProgress
    if progress is None or progress.sources[0].latestOffset is None:
        return {}
    return json.loads(progress.sources[0].latestOffset)["topics"][topic]["partitions"]


# -- a plain stream --------------------------------------------------------------------------------


def test_a_stream_reads_what_is_there_and_what_comes(stream, cluster):
    topic = create_topic(cluster.node(1), "plain-stream", partitions=2)
    fill(cluster.node(1), topic, [150, 30])
    with stream(topic, startingOffsets="earliest") as (query, batches):
        eventually(lambda: len(batches.rows) == 180)
        put(cluster.node(2), topic, 1, [b"more"] * 5)
        eventually(lambda: len(batches.rows) == 185)
        put(cluster.node(3), topic, 0, [b"more"])
        eventually(lambda: len(batches.rows) == 186)
        # The progress of a batch comes after the batch.
        eventually(lambda: seen_ends(query, topic) == {"0": {"next": 151}, "1": {"next": 35}})
    assert batches.rows == offsets(topic, (0, 0, 151), (1, 0, 35))
    assert sum(batches.sizes) == 186, "none twice"


def test_a_stream_begins_at_the_latest_by_default(stream, cluster):
    topic = create_topic(cluster.node(1), "latest-stream")
    fill(cluster.node(1), topic, [10])
    with stream(topic) as (query, batches):
        eventually(lambda: query.lastProgress and query.lastProgress.batchId == 0)
        put(cluster.node(1), topic, 0, [b"new"] * 2)
        eventually(lambda: batches.rows)
    assert batches.rows == offsets(topic, (0, 10, 12))


def test_a_restart_goes_on_where_the_checkpoint_ends(stream, cluster):
    topic = create_topic(cluster.node(1), "restarted-stream")
    fill(cluster.node(1), topic, [10])
    with stream(topic, startingOffsets="earliest") as (query, batches):
        eventually(lambda: len(batches.rows) == 10)
        # A batch that is not committed yet would be repeated.
        eventually(lambda: query.lastProgress)
    put(cluster.node(1), topic, 0, [b"while it was down"] * 7)
    with stream(topic, startingOffsets="latest") as (_, later):
        eventually(lambda: later.rows)
    assert later.rows == offsets(topic, (0, 10, 17))


def test_rows_are_those_of_a_batch_query(stream, cluster):
    topic = create_topic(cluster.node(1), "rows-of-a-stream")
    assert stream.load(topic, includeHeaders="true").isStreaming
    assert stream.load(topic).columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert stream.load(topic, schema="offset bigint").columns == ["offset"]


def test_only_committed_transactions_are_read(available, cluster):
    topic = create_topic(cluster.node(1), "transactions-stream")
    with milena.sync.Client(cluster.node(1).url) as client:
        producer = client.transactional_producer("stream")
        with producer.transaction() as transaction:
            transaction.send(topic, b"committed")
        with suppress(KeyError), producer.transaction() as transaction:
            transaction.send(topic, b"aborted")
            raise KeyError
        with producer.transaction() as transaction:
            transaction.send(topic, b"committed too")
    eventually(lambda: end_offset(cluster.node(1), topic) == 6)
    batches = available(topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert [offset for _, _, offset in batches.rows] == [0, 4]


def test_a_leader_that_is_killed_costs_no_record_and_doubles_none(stream, cluster):
    topic = create_topic(cluster.node(1), "killed-stream", partitions=2, min_insync_replicas=1)
    fill(cluster.node(1), topic, [50, 50])
    wait_in_sync(cluster, topic)
    leader = leader_of(cluster, topic)
    other = next(node for node in cluster.nodes if node is not leader)
    with stream(topic, startingOffsets="earliest") as (_, batches):
        eventually(lambda: len(batches.rows) == 100)
        leader.process.kill()
        eventually(lambda: put(other, topic, 0, [b"after"] * 10) == 50)
        eventually(lambda: len(batches.rows) == 110)
    restart(cluster, leader)
    assert batches.rows == offsets(topic, (0, 0, 60), (1, 0, 50))


# -- limits ----------------------------------------------------------------------------------------


def test_available_now_reads_what_was_there_in_batches_and_ends(available, cluster):
    topic = create_topic(cluster.node(1), "available-stream", partitions=3)
    fill(cluster.node(1), topic, [60, 0, 20])
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 30, "minPartitions": 2}
    batches = available(topic, **given)
    assert batches.rows == offsets(topic, (0, 0, 60), (2, 0, 20))
    assert batches.sizes == [30, 30, 20]
    assert available(topic, **given).rows == []
    put(cluster.node(1), topic, 1, [b"x"] * 4)
    assert available(topic, minOffsetsPerTrigger=100).rows == offsets(topic, (1, 0, 4))


def test_available_now_reads_in_batches_of_so_many_bytes(available, cluster):
    topic = create_topic(cluster.node(1), "bytes-stream")
    for _ in range(6):
        put(cluster.node(1), topic, 0, [b"x" * 50_000] * 2)
    batches = available(topic, startingOffsets="earliest", maxBytesPerTrigger=210_000)
    assert batches.rows == offsets(topic, (0, 0, 12))
    assert batches.sizes == [4, 4, 4]


def test_a_batch_waits_for_enough_records(stream, cluster):
    topic = create_topic(cluster.node(1), "patient-stream")
    given = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 20, "maxTriggerDelay": "1h"}
    with stream(topic, **given) as (query, batches):
        eventually(lambda: query.lastProgress and query.lastProgress.batchId == 0)
        put(cluster.node(1), topic, 0, [b"x"] * 15)
        put(cluster.node(1), topic, 0, [b"x"] * 15)
        eventually(lambda: batches.rows)
    assert batches.sizes in ([30], [20, 10])


# -- topics that change ----------------------------------------------------------------------------


def test_partitions_and_topics_that_come_are_read_from_their_first_record(stream, cluster):
    node = cluster.node(1)
    first = create_topic(node, "growing-a")
    fill(node, first, [5])
    with stream(subscribePattern="growing-.*", startingOffsets="earliest") as (_, batches):
        eventually(lambda: len(batches.rows) == 5)
        path = f"/v3/clusters/{cluster_id(node)}/topics/{first}"
        ok(call(node, f"PATCH {path}", {"partitions_count": 2}))
        eventually(lambda: put(node, first, 1, [b"x"] * 3) == 0)
        second = create_topic(node, "growing-b")
        put(node, second, 0, [b"x"] * 2)
        eventually(lambda: len(batches.rows) == 10)
    assert batches.rows == offsets(first, (0, 0, 5), (1, 0, 3)) + offsets(second, (0, 0, 2))


def test_a_topic_that_was_made_again_ends_the_stream_or_is_read_anew(stream, cluster):
    node = cluster.node(1)
    topic = create_topic(node, "again-stream")
    fill(node, topic, [10])
    given = {"startingOffsets": "earliest"}
    with (
        stream(topic, **given, checkpoint="strict") as (strict, _),
        stream(topic, **given, failOnDataLoss="false", checkpoint="lenient") as (_, batches),
    ):
        eventually(lambda: len(batches.rows) == 10)
        eventually(lambda: strict.lastProgress and strict.lastProgress.batchId == 0)
        delete_topic(node, topic)
        create_topic(node, topic)
        put(node, topic, 0, [b"another"] * 3)
        failure = failure_of(strict)
        eventually(lambda: sum(batches.sizes) == 13)
    assert f"DataLossError: topic {topic} was deleted" in failure
    assert batches.rows == sorted(offsets(topic, (0, 0, 10), (0, 0, 3)))


def test_records_that_were_deleted_before_they_were_read_end_the_stream_or_are_passed_over(
    available, stream, cluster
):
    node = cluster.node(1)
    topic = create_topic(node, "retained-stream")
    fill(node, topic, [10])
    assert len(available(topic, startingOffsets="earliest").rows) == 10
    put(node, topic, 0, [b"x"] * 10)
    delete_records(node, topic, 15)
    with stream(topic) as (query, _):
        failure = failure_of(query)
    assert (
        f"DataLossError: {topic}-0: offset 10 is gone, the first that can be read is 15" in failure
    )
    assert "set failOnDataLoss to false to read what there is" in failure
    assert available(topic, failOnDataLoss="false").rows == offsets(topic, (0, 15, 20))


# -- refusals --------------------------------------------------------------------------------------


def line_of(caught) -> str:
    """What a user of Spark sees, without Spark's own code of the error."""
    return str(caught.value).replace("SQLSTATE: 38000", "").strip()


def test_a_bad_option_is_one_line_at_load(stream):
    with pytest.raises(PySparkException) as caught:
        stream.load("t", maxOffsetPerTrigger="5")
    assert "did you mean maxOffsetsPerTrigger?" in line_of(caught)
    assert "\n" not in line_of(caught)


@pytest.mark.parametrize("trigger", [None, {"availableNow": True}])
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"schema": "value binary", "endingOffsets": "latest"},
            "OptionError: endingOffsets: not possible in a stream",
        ),
        ({"schema": "body string"}, "RowSchemaError: schema: there is no column body"),
        (
            {"schema": "value binary", "startingOffsets": "earliest"},
            "OffsetError: no such topic: not-there",
        ),
    ],
)
def test_what_cannot_be_read_is_told_when_the_stream_starts(stream, trigger, options, line):
    """With a schema Spark does not ask the source at ``load()``."""
    with stream("not-there", trigger=trigger, **options) as (query, batches):
        failure = failure_of(query)
    assert line in failure
    assert batches.by_id == {}
