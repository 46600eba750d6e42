"""Batches of idempotent producers that were refused, so that the next ones do not take their place.

A client sends several batches before it has a response. Each may find the partition in another state: this node takes
over between two of them, or reaches the leader again. A partition takes any sequence as the first one of a producer
that it does not know (KIP-360). So if the first batch is refused, and the second one was not, the first one could never
be written again. Clients repeat a refused batch, and all those behind it.

A producer id is a number that any client can guess. So a refused batch keeps back only batches of its own principal.
Otherwise a client without any right could send a batch under the id of another client, and so have its batches refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from milena.model.types import MonotonicMs

KEPT_MS = 30_000
"""How long a batch keeps its place before the next ones. Afterwards its client has given it up."""
KEPT_PASSING_MS = 6_000
"""How long it keeps it at a node that passes requests on to the leader. The five batches that a client may have in
flight wait a second each for a leader that is not reached. It is no longer, because the client may have repeated the
batch at a third node, of which this one does not hear."""
KEPT_MAX = 10_000
"""Batches that are remembered."""


class RefusedBatch(NamedTuple):
    """The first sequence of a batch, with its partition and producer."""

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int


@dataclass(slots=True)
class RefusedBatches:
    """The first refused batch of each producer in each partition, for a while. Owned by the data loop.

    ``principal``: the principal that sent the batch; empty if the cluster asks for no credentials.
    """

    _kept: dict[tuple[str, int, int, int, str], tuple[int, MonotonicMs]] = field(
        default_factory=dict
    )
    """A ``RefusedBatch`` up to its sequence, and the principal → the sequence, and when it was refused first."""

    _noted_ms: MonotonicMs = field(default=MonotonicMs(0))
    """When a batch was noted for the last time."""

    def may_keep_back(self, now_ms: MonotonicMs) -> bool:
        """Return whether a batch may have to come before others.

        If the last one was noted ``KEPT_MS`` ago, all are forgotten. Their clients may never come back, and while any
        batch is remembered, each request that is passed on is decoded.
        """
        if self._kept and now_ms - self._noted_ms > KEPT_MS:
            self._kept.clear()
        return bool(self._kept)

    def note(self, batches: Iterable[RefusedBatch], principal: str, now_ms: MonotonicMs) -> None:
        """Remember batches that were refused just now."""
        for batch in batches:
            self._noted_ms = now_ms
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            key = (*batch[:4], principal)
            known = self._kept.get(key)
            if known is None or now_ms - known[1] > KEPT_MS or batch.sequence < known[0]:
                self._kept[key] = (batch.sequence, now_ms)

    def before(
        self, batch: RefusedBatch, principal: str, now_ms: MonotonicMs, *, kept_ms: int
    ) -> int | None:
        """Return the sequence of a refused batch that must come before this one; None: there is none.

        If this is the refused batch itself, no batch waits for it any more.
        """
        known = self._kept.get((*batch[:4], principal))
        if known is None:
            return None
        sequence, since_ms = known
        if batch.sequence == sequence:
            self.forget(batch, principal)
        is_late = now_ms - since_ms > kept_ms
        return sequence if batch.sequence > sequence and not is_late else None

    def forget(self, batch: RefusedBatch, principal: str) -> None:
        """Let all batches of the producer come."""
        self._kept.pop((*batch[:4], principal), None)
