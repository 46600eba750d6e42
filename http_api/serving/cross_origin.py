"""Pages of other origins: whose requests are refused, and which pages may read responses (CORS).

A browser sends plain text, bytes without a type, or nothing at all to any server that its user can reach, without a
preflight. So these bodies are refused from pages of other origins. With a type like JSON's the browser first sends
``OPTIONS``, and only configured origins are allowed.

Requests without a body that change something are refused from other pages as well. So is the ``GET`` that takes a
consumer's records. ``*`` and ``null`` are not origins: a cluster for all pages needs no allow list.

Source: the Fetch standard, section 3.3.
"""

from collections.abc import Collection, Mapping

from http_api.protocol.answers import Pairs
from http_api.protocol.media import JSON_TYPE, TEXT_TYPE
from http_api.protocol.urls import host_of
from http_api.serving.openapi import HEADERS
from milena.model.errors import ForbiddenError, UnsupportedMediaTypeError

_OTHER_ORIGINS = frozenset({"cross-site", "same-site"})
"""Values of ``Sec-Fetch-Site`` that browsers send if a page of another origin makes the request."""

_EXPOSED = ", ".join(HEADERS)
_TAKEN = (
    "Content-Type, Content-Encoding, Idempotency-Key, If-Match, Last-Event-ID, Milena-Client-Id, "
    "Milena-Transaction, X-Request-Id"
)
_PREFLIGHT_S = "600"
"""The time for which a browser caches a preflight response."""


class CrossOrigin:
    """The origins whose pages may use the API; none unless configured."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, headers: Mapping[str, str]) -> Pairs:
        """Return the headers that tell which pages may read the response to a request with these headers."""
        if not self._allowed:
            return ()
        origin = headers.get("Origin")
        if origin not in self._allowed:
            return (("Vary", "Origin"),)
        return (
            ("Vary", "Origin"),
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", _EXPOSED),
        )

    def preflight(self, headers: Mapping[str, str], methods: str) -> Pairs:
        """Return the additional headers of a response to ``OPTIONS``; ``methods`` are those of the path."""
        if "Access-Control-Request-Method" not in headers or not self._allows(headers):
            return ()
        return (
            ("Access-Control-Allow-Methods", methods),
            ("Access-Control-Allow-Headers", _TAKEN),
            ("Access-Control-Max-Age", _PREFLIGHT_S),
        )

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a body that any page may send without a preflight.

        Raises:
            UnsupportedMediaTypeError: the body is of this kind, and its page is not of an allowed origin.
        """
        # A header without a value names no type, and browsers send it without a preflight as well.
        type_ = headers.get("Content-Type", "").strip().lower() or TEXT_TYPE
        if type_.startswith(TEXT_TYPE) and _is_foreign(headers) and not self._allows(headers):
            raise UnsupportedMediaTypeError(
                f"a page of another origin must say what its body is; send Content-Type: {JSON_TYPE}"
            )

    def check_effect(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without a body that changes something, from a page of an origin that is not allowed.

        Raises:
            ForbiddenError: a page of another origin sent it.
        """
        if self._allows(headers):
            return
        if _is_foreign(headers):
            raise ForbiddenError(
                "a page of another origin may not send this, because it changes something: name the origin in "
                "cors_origins to allow it"
            )

    def _allows(self, headers: Mapping[str, str]) -> bool:
        return headers.get("Origin") in self._allowed


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another origin sent this.

    Over plain http to other machines browsers omit ``Sec-Fetch-Site``. Their writes have ``Origin``. A link or an image
    of a page has only ``Referer``. So each of these headers is checked.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in _OTHER_ORIGINS
    own = (host_of(headers) or "").lower()
    origin, referer = headers.get("Origin"), headers.get("Referer")
    # The scheme is not compared: a proxy in front may use another one with the page.
    if origin is not None and origin.partition("://")[2].lower() != own:
        return True
    return referer is not None and referer.partition("://")[2].partition("/")[0].lower() != own
