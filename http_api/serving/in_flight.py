"""Requests under way, and the bytes of their bodies, against their bounds, and shared out fairly among callers.

As long as half of a bound is free whoever comes is taken in. Above that nobody has more of it than an equal share, one
for each caller that was here lately, and the last eighth is for those who have nothing in flight: so a greedy one is
refused, and modest ones find room, whichever of them is the faster to come, and the first time that they come.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from http_api.ports.node import ApiLimits
from milena.model.errors import TooManyRequestsError

FOR_NEWCOMERS = 8
"""One part of so many is for callers that have nothing; nothing of bounds that are smaller."""
LATELY_S = 1.0
"""A caller that was not here for so long, or twice as long, has no share."""


def fits(present: int, own: int, more: int, most: int, *, callers: int) -> bool:
    """Whether a caller that has ``own`` of a bounded thing may have ``more``, where ``callers`` share it."""
    if present + more > most:
        return False
    if not own or 2 * (present + more) <= most:
        return True
    if present + more > most - most // FOR_NEWCOMERS:
        return False
    return (own + more) * max(1, callers) <= most


@dataclass(slots=True)
class Held:
    """What one caller has of both."""

    requests: int = 0
    body_bytes: int = 0


class InFlightPlace:
    """A request's place in flight: it is taken or it is not, so that no place is given back twice.

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
            TooManyRequestsError: there are as many as there may be, or as many of this caller.
        """
        assert not self._is_taken, "a request has one place"
        self._in_flight.admit(caller, now_s)
        self._caller = caller
        self._is_taken = True

    def leave(self) -> None:
        """Count the request no more."""
        if self._is_taken:
            self._is_taken = False
            self._in_flight.leave(self._caller)

    @contextmanager
    def aside(self, *, is_asked_again: bool = False) -> Iterator[None]:
        """Do not count the request for so long; within another such block this one changes nothing.

        Args:
            is_asked_again: whether there must be room when it is counted again.

        Raises:
            TooManyRequestsError: there is none by now; it counts nevertheless.
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
    """All of a server. Belongs to one event loop; times are its clock's."""

    def __init__(self, limits: ApiLimits) -> None:
        self.limits = limits
        self.request_count = 0
        self.body_bytes = 0
        self._held: dict[str, Held] = {}
        """Of callers that have something."""
        self._here: set[str] = set()
        self._before: set[str] = set()
        """Who was here in this while and, if not since, in the one before; disjoint."""
        self._since_s = 0.0

    def admit(self, caller: str, now_s: float) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: there are as many as there may be, or as many of this caller.
        """
        self._see(caller, now_s)
        self._check_place(caller)
        self.enter(caller)

    def has_room_for(self, caller: str, byte_count: int, now_s: float) -> bool:
        """Whether one more request with such a body would be taken."""
        self._see(caller, now_s)
        limits, held = self.limits, self._held.get(caller) or Held()
        return (
            byte_count <= limits.request_bytes_max
            and self._fits(self.request_count, held.requests, 1, limits.requests_in_flight_max)
            and self._fits(self.body_bytes, held.body_bytes, byte_count, limits.bytes_in_flight_max)
        )

    def enter(self, caller: str, byte_count: int = 0) -> None:
        """Count a request, and what has come of it, whatever the bounds say."""
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = Held()
        held.requests += 1
        held.body_bytes += byte_count
        self.request_count += 1
        self.body_bytes += byte_count

    def leave(self, caller: str, byte_count: int = 0) -> None:
        """Count a request no more, nor what has come of it."""
        self._give_back(caller, 1, byte_count)

    def readmit(self, caller: str) -> None:
        """Count a request again whose body has come.

        Raises:
            TooManyRequestsError: there are as many as there may be by now; it counts nevertheless.
        """
        try:
            self._check_place(caller)
        finally:
            self.enter(caller)

    def reserve(self, caller: str, byte_count: int) -> None:
        """Count bytes of a body that have come.

        Raises:
            TooManyRequestsError: together with the bodies under way it would be too much.
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
        """Count bytes of a body no more."""
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
            # Who waits for an answer is here, however long that takes.
            self._before.update(self._held)
            self._here = set()
            self._since_s = now_s
        if caller not in self._here:
            self._here.add(caller)
            self._before.discard(caller)
