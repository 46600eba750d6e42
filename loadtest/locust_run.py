"""One test in one locust process: its options, its ledger, and what its users share.

Locust makes users by itself, so they look for their run in ``Current``. Locust's events open and close it.
"""

import http.client
import json
import logging
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from ssl import SSLContext
from typing import Self
from urllib.parse import quote, urlsplit

import gevent
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS, ResponseContextManager
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.cluster.access import credentials_of, headers_of
from loadtest.cluster.node_process import die_with_parent
from loadtest.judging.ledger import LedgerWriter, Opened, Spent, Stopping
from milena.errors import BadCredentialsError

REQUEST_TIMEOUT_S = 12.0
USER_BITS = 20
"""The bits of a user's id for the user; the other bits are for its process."""


LOG = logging.getLogger(__name__)
EXIT_FAILED = 2


class StartError(Exception):
    """A test cannot begin; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings from the command line or the web page; the options say what each is."""

    topic: str
    nodes: str
    acks: str
    record_bytes: int
    batch_records: int
    keys: int
    think_ms: float
    seed: int
    ledger: str

    @classmethod
    def of(cls, options: Namespace | None) -> Self:
        """From locust's options."""
        assert options is not None, "locust parses the command line first"
        return cls(**{name: getattr(options, name) for name in cls.__slots__})


def add_arguments(parser: LocustArgumentParser, **_: object) -> None:
    """Knobs of the load, in locust's command line and in its web page."""
    add = parser.add_argument
    add("--topic", default="loadtest", help="topic to write and read; it must exist")
    add("--nodes", default="", help="URLs of more nodes, separated by commas")
    add("--acks", default="all", choices=["all", "1", "0"], help="what an answer promises")
    add("--record-bytes", type=int, default=100, help="size of a value")
    add("--batch-records", type=int, default=100, help="records of a batch request")
    add("--keys", type=int, default=1000, help="number of different keys; 0: no keys")
    add("--think-ms", type=float, default=0.0, help="pause of a writer between two requests")
    add("--seed", type=int, default=1, help="of keys and padding")
    add("--ledger", default="ledger", include_in_web_ui=False,
        help="folder of ledgers; each test gets a folder run-N in it")  # fmt: skip


class LocustRun:
    """From start to stop of a test in this process."""

    def __init__(self, host: str | None, knobs: Knobs, directory: Path) -> None:
        self.knobs = knobs
        self.nodes = node_urls(host or "", knobs.nodes)
        self.path = f"/topics/{quote(knobs.topic, safe='')}"
        try:
            self.headers = headers_of(credentials_of(os.environ))
            self.starts = end_offsets(self.nodes, self.path, self.headers)
        except BadCredentialsError as error:
            raise StartError(error.message) from error
        self.ledger = LedgerWriter(directory / f"{os.getpid()}.ledger")
        self.ledger.add(
            Opened(at_s=time.monotonic(), topic=knobs.topic, acks=knobs.acks, starts=self.starts)
        )
        self._process_id = int.from_bytes(os.urandom(4))
        self._numbers = count()
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()

    def new_user(self) -> tuple[int, int]:
        """A user's number in this process, and its id among the users of all processes."""
        number = next(self._numbers)
        return number, self._process_id << USER_BITS | number % (1 << USER_BITS)

    def stop(self) -> None:
        """Note that users are told to end, and what they have taken of a core until then."""
        now_s, cpu_s = time.monotonic(), time.process_time() - self._began_cpu_s
        self.ledger.add(Spent(since_s=self._began_s, at_s=now_s, cpu_s=cpu_s))
        self.ledger.add(Stopping(at_s=now_s))


@cache
def tls_context() -> SSLContext:
    """Return the TLS context of users: the authorities that they trust, and their certificate.

    Raises:
        BadCredentialsError: a file cannot be used.
    """
    return credentials_of(os.environ).tls_context()


class Current:
    """The run of this process, and how many there were."""

    run: LocustRun | None = None
    number = 0


