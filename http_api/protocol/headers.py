"""Headers that make a request ambiguous: it is refused before anything else of it is read.

A header with two values may mean one thing to a proxy and another to the server behind it. So a header that is not a
list may be repeated only with the same value.
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
"""Headers that have one value."""

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
"""Headers that may arrive on several lines, which form one list: ``joined`` reads them."""


def joined(headers: CIMultiDictProxy[str], name: str) -> str:
    """Return the value of a header. Several lines of a list become one; an absent header is empty."""
    if name not in headers:
        return ""
    values = headers.getall(name)
    return values[0] if len(values) == 1 or name.lower() in SINGLE else ", ".join(values)


def check_headers(version: HttpVersion, headers: CIMultiDictProxy[str]) -> None:
    """Refuse headers that can be read in two ways.

    Raises:
        MalformedRequestError: a header came with two values, or the end of the body is ambiguous.
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
