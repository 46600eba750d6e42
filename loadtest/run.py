"""Run one load test from start to end: nodes, topic, locust, a kill, the verdict, and the report."""

import asyncio
import contextlib
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

from tqdm import tqdm

from loadtest.cluster.access import without_credentials
from loadtest.cluster.failover import Failover
from loadtest.cluster.local_cluster import LocalCluster
from loadtest.cluster.node_process import NodeProcess
from loadtest.judging.judge import judge
from loadtest.judging.ledger import Incident, LedgerWriter, is_complete, ledger_files, read_all
from loadtest.judging.plants import Planter
from loadtest.reports.plots import draw
from loadtest.reports.summary import Summary
from loadtest.reports.timeline import timeline_of
from loadtest.settings import Settings, locust_command
from milena.cluster.admin import AdminClient
from milena.cluster.routing import normalise_url
from milena.errors import TargetExistsError

EXIT_GOOD, EXIT_BAD_DATA, EXIT_FAILED = 0, 1, 2

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
OWN_FILES = ("ledger", "cluster", "run-*", "locust*", "summary.*", "*.png")
"""The files of an earlier run, which are removed from the folder; other files stay."""
POLL_S = 0.1
END_TIMEOUT_S = 60.0
"""The longest time for users to finish their last requests, in s."""
STARTED_TIMEOUT_S = 60.0
KILL_AT = 0.5
"""The leader is killed when this share of the time is over."""


class LoadError(Exception):
    """Locust failed; the message names its log."""


@contextmanager
def noting_interrupts(asked: asyncio.Event) -> Iterator[None]:
    """Handle Ctrl-C during the block: the first one sets ``asked``, the second one cancels the task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a load runs in a task"

    def on_signal() -> None:
        if asked.is_set():
            task.cancel()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def run(settings: Settings) -> int:
    """Run the whole test, or judge the ledgers of an earlier one; return the exit code."""
    if settings.judged is not None:
        settings.directory.mkdir(parents=True, exist_ok=True)
        urls = tuple(normalise_url(url) for url in settings.urls)
        return await report(settings, urls, settings.judged, settings.directory)
    prepare(settings.directory)
    # Ctrl-C ends the load early, and its records are judged; a second one ends everything.
    asked = asyncio.Event()
    with noting_interrupts(asked):
        async with target(settings) as (urls, cluster):
            await create_topic(settings, urls)
            load = Load(settings, urls, cluster, asked)
            code = await (load.in_web_ui() if settings.is_web else load.headless())
            if cluster is not None:
                await cluster.stop()
    return code


def prepare(directory: Path) -> None:
    """Create the folder of the report, and remove the files of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    for pattern in OWN_FILES:
        for old in directory.glob(pattern):
            shutil.rmtree(old) if old.is_dir() else old.unlink()


@asynccontextmanager
async def target(settings: Settings) -> AsyncIterator[tuple[tuple[str, ...], LocalCluster | None]]:
    """Yield the URLs of the cluster under load, and the cluster if this test started it."""
    if settings.urls:
        yield tuple(normalise_url(url) for url in settings.urls), None
        return
    print(f"starting three nodes, data and logs in {settings.directory}/cluster/")
    async with LocalCluster(settings.directory / "cluster") as cluster:
        yield tuple(node.url for node in cluster.nodes), cluster


async def create_topic(settings: Settings, urls: tuple[str, ...]) -> None:
    """Create the topic, unless it exists."""
    async with AdminClient(urls[0], credentials=settings.credentials) as admin:
        live = sum(node.is_live for node in (await admin.cluster()).nodes)
        with contextlib.suppress(TargetExistsError):
            await admin.create_topic(
                settings.topic,
                partitions=settings.partitions,
                replication_factor=min(settings.replication_factor, live),
            )


