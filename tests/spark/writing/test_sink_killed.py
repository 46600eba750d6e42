"""Streaming queries whose tasks fail, and whose driver is killed with -9 around commits: every row comes once."""

import itertools
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from tests.support.clusters.live_cluster import call, create_topic, ok
from tests.support.spark.committed_rows import rows_in
from tests.support.spark.stream_query import write_files

pytestmark = pytest.mark.integration

DEADLINE_S = 300.0
POLL_S = 0.002
COUNTS = [400, 300, 0, 200, 100, 50]


class QueryProcess:
    """A query in a process of its own, and what the cluster knows of it."""

    def __init__(self, cluster, topic, directory, *flags):
        self.node = cluster.node(1)
        self.topic = topic
        command = [sys.executable, "-m", "tests.support.spark.stream_query"]
        command += ["--url", cluster.node(2).url, "--topic", topic, "--directory", str(directory)]
        self.log = directory / "query.log"
        with self.log.open("ab") as log:
            # A session of its own: Spark's JVM and its workers are killed with it.
            self._process = subprocess.Popen(
                [*command, *flags], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self):
        code = self._process.wait(DEADLINE_S)
        assert code == 0, self.log.read_text()[-5000:]

    def is_over(self):
        return self._process.poll() is not None

    def writes(self):
        """Some of a batch is written that is not committed."""
        return self.topic in str(ok(call(self.node, "GET /transactions")))

    def committed(self):
        """How many batches are."""
        found = 0
        for group in ok(call(self.node, "GET /groups"))["groups"]:
            if group["group_id"].startswith("spark-"):
                line = f"GET /groups/{group['group_id']}/offsets"
                topics = ok(call(self.node, line))["offsets"]
                found = max([found, *(at["offset"] for at in topics.get(self.topic, {}).values())])
        return found

    def until(self, reached):
        deadline_s = time.monotonic() + DEADLINE_S
        while not reached():
            if self.is_over():
                self.wait()
                return
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)


def test_a_task_whose_first_attempt_fails_writes_once(cluster, tmp_path):
    """Its rows are 4 MB: the first attempt has written most of them, and the rest has less rows than it should."""
    topic = create_topic(cluster.node(1), "failing-once", partitions=3)
    write_files(tmp_path / "input", [40_000, 10])
    query = QueryProcess(cluster, topic, tmp_path, "--fails-once")
    query.wait()
    found = rows_in(cluster.node(1).url, topic, 3)
    assert sorted(found) == [(0, row) for row in range(40_000)] + [(1, row) for row in range(10)]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_driver_that_is_killed_around_a_commit_writes_once(seed, cluster, tmp_path):
    """Four times at points of the seed: before a commit, some ms into it, or when it is there. Then it ends."""
    chance = Random(seed)
    topic = create_topic(cluster.node(1), f"killed-{seed}")
    write_files(tmp_path / "input", COUNTS)
    whole = set(itertools.accumulate(COUNTS, initial=0))
    for _ in range(4):
        query = QueryProcess(cluster, topic, tmp_path)
        point = chance.choice(("before", "in", "after"))
        before = query.committed()
        if point == "after":
            query.until(lambda found=before, of=query: of.committed() > found)
        else:
            query.until(query.writes)
            if point == "in":
                time.sleep(chance.uniform(0, 0.4))
        if query.is_over():
            break
        query.kill()
        assert len(rows_in(cluster.node(1).url, topic)) in whole
    QueryProcess(cluster, topic, tmp_path).wait()
    found = rows_in(cluster.node(1).url, topic)
    assert sorted(found) == [(file, row) for file, n in enumerate(COUNTS) for row in range(n)]
