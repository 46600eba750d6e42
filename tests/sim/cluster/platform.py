"""Simulated hardware for production code: calls to the machine go to the simulated process that runs now.

The list in this module is complete: files, threads, sockets, clocks, random numbers, the exit of a process, and the
HTTP server, instead of which clients call its ports. Everything else is the production object (``PRODUCTION``; a test
checks that).
"""

import asyncio
import contextlib
import gc
import hashlib
import hmac
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import raft_meta.consensus.core
import raft_meta.consensus.library
import raft_meta.consensus.raft_quorum
import raft_meta.consensus.transport
import raft_meta.consensus.wal
import raft_meta.machine.apply
import storage.log.partition_log
import storage.replica.recovery
from http_api.ports.node import Ports
from milena.model.types import MonotonicMs, WallMs
from node import wiring
from node.control import controller, membership
from node.metadata import store as metadata
from node.metadata import topic_settings
from node.metadata.audit_lines import AuditLines
from node.peers import link as peer_link
from node.peers import port as peer
from node.peers import sockets as peer_sockets
from node.process import memory
from node.replica import follower, follower_log, leader
from node.replica import runner as partition_runner
from node.replication import fetch_server, fetcher
from node.replication import local_replicas as replicas
from node.services import produce, reads
from node.services.transactions import service as transactions
from raft_meta.consensus import driver, frames, raft_quorum, transport, wal
from storage.log import flushing, log_compaction
from storage.log import state as log_state
from storage.replica import data_directory
from storage.replica import folder as replica_folder
from storage.segments import log_config, segment
from tests.sim.cluster.threads import Process, Scheduler
from tests.sim.cluster.wires import NetLoop, SimSocket, Wires

PRODUCTION: dict[str, Any] = {
    "state machine": raft_meta.machine.apply.apply,
    "metadata machine": metadata.MetadataMachine,
    "raft core": raft_meta.consensus.core.RaftCore,
    "library": raft_meta.consensus.library.Library,
    "raft log": raft_meta.consensus.wal.Wal,
    "quorum": raft_meta.consensus.raft_quorum.RaftQuorum,
    "raft transport": raft_meta.consensus.transport.Transport,
    "driver": driver.Driver,
    "partition log": storage.log.partition_log.PartitionLog,
    "recovery": storage.replica.recovery.recover,
    "data directory": data_directory.DataDirectory,
    "leader": leader.PartitionLeader,
    "follower": follower.plan_truncation,
    "partition runner": partition_runner.PartitionRunner,
    "fetcher": fetcher.LeaderFetcher,
    "fetch server": fetch_server.FetchServer,
    "replicas": replicas.LocalReplicas,
    "controller": controller.Controller,
    "membership": membership.Membership,
    "produce": produce.ProduceService,
    "reads": reads.ReadService,
    "peer client": peer.PeerClient,
    "peer server": peer.PeerServer,
    "peer link": peer_link.CallerLink,
    "node": wiring.Node,
}
"""The classes of a simulated node, by their production names."""

WATCHED = (
    partition_runner.PartitionRunner,
    leader.PartitionLeader,
    follower_log.FollowerLog,
    storage.log.partition_log.PartitionLog,
    log_state.LogState,
    flushing.Flushing,
    replica_folder.ReplicaFiles,
    log_compaction.LogCompaction,
)
"""The classes of which replicas consist. After an event that assigned one of their attributes, the checker runs."""

CAN_WATCH = not any(
    (sys.modules[kind.__module__].__file__ or "").endswith(".so") for kind in WATCHED
)
"""Whether assignments can be observed. Compiled classes do not allow that; then the checker runs after every event."""

SMALL = 1 << 12
"""Sizes of segments and preallocation, so small that files often grow, roll and fill up."""


CHECK_IMAGE_MS = 500
"""The time in ms between two comparisons of all nodes' images, short enough for many comparisons in each run."""

OWNED_TIMEOUT_MS = 5_000
"""The timeout of a transaction in one request, so short that some transactions of a run reach it."""


