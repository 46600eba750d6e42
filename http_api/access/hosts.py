"""Addresses of clients in one form, so that they can be compared."""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def plain_host(host: str) -> str:
    """Return the shortest form of an IP address (IPv4 if it is mapped to IPv6). Return other text unchanged."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
