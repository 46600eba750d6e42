"""The replay job killed with -9 at moments of a seed, with the Spark that it started, and run twice at once."""

import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from spark_ext.jobs import archive
from tests.support.clusters.live_cluster import call as ask
from tests.support.clusters.live_cluster import create_topic, ok
from tests.support.disk.stored_topics import fill
from tests.support.spark.committed_rows import values_in

pytestmark = [pytest.mark.integration, pytest.mark.long]

DEADLINE_S = 300.0
TOPIC = "replay-killed"
COUNTS = (600, 200)


@pytest.fixture(scope="module")
def root(cluster, spark, tmp_path_factory):
    """Eight files."""
    node = cluster.node(1)
    fill(node, create_topic(node, TOPIC, partitions=2), COUNTS)
    directory = tmp_path_factory.mktemp("archive") / "a"
    words = ["--url", node.url, "--topic", TOPIC, "--output", str(directory)]
    assert archive.run([*words, "--records-per-file", "100"]) == 0
    return directory


@pytest.fixture
def start(cluster, root, tmp_path):
    """``start(to, name)`` runs the job in a session of its own; what is still there at the end is killed."""
    log = tmp_path / "replay.log"
    jobs = []

    def started(to, name):
        command = [sys.executable, "-m", "spark_ext.jobs.replay", "--archive", str(root)]
        command += ["--url", cluster.node(2).url, "--to", to, "--name", name]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("ab") as out:
            job = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        jobs.append(job)
        return job

    yield started
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def wanted(partition, count):
    return [f"{TOPIC}-{partition}-{n} ".encode() for n in range(count)]


def partitions_of(cluster, to):
    found = values_in(cluster.node(1).url, to, 2)
    return [[v for v in found if v.startswith(f"{TOPIC}-{p}-".encode())] for p in range(2)]


def has_begun(cluster, name):
    groups = ok(ask(cluster.node(1), "GET /groups"))["groups"]
    return any(group["group_id"] == f"spark-{name}-all" for group in groups)


@pytest.mark.parametrize("is_whole", [True, False], ids=["with-spark", "driver-alone"])
@pytest.mark.parametrize("seed", range(4))
def test_a_replay_that_is_killed_writes_each_record_once(seed, is_whole, start, cluster):
    """Three times; of the driver alone Spark's JVM lives on for a while, and may commit what it is at."""
    chance = Random(seed)
    name = f"killed-{seed}-{is_whole}".lower()
    to = create_topic(cluster.node(1), name, partitions=2)
    for turn in range(3):
        job = start(to, name)
        end_s = time.monotonic() + DEADLINE_S
        while job.poll() is None and not has_begun(cluster, name):
            assert time.monotonic() < end_s
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.2 if turn == 0 else 9))
        if is_whole:
            os.killpg(job.pid, signal.SIGKILL)
        else:
            job.kill()
        job.wait()
        for partition, found in enumerate(partitions_of(cluster, to)):
            assert len(found) % 100 == 0
            assert found == wanted(partition, len(found))
    assert start(to, name).wait(DEADLINE_S) == 0
    assert partitions_of(cluster, to) == [wanted(p, count) for p, count in enumerate(COUNTS)]


def test_two_at_once_write_each_record_once(start, cluster):
    """Either may end that of the other, which says so; one more has nothing left to do, or the rest."""
    name = "at-once"
    to = create_topic(cluster.node(1), name, partitions=2)
    codes = [job.wait(DEADLINE_S) for job in (start(to, name), start(to, name))]
    assert set(codes) <= {0, 2}
    assert start(to, name).wait(DEADLINE_S) == 0
    assert partitions_of(cluster, to) == [wanted(p, count) for p, count in enumerate(COUNTS)]
