"""Kill the parts of a stream from topic to topic: ``python -m tests.chaos.spark_kills``.

    source topic → readStream → tasks → writeStream → target topic

Spark runs as for a user: ``spark-submit`` with ``--py-files``, on ``local-cluster``, whose executors are separate
processes, or on ``local``, where the driver is also the executor. A writer adds records all the time. At times drawn
from the seed, something is killed with -9: all of Spark, only its driver (its executors then continue for a while), an
executor, a Python worker, or a node of the log. Whatever ended is started again; Spark continues from its checkpoint.
The first kill is always within batch 0. At the end the query runs until it has read everything. Every record of the
source must then be in the target exactly once.

Each value ends with a random part, which differs each time that the row is computed. So a row that was written twice is
visible as two different values.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from itertools import product
from pathlib import Path
from random import Random
from threading import Event
from typing import Self

import click
import pyspark

from loadtest.cluster.local_cluster import LocalCluster
from milena import sync
from tests.support.clusters.live_cluster import create_topic, restart, running_cluster
from tests.support.disk.stored_topics import fill
from tests.support.spark.committed_rows import values_in

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
SHIPPED = ("milena", "spark_ext", "pyspark_milena")
CLUSTER, LOCAL = "local-cluster[2,1,1024]", "local[2]"
PARTITIONS = 3
DEADLINE_S = 600.0
POLL_S = 0.02

JOB = """
import sys
from pyspark.sql import SparkSession
from spark_ext import register

url, source, target, checkpoint, is_last = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.readStream.format("milena").options(
    url=url, subscribe=source, startingOffsets="earliest", minPartitions=2
)
# Small batches, so that many are hit; the last run has to catch up.
if is_last != "last":
    rows = rows.option("maxOffsetsPerTrigger", 60)
values = rows.load().selectExpr("concat_ws(' ', cast(value as string), uuid()) as value", "partition")
writer = values.writeStream.format("milena").options(url=url, topic=target, checkpointLocation=checkpoint)
if is_last == "last":
    writer = writer.trigger(availableNow=True)
writer.start().awaitTermination()
"""


@unique
class Victim(StrEnum):
    """The process to kill."""

    SPARK = "all of Spark"
    DRIVER = "the driver alone"
    EXECUTOR = "an executor"
    WORKER = "a Python worker"
    NODE = "a node"


VICTIMS = {
    CLUSTER: tuple(Victim),
    LOCAL: tuple(victim for victim in Victim if victim is not Victim.EXECUTOR),
}
"""The victims by Spark's master. A local master has no executor besides its driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkKill:
    """One kill; ``batch`` is the last batch that had started, None if none had."""

    victim: Victim
    batch: int | None
    is_committed: bool


