"""How much of a node each caller may take: requests a second, bytes that it sends, bytes that it is sent.

Token buckets, of which two seconds may be spent at once. What a request costs is known in its end, so that bytes are
charged then, and whoever has spent too much waits before the next one: a short while the node waits for it, for longer
it is told when to come again. A caller is who it is known as; where nobody is asked, the address that it calls from.
Quotas are a node's own, as Kafka's are a broker's: a caller of three nodes may have three times as much.

Source: KIP-13, KIP-124. Pure; times are monotonic s.
"""

from dataclasses import dataclass

from http_api.ports import ApiLimits
from milena.model.errors import QuotaExceededError

BURST_S = 2.0
WAIT_S_MAX = 0.2
"""So long a request waits here; a client that waits longer had better hear of it."""
CALLERS_MAX = 10_000


@dataclass(slots=True)
class QuotaUse:
    """What counts of a caller's past, as of ``since_s``."""

    since_s: float
    requests: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


class Quotas:
    """All callers of a node. Belongs to one event loop."""

    def __init__(self, limits: ApiLimits) -> None:
        self._request_rate = limits.request_rate
        self._producer_rate = limits.producer_byte_rate
        self._consumer_rate = limits.consumer_byte_rate
        self.is_on = bool(self._request_rate or self._producer_rate or self._consumer_rate)
        """Otherwise nobody needs to be asked or charged."""
        self._spent: dict[str, QuotaUse] = {}

    def charge(
        self, caller: str, now_s: float, *, requests: int = 0, bytes_in: int = 0, bytes_out: int = 0
    ) -> None:
        """Count what a caller took."""
        spent = self._as_of(caller, now_s)
        if self._request_rate:
            spent.requests += requests
        if self._producer_rate:
            spent.bytes_in += bytes_in
        if self._consumer_rate:
            spent.bytes_out += bytes_out

    def wait_s(self, caller: str, now_s: float) -> float:
        """How long a caller is to wait before it takes more; 0: it need not."""
        if caller not in self._spent:
            return 0.0
        spent = self._as_of(caller, now_s)
        return max(
            _excess_s(spent.requests, self._request_rate),
            _excess_s(spent.bytes_in, self._producer_rate),
            _excess_s(spent.bytes_out, self._consumer_rate),
        )

    def short_wait_s(self, caller: str, now_s: float) -> float:
        """The same, where it is short.

        Raises:
            QuotaExceededError: it is not; it says when to come again.
        """
        wait_s = self.wait_s(caller, now_s)
        if wait_s > WAIT_S_MAX:
            raise QuotaExceededError(
                f"{caller} has used up its quota on this node: come again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        return wait_s

    def _as_of(self, caller: str, now_s: float) -> QuotaUse:
        spent = self._spent.pop(caller, None)
        if spent is None:
            if len(self._spent) >= CALLERS_MAX:
                # Who took nothing for longest.
                del self._spent[next(iter(self._spent))]
            spent = QuotaUse(now_s)
        passed_s = now_s - spent.since_s
        if passed_s > 0:
            spent.since_s = now_s
            spent.requests = max(0.0, spent.requests - passed_s * self._request_rate)
            spent.bytes_in = max(0.0, spent.bytes_in - passed_s * self._producer_rate)
            spent.bytes_out = max(0.0, spent.bytes_out - passed_s * self._consumer_rate)
        self._spent[caller] = spent
        return spent


def _excess_s(spent: float, rate: int) -> float:
    return max(0.0, spent / rate - BURST_S) if rate else 0.0
