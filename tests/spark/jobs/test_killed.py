"""The archive job killed with -9 at every stage of a run, with the Spark that it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from milena.disk.os_files import OsFiles
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.manifest import Manifest
from spark_ext.jobs.archiving.reader import read_archive
from spark_ext.jobs.archiving.verify import verify_archive
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import create_topic, eventually
from tests.support.disk.stored_topics import fill

pytestmark = [pytest.mark.integration, pytest.mark.long]

DEADLINE_S = 300.0
POLL_S = 0.001
TOPIC = "killed"
FOLLOW = ("--follow", "--interval", "0s", "--records-per-file", "500")

STAGES: dict[str, Callable[[Path], bool]] = {
    "while Spark writes": lambda root: any(root.glob("staging/*/_temporary/**/*.parquet")),
    "when Spark has written": lambda root: any(root.glob("staging/*/_SUCCESS")),
    "while files are adopted": lambda root: (
        len(list(root.glob("data/**/*.parquet"))) > listed(root)
    ),
    "when the manifest is replaced": lambda root: manifest_of(root).commits > 0,
}


def manifest_of(root: Path) -> Manifest:
    is_there = (root / "manifest.json").exists()
    return read_manifest(OsFiles(), str(root)) if is_there else Manifest()


def listed(root: Path) -> int:
    return len(manifest_of(root).paths())


def archived_count(root: Path) -> int:
    return sum(p.records for p in manifest_of(root).partitions)


@pytest.fixture(scope="module")
def start(cluster, tmp_path_factory):
    """``start(root, "--more", …)`` runs the job on a Spark of its own, with many small files."""
    directory = tmp_path_factory.mktemp("jobs")

    def started(root: Path, *more: str, topic: str = TOPIC) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spark_ext.jobs.archive", "--url", cluster.node(1).url]
        command += ["--topic", topic, "--output", str(root), "--records-per-file", "50"]
        command += more
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (directory / "spark.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    return started


@pytest.fixture(scope="module")
def rows(cluster):
    """What the topic holds."""
    node = cluster.node(1)
    return fill(node, create_topic(node, TOPIC, partitions=2), [3000, 500])


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_leaves_nothing_twice_and_nothing_out(stage, start, rows, spark, tmp_path):
    root = tmp_path / "archive"
    reached = STAGES[stage]
    job = start(root)
    deadline_s = time.monotonic() + DEADLINE_S
    while not ((root / "manifest.json").exists() and reached(root)):
        assert job.poll() is None, f"ended before it was {stage}"
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)
    job.kill()
    job.wait()

    verdict = verify_archive(OsFiles(), str(root))
    assert verdict.problems == ()
    assert sum(p.records for p in verdict.manifest.partitions) in {0, len(rows)}

    last = start(root)
    assert last.wait(DEADLINE_S) == 0
    verdict = verify_archive(OsFiles(), str(root))
    assert verdict.is_good
    assert verdict.unlisted == ()
    archived = read_archive(prepared(spark), str(root)).select("partition", "offset", "value")
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in archived.collect())
    assert found == sorted(rows)


@pytest.mark.parametrize("seed", range(2))
def test_a_stream_that_is_killed_archives_each_record_once(seed, start, cluster, spark, tmp_path):
    """Four times, at a moment of the seed, while records come; then it catches up and is interrupted."""
    chance = Random(f"follow-{seed}")
    node = cluster.node(1)
    topic = create_topic(node, f"followed-{seed}", partitions=2)
    rows, root = [], tmp_path / "archive"
    for _ in range(4):
        commits = manifest_of(root).commits
        job = start(root, *FOLLOW, topic=topic)
        deadline_s = time.monotonic() + DEADLINE_S
        # At least one commit, so that each of them dies in another one.
        while manifest_of(root).commits == commits:
            assert job.poll() is None, "the job ended by itself"
            assert time.monotonic() < deadline_s
            rows += fill(node, topic, [8, 2])
            time.sleep(0.5)
        for _ in range(chance.randrange(6)):
            rows += fill(node, topic, [8, 2])
            time.sleep(chance.uniform(0, 0.5))
        job.kill()
        job.wait()
        assert verify_archive(OsFiles(), str(root)).problems == ()

    last = start(root, *FOLLOW, topic=topic)
    eventually(lambda: archived_count(root) == len(rows), deadline_s=DEADLINE_S)
    last.send_signal(signal.SIGINT)
    assert last.wait(DEADLINE_S) == 0
    assert verify_archive(OsFiles(), str(root)).is_good
    archived = read_archive(prepared(spark), str(root)).select("partition", "offset", "value")
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in archived.collect())
    assert found == sorted(rows)
