"""The commands that run nodes: ``milena start`` and ``milena dev``.

Exit codes: 0: stopped on request; 70: a broken invariant or a failed disk; 78: the node refuses to start, and one line
says why.
"""

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from milena.model.errors import CorruptLogError, StartupError
from node.config.docs import default_text
from node.config.options import OPTIONS, NodeConfig
from node.config.rules import warnings_of
from node.config.sources import flag_of, load_config
from node.process import dev as dev_cluster
from node.process.announce import ANNOUNCE, announcement
from node.process.callbacks import contain_callbacks
from node.process.logs import configure_logs

log = logging.getLogger("node")

EXIT_FATAL = 70
EXIT_REFUSED = 78
"""EX_CONFIG of sysexits.h: a supervisor should not retry with the same settings."""
EXIT_UNREACHED = 75
"""EX_TEMPFAIL of sysexits.h: no node of the cluster responds, and a supervisor should retry."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MALLOC_SETTINGS = (
    (_M_TRIM_THRESHOLD, 512 << 20),
    (_M_TOP_PAD, 32 << 20),
    (_M_MMAP_THRESHOLD, 32 << 20),
)

F = TypeVar("F", bound=Callable[..., object])


def config_options(command: F) -> F:
    """Give a command a flag for every setting, made from the settings' metadata."""
    # click shows options in the reverse order of their decorators.
    for name in reversed(OPTIONS):
        if not OPTIONS[name].is_secret:
            command = _flag(name)(command)
    return command


def _flag(name: str) -> Callable[[F], F]:
    meta = OPTIONS[name]
    flag, doc = flag_of(name), meta.doc.replace("`", "")
    text = f"{doc} [{meta.kind.allowed}; default: {default_text(name).replace('`', '')}]"
    if meta.kind.is_switch:
        switch = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(switch, name, default=None, help=text)
    return click.option(flag, name, default=None, metavar=meta.kind.placeholder, help=text)


@click.command(
    epilog="Every flag is also a TOML key and a MILENA_* variable; docs/configuration.md has the table."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="MILENA_CONFIG",
    help="TOML file with settings; variables and flags win over it.",
)
@config_options
def start(config_file: Path | None, **flags: object) -> None:
    """Run one node in the foreground. On its own, it is a complete single-node cluster."""
    try:
        config = load_config(config_file, os.environ, flags)
        raise SystemExit(run_node(config))
    except StartupError as error:
        click.echo(f"milena: cannot start: {error.message}", err=True)
        raise SystemExit(EXIT_UNREACHED if error.is_temporary else EXIT_REFUSED) from None


def run_node(config: NodeConfig) -> int:
    """Run a node until SIGTERM or SIGINT; return the exit code.

    Raises:
        StartupError: the node refuses to start.
    """
    import uvloop  # noqa: PLC0415 - `milena dev` and `--help` do without

    configure_logs(level=config.log_level, form=config.log_format)
    for warning in warnings_of(config):
        log.warning(warning)
    raise_malloc_thresholds()
    # The event loop policy creates the quorum's loop, on its own thread.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        uvloop.run(_run(config))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        refusal = _refusal(error)
        if refusal is not None:
            raise refusal from None
        log.critical("fatal error=%s", error, exc_info=error)
        return EXIT_FATAL
    return 0


async def _run(config: NodeConfig) -> None:
    from node import wiring  # noqa: PLC0415 - the whole server; `milena dev` does without

    stop = asyncio.Event()
    _stop_on_signals(stop)
    building = asyncio.ensure_future(wiring.build_node(config))
    stopping = asyncio.ensure_future(stop.wait())
    # A node that joins a cluster first waits for one of its nodes, for a minute. A signal ends that.
    await asyncio.wait((building, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not building.done():
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)
        return
    try:
        node = await building
        contain_callbacks(asyncio.get_running_loop(), node.counts.contained)
        await node.start()
    except CorruptLogError as error:
        # The next start would read the same bytes. An older copy lacks what this node has acknowledged since.
        raise StartupError(
            f"{error}: start with an empty data directory and let the other nodes fill it, "
            "or restore the directories of all nodes from a backup"
        ) from error
    if os.environ.get(ANNOUNCE) != "no":
        _say(f"{announcement(config, node.url)}\n")
    await node.serve(stop)


def _say(text: str) -> None:
    """Write to standard output. Nodes also run without one."""
    if sys.__stdout__ is not None:
        click.echo(text, nl=False)


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Stop gracefully on the first signal, and end the process on the second."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


def _refusal(error: BaseException) -> StartupError | None:
    """Return the refusal to start within an error, which a task group may have wrapped."""
    if isinstance(error, StartupError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_refusal, error.exceptions)), None)
    return None