class SimClock:
    """A ``milena.model.clock.Clock`` with the process's time; its wall clock may be wrong, and can be set."""

    def __init__(self, process: Process, skew_ms: Callable[[], int]) -> None:
        self._process = process
        self._skew_ms = skew_ms

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(int(self._process.monotonic() * 1000))

    def wall_ms(self) -> WallMs:
        return WallMs(self.true_ms() + self._skew_ms())

    def true_ms(self) -> WallMs:
        """Return the wall time of a correct clock."""
        return WallMs(1_700_000_000_000 + int(self._process.scheduler.now * 1000))

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(max(0.0, ms / 1000))


class _Thread:
    """Replaces ``threading.Thread``: the scheduler runs the thread's loop."""

    def __init__(self, **named: object) -> None:
        del named
        self._is_alive = False

    def start(self) -> None:
        self._is_alive = True

    def is_alive(self) -> bool:
        return self._is_alive

    def join(self) -> None:
        self._is_alive = False


class _Pool:
    """Replaces a pool of threads: the simulated loop runs the jobs."""

    def __init__(self, *numbers: object, **named: object) -> None:
        del numbers, named

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: no thread runs."""

    def submit(self, job: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Run a job like a pool. The result is set on the loop, at the latest time at which a thread could set it."""
        future: Future[Any] = Future()

        def on_done(done: "asyncio.Future[Any]") -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        asyncio.get_running_loop().run_in_executor(None, job, *args).add_done_callback(on_done)
        return future


class _Sockets:
    """Replaces the module ``socket``."""

    def __init__(self, scheduler: Scheduler, wires: Wires) -> None:
        self._scheduler = scheduler
        self._wires = wires

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *kinds: object) -> SimSocket:
        del kinds
        process = _running(self._scheduler)
        return SimSocket(self._wires, process, process.host)

    def getaddrinfo(self, host: str, port: int, **named: object) -> list[Any]:
        del named
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


class _ApiSite:
    """Replaces the HTTP server."""

    def __init__(self, *parts: object, **named: object) -> None:
        del parts, named

    async def start(self) -> None:
        """Do nothing: clients call the ports."""


class _ApiRunner:
    """Keeps the ports for the clients of the simulation."""

    async def setup(self) -> None:
        """Do nothing: there is no socket to bind."""

    async def cleanup(self) -> None:
        """Do nothing: there is nothing to close."""


def _keyed(key: bytes, message: bytes, name: str) -> bytes:
    """Replaces an HMAC by a keyed hash of the same length, for a fifth of its cost."""
    del name
    return hashlib.blake2b(message, key=key[:64], digest_size=32).digest()


class _FrameMac:
    """Replaces the HMAC of frames in the same way."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def digest(self, covered: bytes) -> bytes:
        return hashlib.blake2b(covered, key=self._key, digest_size=frames.MAC_BYTES).digest()


class _SettingsOfNodes(dict[Any, Any]):
    """Replaces a cache of the process, so that each simulated node has its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def get(self, topic_id: str, default: Any = None) -> Any:
        return super().get((self._scheduler.current, topic_id), default)

    def __setitem__(self, topic_id: str, entry: Any) -> None:
        super().__setitem__((self._scheduler.current, topic_id), entry)


def _running(scheduler: Scheduler) -> Any:
    assert scheduler.current is not None, "no process runs"
    return scheduler.current


