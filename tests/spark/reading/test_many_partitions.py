"""A topic of a thousand small partitions on a real node: few tasks, each record once, and hardly a request while idle.

What it counted goes into ``many-partitions.json`` of the test's directory, and to standard output.
"""

import json
import time

import pytest
from pyspark.sql.functions import spark_partition_id

from milena import sync
from spark_ext.options.parsing import TARGET_RECORDS_PER_TASK
from spark_ext.reading.planner import RANGE_COST_RECORDS
from tests.support.clusters.live_cluster import call, create_topic, eventually, running_cluster

pytestmark = [pytest.mark.integration, pytest.mark.long]

PARTITIONS = 1_000
RECORDS = 3
TOTAL = PARTITIONS * RECORDS
SETTLE_S, IDLE_S = 15, 30
IDLE_REQUESTS_A_SECOND_MAX = 10
DEADLINE_S = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("many"), node_count=1) as nodes:
        yield nodes.node(1)


@pytest.fixture(scope="module")
def topic(node):
    name = create_topic(node, "many", partitions=PARTITIONS, replicas=1)
    write(node, name, RECORDS)
    return name


def write(node, topic, count):
    """So many records to each partition."""
    with sync.Client(node.url) as client, client.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send_many(topic, [b"%d" % n for n in range(count)], partition=partition)
        producer.flush()


def requests_of(node):
    """How many the node has answered, but for those that ask this."""
    lines = call(node, "GET /metrics").body.decode().splitlines()
    rows = (line for line in lines if line.startswith("milena_http_requests_total{"))
    return sum(int(row.rsplit(" ", 1)[1]) for row in rows if 'path="/metrics"' not in row)


def tell(tmp_path, **figures):
    (tmp_path / "many-partitions.json").write_text(json.dumps(figures))
    print(json.dumps(figures))


def places(rows):
    found = sorted((row.partition, row.offset) for row in rows.collect())
    assert found == [(p, n) for p in range(PARTITIONS) for n in range(len(found) // PARTITIONS)]
    return len(found)


def test_a_query_has_as_many_tasks_as_its_records_need(spark, node, topic, tmp_path):
    before = requests_of(node)
    reader = spark.read.format("milena").options(url=node.url, subscribe=topic)
    rows = reader.load().select("partition", "offset", spark_partition_id().alias("task")).cache()
    assert places(rows) == TOTAL
    tasks = rows.select("task").distinct().count()
    requests = requests_of(node) - before
    # A range costs a task as much as 2,000 records: a task for each million.
    assert tasks == -(-PARTITIONS * RANGE_COST_RECORDS // TARGET_RECORDS_PER_TASK)
    # One for the end of each partition, one to see that the log still has that, one for the records; and the nodes'.
    assert requests <= 3 * PARTITIONS + 20
    split = reader.option("minPartitions", 4).load()
    assert split.select(spark_partition_id()).distinct().count() == 4
    assert split.count() == TOTAL
    tell(tmp_path, tasks=tasks, requests=requests)


def test_a_stream_has_as_few_and_asks_next_to_nothing_while_it_is_idle(
    spark, node, topic, tmp_path
):
    reader = spark.readStream.format("milena").options(
        url=node.url, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=TOTAL // 2
    )
    rows = reader.load().select("partition", "offset", spark_partition_id().alias("task"))
    writer = rows.writeStream.format("memory").queryName("many")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def has(count):
        assert query.exception() is None
        return spark.table("many").count() == count

    try:
        eventually(lambda: has(TOTAL), deadline_s=DEADLINE_S)
        # What a batch was waits until its time is over, or is asked again.
        time.sleep(SETTLE_S)
        before, began_s = requests_of(node), time.monotonic()
        time.sleep(IDLE_S)
        asked = (requests_of(node) - before) / (time.monotonic() - began_s)
        assert asked <= IDLE_REQUESTS_A_SECOND_MAX
        write(node, topic, 1)
        eventually(lambda: has(TOTAL + PARTITIONS), deadline_s=DEADLINE_S)
    finally:
        query.stop()
    found = spark.table("many")
    assert places(found) == TOTAL + PARTITIONS
    assert found.select("task").distinct().count() <= 2
    tell(tmp_path, idle_requests_a_second=round(asked, 2))
