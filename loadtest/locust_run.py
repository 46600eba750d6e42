"""One test in one locust process: its options, its ledger, and the state that its users share.

Locust creates the users itself, so they find the test through ``Current``. Locust's events open and close the test.
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
"""The low bits of a user's id that are its number in its process; the high bits are the process's random number."""


LOG = logging.getLogger(__name__)
EXIT_FAILED = 2


class StartError(Exception):
    """A test cannot start; the message says why."""


def add_arguments(parser: LocustArgumentParser, **_: object) -> None:
    """Add the settings to locust's command line and web page."""
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
    """A test in this process, from its start to its stop."""

    def __init__(self, host: str | None, options: Namespace, directory: Path) -> None:
        """``options`` are those of ``add_arguments``."""
        self.options = options
        self.nodes = node_urls(host or "", options.nodes)
        self.path = f"/topics/{quote(options.topic, safe='')}"
        try:
            self.headers = headers_of(credentials_of(os.environ))
            self.starts = end_offsets(self.nodes, self.path, self.headers)
        except BadCredentialsError as error:
            raise StartError(error.message) from error
        self.ledger = LedgerWriter(directory / f"{os.getpid()}.ledger")
        self.ledger.add(
            Opened(
                at_s=time.monotonic(), topic=options.topic, acks=options.acks, starts=self.starts
            )
        )
        self._process_id = int.from_bytes(os.urandom(4))
        self._numbers = count()
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()

    def new_user(self) -> tuple[int, int]:
        """Return the number of a new user in this process, and an id that is unique among all processes."""
        number = next(self._numbers)
        return number, self._process_id << USER_BITS | number % (1 << USER_BITS)

    def stop(self) -> None:
        """Note that users are told to finish, and the CPU that they have used until now."""
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
    """The current test of this process, and the number of tests so far."""

    run: LocustRun | None = None
    number = 0


def follow_master(environment: Environment, **_: object) -> None:
    """Make a worker process of ``--processes`` end with its master; locust would let it run for another minute."""
    is_forked = getattr(environment.parsed_options, "processes", None)
    if is_forked and isinstance(environment.runner, WorkerRunner):
        die_with_parent()


def tell_the_time(**_: object) -> None:
    """Update the event loop's cached time. After a slow start it is old, and locust's run time would count from it."""
    gevent.get_hub().loop.update_now()


def open_run(environment: Environment, **_: object) -> None:
    """Create the ledger and the state of a test. A locust master has no users, so it needs neither."""
    Current.number += 1
    runner = environment.runner
    if runner is None or isinstance(runner, MasterRunner):
        return
    options = environment.parsed_options
    assert options is not None, "locust parses the command line first"
    try:
        directory = Path(options.ledger) / f"run-{Current.number}"
        Current.run = LocustRun(environment.host, options, directory)
    except StartError as error:
        # Locust only logs an exception of a listener. The users would then idle until the end of the test.
        LOG.error("the test cannot start: %s", error)
        environment.process_exit_code = EXIT_FAILED
        gevent.spawn(runner.quit if environment.web_ui is None else runner.stop)


def note_stopping(**_: object) -> None:
    """Note that users finish their requests from now on: fewer requests are then no fault of the cluster."""
    if Current.run is not None:
        Current.run.stop()


def close_run(**_: object) -> None:
    """Close the ledger."""
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
    """A response, from locust's client; status 0 if none arrived."""

    status: int
    body: bytes
    error: Exception | None

    @classmethod
    def of(cls, response: ResponseContextManager) -> Self:
        """Return locust's response, with its body."""
        try:
            body = response.content or b""
        except FAILURE_EXCEPTIONS as error:
            # The connection broke within the body.
            return cls(status=0, body=b"", error=error)
        return cls(status=response.status_code, body=body, error=getattr(response, "error", None))

    @property
    def trouble(self) -> str:
        """Return why the request failed."""
        if self.status:
            return f"HTTP {self.status} {self.body[:200].decode(errors='replace')}"
        return f"{type(self.error).__name__}: {self.error}"


def node_urls(host: str, more: str) -> list[str]:
    """Return ``--host`` and ``--nodes`` as URLs without a trailing slash, in order and without duplicates."""
    given = [host, *more.split(",")]
    return list(dict.fromkeys(url.strip().rstrip("/") for url in given if url.strip()))


def end_offsets(nodes: list[str], path: str, headers: Mapping[str, str]) -> dict[int, int]:
    """Return the current end offset of each partition: records of this run get these offsets or higher ones.

    Raises:
        StartError: no node responds, or the topic does not exist.
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
