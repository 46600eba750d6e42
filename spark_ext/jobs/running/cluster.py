"""The cluster and the credentials of a job: the options of its command line, named like those of ``milena``.

The command line overrides the environment (variables such as ``MILENA_TOKEN_FILE``). Spark gets both as options of the
data source.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

import click

from milena.client import Client
from milena.cluster.credentials import ANONYMOUS, FILES, Credentials, nearer, texts_of
from milena.cluster.routing import NodeRoutes
from spark_ext.options.credentials import options_of

DEFAULT_URL = "http://127.0.0.1:8082"

FILE = click.Path(dir_okay=False)

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCluster:
    """The URLs of nodes of a cluster, and the credentials to use."""

    urls: tuple[str, ...]
    credentials: Credentials = ANONYMOUS

    def client(self) -> Client:
        """Return a client for the job's own requests."""
        return Client(self.urls, credentials=self.credentials)

    def options(self) -> dict[str, str]:
        """Return the URLs and credentials as options of ``format("milena")``."""
        return {"url": ",".join(self.urls), **options_of(self.credentials)}


_OPTIONS = (
    click.option("--url", "urls", multiple=True, envvar="MILENA_URL", default=(DEFAULT_URL,),
                 show_default=True, metavar="URL", help="Any node; may be repeated."),
    click.option("--token-file", type=FILE, metavar="FILE",
                 help="Ask with the token in this file; or MILENA_TOKEN."),
    click.option("--user", metavar="NAME", help="Ask as this user, with a password."),
    click.option("--password-file", type=FILE, metavar="FILE",
                 help="The user's password; or MILENA_PASSWORD."),
    click.option("--ca", type=FILE, metavar="FILE",
                 help="PEM of who signed the nodes' certificates."),
    click.option("--cert", type=FILE, metavar="FILE", help="PEM of a certificate to show to nodes."),
    click.option("--key", type=FILE, metavar="FILE", help="PEM of its key, unless that is with it."),
)  # fmt: skip

_CREDENTIALS = ("token_file", "user", "password_file", "ca", "cert", "key")
"""The parameters of all of these options but the first."""


def cluster_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command these options; it gets them as ``cluster``, a ``JobCluster``."""

    @wraps(function)
    def command(*, urls: tuple[str, ...], **others: object) -> R:
        said = {name: others.pop(name) for name in _CREDENTIALS}
        flags = {name: text for name, text in said.items() if isinstance(text, str)}
        credentials = job_credentials(flags, os.environ)
        try:
            NodeRoutes(urls)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return function(cluster=JobCluster(urls=urls, credentials=credentials), **others)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def job_credentials(flags: Mapping[str, str], environment: Mapping[str, str]) -> Credentials:
    """Return the credentials of the command line on top of the environment; files as absolute paths, for Spark.

    Raises:
        click.UsageError: the options contradict each other.
    """
    texts = nearer(flags, texts_of(environment))
    paths = {name: os.path.abspath(text) for name, text in texts.items() if name in FILES}
    try:
        return Credentials.from_texts({**texts, **paths})
    except ValueError as error:
        raise click.UsageError(f"credentials: {error}") from error
