"""``milena produce``: writes lines from standard input or a file to a topic."""

import asyncio
import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Literal

import click

from milena.client import Client
from milena.commands import output
from milena.commands.options import (
    NAME,
    SEPARATOR,
    Amount,
    Duration,
    Number,
    Parsed,
    Rate,
    parse_pair,
)
from milena.commands.producing.json_lines import JsonLines, partitions_needed
from milena.commands.producing.line_producer import LineOptions, LineProducer, SendPort
from milena.commands.producing.line_source import STANDARD_INPUT, BadSourceError, LineSource
from milena.commands.producing.lines import LineParser, LineRule, LineSplitter
from milena.commands.producing.named_lines import NamedLines
from milena.commands.producing.tally import ProduceTally, counted
from milena.commands.standard_streams import DaemonThread
from milena.commands.target import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    ClusterTarget,
    NoSuchPartitionError,
    exit_code,
    no_such_partition,
    told,
)
from milena.errors import TargetNotFoundError
from milena.model.clock import SystemClock
from milena.producing.named import check_name
from milena.producing.options import COMPRESSIONS, ProducerKeywords, ProducerOptions

_DEFAULTS = ProducerOptions()
ACKS: dict[str, Literal["all", 1, 0]] = {"all": "all", "1": 1, "0": 0}
_PACKED_SUFFIX = ".gz"


def _header(text: str) -> tuple[str, bytes]:
    name, value = parse_pair(text)
    return name, value.encode()


@click.command()
@click.argument("topic", type=NAME)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True),
                default=STANDARD_INPUT)  # fmt: skip
@click.option("--gzip", "is_packed", is_flag=True,
              help="Unpack the input with gzip; the default for a FILE that ends in .gz.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["value", "json"]), default="value",
              show_default=True, help="Each line is a value, or a record of consume --format json.")  # fmt: skip
@click.option("--key-separator", type=SEPARATOR, metavar="TEXT",
              help=r"Each line is KEY, this text, VALUE; escapes such as \t work.")  # fmt: skip
@click.option("--key-field", metavar="PATH",
              help="Each line is JSON; the key is the field at this dotted path.")  # fmt: skip
@click.option("--header", "headers", multiple=True, type=Parsed(_header), metavar="NAME=VALUE",
              help="Add this header to every record; may be repeated.")  # fmt: skip
@click.option(
    "--null-marker", metavar="TEXT", help="Write a tombstone for a value that is exactly this text."
)
@click.option("--on-bad-line", type=click.Choice(["fail", "skip"]), default="fail",
              show_default=True, help="Stop at a line without a key, or skip it.")  # fmt: skip
@click.option("--partition", "-p", type=Number(min=0), metavar="N",
              help="Write everything to this partition.  [default: by key, else in turns]")  # fmt: skip
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True,
              help="Replicas that must have a record: all in sync, the leader, or none.")  # fmt: skip
@click.option("--compression", type=click.Choice(list(COMPRESSIONS)),
              default=_DEFAULTS.compression, show_default=True, help="Compression of each batch.")  # fmt: skip
@click.option("--batch-bytes", type=Amount(min=1 << 10, max=32 << 20), metavar="BYTES",
              default=_DEFAULTS.batch_bytes, show_default=True, help="The largest size of a batch.")  # fmt: skip
@click.option("--linger-ms", type=Duration("ms", most=3_600_000), metavar="MS",
              default=_DEFAULTS.linger_ms, show_default=True,
              help="The longest time that a record waits for others.")  # fmt: skip
@click.option("--rate", type=Rate(min=0, min_open=True, max=10_000_000), metavar="N",
              help="The most records a second.  [default: as many as the cluster takes]")  # fmt: skip
@click.option("--no-idempotent", is_flag=True,
              help="Do not number batches: a retry may then write a record twice.")  # fmt: skip
@click.option("--transactional", metavar="ID",
              help="Write all lines or none, in one transaction of this name, at most 15 minutes long.")  # fmt: skip
@click.option("--name", metavar="NAME",
              help="Continue where the last run of this name stopped: each record is written once.")  # fmt: skip
@click.option("--timeout", "delivery_s", type=Duration("s", least=0.1, most=86_400),
              metavar="SECONDS", default=_DEFAULTS.delivery_timeout_ms / 1000, show_default=True,
              help="The longest time until a record is acknowledged, with all retries.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True,
              help="Print a summary as JSON, for programs.")  # fmt: skip
