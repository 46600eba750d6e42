"""Limits on requests in flight and on the bytes of their bodies, shared fairly among callers.

While less than half of a limit is used, every request is accepted. Above that, a caller may use at most an equal share:
the limit divided by the number of recent callers. The last eighth is reserved for callers that have nothing in flight.
So a caller with many requests is refused first, and a caller with few is still accepted.

The limit on bytes is that of the node. If it has another interface, both share the limit (``RequestBytes``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from http_api.ports.node import ApiLimits
from milena.model.errors import TooManyRequestsError

FOR_NEWCOMERS = 8
"""This fraction (1/8) of a limit is for callers that have nothing in flight. A limit below 8 reserves nothing."""
LATELY_S = 1.0
"""A caller counts as recent for one to two such periods after its last request, in seconds."""


def fits(present: int, own: int, more: int, most: int, *, callers: int) -> bool:
    """Return whether a caller may use ``more`` of a limited amount.

    Args:
        present: the amount that all callers use now.
        own: the amount that this caller uses now.
        more: the additional amount.
        most: the limit.
        callers: the number of recent callers, which share the limit.
    """
    if present + more > most:
        return False
    if not own or 2 * (present + more) <= most:
        return True
    if present + more > most - most // FOR_NEWCOMERS:
        return False
    return (own + more) * max(1, callers) <= most


class ByteUse:
    """The bytes of requests that one interface holds, out of ``RequestBytes``."""

    __slots__ = ("_at_most", "_shared", "held", "on_room", "reserve")

    def __init__(
        self, shared: "RequestBytes", at_most: int | None, on_room: Callable[[], None] | None
    ) -> None:
        self._shared = shared
        self._at_most = shared.bytes_max if at_most is None else at_most
        self.on_room = on_room
        self.reserve = shared.bytes_max // FOR_NEWCOMERS if at_most is None else at_most
        self.held = 0

    @property
    def most(self) -> int:
        """Return how many bytes this interface may hold now: what the others leave, and its reserve in any case.

        Others may exceed what they may hold, by at most one frame, because they count bytes that have arrived.
        """
        left = self._shared.bytes_max
        for other in self._shared.uses:
            if other is not self:
                left -= max(other.held, other.reserve)
        return min(max(left, self.reserve), self._at_most)

    def add(self, count: int) -> None:
        """Count bytes that arrived."""
        self.held += count

    def remove(self, count: int) -> None:
        """Stop counting bytes, and tell the other interfaces of the room."""
        self.held -= count
        for other in self._shared.uses:
            if other is not self and other.on_room is not None:
                other.on_room()


class RequestBytes:
    """The bound on the bytes of requests that a node holds, over all of its interfaces. Belongs to one event loop.

    An interface may use what the others leave. An eighth of the bound is reserved for each of the others, so none can
    take everything.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.uses: list[ByteUse] = []

    def use(
        self, *, at_most: int | None = None, on_room: Callable[[], None] | None = None
    ) -> ByteUse:
        """Return the use of a further interface.

        Args:
            at_most: a lower bound for this interface, which is then also its reserve.
            on_room: called when another interface gives bytes back.
        """
        made = ByteUse(self, at_most, on_room)
        self.uses.append(made)
        return made


@dataclass(slots=True)
class Held:
    """The requests and bytes that one caller has in flight."""

    requests: int = 0
    body_bytes: int = 0