def _patches(scheduler: Scheduler, wires: Wires) -> list[tuple[object, str, object]]:
    sockets = _Sockets(scheduler, wires)

    def die(error: BaseException) -> None:
        _running(scheduler).exit(error)

    def build_runner(ports: Ports, **named: object) -> _ApiRunner:
        del named
        _running(scheduler).ports = ports
        return _ApiRunner()

    def audit_lines(path: Path | None, *, mark: Path) -> AuditLines:
        # The class would write the mark to the disk of the machine that runs the simulation.
        del mark
        return AuditLines(path)

    def touch(target: object, name: str, value: object, assign: Any = object.__setattr__) -> None:
        assign(target, name, value)
        process = scheduler.current
        if process is not None:
            process.is_touched = True

    def new_id() -> SimpleNamespace:
        return SimpleNamespace(hex=f"{scheduler.rng.getrandbits(128):032x}")

    return [
        (asyncio, "new_event_loop", lambda: _running(scheduler).loop()),
        (driver, "threading", SimpleNamespace(Thread=_Thread)),
        (wiring, "OsFiles", lambda: _running(scheduler).files),
        (wiring, "ThreadPoolExecutor", _Pool),
        (wiring, "SyncThreads", _Pool),
        (wiring, "AuditLines", audit_lines),
        (wiring, "die", die),
        (wiring, "uuid", SimpleNamespace(uuid4=new_id)),
        (wiring, "socket", sockets),
        (wiring, "build_runner", build_runner),
        (wiring, "web", SimpleNamespace(SockSite=_ApiSite, ServerRunner=_ApiRunner)),
        # Patch the function in its module: a compiled caller does not look up its own name for it.
        (secrets, "token_bytes", scheduler.rng.randbytes),
        (frames, "hmac", SimpleNamespace(digest=_keyed, compare_digest=hmac.compare_digest)),
        (frames, "_FrameMac", _FrameMac),
        (topic_settings, "_parsed", _SettingsOfNodes(scheduler)),
        (peer_sockets, "socket", sockets),
        (transport, "socket", sockets),
        (segment, "ALLOCATION_BYTES_MIN", SMALL),
        (controller, "CHECK_IMAGE_MS", CHECK_IMAGE_MS),
        (transactions, "OWNED_TIMEOUT_MS", OWNED_TIMEOUT_MS),
        # The memory that this process keeps depends on earlier runs; report none.
        (memory, "kept_bytes", lambda: 0),
        *((kind, "__setattr__", touch) for kind in WATCHED),
    ]


def _defaults(log_bytes_max: int) -> list[tuple[dict[str, Any], str, object]]:
    """Return the default sizes in production code to replace."""
    functions: list[tuple[Any, str, object]] = [
        (wal.Wal.__init__, "room_step_bytes", SMALL),
        (wal.Wal.__init__, "reserve_bytes", SMALL // 4),
        (raft_quorum.QuorumConfig.__init__, "log_bytes_max", log_bytes_max),
        (data_directory.DataDirectory.open.__func__, "reserve_bytes", SMALL),  # type: ignore[attr-defined]
        (log_config.LogConfig.__init__, "preallocate_bytes", SMALL),
        (log_config.LogConfig.__init__, "checkpoint_bytes", 4 * SMALL),
    ]
    # The defaults of a compiled function cannot be replaced; it keeps production's sizes.
    return [
        (function.__kwdefaults__, name, value)
        for function, name, value in functions
        if hasattr(function, "__kwdefaults__")
    ]


@contextlib.contextmanager
def simulated(scheduler: Scheduler, wires: Wires, *, log_bytes_max: int) -> Iterator[None]:
    """Run production code on simulated hardware during the block.

    Garbage of ended processes is kept until the end: a collection would run their ``finally`` blocks at any moment.
    """
    undo: list[Callable[[], None]] = []
    try:
        for target, name, value in _patches(scheduler, wires):
            undo.append(_put_back(target, name))
            setattr(target, name, value)
        for defaults, name, value in _defaults(log_bytes_max):
            undo.append(partial(defaults.update, {name: defaults[name]}))
            defaults[name] = value

        def clock() -> float:
            current = scheduler.current
            return 0.0 if current is None else current.monotonic()

        gc.disable()
        with raft_meta.consensus.library.use_clock(clock):
            yield
    finally:
        for action in reversed(undo):
            action()
        gc.enable()


def _put_back(target: object, name: str) -> Callable[[], None]:
    """Return a function that undoes an assignment; an attribute that a class inherited is inherited again."""
    if name not in vars(target):
        return lambda: delattr(target, name)
    before = getattr(target, name)
    return lambda: setattr(target, name, before)


def quiet() -> None:
    """Disable the nodes' log output."""
    logging.disable(logging.CRITICAL)


def net_loop(process: Process) -> NetLoop:
    """Return a thread of a node, with network."""
    return NetLoop(process)  # type: ignore[abstract]  # only on paper
