"""Requests that web pages of other origins make a browser send: refuse those that have an effect (CORS).

Any web page can make its user's browser send a request to a server in the user's network. For plain text, a body
without a type, or no body, the browser does not ask the server first (no preflight). So such bodies are refused if a
page of another origin sent them. For types like JSON, the browser first sends ``OPTIONS``, and the response allows only
configured origins.

Requests without a body are refused too if they change something, and so is the ``GET`` that takes a consumer's records.
``*`` and ``null`` cannot be configured as origins.

Source: the Fetch standard, section 3.3.
"""

from collections.abc import Collection, Mapping

from http_api.protocol.answers import Pairs
from http_api.protocol.media import JSON_TYPE, TEXT_TYPE
from http_api.protocol.urls import host_of
from http_api.serving.openapi import HEADERS
from milena.model.errors import ForbiddenError, UnsupportedMediaTypeError

_OTHER_ORIGINS = frozenset({"cross-site", "same-site"})
"""Values of ``Sec-Fetch-Site`` that a browser sends if a page of another origin made the request."""

_EXPOSED = ", ".join(HEADERS)
_TAKEN = (
    "Content-Type, Content-Encoding, Idempotency-Key, If-Match, Last-Event-ID, Milena-Client-Id, "
    "Milena-Transaction, X-Request-Id"
)
_PREFLIGHT_S = "600"
"""Time for which a browser caches a preflight response, in seconds."""


class CrossOrigin:
    """The origins whose pages may use the API; none unless configured."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, headers: Mapping[str, str]) -> Pairs:
        """Return the response headers that allow the page that sent the request to read the response, if it may."""
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
            UnsupportedMediaTypeError: a page of an origin that is not allowed sent such a body.
        """
        # An empty ``Content-Type`` is treated like a missing one, because browsers send both without a preflight.
        type_ = headers.get("Content-Type", "").strip().lower() or TEXT_TYPE
        if type_.startswith(TEXT_TYPE) and _is_foreign(headers) and not self._allows(headers):
            raise UnsupportedMediaTypeError(
                f"a page of another origin must say what its body is; send Content-Type: {JSON_TYPE}"
            )

    def check_effect(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without a body that changes something, from a page of an origin that is not allowed.

        Raises:
            ForbiddenError: a page of another origin sent the request.
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
    """Return whether a page of another origin made the browser send this request.

    Browsers omit ``Sec-Fetch-Site`` over plain http to other machines. Then requests of scripts have ``Origin``, and a
    link or an image has only ``Referer``. So all three headers are checked.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in _OTHER_ORIGINS
    own = (host_of(headers) or "").lower()
    origin, referer = headers.get("Origin"), headers.get("Referer")
    # Do not compare the scheme: behind a proxy, it may be https for the browser and http here.
    if origin is not None and origin.partition("://")[2].lower() != own:
        return True
    return referer is not None and referer.partition("://")[2].partition("/")[0].lower() != own
