"""A stream's driver killed with -9 at every stage of a batch, with the Spark that it started."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import fill, put

pytestmark = [pytest.mark.integration, pytest.mark.long]

DEADLINE_S = 300.0
POLL_S = 0.005

JOB = """
import sys, time
from pyspark.sql import SparkSession
from spark_ext import register

url, topic, folder, start, seconds_a_task = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.log.level", "ERROR").getOrCreate()
)
register(spark)
rows = (
    spark.readStream.format("milena")
    .options(url=url, subscribe=topic, startingOffsets=start, maxOffsetsPerTrigger=50, minPartitions=2)
    .load().select("partition", "offset")
)

def slowly(batches):
    time.sleep(float(seconds_a_task))
    yield from batches

query = (
    rows.mapInArrow(slowly, rows.schema).writeStream.format("parquet")
    .option("path", folder + "/rows").option("checkpointLocation", folder + "/checkpoint")
)
if seconds_a_task == "0":
    query = query.trigger(availableNow=True)
query.start().awaitTermination()
"""


@pytest.fixture
def start(cluster, tmp_path):
    """``start(topic, ...)`` runs the job on a Spark of its own, whose process group has its id."""
    script = tmp_path / "job.py"
    script.write_text(JOB, encoding="utf-8")
    root = str(Path(__file__).parents[3])
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": root,
    }

    def started(topic: str, starting: str, *, seconds_a_task: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), cluster.node(1).url, topic, str(tmp_path)]
        command += [starting, f"{seconds_a_task:g}"]
        with (tmp_path / "spark.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    return started


def kill_when(job: subprocess.Popen[bytes], reached) -> None:
    """The driver, the JVM and the Python workers of its group, at once."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert job.poll() is None, "it ended before"
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def is_in_batch(folder: Path, number: int) -> bool:
    """Its offsets are logged, and it is not committed."""
    checkpoint = folder / "checkpoint"
    has_begun = (checkpoint / "offsets" / str(number)).exists()
    return has_begun and not (checkpoint / "commits" / str(number)).exists()


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_killed_driver_costs_no_record_and_doubles_none(
    start, cluster, spark, tmp_path, starting, number
):
    node = cluster.node(1)
    topic = create_topic(node, f"killed-in-{number}-{starting}", partitions=2)
    fill(node, topic, [300, 20])
    job = start(topic, starting, seconds_a_task=1)
    if starting == "latest" and number > 0:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (tmp_path / "checkpoint" / "commits" / "0").exists():
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)
        put(node, topic, 0, [b"more"] * 200)
    kill_when(job, lambda: is_in_batch(tmp_path, number))

    # A start that was found anew would be another one now.
    put(node, topic, 0, [b"after"] * 7)
    put(node, topic, 1, [b"after"] * 3)
    last = start(topic, starting, seconds_a_task=0)
    assert last.wait(DEADLINE_S) == 0, (tmp_path / "spark.log").read_text()[-3000:]

    found = spark.read.parquet(str(tmp_path / "rows")).select("partition", "offset").collect()
    more = 200 if starting == "latest" and number > 0 else 0
    begin = (0, 0) if starting == "earliest" else (300, 20)
    wanted = [(0, n) for n in range(begin[0], 307 + more)] + [(1, n) for n in range(begin[1], 23)]
    assert Counter(map(tuple, found)) == Counter(wanted)
