"""Addresses of clients, in the one form in which they are compared."""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def plain_host(host: str) -> str:
    """An IP address as it is written shortest, IPv4 also where it came over IPv6; what is none stays."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
