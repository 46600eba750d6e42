"""Records that were deleted before a job read them: what it says, how it ends, and how it goes on."""

import click
import pytest
from pyspark.errors import PySparkException

from examples import alerts, demand_prices, sessions, site_stats
from milena.sync import Client
from spark_ext.errors import DataLossError
from spark_ext.jobs import archive
from spark_ext.jobs.running.command import run_command
from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import put

LINE = b'a - - [01/Jan/2024:10:%02d:00 +0000] "GET / HTTP/1.1" 404 1'
READERS = (
    archive.archive,
    alerts.alerts,
    sessions.sessions,
    demand_prices.demand_prices,
    site_stats.site_stats,
)
"""Jobs that fail when records of a topic are lost."""


@pytest.mark.parametrize("command", READERS, ids=lambda command: command.name)
def test_each_job_has_the_option_that_its_message_names(command):
    assert "--accept-data-loss" in {name for option in command.params for name in option.opts}


@pytest.mark.parametrize(
    "error",
    [
        DataLossError("t-0: offset 3 is gone"),
        PySparkException(
            "[STREAM_FAILED] spark_ext.errors.DataLossError: t-0: offset 3 is gone; "
            f"{DataLossError.ADVICE} SQLSTATE: XXKST"
        ),
    ],
    ids=type,
)
def test_lost_data_is_told_in_the_words_of_the_command_line(error, capsys):
    @click.command
    def losing():
        raise error

    assert run_command(losing, "losing", []) == 1
    told = capsys.readouterr().err
    assert "t-0: offset 3 is gone; --accept-data-loss goes on without them" in told
    assert "failOnDataLoss" not in told


@pytest.mark.integration
def test_a_stream_that_retention_overtook_goes_on_once_that_is_accepted(
    spark, cluster, tmp_path, capfd
):
    del spark
    node = cluster.node(1)
    topic, target = create_topic(node, "overtaken"), create_topic(node, "overtaken-alerts")
    put(node, topic, 0, [LINE % minute for minute in range(20)])
    words = ["--url", node.url, "--topic", topic, "--to", target, "--once"]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert alerts.run(words) == 0
    put(node, topic, 0, [LINE % minute for minute in range(20, 50)])
    with Client(node.url) as client:
        client.admin.delete_records(topic, 0, 30)
    capfd.readouterr()
    assert alerts.run(words) == 1
    assert "--accept-data-loss goes on without them" in capfd.readouterr().err
    assert alerts.run([*words, "--accept-data-loss", "--json"]) == 0
    assert '"records": 20' in capfd.readouterr().out
