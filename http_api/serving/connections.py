"""A limit on the API's connections. Above it, the connection that has been idle longest is closed.

A connection is idle while the server works on none of its requests: before the first request, between two requests, and
while the server waits for the rest of a body. So if a client opens thousands of connections and sends little, its own
oldest ones are closed, and other clients can still connect.
"""

import logging
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

_log = logging.getLogger("http_api")

Owner = tuple[str, str]
"""The callers that share a quota of connections; see ``quotas.Bound``."""


class Closable(Hashable, Protocol):
    """A connection."""

    def force_close(self) -> None:
        """Close it at once."""


class Connections:
    """All open connections. Belongs to one event loop.

    Invariant: each connection is either in ``_resting`` (idle, the one that has been idle longest first), or in
    ``_working``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._resting: dict[Closable, None] = {}
        self._working: set[Closable] = set()
        self._owners: dict[Closable, Owner] = {}
        """The owners of connections that count against a quota."""
        self._counts: Counter[Owner] = Counter()
        self._distrusted: set[Closable] = set()
        self.closed_count = 0
        """The number of connections that were closed to make room."""

    def __len__(self) -> int:
        return len(self._resting) + len(self._working)

    def add(self, connection: Closable) -> None:
        """Add a connection. If there are too many, close the one idle longest; this one if no other is idle."""
        self._resting[connection] = None
        if len(self) > self._most:
            oldest = next(iter(self._resting))
            del self._resting[oldest]
            if not self.closed_count & (self.closed_count + 1):
                # Log only when the count reaches a power of two. Otherwise many connections would mean as many lines.
                _log.warning(
                    "connections closed to make room count=%d max=%d",
                    self.closed_count + 1,
                    self._most,
                )
            self.closed_count += 1
            self._forget(oldest)
            oldest.force_close()

    def work(self, connection: Closable) -> None:
        """Note that the server works on a request of the connection."""
        if connection in self._resting:
            del self._resting[connection]
            self._working.add(connection)

    def rest(self, connection: Closable) -> None:
        """Note that a connection is idle."""
        if connection in self._working:
            self._working.remove(connection)
            self._resting[connection] = None

    def discard(self, connection: Closable) -> None:
        """Forget a connection that is closed."""
        self._resting.pop(connection, None)
        self._working.discard(connection)
        self._forget(connection)

    def _forget(self, connection: Closable) -> None:
        self._release(connection)
        self._distrusted.discard(connection)

    # -- what they brought -------------------------------------------------------------------------

    def is_distrusted(self, connection: Closable) -> bool:
        """Return whether the last credentials that were checked on the connection were bad."""
        return connection in self._distrusted

    def distrust(self, connection: Closable) -> None:
        """Note that bad credentials arrived over the connection, if it is still open."""
        if connection in self._resting or connection in self._working:
            self._distrusted.add(connection)

    def trust(self, connection: Closable) -> None:
        """Note that good credentials arrived over the connection."""
        self._distrusted.discard(connection)

    # -- whose they are ----------------------------------------------------------------------------

    def is_of(self, connection: Closable, owner: Owner) -> bool:
        """Return whether the connection counts to this owner's quota."""
        return self._owners.get(connection) == owner

    def count_of(self, owner: Owner) -> int:
        """Return how many connections count to this owner's quota."""
        return self._counts[owner]

    def claim(self, connection: Closable, owner: Owner) -> None:
        """Count an open connection to this owner's quota from now on, because its last request came from this owner."""
        self._release(connection)
        if connection in self._resting or connection in self._working:
            self._owners[connection] = owner
            self._counts[owner] += 1

    def _release(self, connection: Closable) -> None:
        owner = self._owners.pop(connection, None)
        if owner is not None:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