class Load:
    """Runs locust's process, and judges its ledgers."""

    def __init__(
        self,
        settings: Settings,
        urls: tuple[str, ...],
        cluster: LocalCluster | None,
        asked: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._urls = urls
        self._cluster = cluster
        self._asked = asked
        self._log = settings.directory / "locust.log"
        command = locust_command(settings, urls, python=sys.executable, locustfile=LOCUSTFILE)
        root = str(LOCUSTFILE.parent.parent)
        environment = {
            **(os.environ if cluster is None else without_credentials(os.environ)),
            "PYTHONPATH": root + os.pathsep + os.environ.get("PYTHONPATH", ""),
        }
        self._locust = NodeProcess(command, environment=environment, log_path=self._log)

    async def headless(self) -> int:
        """Run one test of fixed length; return the exit code."""
        settings, ledgers = self._settings, self._settings.ledgers / "run-1"
        text = f"loading for {settings.run_time_s:g} s with {settings.users} users"
        print(text + (", a leader dies in the middle" if self._has_kill else ""))
        self._locust.start()
        try:
            await self._until(lambda: bool(ledger_files(ledgers)), STARTED_TIMEOUT_S)
            with LedgerWriter(ledgers / "incidents.ledger") as incidents:
                await self._load(incidents)
        finally:
            self._locust.kill_all()
        return await report(settings, self._urls, ledgers, settings.directory)

    async def in_web_ui(self) -> int:
        """Run tests that are started in locust's web page; judge each when it stops. Return the exit code."""
        port, worst = self._settings.web_port, EXIT_GOOD
        print(f"locust's web page: http://127.0.0.1:{port}, until Ctrl-C")
        self._locust.start()
        try:
            for number in count(1):
                ledgers = self._settings.ledgers / f"run-{number}"
                if not await self._test_ended(ledgers):
                    return worst
                directory = self._settings.directory / f"run-{number}"
                directory.mkdir()
                worst = max(worst, await report(self._settings, self._urls, ledgers, directory))
        finally:
            self._locust.kill_all()
        return worst

    @property
    def _has_kill(self) -> bool:
        return self._settings.is_kill and self._cluster is not None

    async def _load(self, incidents: LedgerWriter) -> None:
        """Wait until locust has ended and the killed node runs again; pass an interrupt on to locust."""

        def on_incident(text: str) -> None:
            incidents.add(Incident(at_s=time.monotonic(), text=text))
            tqdm.write(text, file=sys.stderr)

        is_due, is_over = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            failover = None
            if self._has_kill and self._cluster is not None:
                nemesis = Failover(
                    self._cluster, self._settings.topic, on_incident, self._settings.down_s
                )
                failover = tasks.create_task(nemesis.run(is_due, is_over))
            await self._wait_out(is_due)
            is_over.set()
            if failover is not None and not is_due.is_set():
                failover.cancel()

    async def _wait_out(self, is_due: asyncio.Event) -> None:
        run_time_s = self._settings.run_time_s
        began = time.monotonic()
        is_told = False
        with tqdm(total=math.ceil(run_time_s), desc="load", unit="s", bar_format=BAR) as bar:
            while self._locust.is_running:
                passed = time.monotonic() - began
                bar.update(min(int(passed), bar.total) - bar.n)
                if passed > KILL_AT * run_time_s:
                    is_due.set()
                if self._asked.is_set() and not is_told:
                    is_told = True
                    self._locust.interrupt()
                if passed > run_time_s + END_TIMEOUT_S:
                    raise LoadError(f"locust does not end; see {self._log}")
                await asyncio.sleep(POLL_S)

    async def _test_ended(self, ledgers: Path) -> bool:
        """Wait until a test has ended; return False if locust ended and there is no further test."""
        is_told = False
        while not is_complete(ledgers):
            if not self._locust.is_running:
                if not self._asked.is_set():
                    raise LoadError(f"locust has ended:\n{self._locust.log_tail()}")
                return bool(ledger_files(ledgers))
            if self._asked.is_set() and not is_told:
                is_told = True
                self._locust.interrupt()
            await asyncio.sleep(POLL_S)
        return True

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if not self._locust.is_running or time.monotonic() > deadline:
                raise LoadError(f"locust does not start:\n{self._locust.log_tail()}")
            await asyncio.sleep(POLL_S)


async def report(settings: Settings, urls: tuple[str, ...], ledgers: Path, directory: Path) -> int:
    """Judge the ledgers, write the report, and print the table; return the exit code.

    Raises:
        LedgerError: a ledger cannot be read.
    """
    planter = Planter(settings.plant)
    verdict = await judge(ledgers, urls, planter=planter, credentials=settings.credentials)
    timeline = timeline_of(read_all(ledgers))
    summary = Summary(
        settings=settings.described(),
        verdict=verdict,
        timeline=timeline,
        planted=planter.planted,
    )
    plots = draw(timeline, directory, title=title(settings, summary))
    (directory / "summary.md").write_text(summary.markdown(plots), encoding="utf-8")
    (directory / "summary.json").write_text(summary.as_json(), encoding="utf-8")
    print("", *summary.lines(), f"\n{summary.headline}", sep="\n")
    print(f"Report: {directory}/summary.md, {', '.join(plots)}")
    if planter.is_missing:
        print("Nothing could be planted: the run proves nothing.")
        return EXIT_FAILED
    if verdict.faults:
        return EXIT_BAD_DATA
    return EXIT_GOOD if verdict.is_conclusive else EXIT_FAILED


def title(settings: Settings, summary: Summary) -> str:
    """Return the title of the plots: the load and its result."""
    where = ", ".join(settings.urls) or "three nodes on one machine"
    return (
        f"{summary.headline}\n{where}, {settings.users} users, acks={settings.acks}, "
        f"{settings.record_bytes} B a record, batches of {settings.batch_records}"
    )


BAR = "{desc:<6} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} s"