@dataclass(slots=True, kw_only=True)
class KillReport:
    """The actions and findings of a run; ``lost`` and ``doubled`` are values."""

    seed: int
    master: str
    kills: list[SparkKill] = field(default_factory=list)
    starts: int = 0
    records: int = 0
    lost: list[bytes] = field(default_factory=list)
    doubled: list[bytes] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Return whether no record is lost or duplicate."""
        return not self.lost and not self.doubled

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        counts = Counter(kill.victim.value for kill in self.kills)
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        early = sum(
            kill.batch is None or (kill.batch == 0 and not kill.is_committed) for kill in self.kills
        )
        yield f"seed {self.seed} on {self.master}: {len(self.kills)} kills ({kinds})"
        yield f"  {early} of them before the end of batch 0"
        yield f"  {self.starts} starts, {self.records:,} records: {len(self.lost)} lost, {len(self.doubled)} twice"


def packed(folder: Path) -> Path:
    """Return an archive with the code, as a user would send it."""
    path = folder / "milena.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in SHIPPED:
            for module in sorted((ROOT / package).rglob("*.py")):
                archive.write(module, module.relative_to(ROOT))
    return path


class SubmittedQuery:
    """The query under ``spark-submit``: at most one process at a time, in its own session."""

    def __init__(self, folder: Path, master: str, arguments: tuple[str, ...]) -> None:
        self.checkpoint = folder / "checkpoint"
        self.log = folder / "spark.log"
        self.starts = 0
        self.master = master
        self._arguments = (*arguments, str(self.checkpoint))
        self._folder = folder
        self._groups: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "job.py").write_text(JOB, encoding="utf-8")
        self._code = packed(folder)

    def start(self, *, is_last: bool = False) -> None:
        """Start the query; it continues from its checkpoint."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self._folder / "local"),
        }
        flags = [flag for name, text in settings.items() for flag in ("--conf", f"{name}={text}")]
        # Remove the project from the path and from the environment: executors must use the code that was sent.
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(SPARK_HOME / "bin" / "spark-submit"),
                    *("--master", self.master, "--py-files", str(self._code)),
                    *flags,
                    "job.py",
                    *(*self._arguments, "last" if is_last else "on"),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **kept,
                    "SPARK_HOME": str(SPARK_HOME),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )
        self._groups.append(self._process.pid)
        self.starts += 1

    @property
    def is_running(self) -> bool:
        """Return whether the driver runs."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> int:
        """Wait for the driver; return its exit code."""
        assert self._process is not None, "it was started"
        return self._process.wait(DEADLINE_S)

    def begun(self) -> int | None:
        """Return the last batch whose offsets are logged; None if there is none."""
        return self._last("offsets")

    def is_committed(self, batch: int | None) -> bool:
        """Return whether the batch is committed."""
        done = self._last("commits")
        return batch is not None and done is not None and done >= batch

    def kill(self, victim: Victim, chance: Random) -> bool:
        """Kill the victim with -9; return whether there was one."""
        assert self._process is not None, "it was started"
        if victim is Victim.SPARK:
            self.kill_rest()
            return True
        marks = {
            Victim.DRIVER: "org.apache.spark.deploy.SparkSubmit",
            Victim.EXECUTOR: "CoarseGrainedExecutorBackend",
            Victim.WORKER: "pyspark.daemon",
        }
        found = [pid for pid, line in _session(self._process.pid) if marks[victim] in line]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)
        return True

    def kill_rest(self) -> None:
        """Kill the remaining processes of all starts of the query."""
        for group in self._groups:
            for pid, _ in _session(group):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._groups.clear()

    def _last(self, folder: str) -> int | None:
        with suppress(FileNotFoundError):
            names = os.listdir(self.checkpoint / folder)
            return max((int(name) for name in names if name.isdigit()), default=None)
        return None


def _session(leader: int) -> list[tuple[int, str]]:
    """Return the processes of a session that this process started, with their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(state[3]) == leader:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append((int(entry.name), line.decode(errors="replace")))
    return found


class RecordWriter:
    """Adds records to a topic until it is told to end; all values are different.

    Its producer is idempotent: whichever node is killed, a record is written once, or the writer fails.
    """

    def __init__(self, urls: list[str], topic: str) -> None:
        self._urls, self._topic = urls, topic
        self._is_over = Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._writing = self._pool.submit(self._write)
        return self

    def check(self) -> None:
        """Raise the writer's error, if it failed: the query would wait for records for ever."""
        if self._writing.done():
            self._writing.result()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pool.shutdown()
        self._writing.result()

    def _write(self) -> None:
        number = 0
        with sync.Client(self._urls) as client, client.producer() as producer:
            while not self._is_over.wait(0.2):
                for _ in range(6):
                    producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
                    number += 1


def run_kills(seed: int, count: int, folder: Path, *, master: str = CLUSTER) -> KillReport:
    """Kill something ``count`` times during one query, and then run the query to its end."""
    chance, report = Random(f"spark-{seed}"), KillReport(seed=seed, master=master)
    with running_cluster(folder / "nodes") as cluster:
        source = create_topic(cluster.node(1), "source", partitions=PARTITIONS)
        target = create_topic(cluster.node(1), "target", partitions=PARTITIONS)
        urls = [cluster.node(number).url for number in (1, 2, 3)]
        query = SubmittedQuery(folder, master, (",".join(urls), source, target))
        # Give batch 0 some records that could be lost.
        fill(cluster.node(1), source, [400] * PARTITIONS)
        try:
            with RecordWriter(urls, source) as writer:
                for number in range(count):
                    kill = _kill_once(query, cluster, chance, writer, is_first=number == 0)
                    report.kills.append(kill)
                    print(
                        f"  {kill.victim.value} in batch {kill.batch}", file=sys.stderr, flush=True
                    )
            query.kill_rest()
            _finish(query)
        finally:
            query.kill_rest()
        report.starts = query.starts
        url = cluster.node(1).url
        written = Counter(filter(None, values_in(url, source, PARTITIONS)))
        rows = filter(None, values_in(url, target, PARTITIONS))
        found = Counter(row.rpartition(b" ")[0] for row in rows)
    report.records = written.total()
    report.lost = sorted((written - found).elements())
    report.doubled = sorted((found - written).elements())
    return report