@click.pass_obj
def produce(
    target: ClusterTarget,
    *,
    topic: str,
    file: str,
    is_packed: bool,
    form: str,
    key_separator: bytes | None,
    key_field: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    null_marker: str | None,
    on_bad_line: str,
    partition: int | None,
    acks: str,
    compression: str,
    batch_bytes: int,
    linger_ms: float,
    rate: float | None,
    no_idempotent: bool,
    transactional: str | None,
    name: str | None,
    delivery_s: float,
    is_json: bool,
) -> None:
    """Write each line of FILE, or of standard input, to TOPIC as one record.

    The bytes of a line are kept, without the line feed at its end. Exits with 0 if every line was acknowledged;
    otherwise it names the first line that was not.
    """
    rule = _parser(form, key_separator=key_separator, key_field=key_field, null_marker=null_marker)
    if form == "json" and name is not None:
        # A run of records with the same time would be a transaction of its own.
        raise click.UsageError("give one of --format json and --name")
    options = LineOptions(
        topic=topic,
        rule=rule,
        partition=partition,
        headers=headers,
        is_skipping_bad_lines=on_bad_line == "skip",
        rate=rate,
    )
    keywords = ProducerKeywords(
        acks=ACKS[acks],
        compression=compression,
        batch_bytes=batch_bytes,
        # The buffer must hold at least one batch. With room for four, others gather while one is in flight.
        buffer_bytes=max(_DEFAULTS.buffer_bytes, 4 * batch_bytes),
        linger_ms=linger_ms,
        idempotent=not no_idempotent,
        delivery_timeout_ms=delivery_s * 1000,
    )
    if transactional is not None and name is not None:
        raise click.UsageError("give one of --transactional and --name")
    if (transactional is not None or name is not None) and (acks != "all" or no_idempotent):
        option = "--transactional" if name is None else "--name"
        raise click.UsageError(f"{option} needs --acks all, and numbered batches")
    try:
        if name is not None:
            check_name(name)
        ProducerOptions(**keywords)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    run = ProduceRun(options, keywords, transactional_id=transactional, name=name)
    try:
        with LineSource(file, is_packed=is_packed or file.endswith(_PACKED_SUFFIX)) as source:
            target.run_client(lambda client: run.run(client, source))
    except BadSourceError as error:
        run.report(is_json=is_json)
        raise click.ClickException(str(error)) from error
    run.report(is_json=is_json)
    code = report_trouble(run.tally, is_named=name is not None)
    if code:
        raise click.exceptions.Exit(code)


def _parser(
    form: str, *, key_separator: bytes | None, key_field: str | None, null_marker: str | None
) -> LineParser:
    if key_separator is not None and key_field is not None:
        raise click.UsageError("give one of --key-separator and --key-field")
    rule = LineRule(
        key_separator=key_separator,
        key_field=None if key_field is None else tuple(key_field.split(".")),
        null_marker=None if null_marker is None else null_marker.encode(),
    )
    if form != "json":
        return rule
    if rule != LineRule():
        raise click.UsageError(
            "with --format json a line has its key: leave out --key-separator, --key-field and --null-marker"
        )
    return JsonLines()


TRANSACTION_TIMEOUT_MS = 900_000
"""The longest timeout of a transaction, in ms, because a file may be large."""


class _NotWholeError(Exception):
    """Not all lines were written: the transaction must not commit."""


class ProduceRun:
    """One run, and its results, even if it does not reach its end."""

    def __init__(
        self,
        options: LineOptions,
        keywords: ProducerKeywords,
        *,
        transactional_id: str | None = None,
        name: str | None = None,
    ) -> None:
        self.tally = ProduceTally()
        self._transactional_id = transactional_id
        self._name = name
        self._options = options
        self._keywords = keywords
        self._clock = SystemClock()
        self._begun_ms = self._clock.now_ms()

    async def run(self, client: Client, source: LineSource) -> None:
        """Send everything and wait for it."""
        count = await check_place(client, self._options.topic, self._options.partition)
        is_placed_by_lines = isinstance(self._options.rule, JsonLines)
        if count is not None and is_placed_by_lines and self._options.partition is None:
            await check_lines(source, self._options.topic, count)
        self._begun_ms = self._clock.now_ms()
        if self._name is not None:
            await self._run_named(client, self._name, source)
        elif self._transactional_id is not None:
            await self._run_whole(client, self._transactional_id, source)
        else:
            async with client.producer(**self._keywords) as producer:
                await self._send(self._options, producer, source)

    async def _run_named(self, client: Client, name: str, source: LineSource) -> None:
        """Write the records that are not written yet; each piece of the input is one transaction.

        Raises:
            BadSourceError: the input has fewer records than were written.
        """
        async with client.named_producer(name, self._options.topic, **self._keywords) as producer:
            before = producer.position
            options = dataclasses.replace(self._options, written_before=before)
            await self._send(options, NamedLines(producer), source)
        if self.tally.is_whole and self.tally.left_out < before:
            raise BadSourceError(
                f"{before} records of {name} are written to {options.topic}, and the input has "
                f"{self.tally.left_out}: it is not the one of before; give another input another --name"
            )

    async def _run_whole(self, client: Client, transactional_id: str, source: LineSource) -> None:
        """Write all lines or none."""
        transactions = client.transactional_producer(
            transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS, **self._keywords
        )
        try:
            async with transactions.transaction() as transaction:
                await self._send(self._options, transaction, source)
                if not self.tally.is_whole:
                    raise _NotWholeError
        except _NotWholeError:
            self.tally.is_aborted = True

    async def _send(self, options: LineOptions, producer: SendPort, source: LineSource) -> None:
        lines = LineProducer(options, producer, self._clock)
        self.tally = lines.tally
        with stopping_on_interrupt(lines.stop), progress_bar(source) as on_progress:
            await lines.run(source, on_progress)

    def report(self, *, is_json: bool) -> None:
        """Print the summary: a line for people, or JSON for programs."""
        elapsed_ms = self._clock.now_ms() - self._begun_ms
        if is_json:
            click.echo(output.as_json(self.tally.summary_json(elapsed_ms)))
        else:
            click.echo(self.tally.summary_text(elapsed_ms), err=True)


