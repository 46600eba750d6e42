"""The address of a client whose request came through a trusted proxy.

Behind a proxy, all connections have the proxy's address. Then one client with wrong passwords would lock out all
others, because these are counted by address, and access control entries for an address would not work. A proxy appends
the address of its client to a list in a header. This module reads the list from its end. The first address that does
not belong to a trusted proxy is the client's. Addresses before it are ignored: the client may have invented them.

Source: RFC 7239, and X-Forwarded-For as proxies send it.
"""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache

from aiohttp import web

from http_api.access.hosts import plain_host

_FOR = re.compile(r'(?:^|;)\s*for="?(\[[0-9A-Fa-f:.]+\]|[^";:]+)', re.IGNORECASE)
HOPS_MAX = 16
"""The most entries of the list that are read."""


class TrustedProxies:
    """Proxies by address or network; none unless configured."""

    def __init__(self, networks: Collection[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(network, strict=False) for network in networks)
        self.trusts = lru_cache(maxsize=4096)(self._trusts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _trusts(self, address: str) -> bool:
        """Return whether an address is a trusted proxy's."""
        try:
            found = ipaddress.ip_address(plain_host(address))
        except ValueError:
            return False
        return any(found in network for network in self._networks)

    def seen_through(self, request: web.BaseRequest) -> web.BaseRequest:
        """Return the request with the client's address that the proxies name."""
        peer = request.remote or ""
        if not self._networks or not self.trusts(peer):
            return request
        address = self._client_of(peer, _hops(request))
        return request if address == peer else request.clone(remote=address)

    def _client_of(self, peer: str, hops: list[str]) -> str:
        address = peer
        for hop in reversed(hops[-HOPS_MAX:]):
            try:
                address = str(ipaddress.ip_address(plain_host(hop)))
            except ValueError:
                # The entry is no address, because a proxy hides its client. Use the last address that is known.
                return address
            if not self.trusts(address):
                return address
        return address


def _hops(request: web.BaseRequest) -> list[str]:
    """Return the addresses that proxies recorded, in their order. If both headers exist, use ``X-Forwarded-For``."""
    headers = request.headers
    given = ",".join(headers.getall("X-Forwarded-For", ()))
    if given:
        return [_bare(part.strip()) for part in given.split(",")]
    found = []
    for part in ",".join(headers.getall("Forwarded", ())).split(","):
        match = _FOR.search(part)
        if match is not None:
            found.append(_bare(match[1].strip()))
    return found


def _bare(text: str) -> str:
    """Return an address without brackets and port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
