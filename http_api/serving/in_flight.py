"""Bounds on requests in flight and the bytes of their bodies, shared fairly among callers.

While half of a bound is free, every caller is accepted. Above half, a caller gets at most an equal share: the bound
divided by the number of recent callers. The last eighth is for callers that have nothing in flight. So a greedy caller
is refused. A modest caller is accepted the first time, even if it is slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from http_api.ports.node import ApiLimits
from milena.model.errors import TooManyRequestsError

FOR_NEWCOMERS = 8
"""One part in this many is for callers that have nothing in flight. Bounds that are smaller reserve nothing."""
LATELY_S = 1.0
"""The period for which a recent caller has a share (seconds). A share lasts up to twice as long."""


def fits(present: int, own: int, more: int, most: int, *, callers: int) -> bool:
    """Return whether a caller that has ``own`` of a bounded amount may have ``more``, if ``callers`` share it."""
    if present + more > most:
        return False
    if not own or 2 * (present + more) <= most:
        return True
    if present + more > most - most // FOR_NEWCOMERS:
        return False
    return (own + more) * max(1, callers) <= most


@dataclass(slots=True)
class Held:
    """The requests and bytes that one caller has in flight."""

    requests: int = 0
    body_bytes: int = 0


class InFlightPlace:
    """A request's place in flight. It is either taken or not, so a place is never released twice.

    Invariant: ``InFlight`` counts it exactly while it is taken.
    """

    __slots__ = ("_caller", "_in_flight", "_is_taken")

    def __init__(self, in_flight: "InFlight") -> None:
        self._in_flight = in_flight
        self._caller = ""
        self._is_taken = False

    def take(self, caller: str, now_s: float) -> None:
        """Count the request.

        Raises:
            TooManyRequestsError: the bound is reached, or the caller's share of it.
        """
        assert not self._is_taken, "a request has one place"
        self._in_flight.admit(caller, now_s)
        self._caller = caller
        self._is_taken = True

    def leave(self) -> None:
        """Stop counting the request."""
        if self._is_taken:
            self._is_taken = False
            self._in_flight.leave(self._caller)

    @contextmanager
    def aside(self, *, is_asked_again: bool = False) -> Iterator[None]:
        """Stop counting the request within this block. A nested block changes nothing.

        Args:
            is_asked_again: whether there must be room when the request counts again.

        Raises:
            TooManyRequestsError: there is no room now. The request counts nevertheless.
        """
        if not self._is_taken:
            yield
            return
        self.leave()
        try:
            yield
        except BaseException:
            is_asked_again = False
            raise
        finally:
            self._is_taken = True
            if is_asked_again:
                self._in_flight.readmit(self._caller)
            else:
                self._in_flight.enter(self._caller)


class InFlight:
    """All requests in flight of a server. Belongs to one event loop; times are on its clock."""

    def __init__(self, limits: ApiLimits) -> None:
        self.limits = limits
        self.request_count = 0
        self.body_bytes = 0
        self._held: dict[str, Held] = {}
        """The callers that have something in flight."""
        self._here: set[str] = set()
        self._before: set[str] = set()
        """The callers of the current period, and those of the previous period that have not called since; disjoint."""
        self._since_s = 0.0

    def admit(self, caller: str, now_s: float) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: the bound is reached, or the caller's share of it.
        """
        self._see(caller, now_s)
        self._check_place(caller)
        self.enter(caller)

    def has_room_for(self, caller: str, byte_count: int, now_s: float) -> bool:
        """Return whether one more request with a body of this size fits."""
        self._see(caller, now_s)
        limits, held = self.limits, self._held.get(caller) or Held()
        return (
            byte_count <= limits.request_bytes_max
            and self._fits(self.request_count, held.requests, 1, limits.requests_in_flight_max)
            and self._fits(self.body_bytes, held.body_bytes, byte_count, limits.bytes_in_flight_max)
        )

    def enter(self, caller: str, byte_count: int = 0) -> None:
        """Count a request and the bytes that have arrived of it, without a check of the bounds."""
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = Held()
        held.requests += 1
        held.body_bytes += byte_count
        self.request_count += 1
        self.body_bytes += byte_count

    def leave(self, caller: str, byte_count: int = 0) -> None:
        """Stop counting a request and its bytes."""
        self._give_back(caller, 1, byte_count)

    def readmit(self, caller: str) -> None:
        """Count a request again after its body has arrived.

        Raises:
            TooManyRequestsError: there is no room now. The request counts nevertheless.
        """
        try:
            self._check_place(caller)
        finally:
            self.enter(caller)

    def reserve(self, caller: str, byte_count: int) -> None:
        """Count bytes of a body that have arrived.

        Raises:
            TooManyRequestsError: together with the other bodies in flight they are too many.
        """
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = Held()
        if not self._fits(
            self.body_bytes, held.body_bytes, byte_count, self.limits.bytes_in_flight_max
        ):
            self._forget_idle(caller, held)
            raise TooManyRequestsError(
                f"{self.body_bytes} bytes of requests are in flight, {held.body_bytes} of them of {caller}; "
                "try again later"
            )
        held.body_bytes += byte_count
        self.body_bytes += byte_count

    def release(self, caller: str, byte_count: int) -> None:
        """Stop counting bytes of a body."""
        if byte_count:
            self._give_back(caller, 0, byte_count)

    def _give_back(self, caller: str, requests: int, byte_count: int) -> None:
        held = self._held[caller]
        held.requests -= requests
        held.body_bytes -= byte_count
        self.request_count -= requests
        self.body_bytes -= byte_count
        self._forget_idle(caller, held)

    def _forget_idle(self, caller: str, held: Held) -> None:
        if not held.requests and not held.body_bytes:
            del self._held[caller]

    def _check_place(self, caller: str) -> None:
        held = self._held.get(caller)
        own = 0 if held is None else held.requests
        if not self._fits(self.request_count, own, 1, self.limits.requests_in_flight_max):
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight, {own} of them of {caller}; try again later"
            )

    def _fits(self, present: int, own: int, more: int, most: int) -> bool:
        return fits(present, own, more, most, callers=len(self._here) + len(self._before))

    def _see(self, caller: str, now_s: float) -> None:
        if now_s - self._since_s > LATELY_S:
            is_recent = now_s - self._since_s <= 2 * LATELY_S
            self._before = self._here if is_recent else set()
            # A caller that waits for a response counts as recent, however long it waits.
            self._before.update(self._held)
            self._here = set()
            self._since_s = now_s
        if caller not in self._here:
            self._here.add(caller)
            self._before.discard(caller)
