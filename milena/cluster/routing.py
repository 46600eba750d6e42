"""Which node to ask first, and which after it (pure).

Any node answers any request, so an order of preference is all there is to routing: the node that the caller prefers
(a partition's leader), then the nodes that the cluster's metadata calls live, then the URLs that the client was given.
A node that just failed to answer goes to the end of the list for a while, so that a node that hangs costs its time
limit once and not with every call.
"""

from collections.abc import Iterable, Sequence

DISTRUST_MS = 3_000
"""How long a node that failed goes last: longer than a session and an election take, shorter than a restart."""

NODES_MAX = 1_000
"""Nodes of a cluster that are remembered; what a stranger's answer lists beyond is ignored."""


def normalise_url(url: str) -> str:
    """``host:port`` becomes ``http://host:port``; no trailing slash."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/")


class NodeRoutes:
    """The URLs of a cluster's nodes in the order in which to try them. Owned by one event loop."""

    def __init__(self, seeds: str | Sequence[str]) -> None:
        given = [seeds] if isinstance(seeds, str) else seeds
        self.seeds = tuple(dict.fromkeys(normalise_url(url) for url in given))
        if not self.seeds:
            raise ValueError("give the URL of at least one node")
        self._live: tuple[str, ...] = ()
        self._last_good = self.seeds[0]
        self._distrusted_until_ms: dict[str, float] = {}

    def learn(self, live: Iterable[str]) -> None:
        """The nodes that the cluster calls live, in place of those learnt before."""
        self._live = tuple(dict.fromkeys(normalise_url(url) for url in live))[:NODES_MAX]
        known = {*self._live, *self.seeds}
        self._distrusted_until_ms = {
            url: until_ms for url, until_ms in self._distrusted_until_ms.items() if url in known
        }

    def order(self, preferred: str | None, now_ms: float) -> list[str]:
        """Every known URL once, the best first; never empty."""
        first = self._last_good if preferred is None else preferred
        candidates = dict.fromkeys((first, *self._live, *self.seeds))
        trusted = [url for url in candidates if not self._is_distrusted(url, now_ms)]
        # The one that failed longest ago is the likeliest to be back.
        rest = sorted(
            (url for url in candidates if self._is_distrusted(url, now_ms)),
            key=self._distrusted_until_ms.__getitem__,
        )
        return trusted + rest

    def best(self, now_ms: float) -> str:
        """The node to ask when all are as good."""
        return self.order(None, now_ms)[0]

    def mark_good(self, url: str) -> None:
        """It answered."""
        self._distrusted_until_ms.pop(url, None)
        self._last_good = url

    def mark_bad(self, url: str, now_ms: float) -> None:
        """It could not be reached, or fell silent."""
        self._distrusted_until_ms[url] = now_ms + DISTRUST_MS

    def _is_distrusted(self, url: str, now_ms: float) -> bool:
        return self._distrusted_until_ms.get(url, now_ms) > now_ms