async def check_place(client: Client, topic: str, partition: int | None) -> int | None:
    """Refuse a partition that the topic does not have, before the input is read; return how many the topic has.

    A missing topic may be created by the first record; the producer finds that out. The result is then None.
    """
    try:
        count = await client.metadata.partition_count(topic)
    except TargetNotFoundError:
        return None
    if partition is not None and partition >= count:
        raise no_such_partition(topic, count, partition)
    return count


async def check_lines(source: LineSource, topic: str, count: int) -> None:
    """Refuse a file with a record for a partition that the topic does not have, before the first record is written.

    The file is read twice. A pipe cannot be: there, the run stops at the record.
    """
    if not source.can_rewind:
        return
    splitter, needed = LineSplitter(), count
    with DaemonThread("check") as thread:
        while piece := (await thread.call(source.read))[0]:
            needed = partitions_needed(splitter.feed(piece), needed)
    needed = partitions_needed(splitter.end(), needed)
    if needed > count:
        raise NoSuchPartitionError(
            f"{source.name} has records for partition {needed - 1}, and topic {topic} has partitions 0 to {count - 1}: "
            f"nothing was written; first say milena topics alter {topic} --partitions {needed}"
        )
    source.rewind()


def report_trouble(tally: ProduceTally, *, is_named: bool) -> int:
    """Report what went wrong, if anything; return the exit code."""
    if tally.first_failure is not None:
        line, error = tally.first_failure
        resume = _how_to_resume(tally, line, is_named=is_named)
        why = told(error).removesuffix(".")
        click.echo(f"milena: line {line} was not acknowledged: {why}; {resume}", err=True)
        return exit_code(error)
    if tally.bad_line is not None and not tally.skipped:
        click.echo(
            f"milena: line {tally.bad_line.line}: {tally.bad_line.reason}; "
            f"{counted(tally.written, 'record')} before it written",
            err=True,
        )
        return EXIT_REFUSED
    if tally.is_interrupted:
        fate = "of which none is written" if tally.is_aborted else "which is written"
        click.echo(f"milena: interrupted after line {tally.lines}, {fate}", err=True)
        return EXIT_INTERRUPTED
    return 0


def _how_to_resume(tally: ProduceTally, line: int, *, is_named: bool) -> str:
    written = f"{counted(tally.written, 'record')} written"
    if is_named:
        return f"{written}: to go on, repeat the run with the same --name"
    if tally.is_aborted or tally.unsent_line != line or tally.failed > 1:
        return written
    if not tally.written:
        return f"{written}: correct the cause, and repeat the run"
    return f"{written}, all from lines before it: to go on, give the input from line {line} on (tail -n +{line})"


@contextmanager
def stopping_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Stop reading at the first Ctrl-C, and still send what was read; the second Ctrl-C ends the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def progress_bar(source: LineSource) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how far the run is in the file, and how fast."""
    if source.size_bytes is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    # Loading tqdm takes longer than writing a small file.
    tqdm = import_module("tqdm").tqdm
    with tqdm(
        desc="produce", total=source.size_bytes, unit="B", unit_scale=True, file=sys.stderr
    ) as bar:

        def on_progress(position: int) -> None:
            bar.update(position - bar.n)

        yield on_progress
