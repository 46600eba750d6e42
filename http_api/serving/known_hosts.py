"""Protection against DNS rebinding: the host names under which clients without credentials may call a node.

The owner of a web site can let the site's name resolve to the address of a node. A browser then treats the node as the
site's own origin, and the site's pages can read and write everything that needs no credentials. Such a request has the
site's name in the ``Host`` header. So without credentials, only these names are accepted: names of the cluster,
configured names, and names that cannot be registered in public DNS.
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
"""Names and endings that cannot be registered in public DNS. Names without a dot cannot be registered either."""

_ACCEPTED_MAX = 1024
_HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]*))(?::[0-9]*)?")


class KnownHosts:
    """The accepted host names of one cluster. Used on the event loop of its server.

    ``allowed`` are configured names. A name with a dot at its start stands for all names with this ending, and ``*``
    for every name.
    """

    def __init__(self, allowed: Collection[str], metadata: MetadataPort) -> None:
        self._names = (*LOCAL, *(name.lower() for name in allowed))
        self._metadata = metadata
        self._brokers: object = None
        self._advertised: frozenset[str] = frozenset()
        self._accepted: set[str] = set()

    def check_stranger(self, principal: str, header: str | None) -> None:
        """Run ``check`` if the caller has no credentials, because a web page may have sent the request.

        Raises:
            ForbiddenError: see ``check``.
        """
        if not principal or principal == ANONYMOUS:
            self.check(header)

    def check(self, header: str | None) -> None:
        """Refuse a request whose ``Host`` is no accepted name. A request without ``Host`` (HTTP/1.0) is accepted.

        Raises:
            ForbiddenError: the name is not accepted; the message says how to allow it.
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
                f"Host '{host}' is not a name of this cluster, so a page of another site may have sent this request: "
                "use an address of a node, or name the host in allowed_hosts"
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
