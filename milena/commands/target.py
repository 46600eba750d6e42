"""The target of every command: the cluster that it calls, and the exit codes of its errors."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import click

from milena.client import Client
from milena.cluster.admin import AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.http_connection import Origin
from milena.cluster.routing import normalise_url
from milena.cluster.view import ClusterView
from milena.errors import (
    BadCredentialsError,
    ClientError,
    CredentialsRefusedError,
    TargetExistsError,
    TargetNotFoundError,
    UnknownResultError,
    UnreachableError,
)

EXIT_DEGRADED = 1
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 2
EXIT_UNKNOWN = 3
EXIT_NOT_FOUND = 4
EXIT_EXISTS = 5
EXIT_USAGE = 64
EXIT_MISSING_EXTRA = 69
EXIT_INTERRUPTED = 130

_EXIT_CODES: tuple[tuple[type[ClientError], int], ...] = (
    (BadCredentialsError, EXIT_USAGE),
    (UnreachableError, EXIT_UNREACHABLE),
    (UnknownResultError, EXIT_UNKNOWN),
    (TargetNotFoundError, EXIT_NOT_FOUND),
    (TargetExistsError, EXIT_EXISTS),
)

C = TypeVar("C")
T = TypeVar("T")


class NoSuchPartitionError(click.ClickException):
    """The topic exists, but not the named partition."""

    exit_code = EXIT_NOT_FOUND


def no_such_partition(topic: str, count: int, partition: int) -> NoSuchPartitionError:
    """Return the error for a partition of a topic that has ``count`` partitions."""
    return NoSuchPartitionError(f"topic '{topic}' has partitions 0 to {count - 1}, not {partition}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """The node to call, the timeout, and the credentials."""

    url: str
    timeout_s: float
    credentials: Credentials = ANONYMOUS
    credentials_from: str | None = None
    """The profile that names the caller, and its file; None if options, variables or none do."""

    def run(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Run one piece of administration with its own client."""
        return self._run(AdminClient, work)

    def run_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run one piece of work with records."""
        return self._run(Client, work)

    def _run(
        self,
        open_client: Callable[..., AbstractAsyncContextManager[C]],
        work: Callable[[C], Awaitable[T]],
    ) -> T:
        async def inside() -> T:
            async with open_client(
                self.url, timeout_s=self.timeout_s, credentials=self.credentials
            ) as client:
                return await work(client)

        try:
            return asyncio.run(inside())
        except CredentialsRefusedError as error:
            if self.credentials_from is not None:
                error.add_note(f"these are of {self.credentials_from}")
            raise

    def cluster(self) -> ClusterView:
        """Return the view of the cluster; warn on standard error if the view may be outdated."""
        view = self.run(lambda client: client.cluster())
        self.warn_if_old(view)
        return view

    def warn_if_old(self, view: ClusterView) -> None:
        """Say on standard error if a view may be outdated."""
        if not view.is_current:
            click.echo(
                f"no majority of the metadata quorum answers: this is what {self.url} knew last",
                err=True,
            )


def url_fault(text: str) -> str | None:
    """Return why a text is not the URL of a node, or None if it is one: a scheme, a host, and optionally a port."""
    try:
        origin = Origin.of(normalise_url(text))
    except ValueError as error:
        return str(error)
    if origin.base_path or "?" in text or "#" in text:
        place = f"[{origin.host}]" if ":" in origin.host else origin.host
        return f"paths are the client's to add: say {origin.scheme}://{place}:{origin.port}"
    return None


def exit_code(error: ClientError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_REFUSED)


def told(error: ClientError) -> str:
    """Return an error's message for people, and the id under which nodes log the request."""
    message = error.message
    if isinstance(error, CredentialsRefusedError):
        options = "on the command line: --user and --password-file, or --token-file"
        message = f"{message} ({'; '.join([options, *getattr(error, '__notes__', ())])})"
    if error.request_id is None:
        return message
    return f"{message} (request {error.request_id})"