def _kill_once(
    query: SubmittedQuery,
    cluster: LocalCluster,
    chance: Random,
    writer: RecordWriter,
    *,
    is_first: bool,
) -> SparkKill:
    """Start what does not run, wait until a time drawn from the seed, and kill something."""
    if not query.is_running:
        # Executors of a killed driver may still run here; the new query has to fence them.
        query.start()
    victim = Victim.SPARK if is_first else chance.choice(VICTIMS[query.master])
    before = query.begun()

    def goes_on() -> bool:
        writer.check()
        return query.begun() != before or not query.is_running

    _until(query, goes_on)
    if chance.random() < 0.7:
        _until(query, lambda: not query.is_committed(query.begun()) or not query.is_running)
    time.sleep(chance.uniform(0, 0.3 if is_first else 1.5))
    batch = query.begun()
    kill = SparkKill(victim=victim, batch=batch, is_committed=query.is_committed(batch))
    if victim is Victim.NODE:
        node = cluster.node(chance.randint(1, 3))
        node.process.kill()
        time.sleep(chance.uniform(0, 2))
        restart(cluster, node)
    elif query.is_running and not query.kill(victim, chance):
        # The victim does not exist at this moment: kill all of Spark, which always exists.
        query.kill(Victim.SPARK, chance)
        kill = replace(kill, victim=Victim.SPARK)
    elif not query.is_running:
        # The last kill has meanwhile also ended the driver, which is allowed. Kill the remaining processes.
        query.kill_rest()
        kill = replace(kill, victim=Victim.SPARK)
    return kill


def _until(query: SubmittedQuery, reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline_s, f"nothing goes on: see {query.log}"
        time.sleep(POLL_S)


def _finish(query: SubmittedQuery) -> None:
    """Run the query to the end of the source."""
    query.start(is_last=True)
    code = query.wait()
    assert code == 0, f"it failed with nobody killing it: see {query.log}"


@click.command(context_settings={"show_default": True})
@click.option(
    "--seeds", default="1", metavar="LIST", help="As 1,2,3: each is a cluster and a query."
)
@click.option("--kills", "count", type=click.IntRange(min=1), default=8, help="Of each seed.")
@click.option(
    "--master",
    "masters",
    type=click.Choice([CLUSTER, LOCAL]),
    multiple=True,
    default=[CLUSTER, LOCAL],
    help="Spark's; each seed on each of them.",
)
@click.option("--work", type=click.Path(path_type=Path), help="Keep logs there.")
def main(seeds: str, count: int, masters: tuple[str, ...], work: Path | None) -> None:
    """Kill the parts of a stream from topic to topic, and look for lost and duplicate records."""
    reports = []
    for seed, master in product(map(int, seeds.split(",")), masters):
        with ExitStack() as stack:
            if work is None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-kills-"))
                )
            else:
                folder = work.resolve() / f"seed-{seed}-{master.partition('[')[0]}"
                folder.mkdir(parents=True)
            reports.append(run_kills(seed, count, folder, master=master))
        print(*reports[-1].lines(), sep="\n", flush=True)
    print(f"{sum(len(report.kills) for report in reports)} kills: "
          f"{'nothing lost, nothing twice' if all(r.is_good for r in reports) else 'WRONG'}")  # fmt: skip
    sys.exit(0 if all(report.is_good for report in reports) else 1)


if __name__ == "__main__":
    main()
