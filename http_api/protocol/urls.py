"""Absolute URLs in responses, as the client sees this server: from ``Forwarded``, ``X-Forwarded-*``, then ``Host``."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from aiohttp import web

from milena.model.errors import MalformedRequestError

_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")


def base_url(request: web.BaseRequest) -> str:
    """Return ``scheme://host[/prefix]`` without a trailing slash.

    ``X-Forwarded-Path`` is the prefix that a proxy removed from the path, or the path before the removal (as in
    Strimzi's bridge).

    Raises:
        MalformedRequestError: a header has no valid host, scheme or path.
    """
    headers = request.headers
    forwarded = _forwarded(headers.get("Forwarded", ""))
    scheme = forwarded.get("proto") or _first(headers.get("X-Forwarded-Proto")) or request.scheme
    host = host_of(headers)
    prefix = _prefix(headers.get("X-Forwarded-Path"), request.rel_url.raw_path)
    if scheme.lower() not in ("http", "https"):
        raise MalformedRequestError(f"'{scheme}' is not a scheme that this server is reached by")
    if host is None or not _HOST.fullmatch(host):
        raise MalformedRequestError(f"'{host or ''}' is not a host; check the Host header")
    if not _PREFIX.fullmatch(prefix):
        raise MalformedRequestError(f"X-Forwarded-Path '{prefix}' is not a path")
    return f"{scheme.lower()}://{host}{prefix.rstrip('/')}"


def host_of(headers: Mapping[str, str]) -> str | None:
    """Return ``host[:port]`` of this server as the client sees it, unchecked; None without a header."""
    forwarded = _forwarded(headers.get("Forwarded", ""))
    return forwarded.get("host") or _first(headers.get("X-Forwarded-Host")) or headers.get("Host")


def _prefix(header: str | None, path: str) -> str:
    """Return the part of ``X-Forwarded-Path`` before this request's path."""
    return (_first(header) or "").partition("?")[0].removesuffix(path)


def _first(header: str | None) -> str | None:
    return None if header is None else header.split(",")[0].strip()


def _forwarded(header: str) -> dict[str, str]:
    """Return the parameters of the first element of a ``Forwarded`` header, which the outermost proxy added."""
    pairs = (part.partition("=") for part in header.split(",", maxsplit=1)[0].split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs if value}


def path_of(*parts: str | int) -> str:
    """Return ``/a/b/c`` with each part percent-encoded."""
    return "".join("/" + quote(str(part), safe="") for part in parts)