class InFlightPlace:
    """The entry of one request in ``InFlight``. The request is counted once, or not at all.

    Invariant: ``InFlight`` counts the request exactly while ``_is_taken``.
    """

    __slots__ = ("_caller", "_in_flight", "_is_taken")

    def __init__(self, in_flight: "InFlight") -> None:
        self._in_flight = in_flight
        self._caller = ""
        self._is_taken = False

    def take(self, caller: str, now_s: float) -> None:
        """Count the request.

        Raises:
            TooManyRequestsError: the limit is reached, or the caller's share of it.
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
        """Do not count the request within this block. A nested block has no further effect.

        Args:
            is_asked_again: check the limit when the request counts again at the end of the block.

        Raises:
            TooManyRequestsError: the limit is reached. The request counts nevertheless, until it ends.
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
    """All requests in flight of a server. Used on one event loop; times are on its clock."""

    def __init__(self, limits: ApiLimits, request_bytes: RequestBytes | None = None) -> None:
        """Count nothing yet. ``request_bytes``: the bound that other interfaces share; None: there are none."""
        self.limits = limits
        self.request_count = 0
        self._bytes = (request_bytes or RequestBytes(limits.bytes_in_flight_max)).use()
        self._held: dict[str, Held] = {}
        """The callers that have something in flight."""
        self._here: set[str] = set()
        self._before: set[str] = set()
        """The callers of the previous period that have not called in the current one."""
        self._since_s = 0.0

    @property
    def body_bytes(self) -> int:
        """Return the bytes of all bodies in flight."""
        return self._bytes.held

    def admit(self, caller: str, now_s: float) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: the limit is reached, or the caller's share of it.
        """
        self._see(caller, now_s)
        self._check_place(caller)
        self.enter(caller)

    def has_room_for(self, caller: str, byte_count: int, now_s: float) -> bool:
        """Return whether one more request with a body of this size fits."""
        self._see(caller, now_s)
        if byte_count > self.limits.request_bytes_max:
            return False
        requests_max, of_bytes = self.limits.requests_in_flight_max, self._bytes
        # Nearly always, less than half of each limit is used, and every request fits. The bytes that are reserved for
        # this interface are the least that its limit can be.
        if (
            2 * (self.request_count + 1) <= requests_max
            and 2 * (of_bytes.held + byte_count) <= of_bytes.reserve
        ):
            return True
        held = self._held.get(caller) or Held()
        return self._fits(self.request_count, held.requests, 1, requests_max) and (
            not byte_count or self._fits_bytes(held, byte_count)
        )

    def enter(self, caller: str, byte_count: int = 0) -> None:
        """Count a request and the bytes of its body so far, without a check of the limits."""
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = Held()
        held.requests += 1
        held.body_bytes += byte_count
        self.request_count += 1
        self._bytes.add(byte_count)

    def leave(self, caller: str, byte_count: int = 0) -> None:
        """Stop counting a request and its bytes."""
        held = self._held[caller]
        held.requests -= 1
        self.request_count -= 1
        if byte_count:
            held.body_bytes -= byte_count
            self._bytes.remove(byte_count)
        self._forget_idle(caller, held)

    def readmit(self, caller: str) -> None:
        """Count a request again after its body has arrived.

        Raises:
            TooManyRequestsError: the limit is reached. The request counts nevertheless, until it ends.
        """
        try:
            self._check_place(caller)
        finally:
            self.enter(caller)

    def reserve(self, caller: str, byte_count: int) -> None:
        """Count bytes of a body that have arrived.

        Raises:
            TooManyRequestsError: the limit of bytes is reached, or the caller's share of it.
        """
        held = self._held.get(caller)
        if held is None:
            held = self._held[caller] = Held()
        if not self._fits_bytes(held, byte_count):
            self._forget_idle(caller, held)
            raise TooManyRequestsError(
                f"{self.body_bytes} bytes of requests are in flight, {held.body_bytes} of them of {caller}; "
                "try again later"
            )
        held.body_bytes += byte_count
        self._bytes.add(byte_count)

    def release(self, caller: str, byte_count: int) -> None:
        """Stop counting bytes of a body."""
        if not byte_count:
            return
        held = self._held[caller]
        held.body_bytes -= byte_count
        self._bytes.remove(byte_count)
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

    def _fits_bytes(self, held: Held, byte_count: int) -> bool:
        return self._fits(self._bytes.held, held.body_bytes, byte_count, self._bytes.most)

    def _fits(self, present: int, own: int, more: int, most: int) -> bool:
        return fits(present, own, more, most, callers=len(self._here) + len(self._before))

    def _see(self, caller: str, now_s: float) -> None:
        """Count the caller as recent."""
        if now_s - self._since_s > LATELY_S:
            is_recent = now_s - self._since_s <= 2 * LATELY_S
            self._before = self._here if is_recent else set()
            # A caller with a request in flight counts as recent, however long ago it sent the request.
            self._before.update(self._held)
            self._here = set()
            self._since_s = now_s
        if caller not in self._here:
            self._here.add(caller)
            self._before.discard(caller)
