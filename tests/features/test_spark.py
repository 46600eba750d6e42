"""Pipelines on topics: Spark queries what sites did, and writes what it found back for others to read."""

import json

import pytest
from pyspark.sql import functions as sf

from tests.support.clusters.live_cluster import create_topic, offsets_of, values, write
from tests.support.spark.spark_session import spark_session

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def test_page_views_become_hourly_statistics_in_another_topic(spark, cluster):
    """Activity events in, hourly counts per page out; each event counts once, whichever node took it."""
    node = cluster.node(1)
    views = create_topic(node, "clicks-by-page", partitions=3)
    stats = create_topic(node, "clicks-an-hour")
    for number in range(60):
        event = {"page": f"/p{number % 2}", "time": f"2026-01-01T{number // 20:02}:30:00Z"}
        assert offsets_of(write(cluster.nodes[number % 3], views, event))

    topics = spark.read.format("milena").option("url", node.url)
    events = (
        topics.option("subscribe", views)
        .load()
        .select(
            sf.from_json(sf.col("value").cast("string"), "page string, time timestamp").alias(
                "event"
            )
        )
    )
    hourly = events.groupBy("event.page", sf.hour("event.time").alias("hour")).count()
    rows = hourly.select(sf.to_json(sf.struct("page", "hour", "count")).alias("value"))
    rows.write.format("milena").options(url=node.url, topic=stats).mode("append").save()

    found = sorted((row["page"], row["hour"], row["count"]) for row in values(node, stats))
    assert found == [(page, hour, 10) for page in ("/p0", "/p1") for hour in range(3)]


def test_a_range_of_offsets_can_be_queried_again_and_gives_the_same(spark, cluster):
    """The log keeps what was read: any query can be replayed from any offset."""
    node = cluster.node(1)
    topic = create_topic(node, "replayed-clicks")
    offsets_of(write(node, topic, *range(20)))
    query = spark.read.format("milena").options(url=node.url, subscribe=topic)
    query = query.option("startingOffsets", json.dumps({topic: {"0": 5}}))
    query = query.option("endingOffsets", json.dumps({topic: {"0": 12}}))
    for _ in range(2):
        rows = query.load().orderBy("offset").collect()
        assert [int(row.value) for row in rows] == list(range(5, 12))
        offsets_of(write(node, topic, "more"))
