"""A local cluster in the foreground: a process for each node, their output with a prefix, one Ctrl-C for all.

The parent holds only the processes. If you kill a node, the others continue: that is the purpose of a local cluster.
Children end with the parent, even if the parent is killed.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

from milena.model.clock import SystemClock
from milena.model.errors import StartupError
from node.config.sources import flag_of
from node.process.announce import ANNOUNCE

EXIT_ALL_ENDED = 1
EXIT_REFUSED = 78
DRAIN_MS = 2_000
"""Drain timeout. It is short, because nodes that all stop at once cannot pass their leadership to another node."""
GRACE_MS = 10_000
"""Time from SIGTERM to SIGKILL: for the drain, then syncs and checkpoints."""
PORTS_APART = 5
"""Least distance of the base ports: the largest number of nodes. Closer ones would make API and peer ports collide."""
PIECE_BYTES = 64 << 10
READY_POLL_MS = 200
READY_TIMEOUT_S = 2.0
_MERE_WARNING = re.compile(r"\S+Z (debug|info|warning) ")
"""The beginning of a node's log line that is no error."""
_PR_SET_PDEATHSIG = 1
# Loaded at import, because no import may happen between fork and exec.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One process to run."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    url: str
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that choose the code to run. They are not settings of the user."""

    @property
    def command(self) -> str:
        """Return the shell command that starts such a process."""
        chosen = [f"{name}={value}" for name, value in self.chosen.items()]
        return shlex.join((*(("env", *chosen) if chosen else ()), *self.arguments))


def plan_nodes(
    *,
    count: int,
    data_dir: Path,
    base_port: int,
    base_peer_port: int,
    base_kafka_port: int | None = None,
    options: Mapping[str, str],
    environment: Mapping[str, str],
    chosen: Mapping[str, str],
) -> tuple[NodePlan, ...]:
    """Return the processes of a local cluster; create the data directory and the secret that its nodes share.

    ``base_kafka_port``: the port of node 1 for Kafka clients; None: no Kafka interface. ``options``: further settings
    by name, the same for every node. ``environment``: the variables that the processes inherit, except settings of a
    node. ``chosen``: variables that choose the code that they run.

    Raises:
        StartupError: ports that collide, or a directory that cannot be written.
    """
    bases = [base_port, base_peer_port, *(() if base_kafka_port is None else (base_kafka_port,))]
    for one, other in combinations(bases, 2):
        if abs(one - other) < PORTS_APART:
            raise StartupError(
                f"base ports {one} and {other} are closer than {PORTS_APART}: "
                "the nodes' ports would collide"
            )
    secret_file = data_dir.absolute() / "cluster-secret"
    _write_secret(secret_file)
    peers = ",".join(f"{i}=127.0.0.1:{base_peer_port + i - 1}" for i in range(1, count + 1))
    inherited = {k: v for k, v in environment.items() if not k.startswith("MILENA_")}
    plans = []
    for node_id in range(1, count + 1):
        settings = {
            "node_id": str(node_id),
            "data_dir": str(data_dir.absolute() / f"node-{node_id}"),
            "listen": f"127.0.0.1:{base_port + node_id - 1}",
            "peer_listen": f"127.0.0.1:{base_peer_port + node_id - 1}",
            "peers": peers,
            "cluster_secret_file": str(secret_file),
            "drain_timeout_ms": str(DRAIN_MS),
        }
        if base_kafka_port is not None:
            settings["kafka_listen"] = f"127.0.0.1:{base_kafka_port + node_id - 1}"
        plans.append(
            NodePlan(
                name=f"node-{node_id}",
                # -P: Python must not import a folder "node" of the user's directory instead of this package.
                arguments=(
                    *(sys.executable, "-P", "-m", "node", "start"),
                    *_flags({**settings, **options}),
                ),
                environment={**inherited, **chosen, "PYTHONUNBUFFERED": "1", ANNOUNCE: "no"},
                url=f"http://127.0.0.1:{base_port + node_id - 1}",
                chosen=chosen,
            )
        )
    return tuple(plans)


def _flags(settings: Mapping[str, str]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flag = flag_of(name)
        if value in {"true", "false"}:
            flags.append(flag if value == "true" else f"--no-{flag.removeprefix('--')}")
        else:
            flags += [flag, value]
    return flags


def _write_secret(path: Path) -> None:
    """Create the secret, unless it exists; only its owner may read it."""
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write the cluster secret {path}: {error}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


def check_ports(
    *, count: int, base_port: int, base_peer_port: int, base_kafka_port: int | None = None
) -> None:
    """Refuse ports that another process has.

    Raises:
        StartupError: a port is taken; the message names the option that chooses another one.
    """
    for option, base in (
        ("--base-port", base_port),
        ("--base-peer-port", base_peer_port),
        ("--base-kafka-port", base_kafka_port),
    ):
        if base is None:
            continue
        for port in range(base, base + count):
            with socket.socket() as probe:
                # A node binds with this option, too: connections of a former run do not block the port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise StartupError(
                        f"cannot listen on 127.0.0.1:{port}: {error.strerror}; free the port, or give another "
                        f"{option} than {base}"
                    ) from error


def next_steps(
    plans: Sequence[NodePlan], password_file: str | None, kafka_port: int | None = None
) -> str:
    """Return the text that ends the start: where clients reach the cluster, and three commands to try."""
    kafka = "" if kafka_port is None else f", Kafka clients 127.0.0.1:{kafka_port}"
    options = f" --url {plans[0].url}"
    if password_file is not None:
        options += f" --user admin --password-file {shlex.quote(password_file)}"
    return (
        f"ready: {len(plans)} node{'s' * (len(plans) > 1)}, console {plans[0].url}/console/{kafka}. "
        "Try in another terminal:\n"
        f"  milena topics create greetings --if-not-exists{options}\n"
        f"  echo hello | milena produce greetings{options}\n"
        f"  milena consume greetings{options}\n"
    )


async def run_nodes(
    plans: Sequence[NodePlan],
    *,
    write: Callable[[str], object],
    ready_text: str = "",
    has_quiet_stop: bool = False,
) -> int:
    """Run the processes until SIGINT or SIGTERM, or until all have ended; return the exit code.

    ``ready_text`` is written once, when all nodes are ready. ``has_quiet_stop``: while all nodes stop, show only their
    errors. They warn of each other's end then.

    A node that refuses to start stops them all: its settings are wrong, and so are the others'.
    """
    cluster = _NodeProcesses(write, has_quiet_stop=has_quiet_stop)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cluster.stop, 0)
    try:
        return await cluster.run(plans, ready_text)
    finally:
        cluster.kill()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _NodeProcesses:
    """The running processes."""

    def __init__(self, write: Callable[[str], object], *, has_quiet_stop: bool) -> None:
        self._write = write
        self._has_quiet_stop = has_quiet_stop
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._exit_code = EXIT_ALL_ENDED
        self._is_stopping = False
        self._grace: asyncio.TimerHandle | None = None

    async def run(self, plans: Sequence[NodePlan], ready_text: str) -> int:
        """Start everything and wait for its end."""
        width = max(len(plan.name) for plan in plans)
        telling = asyncio.create_task(self._tell_ready(plans, ready_text))
        try:
            async with asyncio.TaskGroup() as group:
                for plan in plans:
                    process = await self._spawn(plan)
                    group.create_task(self._follow(plan, process, f"{plan.name:<{width}} | "))
                self._write(f"console url={plans[0].url}/console/\n")
        finally:
            telling.cancel()
            if self._grace is not None:
                self._grace.cancel()
        return self._exit_code

    def stop(self, exit_code: int) -> None:
        """Ask every process to end, once; the first call decides the exit code."""
        if self._is_stopping:
            return
        self._is_stopping, self._exit_code = True, exit_code
        self._write("stopping\n")
        self._signal(signal.SIGTERM)
        self._grace = asyncio.get_running_loop().call_later(GRACE_MS / 1000, self.kill)

    def kill(self) -> None:
        """Kill the processes that still run."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _tell_ready(self, plans: Sequence[NodePlan], text: str) -> None:
        if not text:
            return
        clock = SystemClock()
        for plan in plans:
            while not await _is_ready(plan.url):
                await clock.sleep(READY_POLL_MS)
        self._write(text)

    async def _spawn(self, plan: NodePlan) -> asyncio.subprocess.Process:
        parent = os.getpid()
        process = await asyncio.create_subprocess_exec(
            *plan.arguments,
            env=plan.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A Ctrl-C must reach only the parent: a second signal would end a node without a clean stop.
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )
        self._running[plan.name] = process
        if self._is_stopping:
            process.terminate()
        self._write(f"{plan.name} pid={process.pid} url={plan.url}\n")
        return process

    async def _follow(
        self, plan: NodePlan, process: asyncio.subprocess.Process, prefix: str
    ) -> None:
        assert process.stdout is not None, "stdout is a pipe"
        await _copy_lines(process.stdout, prefix, self._write, self._is_shown)
        code = await process.wait()
        del self._running[plan.name]
        if self._is_stopping:
            return
        if code != EXIT_REFUSED:
            self._write(f"{plan.name} ended {_how(code)}; start it again with: {plan.command}\n")
            return
        self._write(
            f"{plan.name} refuses to start; its last line says why. All nodes stop, and none runs then. Correct the "
            "cause and run milena dev again. If a port is taken, free it, or give another --base-port or "
            "--base-peer-port\n"
        )
        self.stop(EXIT_REFUSED)

    def _is_shown(self, line: str) -> bool:
        is_quiet = self._is_stopping and self._has_quiet_stop
        return not (is_quiet and _MERE_WARNING.match(line))


async def _is_ready(url: str) -> bool:
    place = urlsplit(url)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                request = (
                    f"GET /readyz HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
                )
                writer.write(request.encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except OSError:
        return False


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    return f"by {signal.Signals(-code).name}"


async def _copy_lines(
    stream: asyncio.StreamReader,
    prefix: str,
    write: Callable[[str], object],
    is_shown: Callable[[str], bool],
) -> None:
    """Copy whole lines that are to be shown, each with a prefix; a line longer than the buffer is broken."""
    rest = b""
    while piece := await stream.read(PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) >= PIECE_BYTES:
            lines, rest = [*lines, rest], b""
        if shown := [text for line in lines if is_shown(text := _text(line))]:
            write("".join(f"{prefix}{text}\n" for text in shown))
    if rest and is_shown(_text(rest)):
        write(f"{prefix}{_text(rest)}\n")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _die_with(parent: int) -> None:
    """Make the kernel kill this process when the parent ends; end now if it has ended. Runs between fork and exec."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(EXIT_ALL_ENDED)
