"""Write real records to three nodes, each exactly once, kill a leader meanwhile, and read everything back.

    python -m loadtest.demo [--input FILE] [--keep] [--records N]

Exit codes: 0 every record came back exactly once and in order; 1 one did not; 2 the cluster or the input failed;
130 and 143 Ctrl-C and SIGTERM ended it.
"""

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import aiohttp
import click
from tqdm import tqdm

from loadtest.cluster.failover import Failover
from loadtest.cluster.local_cluster import ClusterError, LocalCluster, LocalNode
from loadtest.judging.tally import Tally, TallyVerdict
from loadtest.records.pages import Page
from loadtest.records.reader import Reader, ReadError
from loadtest.records.source import JSON_TYPE, Source, SourceError, flights, lines
from loadtest.records.writer import Progress, write_all
from milena.client import Client
from milena.cluster.admin import AdminClient
from milena.errors import ClientError

PARTITIONS = 6
REPLICATION_FACTOR = 3
BATCH_BYTES = 512 << 10
REQUEST_TIMEOUT_S = 10.0
"""The timeout of a page of records, in s: longer than a failover that may be in progress."""
KILL_AT = 0.4
"""The leader is killed when this share of the records is acknowledged."""
LOGGED_EVERY_S = 5.0
"""How often the progress bar is drawn if the output is no terminal, in s."""
EXIT_GOOD, EXIT_BAD_DATA, EXIT_FAILED = 0, 1, 2

BAR = "{desc:<8} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} records  {rate_fmt}  {elapsed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The options of the command line."""

    source: Source
    topic: str
    directory: Path
    is_kept: bool


async def demonstrate(settings: DemoSettings) -> int:
    """Run the whole demonstration; return the exit code."""
    for old in settings.directory.glob("node*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    print(f"starting three nodes, data and logs in {settings.directory}/")
    async with LocalCluster(settings.directory) as cluster:
        verdict = await write_and_check(cluster, settings)
        if settings.is_kept:
            print_commands(cluster, settings)
            print("\nThe cluster stays up until Ctrl-C.")
            await interrupted()
        else:
            print("\nmake demo KEEP=1 leaves the cluster up, and names commands to go on with.")
        await cluster.stop()
    return EXIT_GOOD if verdict.is_good else EXIT_BAD_DATA


async def write_and_check(cluster: LocalCluster, settings: DemoSettings) -> TallyVerdict:
    """Write, kill and restart a leader, read back, and print the result; return the verdict."""
    source, tally = settings.source, Tally()
    async with AdminClient(cluster.nodes[0].url) as admin:
        await admin.create_topic(
            settings.topic, partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR
        )
    progress, failover = await write(cluster, settings, tally)
    limits = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=2)
    async with aiohttp.ClientSession(timeout=limits) as session:
        reader_node = next(n for n in reversed(cluster.nodes) if n is not failover.killed)
        began = time.monotonic()
        with progress_bar("read", source.count) as bar:

            def on_page(partition: int, page: Page) -> None:
                for record in page.records:
                    tally.read(partition, record.offset, record.key, record.value)
                bar.update(len(page.records))

            reader = Reader(session, [reader_node.url], settings.topic)
            await reader.read_all(on_page)
        read_s = time.monotonic() - began
    verdict = tally.verdict()
    print_report(verdict, progress, read_s, reader_node)
    return verdict


