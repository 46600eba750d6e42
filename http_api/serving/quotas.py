"""Quotas of a node for each caller: requests and bytes in both directions per second, and counts.

A rate is a token bucket that holds two seconds of the rate. Bytes are charged at the end of a request, when their
number is known. A caller that has used too much must wait before its next request: the node delays the request for a
short time, and refuses a longer wait with ``Retry-After``. Quotas hold per node, as Kafka's hold per broker. So a
caller of three nodes may use three times as much.

The replicated state has quotas for entities: a user, a client id, or both. For each key, the most specific entity that
matches the caller and has a limit counts, and all callers that match this entity share its bucket. If no entity
matches, the node's options limit each caller by its principal, or by its address if the cluster requires no
credentials.

Source: KIP-13, KIP-124, KIP-546. Pure; times are monotonic s.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from immutables import Map

from http_api.ports.node import ApiLimits
from milena.model.access import USER_PREFIX
from milena.model.errors import QuotaExceededError
from milena.model.quotas import ANONYMOUS_USER, CLIENT_ID, EVERY, QuotaKey
from raft_meta.machine.image import Quota, QuotaEntity

BURST_S = 2.0
WAIT_S_MAX = 0.2
"""The longest time for which the node delays a request, in seconds. If more is needed, the request is refused."""
FULL_RETRY_S = 1.0
"""The value of ``Retry-After`` if a count is reached, in seconds. The node cannot know when the count falls again."""
CALLERS_MAX = 10_000

_CLIENT_ID = re.compile(CLIENT_ID)


class Payer(NamedTuple):
    """A caller, as quotas see it."""

    name: str
    """The principal; the address if the cluster asks for no credentials."""
    user: str
    client_id: str


def payer_of(principal: str, address: str | None, client_id: str | None) -> Payer:
    """Return the payer of a request.

    ``principal`` is empty if the cluster requires no credentials. A malformed client id is ignored.
    """
    is_said = client_id is not None and _CLIENT_ID.fullmatch(client_id) is not None
    said = client_id if is_said and client_id else ""
    if not principal:
        return Payer(address or "", ANONYMOUS_USER, said)
    return Payer(principal, principal.removeprefix(USER_PREFIX), said)


class Bound(NamedTuple):
    """A limit that applies to a caller, together with all callers that share it."""

    owner: tuple[str, str]
    """The callers that share the limit, by user (or principal, or address) and client id; empty: all of them."""
    amount: int


@dataclass(slots=True)
class QuotaUse:
    """The fill of one token bucket at the time ``since_s``: ``spent`` is the use that was not refilled yet."""

    since_s: float
    spent: float = 0.0


_Bounds = Mapping[QuotaKey, Bound]
_RATES = (QuotaKey.REQUEST_RATE, QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)


class Quotas:
    """The quotas of all callers of a node. Belongs to one event loop."""

    def __init__(
        self,
        limits: ApiLimits,
        replicated: Callable[[], Map[QuotaEntity, Quota]] = Map[QuotaEntity, Quota],
    ) -> None:
        rates = (limits.request_rate, limits.producer_byte_rate, limits.consumer_byte_rate)
        self._defaults = {key: rate for key, rate in zip(_RATES, rates, strict=True) if rate}
        self._replicated = replicated
        self._quotas = replicated()
        self._bounds: dict[Payer, _Bounds] = {}
        """A cache of the limits of each caller, computed from ``_quotas``."""
        self._uses: dict[tuple[QuotaKey, tuple[str, str]], QuotaUse] = {}
        self._places: dict[tuple[QuotaKey, tuple[str, str]], int] = {}

    @property
    def is_on(self) -> bool:
        """Whether any quota exists, so that callers must be counted."""
        return bool(self._defaults or self._replicated())

    def bound(self, payer: Payer, key: QuotaKey) -> Bound | None:
        """Return a caller's limit for a key; None without one."""
        return self._bounds_of(payer).get(key)

    def charge(
        self,
        payer: Payer,
        now_s: float,
        *,
        requests: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
    ) -> None:
        """Charge the use to the caller's buckets."""
        bounds = self._bounds_of(payer)
        for key, amount in zip(_RATES, (requests, bytes_in, bytes_out), strict=True):
            bound = bounds.get(key)
            if bound is not None and amount:
                self._as_of(key, bound, now_s).spent += amount

    def wait_s(self, payer: Payer, now_s: float, keys: Collection[QuotaKey] | None = None) -> float:
        """Return how long a caller must wait before its next request, in seconds; 0: no wait.

        ``keys``: the quotas that count; None: all.
        """
        longest_s = 0.0
        for key, bound in self._bounds_of(payer).items():
            if (keys is None or key in keys) and (key, bound.owner) in self._uses:
                spent = self._as_of(key, bound, now_s).spent
                longest_s = max(longest_s, spent / bound.amount - BURST_S)
        return longest_s

    def burst(self, payer: Payer, key: QuotaKey, otherwise: int) -> int:
        """Return how much of a rate may be used at once; ``otherwise`` without a limit."""
        bound = self.bound(payer, key)
        return otherwise if bound is None else max(1, int(bound.amount * BURST_S))

    def short_wait_s(self, payer: Payer, now_s: float) -> float:
        """Return the wait in seconds if it is short.

        Raises:
            QuotaExceededError: the wait is longer; the error has the time to retry after.
        """
        wait_s = self.wait_s(payer, now_s)
        if wait_s > WAIT_S_MAX:
            raise QuotaExceededError(
                f"{payer.name} has used up its quota on this node: come again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        return wait_s

    def check_count(self, payer: Payer, key: QuotaKey, present: int, more: int = 1) -> None:
        """Check that ``present`` plus ``more`` is within the caller's limit for a count, such as connections.

        Raises:
            QuotaExceededError: the sum is above the limit.
        """
        bound = self.bound(payer, key)
        if bound is not None and present + more > bound.amount:
            raise QuotaExceededError(
                f"the {key} of {payer.name} is {bound.amount}, and it has {present}: end one of them first",
                retry_after_s=FULL_RETRY_S,
            )

    @contextmanager
    def place(self, payer: Payer, key: QuotaKey, count: int = 1) -> Iterator[None]:
        """Within this block, count ``count`` more for the caller, for example streams.

        Raises:
            QuotaExceededError: the sum is above the caller's limit.
        """
        bound = self.bound(payer, key)
        if bound is None:
            yield
            return
        held = (key, bound.owner)
        self.check_count(payer, key, self._places.get(held, 0), count)
        self._places[held] = self._places.get(held, 0) + count
        try:
            yield
        finally:
            self._places[held] -= count
            if not self._places[held]:
                del self._places[held]

    # -- whose bound it is -------------------------------------------------------------------------

    def _bounds_of(self, payer: Payer) -> _Bounds:
        quotas = self._replicated()
        if quotas is not self._quotas:
            self._quotas = quotas
            self._bounds.clear()
        bounds = self._bounds.get(payer)
        if bounds is None:
            if len(self._bounds) >= CALLERS_MAX:
                del self._bounds[next(iter(self._bounds))]
            bounds = self._bounds[payer] = self._worked_out(payer)
        return bounds

    def _worked_out(self, payer: Payer) -> _Bounds:
        bounds = {key: Bound((payer.name, ""), amount) for key, amount in self._defaults.items()}
        for user, client_id in reversed(_entities_of(payer)):
            quota = self._quotas.get((user, client_id))
            if quota is not None:
                owner = (payer.name if user else "", payer.client_id if client_id else "")
                bounds |= {QuotaKey(key): Bound(owner, amount) for key, amount in quota.limits}
        return bounds

    def _as_of(self, key: QuotaKey, bound: Bound, now_s: float) -> QuotaUse:
        use = self._uses.pop((key, bound.owner), None)
        if use is None:
            if len(self._uses) >= CALLERS_MAX:
                # Forget the bucket whose last use is longest ago.
                del self._uses[next(iter(self._uses))]
            use = QuotaUse(now_s)
        passed_s = now_s - use.since_s
        if passed_s > 0:
            use.since_s = now_s
            use.spent = max(0.0, use.spent - passed_s * bound.amount)
        self._uses[key, bound.owner] = use
        return use


def _entities_of(payer: Payer) -> tuple[QuotaEntity, ...]:
    """Return the entities whose quotas match a caller, the most specific first, in the order of KIP-546."""
    clients = (payer.client_id, EVERY) if payer.client_id else (EVERY,)
    return (
        *((user, client) for user in (payer.user, EVERY) for client in (*clients, "")),
        *(("", client) for client in clients),
    )