def follow_master(environment: Environment, **_: object) -> None:
    """A worker that ``--processes`` forked ends with its master; locust would let it go on for a minute."""
    is_forked = getattr(environment.parsed_options, "processes", None)
    if is_forked and isinstance(environment.runner, WorkerRunner):
        die_with_parent()


def tell_the_time(**_: object) -> None:
    """Where a start took long, the loop's clock stands at its last turn; locust's run time would count from there."""
    gevent.get_hub().loop.update_now()


def open_run(environment: Environment, **_: object) -> None:
    """Begin a ledger. A master has no users, so it needs none."""
    Current.number += 1
    runner = environment.runner
    if runner is None or isinstance(runner, MasterRunner):
        return
    knobs = Knobs.of(environment.parsed_options)
    try:
        Current.run = LocustRun(
            environment.host, knobs, Path(knobs.ledger) / f"run-{Current.number}"
        )
    except StartError as error:
        # What a listener raises is logged by locust and forgotten; its users would idle to the end.
        LOG.error("the test cannot start: %s", error)
        environment.process_exit_code = EXIT_FAILED
        gevent.spawn(runner.quit if environment.web_ui is None else runner.stop)


def note_stopping(**_: object) -> None:
    """Users end their requests one by one from now on: that they grow quiet says nothing of the cluster."""
    if Current.run is not None:
        Current.run.stop()


def close_run(**_: object) -> None:
    """End the ledger."""
    if Current.run is not None:
        Current.run.ledger.close()
        Current.run = None


for hook, listener in (
    (events.init_command_line_parser, add_arguments),
    (events.init, follow_master),
    (events.init, tell_the_time),
    (events.test_start, open_run),
    (events.test_stopping, note_stopping),
    (events.test_stop, close_run),
):
    hook.add_listener(listener)  # type: ignore[no-untyped-call]  # locust's hooks have no types


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer, as locust's client has it; status 0: none came."""

    status: int
    body: bytes
    error: Exception | None

    @classmethod
    def of(cls, response: ResponseContextManager) -> Self:
        """From locust's response, the body read."""
        try:
            body = response.content or b""
        except FAILURE_EXCEPTIONS as error:
            # It broke off in the middle.
            return cls(status=0, body=b"", error=error)
        return cls(status=response.status_code, body=body, error=getattr(response, "error", None))

    @property
    def trouble(self) -> str:
        """Why it is no success."""
        if self.status:
            return f"HTTP {self.status} {self.body[:200].decode(errors='replace')}"
        return f"{type(self.error).__name__}: {self.error}"


def node_urls(host: str, more: str) -> list[str]:
    """``--host`` and ``--nodes`` as URLs without a trailing slash, each once, in order."""
    given = [host, *more.split(",")]
    return list(dict.fromkeys(url.strip().rstrip("/") for url in given if url.strip()))


def end_offsets(nodes: list[str], path: str, headers: Mapping[str, str]) -> dict[int, int]:
    """Partition → end offset now: this run's records stand from there on.

    Raises:
        StartError: no node answers, or there is no such topic.
        BadCredentialsError: a certificate cannot be used.
    """
    trouble = "no node was named: --host"
    for node in nodes:
        try:
            return _end_offsets(node, f"{path}/partitions", headers)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            trouble = f"{node}: {error}"
    raise StartError(trouble)


def _end_offsets(node: str, path: str, headers: Mapping[str, str]) -> dict[int, int]:
    where = urlsplit(node)
    host, timeout_s = where.hostname or "", REQUEST_TIMEOUT_S
    connection = (
        http.client.HTTPSConnection(host, where.port, timeout=timeout_s, context=tls_context())
        if where.scheme == "https"
        else http.client.HTTPConnection(host, where.port, timeout=timeout_s)
    )

    def get(path: str) -> bytes:
        connection.request("GET", where.path + path, headers=dict(headers))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status} {body[:200].decode(errors='replace')}")
        return body

    try:
        numbers = [item["partition"] for item in json.loads(get(path))]
        return {p: json.loads(get(f"{path}/{p}/offsets"))["end_offset"] for p in numbers}
    finally:
        connection.close()
