"""Refuse requests with ambiguous headers.

A proxy may use the first of two values, and the server behind it the second. A client could then pass a check of the
proxy with one value, and act with the other. So a header that is not a list may be repeated only with the same value.
"""

from aiohttp.http import HttpVersion, HttpVersion11
from multidict import CIMultiDictProxy

from milena.model.errors import MalformedRequestError

SINGLE = frozenset(
    {
        "access-control-request-method",
        "authorization",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "if-match",
        "if-modified-since",
        "if-range",
        "if-unmodified-since",
        "last-event-id",
        "milena-client-id",
        "milena-transaction",
        "origin",
        "referer",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
        "x-request-id",
    }
)
"""Headers that may have only one value."""

LISTS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "cookie",
        "forwarded",
        "if-none-match",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-path",
        "x-forwarded-proto",
    }
)
"""Headers whose value is a list, so that it may be spread over several lines; ``joined`` reads them."""


def joined(headers: CIMultiDictProxy[str], name: str) -> str:
    """Return the value of a header; join the lines of a list with commas. An absent header is an empty text."""
    if name not in headers:
        return ""
    values = headers.getall(name)
    return values[0] if len(values) == 1 or name.lower() in SINGLE else ", ".join(values)


def check_headers(version: HttpVersion, headers: CIMultiDictProxy[str]) -> None:
    """Refuse headers that can be read in two ways.

    Raises:
        MalformedRequestError: a header has two values, or the end of the body is ambiguous.
    """
    if len({name.lower() for name in headers}) != len(headers):
        for name in sorted(SINGLE):
            if name in headers and len(set(headers.getall(name))) > 1:
                raise MalformedRequestError(f"the header '{name}' came with two values: send one")
    if "Transfer-Encoding" not in headers:
        return
    coding = joined(headers, "Transfer-Encoding")
    if coding.strip().lower() != "chunked":
        raise MalformedRequestError(
            f"Transfer-Encoding '{coding}' is not taken: send chunked, and compress with Content-Encoding"
        )
    if version < HttpVersion11:
        raise MalformedRequestError("HTTP/1.0 has no Transfer-Encoding: send Content-Length")
