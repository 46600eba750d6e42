"""Quotas of Kafka clients: the same buckets as those of HTTP requests (``http_api.serving.quotas``).

A response says for how long the client should wait (``throttle_time_ms``). The node does not read from the connection
for that time, and starts no further request of it. So a client that ignores the time is slowed down, too, also over a
new connection. No request is refused. As in Kafka, rates of bytes slow down Produce and Fetch only.

Source: KIP-13, KIP-124, KIP-219.
"""

import math
from collections.abc import Callable

from http_api.serving.quotas import Payer, Quotas
from milena.model.quotas import QuotaKey

THROTTLE_MS_MAX = (1 << 31) - 1
_KEYS = {
    0: (QuotaKey.REQUEST_RATE, QuotaKey.PRODUCER_BYTE_RATE),
    1: (QuotaKey.REQUEST_RATE, QuotaKey.CONSUMER_BYTE_RATE),
}
"""By API key: the rates that slow a request down."""
_ANY = (QuotaKey.REQUEST_RATE,)
PRODUCE = 0


class CallQuota:
    """The use that one request makes of its payer's quotas."""

    __slots__ = ("_clock", "_key", "_payer", "_quotas")

    def __init__(
        self, quotas: Quotas, payer: Payer, api_key: int, clock: Callable[[], float]
    ) -> None:
        """``clock``: returns monotonic seconds."""
        self._quotas = quotas
        self._payer = payer
        self._key = api_key
        self._clock = clock

    def begin(self, frame_bytes: int) -> None:
        """Charge the request."""
        bytes_in = frame_bytes if self._key == PRODUCE else 0
        self._quotas.charge(self._payer, self._clock(), requests=1, bytes_in=bytes_in)

    def charge_fetched(self, bytes_out: int) -> None:
        """Charge the records of a response."""
        self._quotas.charge(self._payer, self._clock(), bytes_out=bytes_out)

    def wait_s(self) -> float:
        """Return how long the client has to wait now; 0: not at all."""
        keys = _KEYS.get(self._key, _ANY)
        return self._quotas.wait_s(self._payer, self._clock(), keys)

    def fetch_bytes_max(self, most: int) -> int:
        """Return how many bytes a fetch may return: no more than the quota gives in the time of its burst."""
        return min(most, self._quotas.burst(self._payer, QuotaKey.CONSUMER_BYTE_RATE, most))

    def throttle_ms(self) -> int:
        """Return the time to wait as a response has it."""
        return min(THROTTLE_MS_MAX, math.ceil(self.wait_s() * 1000))
