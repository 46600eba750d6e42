"""The API's connections under a bound: when there are too many, the one that rested longest makes room.

A connection rests while nothing of a request is being worked on: before its first request, between two, and while it
waits for the rest of a body. Whoever opens thousands and sends little therefore loses the oldest of its own, and others
still get in.
"""

import logging
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

_log = logging.getLogger("http_api")

Owner = tuple[str, str]
"""Who shares a bound on connections: see ``quotas.Bound``."""


class Closable(Hashable, Protocol):
    """A connection."""

    def force_close(self) -> None:
        """Close it at once."""


class Connections:
    """All that are open. Belongs to one event loop.

    Invariant: each is either in ``_resting``, the one that rested longest first, or in ``_working``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._resting: dict[Closable, None] = {}
        self._working: set[Closable] = set()
        self._owners: dict[Closable, Owner] = {}
        """Of those that count against somebody's quota."""
        self._counts: Counter[Owner] = Counter()
        self._distrusted: set[Closable] = set()
        self.closed_count = 0
        """How many made room for others."""

    def __len__(self) -> int:
        return len(self._resting) + len(self._working)

    def add(self, connection: Closable) -> None:
        """A new one; it is closed itself when all others are being worked for."""
        self._resting[connection] = None
        if len(self) > self._most:
            oldest = next(iter(self._resting))
            del self._resting[oldest]
            if not self.closed_count & (self.closed_count + 1):
                # At powers of two: a flood of them must not become a flood of lines.
                _log.warning(
                    "connections closed to make room count=%d max=%d",
                    self.closed_count + 1,
                    self._most,
                )
            self.closed_count += 1
            self._forget(oldest)
            oldest.force_close()

    def work(self, connection: Closable) -> None:
        """A request of it is worked on."""
        if connection in self._resting:
            del self._resting[connection]
            self._working.add(connection)

    def rest(self, connection: Closable) -> None:
        """Note that a connection waits for its client."""
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
        """Whether bad credentials came over it, and no good ones since, as far as that was looked at."""
        return connection in self._distrusted

    def distrust(self, connection: Closable) -> None:
        """Bad credentials came over an open connection."""
        if connection in self._resting or connection in self._working:
            self._distrusted.add(connection)

    def trust(self, connection: Closable) -> None:
        """Good ones did."""
        self._distrusted.discard(connection)

    # -- whose they are ----------------------------------------------------------------------------

    def is_of(self, connection: Closable, owner: Owner) -> bool:
        """Whether it counts as this owner's."""
        return self._owners.get(connection) == owner

    def count_of(self, owner: Owner) -> int:
        """How many count as this owner's."""
        return self._counts[owner]

    def claim(self, connection: Closable, owner: Owner) -> None:
        """An open connection counts as this owner's from now on: whoever asked last over it."""
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