async def write(
    cluster: LocalCluster, settings: DemoSettings, tally: Tally
) -> tuple[Progress, Failover]:
    """Write the source while a leader is killed; return when that node is ready again."""
    source = settings.source
    is_due, is_written = asyncio.Event(), asyncio.Event()
    failover = Failover(cluster, settings.topic, lambda text: tqdm.write(text, file=sys.stderr))
    with progress_bar("write", source.count) as bar:

        def on_acknowledged(records: int) -> None:
            bar.update(records)
            if progress.records >= KILL_AT * source.count:
                is_due.set()

        progress = Progress(time.monotonic, on_acknowledged)
        urls = [node.url for node in cluster.nodes]
        async with (
            Client(urls) as client,
            client.producer(batch_bytes=BATCH_BYTES) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(failover.run(is_due, is_written))
            await write_all(producer, settings.topic, source, progress, lambda r: tally.wrote(*r))
            is_written.set()
    return progress, failover


def progress_bar(name: str, count: int) -> "tqdm[None]":
    """Return a bar on standard error; it is drawn less often if that is no terminal."""
    interval_s = 0.2 if sys.stderr.isatty() else LOGGED_EVERY_S
    return tqdm(
        total=count, desc=name, bar_format=BAR, unit="", mininterval=interval_s, maxinterval=60
    )


def print_report(verdict: TallyVerdict, progress: Progress, read_s: float, node: LocalNode) -> None:
    """Print a short table of the result."""
    megabytes = progress.value_bytes / 1e6
    write_s, read_s = max(progress.seconds, 1e-9), max(read_s, 1e-9)
    rows = (
        ("written, acks=all", f"{verdict.written:,} records, {megabytes:.1f} MB"),
        (
            "write rate",
            f"{verdict.written / write_s:,.0f} records/s, {megabytes / write_s:.1f} MB/s",
        ),
        ("longest write gap", f"{progress.longest_gap_s:.2f} s, a leader's death included"),
        (f"read back from node {node.node_id}", f"{verdict.read:,} records"),
        ("read rate", f"{verdict.read / read_s:,.0f} records/s, {megabytes / read_s:.1f} MB/s"),
        (
            "missing / doubled / foreign",
            f"{verdict.missing} / {verdict.doubled} / {verdict.foreign}",
        ),
        ("keys out of order", f"{verdict.keys_out_of_order}"),
    )
    print()
    for name, text in rows:
        print(f"  {name:<28} {text}")
    for problem in verdict.problems():
        print(f"  FAILED: {problem}")
    print("\nEvery record came back exactly once, in order." if verdict.is_good else "\nFAILED")


def print_commands(cluster: LocalCluster, settings: DemoSettings) -> None:
    """Print commands to try next."""
    base = f"{cluster.nodes[0].url}/topics/{settings.topic}"
    body = '{"records":[{"key":"N1","value":{"hello":"world"}}]}'
    page = f"{base}/partitions/0/records?offset=0&max_bytes=1000"
    # Look beside this Python: the virtual environment that ``make`` uses may not be on PATH.
    milena = Path(sys.executable).with_name("milena")
    if milena.is_relative_to(Path.cwd()):
        milena = milena.relative_to(Path.cwd())
    print(f"""
Go on with:

  {milena} --url {cluster.nodes[0].url} status
  curl {base}
  curl -H 'Accept: {settings.source.media_type}' '{page}'
  curl -H 'Content-Type: {JSON_TYPE}' -d '{body}' {base}""")


async def unless_terminated(settings: DemoSettings) -> int:
    """Run the demonstration; return its exit code. SIGTERM cancels it, like Ctrl-C, so that its nodes end first."""
    task = asyncio.current_task()
    assert task is not None, "called in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demonstrate(settings)


async def interrupted() -> None:
    """Wait until Ctrl-C or SIGTERM."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()


def limited(source: Source, records: int | None) -> Source:
    """Return a source with at most ``records`` records."""
    if records is None or records >= source.count:
        return source
    return Source(
        name=source.name,
        count=records,
        media_type=source.media_type,
        open=lambda: islice(source.open(), records),
    )


def topic_of(source: Source) -> str:
    """Return a valid topic name, made from the source's name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in source.name)
    return kept.strip(".") or "input"


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions in a group and in the groups inside it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


@click.command()
@click.option("--input", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Write this file, a record a line, instead of the flights.")  # fmt: skip
@click.option("--keep", "is_kept", is_flag=True, help="Leave the cluster up until Ctrl-C.")
@click.option("--records", type=click.IntRange(min=1), help="Only the first N records.")
@click.option("--directory", type=click.Path(path_type=Path), default=Path("demo-data"),
              show_default=True, help="Data and logs of the nodes; an earlier run's are removed.")  # fmt: skip
def main(path: Path | None, is_kept: bool, records: int | None, directory: Path) -> None:
    """Write real records to a cluster of three nodes, kill a leader, read everything back."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        source = limited(flights() if path is None else lines(path), records)
        settings = DemoSettings(
            source=source, topic=topic_of(source), directory=directory, is_kept=is_kept
        )
        code = asyncio.run(unless_terminated(settings))
    except* (SourceError, ClusterError, ClientError, ReadError) as group:
        for error in leaves(group):
            print(f"demo: {error}", file=sys.stderr)
        code = EXIT_FAILED
    except* KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        code = 128 + signal.SIGINT
    except* asyncio.CancelledError:
        print("demo: terminated", file=sys.stderr)
        code = 128 + signal.SIGTERM
    sys.exit(code)


if __name__ == "__main__":
    main()
