"""Refuse requests with parameters, conditions or a transaction header that the endpoint does not support.

If they were ignored, a client could rely on an effect that does not happen. For example, it could misspell ``acks``, or
send ``If-Match`` to an endpoint without conditions.
"""

from collections.abc import Collection
from difflib import get_close_matches

from aiohttp import web

from http_api.describing.schemas import parse_query
from http_api.protocol.media import TEXT_V2_TYPE
from http_api.serving.endpoint import Route
from milena.model.errors import MalformedRequestError

CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range")
"""Headers that make a request conditional. An endpoint must declare those that it supports."""

TRANSACTION_HEADER = "Milena-Transaction"
"""The header that makes a write part of a transaction. An endpoint must declare it to support it."""

_READS = frozenset({"GET", "HEAD"})
_REFUSED_OF_READS = ("If-Match", "If-Unmodified-Since", "If-Range")
"""Conditions that are refused for reads. Caches send the others to revalidate, and a full response is correct then."""


_FORMAT_NAMES = frozenset({"format", "keys"})


def check_known(route: Route, request: web.BaseRequest) -> None:
    """Refuse parameters and headers that the endpoint does not know.

    Raises:
        MalformedRequestError: the endpoint does not support a query parameter, a condition or the transaction header.
    """
    check_query(route, request.rel_url.raw_query_string)
    headers = request.headers
    for name in _REFUSED_OF_READS if request.method in _READS else CONDITIONS:
        if name in headers and name not in route.header_names:
            known = "no conditions" if "If-Match" not in route.header_names else "If-Match alone"
            raise MalformedRequestError(
                f"this endpoint knows {known}: send the request without {name}"
            )
    if TRANSACTION_HEADER in headers and TRANSACTION_HEADER not in route.header_names:
        raise MalformedRequestError(
            f"this endpoint does nothing within a transaction: send the request without {TRANSACTION_HEADER}"
        )


def check_query(route: Route, raw_query: str) -> None:
    """Refuse a query parameter that the endpoint does not know.

    Raises:
        MalformedRequestError: a parameter is unknown, or the query string is invalid.
    """
    if not raw_query:
        return
    known = route.query_names
    for name in parse_query(raw_query):
        if name not in known:
            hint = _hint_of_format(name, route) or _hint(name, known)
            raise MalformedRequestError(f"Unknown parameter '{name}': {hint}")


def _hint_of_format(name: str, route: Route) -> str | None:
    """Return a hint that ``Content-Type`` sets the record format, if an unknown parameter looks like a format."""
    if name not in _FORMAT_NAMES or route.body is None or TEXT_V2_TYPE not in route.body.content:
        return None
    return f"the Content-Type says how keys and values are written, such as {TEXT_V2_TYPE}"


def _hint(name: str, known: Collection[str]) -> str:
    if not known:
        return "this endpoint takes none"
    meant = nearest(name, known)
    if meant is not None:
        return f"did you mean '{meant}'?"
    return f"this endpoint knows {', '.join(sorted(known))}"


def nearest(name: str, known: Collection[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name most similar to ``name``; None if none is similar enough.

    ``likeness`` is the least similarity: 0 accepts any name, 1 only an equal one.
    """
    found = get_close_matches(name.lower(), sorted(known), n=1, cutoff=likeness)
    return found[0] if found else None
