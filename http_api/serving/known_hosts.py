"""Names by which callers without credentials may reach a node.

A page of another site may let its own name resolve to a node's address (DNS rebinding). The browser then takes the node
for the page's own origin. The page can read and write everything that needs no credentials. Only the ``Host`` header
shows this, because it has the page's name. So a name that a stranger may register is accepted only if it is known.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from http_api.ports.node import MetadataPort
from milena.model.access import ANONYMOUS
from milena.model.errors import ForbiddenError

ANY = "*"
LOCAL = ("localhost", ".localhost", ".cluster.local", ".svc", ".internal", ".home.arpa")
"""Names that cannot be registered. A name without a dot cannot be registered either."""

_ACCEPTED_MAX = 1024
_HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]*))(?::[0-9]*)?")


class KnownHosts:
    """The names of one cluster. Belongs to the event loop of its server.

    ``allowed``: further names. One that starts with a dot stands for all names with this ending, ``*`` for every name.
    """

    def __init__(self, allowed: Collection[str], metadata: MetadataPort) -> None:
        self._names = (*LOCAL, *(name.lower() for name in allowed))
        self._metadata = metadata
        self._brokers: object = None
        self._advertised: frozenset[str] = frozenset()
        self._accepted: set[str] = set()

    def check_stranger(self, principal: str, header: str | None) -> None:
        """Run ``check`` for a caller without proven credentials: a page may have sent the request.

        Raises:
            ForbiddenError: see ``check``.
        """
        if not principal or principal == ANONYMOUS:
            self.check(header)

    def check(self, header: str | None) -> None:
        """Refuse a request whose ``Host`` is not a name of the cluster. Clients of HTTP/1.0 may omit it.

        Raises:
            ForbiddenError: a page may have sent the request. The message says what to do.
        """
        if header is None or ANY in self._names:
            return
        brokers = self._metadata.image.brokers
        if brokers is not self._brokers:
            self._brokers = brokers
            self._advertised = frozenset(_hosts_of(broker.api_url for broker in brokers.values()))
            self._accepted.clear()
        if header in self._accepted:
            return
        host = host_in(header)
        if not self._is_known(host):
            raise ForbiddenError(
                f"Host '{host}' is no name of this cluster, so a page of another site may have sent this request: use "
                "an address of a node, or name the host in allowed_hosts"
            )
        if len(self._accepted) >= _ACCEPTED_MAX:
            self._accepted.clear()
        self._accepted.add(header)

    def _is_known(self, host: str) -> bool:
        if "." not in host or host in self._advertised or _is_address(host):
            return True
        return any(
            host.endswith(name) if name.startswith(".") else host == name for name in self._names
        )


def host_in(header: str) -> str:
    """Return the host of a ``Host`` header, without its port and in lower case."""
    found = _HEADER.fullmatch(header.strip())
    if found is None:
        return header.strip().lower()
    return (found[1] or found[2]).lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hosts_of(urls: Iterable[str]) -> Iterable[str]:
    for url in urls:
        host = urlsplit(url).hostname
        if host is not None:
            yield host
