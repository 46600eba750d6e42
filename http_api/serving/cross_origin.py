"""Pages of other origins: who is refused, and who may read the answers (CORS). Source: the Fetch standard, section 3.3.

A browser sends plain text, bytes without a type, or nothing at all to any server that its user can reach, without
asking; so such bodies are refused from pages of other origins. With a type like JSON's it asks first, by ``OPTIONS``,
and only the origins that the node is configured with are told yes. Requests without a body that change something are
refused from other pages as well, as is the ``GET`` that takes a consumer's records. ``*`` and ``null`` are no origins:
a cluster for all pages needs no allow list.
"""

from collections.abc import Collection, Mapping

from http_api.protocol.answers import Pairs
from http_api.protocol.media import JSON_TYPE, TEXT_TYPE
from http_api.protocol.urls import host_of
from http_api.serving.openapi import HEADERS
from milena.model.errors import ForbiddenError, UnsupportedMediaTypeError

_OTHER_ORIGINS = frozenset({"cross-site", "same-site"})
"""What browsers say of a request in ``Sec-Fetch-Site`` when a page of another origin makes it."""

_EXPOSED = ", ".join(HEADERS)
_TAKEN = (
    "Content-Type, Content-Encoding, Idempotency-Key, If-Match, Last-Event-ID, Milena-Client-Id, "
    "Milena-Transaction, X-Request-Id"
)
_PREFLIGHT_S = "600"
"""How long a browser remembers what it was told."""


class CrossOrigin:
    """The origins whose pages may use the API; none unless configured."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, headers: Mapping[str, str]) -> Pairs:
        """What an answer to a request with these headers says about who may read it."""
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
        """What the answer to ``OPTIONS`` says besides: ``methods`` are those of the path."""
        if "Access-Control-Request-Method" not in headers or not self._allows(headers):
            return ()
        return (
            ("Access-Control-Allow-Methods", methods),
            ("Access-Control-Allow-Headers", _TAKEN),
            ("Access-Control-Max-Age", _PREFLIGHT_S),
        )

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a body that any page may send unasked.

        Raises:
            UnsupportedMediaTypeError: this is such a request, and its page is none of an allowed origin.
        """
        # A header without a value names no type, and browsers send it unasked as well.
        type_ = headers.get("Content-Type", "").strip().lower() or TEXT_TYPE
        if type_.startswith(TEXT_TYPE) and _is_foreign(headers) and not self._allows(headers):
            raise UnsupportedMediaTypeError(
                f"a page of another origin must say what its body is; send Content-Type: {JSON_TYPE}"
            )

    def check_effect(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without a body that changes something, from a page that is not allowed to.

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

    Over plain http to other machines browsers leave ``Sec-Fetch-Site`` out. ``Origin`` comes with their writes, and a
    link or an image of a page has ``Referer`` alone. Each of them may tell.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in _OTHER_ORIGINS
    own = (host_of(headers) or "").lower()
    origin, referer = headers.get("Origin"), headers.get("Referer")
    # The scheme is left out: a proxy in front may speak another one with the page.
    if origin is not None and origin.partition("://")[2].lower() != own:
        return True
    return referer is not None and referer.partition("://")[2].partition("/")[0].lower() != own