def raise_malloc_thresholds() -> None:
    """Keep freed memory of large bodies in the process, if glibc is the allocator.

    By default, glibc maps and unmaps every block above 128 KB. Each body of 1 MB then causes page faults, which cost
    more than moving its bytes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOC_SETTINGS:
            mallopt(parameter, value)


def _compiled_environment() -> Mapping[str, str]:
    """Return variables under which nodes run the compiled tree. Without that tree or a checkout there are none.

    The demo and load tests use the same ones.
    """
    try:
        import build_support  # noqa: PLC0415 - lies beside the packages of a checkout, and in no wheel
    except ModuleNotFoundError:
        return {}
    return build_support.chosen_environment()


@click.command(context_settings={"show_default": True})
@click.option(
    "--nodes",
    "node_count",
    type=click.Choice(["1", "3", "5"]),
    default="3",
    help="The number of nodes.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("milena-dev"),
    help="Holds a directory for each node, and the cluster secret.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65_000),
    default=8082,
    metavar="PORT",
    help="API port of node 1; the others follow.",
)
@click.option(
    "--base-peer-port",
    type=click.IntRange(1, 65_000),
    default=7082,
    metavar="PORT",
    help="Peer port of node 1; the others follow.",
)
@click.option(
    "--kafka/--no-kafka",
    "has_kafka",
    default=False,
    help="Let Kafka clients in, too. Needs milena-node[kafka].",
)
@click.option(
    "--base-kafka-port",
    type=click.IntRange(1, 65_000),
    default=9092,
    help="Kafka port of node 1; the others follow.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="Lowest severity that the nodes log.",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=True,
    help="Create a topic when a client writes to it.",
)
@click.option(
    "--admin-password-file",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="Ask for credentials. The file has the password of the first user, admin.",
)
def dev(
    *,
    node_count: str,
    data_dir: Path,
    base_port: int,
    base_peer_port: int,
    has_kafka: bool,
    base_kafka_port: int,
    log_level: str,
    auto_create_topics: bool,
    admin_password_file: Path | None,
) -> None:
    """Run a local cluster in the foreground, with one process per node. Ctrl-C stops them all."""
    password_file = None if admin_password_file is None else str(admin_password_file)
    kafka_port = base_kafka_port if has_kafka else None
    closed = {} if password_file is None else {"admin_password_file": password_file}
    try:
        dev_cluster.check_ports(
            count=int(node_count),
            base_port=base_port,
            base_peer_port=base_peer_port,
            base_kafka_port=kafka_port,
        )
        plans = dev_cluster.plan_nodes(
            count=int(node_count),
            data_dir=data_dir,
            base_port=base_port,
            base_peer_port=base_peer_port,
            base_kafka_port=kafka_port,
            options={
                "log_level": log_level,
                "auto_create_topics": "true" if auto_create_topics else "false",
                **closed,
            },
            environment=os.environ,
            chosen=_compiled_environment(),
        )
    except StartupError as error:
        click.echo(f"milena: cannot start: {error.message}", err=True)
        raise SystemExit(EXIT_REFUSED) from None
    text = dev_cluster.next_steps(plans, password_file, kafka_port)
    is_quiet = log_level in {"warning", "error"}
    running = dev_cluster.run_nodes(plans, write=_say, ready_text=text, has_quiet_stop=is_quiet)
    raise SystemExit(asyncio.run(running))
