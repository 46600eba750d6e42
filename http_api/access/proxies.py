"""The address that a request comes from, where it came through a proxy that the node is told to believe.

Behind a proxy all requests have the proxy's address. Wrong passwords are counted by address, and entries may name one,
so all clients would share it. A proxy adds the address that it saw to the end of a list. The list is read from its end:
the first address that is no trusted proxy's is the client's. What stands before that is the client's own word.

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
"""Entries of the list that are looked at."""


class TrustedProxies:
    """Proxies by address or network; none unless configured."""

    def __init__(self, networks: Collection[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(network, strict=False) for network in networks)
        self.trusts = lru_cache(maxsize=4096)(self._trusts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _trusts(self, address: str) -> bool:
        """Whether an address is a trusted proxy's."""
        try:
            found = ipaddress.ip_address(plain_host(address))
        except ValueError:
            return False
        return any(found in network for network in self._networks)

    def seen_through(self, request: web.BaseRequest) -> web.BaseRequest:
        """The request, with the address of the client that the proxies name."""
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
                # A proxy that hides its client: the last one that is known stands for it.
                return address
            if not self.trusts(address):
                return address
        return address


def _hops(request: web.BaseRequest) -> list[str]:
    """The addresses that proxies wrote down, the last one at the end; ``X-Forwarded-For`` goes before ``Forwarded``."""
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
    """An address without brackets and port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
