"""Decide the order in which nodes are tried (pure).

Any node responds to any request, so routing is only an order of preference: the node that the caller prefers (a
partition's leader), then the nodes that the metadata calls live, then the URLs that the client was given. A node that
just failed goes to the end of the list for a while. So a node that hangs costs its timeout once, not with every call.

A client does not send credentials to every URL that a response names. It sends them over https, where certificates are
checked. Over plain HTTP, it sends them only to hosts that it was given as ``http://``. So a client that was given only
``https://`` URLs never sends credentials over plain HTTP.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

DISTRUST_MS = 3_000
"""Time for which a failed node is tried last, in ms: longer than a session timeout and an election take together."""

SCHEMES = {"http": 80, "https": 443}
"""The default port of each scheme."""

NODES_MAX = 1_000
"""The most nodes of a cluster that are remembered. Further ones are ignored: a wrong server could list millions."""


USER_IN_URL = (
    "it has a user or a password before its host, where others see them: "
    "give credentials, as user and password_file"
)
"""The reason to refuse users in URLs. URLs appear in logs, errors, process lists and query plans.

Besides, a user in one node's URL would not apply to the other nodes.
"""


def normalise_url(url: str) -> str:
    """Return the URL with a scheme and without a trailing slash: ``host:port`` becomes ``http://host:port``."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/")


def without_user(url: str) -> str:
    """Return the URL as it may be shown: without a user before its host, even if that is badly encoded."""
    before, at, place = url.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}{slashes}{place}" if at and slashes and scheme in SCHEMES else place


class NodeRoutes:
    """The URLs of a cluster's nodes in the order in which to try them. Owned by one event loop.

    ``is_guarded``: requests carry credentials, so they may not go to every URL (``may_ask``).
    """

    def __init__(self, seeds: str | Sequence[str], *, is_guarded: bool = False) -> None:
        given = [seeds] if isinstance(seeds, str) else list(seeds or ())
        for url in given:
            # It may be None, for example from an environment variable that is not set.
            if not isinstance(url, str):
                raise TypeError(f"{url!r} is not a URL of a node")
        self.seeds = tuple(dict.fromkeys(normalise_url(url) for url in given))
        if not self.seeds:
            raise ValueError("give the URL of at least one node")
        for url in self.seeds:
            if "@" in url:
                raise ValueError(f"{without_user(url)} is not a URL of a node: {USER_IN_URL}")
        self.left_out: tuple[str, ...] = ()
        """URLs of live nodes that this client sends no requests to (``may_ask``)."""
        self._is_guarded = is_guarded
        places = [_place(url) for url in self.seeds]
        self._plain_hosts = {host for scheme, host in places if scheme == "http"}
        self._live: tuple[str, ...] = ()
        self._last_good = self.seeds[0]
        self._distrusted_until_ms: dict[str, float] = {}

    def learn(self, live: Iterable[str]) -> None:
        """Replace the list of live nodes; ``live`` are the URLs of the nodes that the cluster's metadata calls live."""
        urls = list(dict.fromkeys(normalise_url(url) for url in live))[:NODES_MAX]
        self._live = tuple(url for url in urls if self.may_ask(url))
        self.left_out = tuple(without_user(url) for url in urls if not self.may_ask(url))
        known = {*self._live, *self.seeds}
        self._distrusted_until_ms = {
            url: until_ms for url, until_ms in self._distrusted_until_ms.items() if url in known
        }

    def order(self, preferred: str | None, now_ms: float) -> list[str]:
        """Return every known URL once, in the order in which to try them; never empty."""
        first = preferred
        if first is None or not self.may_ask(first):
            first = self._last_good
        candidates = dict.fromkeys((first, *self._live, *self.seeds))
        trusted = [url for url in candidates if not self._is_distrusted(url, now_ms)]
        # The node that failed longest ago is the most likely to be back.
        rest = sorted(
            (url for url in candidates if self._is_distrusted(url, now_ms)),
            key=self._distrusted_until_ms.__getitem__,
        )
        return trusted + rest

    def may_ask(self, url: str) -> bool:
        """Return whether this client's requests may go to a URL."""
        if "@" in url:
            return False
        if not self._is_guarded:
            return True
        scheme, host = _place(url)
        return scheme == "https" or host in self._plain_hosts

    def best(self, now_ms: float) -> str:
        """Return the URL of the node to try first when no node is preferred."""
        return self.order(None, now_ms)[0]

    def mark_good(self, url: str) -> None:
        """Note that a node responded."""
        self._distrusted_until_ms.pop(url, None)
        self._last_good = url

    def mark_bad(self, url: str, now_ms: float) -> None:
        """Note that a node could not be reached, or did not respond."""
        self._distrusted_until_ms[url] = now_ms + DISTRUST_MS

    def _is_distrusted(self, url: str, now_ms: float) -> bool:
        return self._distrusted_until_ms.get(url, now_ms) > now_ms


def _place(url: str) -> tuple[str, str | None]:
    """Return scheme and host of a URL. All loopback addresses count as the host ``localhost``."""
    try:
        found = urlsplit(url)
        scheme, host = found.scheme, found.hostname
    except ValueError:
        return "", None
    try:
        return scheme, "localhost" if host and ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return scheme, host
