"""One task's ranges, read from real nodes without Spark: order, cuts, an early end, and what is missing."""

import threading

import pytest

from loadtest.cluster.local_cluster import free_ports
from milena.records import TopicPartition
from spark_ext.errors import DataLossError, StalledReadError
from spark_ext.options.parsing import Fetching
from spark_ext.reading.planner import PlannedRange
from spark_ext.reading.tasks import ReadTask, read_task
from spark_ext.rows.read_schema import project, row_schema
from tests.support.clusters.live_cluster import create_topic, delete_topic, metadata
from tests.support.disk.stored_topics import fill

pytestmark = pytest.mark.integration

COLUMNS = project(row_schema(include_headers=False), include_headers=False)


def task_of(node, *ranges, **fetching):
    """``ranges`` are (topic, partition, start, end), with a topic id behind if that matters."""
    return ReadTask(
        ranges=tuple(
            PlannedRange(
                partition=TopicPartition(topic, partition),
                topic_id=topic_id[0] if topic_id else None,
                start=start,
                end=end,
            )
            for topic, partition, start, end, *topic_id in ranges
        ),
        fetching=Fetching(urls=(node.url,), **fetching),
        projection=COLUMNS,
    )


def rows_of(task):
    """Topic, partition and offset of every row, in order."""
    return [
        (row["topic"], row["partition"], row["offset"])
        for batch in read_task(task)
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def topic(cluster):
    name = create_topic(cluster.node(1), "read-by-tasks", partitions=8)
    fill(cluster.node(1), name, [50] * 8, batch_records=20)
    return name


def test_ranges_come_in_their_order_each_cut_to_its_offsets(cluster, topic):
    asked = [(topic, partition, partition, 50 - partition) for partition in reversed(range(8))]
    wanted = [(name, p, offset) for name, p, start, end in asked for offset in range(start, end)]
    assert rows_of(task_of(cluster.node(2), *asked)) == wanted
    assert rows_of(task_of(cluster.node(3), *asked, fetch_bytes=1)) == wanted


def test_a_reader_that_stops_early_leaves_no_thread_behind(cluster, topic):
    before = {*threading.enumerate()}
    batches = read_task(task_of(cluster.node(1), *((topic, p, 0, 50) for p in range(8))))
    next(batches)
    batches.close()
    assert {*threading.enumerate()} <= before


def test_a_range_that_ends_beyond_the_log_is_lost_data(cluster, topic):
    beyond = (topic, 0, 40, 60)
    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 50; records up to 60 were"):
        rows_of(task_of(cluster.node(1), beyond))
    after = (topic, 1, 49, 50)
    lenient = task_of(cluster.node(1), beyond, after, fail_on_data_loss=False)
    assert len(rows_of(lenient)) == 11


def test_a_topic_of_another_id_is_lost_data(cluster):
    name = create_topic(cluster.node(1), "made-twice")
    ids = {each["name"]: each["topic_id"] for each in metadata(cluster.node(1))["topics"]}
    planned = (name, 0, 0, 5, ids[name])
    planned = task_of(cluster.node(1), (name, 0, 0, 5, ids[name]))
    lenient = task_of(cluster.node(1), (name, 0, 0, 5, ids[name]), fail_on_data_loss=False)
    delete_topic(cluster.node(1), name)
    with pytest.raises(DataLossError, match=f"topic {name} was deleted since the query was"):
        rows_of(planned)
    assert rows_of(lenient) == []
    create_topic(cluster.node(1), name)
    fill(cluster.node(1), name, [5])
    with pytest.raises(DataLossError, match=f"topic {name} was deleted and made again since"):
        rows_of(planned)
    assert rows_of(lenient) == []


def test_a_cluster_that_is_gone_is_waited_for_as_long_as_the_query_says(cluster, topic):
    class Nobody:
        url = f"http://127.0.0.1:{free_ports(1)[0]}"

    with pytest.raises(StalledReadError, match="cannot reach"):
        rows_of(task_of(Nobody, (topic, 0, 0, 5), poll_timeout_ms=200))
