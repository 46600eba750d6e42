"""A bound on the bytes of requests that a listener holds, over all of its connections.

The bytes count from their arrival until the response. Above the bound, a connection that brings more bytes is not read
any more. One that has an unfinished frame is an exception, so that this frame does get its end. So the bound may be
exceeded by one frame, and by what each other connection brings in one piece. Of clients that have not authenticated,
those that bring bytes above twice their bound lose their connections.

The bound is what HTTP requests leave of the node's (``RequestBytes``). HTTP refuses requests above it, and this
interface waits for room.
"""

from typing import Protocol

from http_api.serving.in_flight import RequestBytes


class Holder(Protocol):
    """A connection."""

    @property
    def is_busy(self) -> bool:
        """Whether a request has no response yet."""

    def hold(self, is_held: bool) -> None:
        """Stop reading, or go on."""


class FrameBudget:
    """The bytes of requests in work. Belongs to the data loop.

    Invariant: connections are held only while the bound is exceeded; at most one that waits for bytes is not held then.
    """

    def __init__(self, shared: RequestBytes, *, at_most: int | None = None) -> None:
        """Count nothing yet. ``at_most``: a bound for these connections alone."""
        self._use = shared.use(at_most=at_most, on_room=self._look)
        self._bytes: dict[Holder, int] = {}
        self._held: dict[Holder, None] = {}
        """The held connections, in the order of arrival."""
        self._favoured: Holder | None = None

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all connections."""
        return self._use.held

    @property
    def is_flooded(self) -> bool:
        """Whether the connections hold more than twice their bound. Each may bring a piece before it is held."""
        return self._use.held > 2 * self._use.most

    def take(self, holder: Holder, count: int) -> None:
        """Count bytes that arrived, and stop the connection if they are too many."""
        self._bytes[holder] = self._bytes.get(holder, 0) + count
        self._use.add(count)
        if self._use.held > self._use.most:
            is_exempt = holder is self._favoured and not holder.is_busy
            if not is_exempt and holder not in self._held:
                self._held[holder] = None
                holder.hold(True)
            self._favour()

    def give_back(self, holder: Holder, count: int) -> None:
        """Stop counting bytes: their request has its response."""
        if holder not in self._bytes:
            return
        self._bytes[holder] -= count
        self._use.remove(count)
        self._look()

    def leave(self, holder: Holder) -> int:
        """Forget a connection; return its bytes."""
        count = self._bytes.pop(holder, 0)
        self._use.remove(count)
        is_held = holder in self._held
        self._held.pop(holder, None)
        if self._favoured is holder:
            self._favoured = None
        if is_held:
            # It may go on elsewhere: with good credentials, a client moves from the bound of strangers to that of all.
            holder.hold(False)
        self._look()
        return count

    def rest(self) -> None:
        """Note that a connection has no request in work any more, so its unfinished frame may be what all wait for."""
        self._look()

    def _look(self) -> None:
        """Let connections read again if there is room, or if nothing would make room otherwise."""
        if not self._held and self._favoured is None:
            return
        if self._use.held <= self._use.most:
            self._favoured = None
            held, self._held = list(self._held), {}
            for one in held:
                one.hold(False)
        else:
            self._favour()

    def _favour(self) -> None:
        """If every connection waits for bytes, let one have them; nothing would ever be given back otherwise."""
        if self._favoured is not None and not self._favoured.is_busy:
            return
        self._favoured = None
        if any(holder.is_busy for holder, count in self._bytes.items() if count):
            return
        # One without bytes may have nothing to send.
        self._favoured = next((holder for holder in self._held if self._bytes[holder]), None)
        if self._favoured is not None:
            del self._held[self._favoured]
            self._favoured.hold(False)
