"""Pipelines: events go on from the log to where they are kept and counted."""

import pytest

from examples import site_stats
from spark_ext.jobs import archive
from spark_ext.jobs.archiving.reader import read_archive
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import put
from tests.support.spark.access_lines import sample_lines, tallies
from tests.support.spark.spark_session import spark_session

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def test_events_are_archived_once_and_become_hourly_statistics(cluster, spark, tmp_path):
    """Page views of a web site's log: kept as Parquet in two runs, counted by the hour in which they happened."""
    topic = create_topic(cluster.node(1), "site", partitions=2)
    views = sample_lines()[:600]
    words = ["--url", cluster.node(2).url, "--topic", topic, "--output", str(tmp_path / "archive")]
    for some in (views[:400], views[400:]):
        put(cluster.node(3), topic, 0, some[::2])
        put(cluster.node(3), topic, 1, some[1::2])
        assert archive.run(words) == 0
    assert archive.run([*words, "--verify"]) == 0

    session = prepared(spark)
    kept = read_archive(session, str(tmp_path / "archive"))
    report = site_stats.run_site_stats(session, kept, None)
    hours, _ = tallies(views)
    assert report.overall.requests == hours.pop(None).requests == len(views)
    assert {c.hour: (c.requests, c.clients) for c in report.hours} == {
        hour: (tally.requests, len(tally.clients)) for hour, tally in hours.items()
    }
