"""``milena bench``: measures how fast a cluster is, as one client sees it."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import click

from milena.client import Client
from milena.commands import output
from milena.commands.benchmarks.runs import (
    BenchBound,
    BenchResult,
    bench_consume,
    bench_latency,
    bench_produce,
)
from milena.commands.options import JSON, NAME, Amount, CommandGroup, Duration, Rate
from milena.commands.producing.produce import ACKS
from milena.commands.target import ClusterTarget, exit_code, told
from milena.producing.options import COMPRESSIONS, ProducerKeywords, ProducerOptions

F = TypeVar("F", bound=Callable[..., object])

_DEFAULTS = ProducerOptions()
_SECONDS = 10.0
_SIZE_MAX = 8 << 20

_COUNT = click.option("--records", type=Amount(min=1), metavar="N", help="Stop after N records.")
_SECONDS_OPTION = click.option("--seconds", type=Duration("s", least=0.1, most=86_400), metavar="S",
                               help="Stop after this time.  [default: 10, unless --records]")  # fmt: skip
_ACKS = click.option("--acks", type=click.Choice(["all", "1"]), default="all", show_default=True,
                     help="Replicas that must have a record: all in sync, or the leader.")  # fmt: skip
# Records are recognised by their bytes. Sixteen random bytes do not repeat.
_SIZE = click.option("--size", type=Amount(min=16, max=_SIZE_MAX), default=100, metavar="BYTES",
                     show_default=True, help="The size of each value, which is random bytes.")  # fmt: skip


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure writes, reads, and the time between the two, this client included.

    The written records stay in the topic: use a separate topic, and delete it afterwards.
    """


def _bound(records: int | None, seconds: float | None) -> BenchBound:
    is_unbound = records is None and seconds is None
    return BenchBound(records=records, seconds=_SECONDS if is_unbound else seconds)


def _report(
    target: ClusterTarget, work: Callable[[Client], Awaitable[BenchResult]], *, is_json: bool
) -> None:
    result = target.run_client(work)
    output.show(is_json, result.as_json(), result.text())
    if result.first_error is not None:
        click.echo(f"milena: {told(result.first_error)}", err=True)
        raise click.exceptions.Exit(exit_code(result.first_error))


@bench.command("produce")
@click.argument("topic", type=NAME)
@_COUNT
@_SECONDS_OPTION
@_SIZE
@_ACKS
@click.option("--batch-bytes", type=Amount(min=1 << 10, max=32 << 20), metavar="BYTES",
              default=_DEFAULTS.batch_bytes, show_default=True, help="The largest size of a batch.")  # fmt: skip
@click.option("--linger-ms", type=Duration("ms", most=60_000), metavar="MS",
              default=_DEFAULTS.linger_ms, show_default=True,
              help="The longest time that a record waits for others.")  # fmt: skip
@click.option("--compression", type=click.Choice(list(COMPRESSIONS)),
              default=_DEFAULTS.compression, show_default=True, help="Compression of each batch.")  # fmt: skip
@click.option("--rate", type=Rate(min=0, min_open=True, max=10_000_000), metavar="N",
              help="Records a second.  [default: as many as the cluster takes]")  # fmt: skip
@JSON
@click.pass_obj
def produce_bench(
    target: ClusterTarget,
    *,
    topic: str,
    records: int | None,
    seconds: float | None,
    size: int,
    acks: str,
    batch_bytes: int,
    linger_ms: float,
    compression: str,
    rate: float | None,
    is_json: bool,
) -> None:
    """Write random records to TOPIC, which must exist.

    Latency is measured only with --rate. Without it, the client's buffer is always full, and records wait there.
    """
    keywords = ProducerKeywords(
        acks=ACKS[acks],
        batch_bytes=batch_bytes,
        buffer_bytes=max(_DEFAULTS.buffer_bytes, 4 * batch_bytes),
        linger_ms=linger_ms,
        compression=compression,
    )

    async def work(client: Client) -> BenchResult:
        return await bench_produce(
            client,
            topic,
            keywords,
            bound=_bound(records, seconds),
            size=size,
            rate=rate,
            chance=Random(),
        )

    _report(target, work, is_json=is_json)


@bench.command("consume")
@click.argument("topic", type=NAME)
@_COUNT
@_SECONDS_OPTION
@JSON
@click.pass_obj
def consume_bench(
    target: ClusterTarget, topic: str, records: int | None, seconds: float | None, is_json: bool
) -> None:
    """Read TOPIC from its first records, all partitions at once, to its end or to the given limit."""
    bound = _bound(records, seconds)
    _report(
        target,
        lambda client: bench_consume(client, topic, bound=bound, chance=Random()),
        is_json=is_json,
    )


@bench.command("latency")
@click.argument("topic", type=NAME)
@_COUNT
@_SECONDS_OPTION
@_SIZE
@_ACKS
@click.option("--rate", type=Rate(min=0, min_open=True, max=100_000), metavar="N",
              default=100.0, show_default=True, help="Records a second.")  # fmt: skip
@JSON
@click.pass_obj
def latency_bench(
    target: ClusterTarget,
    *,
    topic: str,
    records: int | None,
    seconds: float | None,
    size: int,
    acks: str,
    rate: float,
    is_json: bool,
) -> None:
    """Write to partition 0 of TOPIC at a steady rate, and read it at the same time.

    Reports how long records take until they are acknowledged, and until they are read; both from the time when they
    were due.
    """

    async def work(client: Client) -> BenchResult:
        return await bench_latency(
            client,
            topic,
            ProducerKeywords(acks=ACKS[acks], linger_ms=0),
            bound=_bound(records, seconds),
            size=size,
            rate=rate,
            chance=Random(),
        )

    _report(target, work, is_json=is_json)
