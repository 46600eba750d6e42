"""Broker sessions: the brokers that the controller counts as alive. Pure.

A heartbeat extends the session only as far as the response that it echoes is recent. A broker that can send but not
hear counts as dead, because it would not learn that it lost its leadership. Several heartbeats may be in flight, so the
echoed response need not be the last.

The broker counts its lease from the moment when it *sent* the answered heartbeat. The controller counts the session
from about the arrival of that heartbeat. So the lease ends first.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from milena.model.types import MonotonicMs

ANSWERS_KEPT = 16
"""The responses remembered for each broker: twice the heartbeats that a broker has in flight."""
GRACES_PER_SESSION = 6
"""A response counts as new for a sixth of a session, which is the interval of heartbeats. A broker echoes a response
only with its next heartbeat, though it has heard it earlier."""


@dataclass(slots=True)
class BrokerSession:
    """One broker's session under one broker epoch. Times are monotonic ms."""

    broker_epoch: int
    last_heard_ms: MonotonicMs
    answers: deque[tuple[int, MonotonicMs]] = field(
        default_factory=lambda: deque(maxlen=ANSWERS_KEPT)
    )
    """The numbers of the last responses, and when each was given; empty before the first one."""
    applied_index: int = -1
    """The index of the broker's image at its last heartbeat."""
    is_draining: bool = False
    is_disk_full: bool = False
    has_reported: bool = False
    """Whether the broker has sent a heartbeat under this controller. Before that, its silence proves nothing."""


class BrokerSessions:
    """The controller's view of every registered broker.

    Invariants:
        The number of a response is never reused by one controller. Only ``end`` and ``backdate`` shorten a session.
    """

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, BrokerSession] = {}
        self._answers = 0
        self._ended: set[int] = set()

    def arm(self, broker_epochs: Mapping[int, int], now_ms: MonotonicMs) -> None:
        """Give every broker without a session a full one; forget brokers that are not registered any more."""
        for broker_id, epoch in broker_epochs.items():
            session = self._sessions.get(broker_id)
            if session is None or session.broker_epoch != epoch:
                self._sessions[broker_id] = BrokerSession(epoch, now_ms)
                self._ended.discard(broker_id)
        for broker_id in self._sessions.keys() - broker_epochs.keys():
            del self._sessions[broker_id]

    def rearm(self, now_ms: MonotonicMs) -> None:
        """Extend all sessions after a stall of this node, which may not have heard the brokers."""
        for session in self._sessions.values():
            session.last_heard_ms = now_ms

    def backdate(self, broker_id: int, heard_ms: MonotonicMs) -> None:
        """Count the broker's session from ``heard_ms``, the last message of the previous Raft leader."""
        session = self._sessions.get(broker_id)
        if session is not None and not session.has_reported:
            session.last_heard_ms = min(session.last_heard_ms, heard_ms)

    def end(self, broker_id: int) -> None:
        """End the broker's session now, because its process is known to be gone."""
        if broker_id in self._sessions:
            self._ended.add(broker_id)

    def on_heartbeat(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        echo: int,
        applied_index: int,
        is_draining: bool,
        is_disk_full: bool,
        now_ms: MonotonicMs,
    ) -> int | None:
        """Take a heartbeat; return the number of the response, or None for a stale broker epoch."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return None
        given_ms = self._given_ms(session, echo, now_ms)
        if given_ms is not None:
            heard_ms = MonotonicMs(min(now_ms, given_ms + self._session_ms // GRACES_PER_SESSION))
            session.last_heard_ms = max(session.last_heard_ms, heard_ms)
            session.has_reported = True
            self._ended.discard(broker_id)
        session.applied_index = max(session.applied_index, applied_index)
        session.is_draining = session.is_draining or is_draining
        session.is_disk_full = is_disk_full
        self._answers += 1
        session.answers.append((self._answers, now_ms))
        return self._answers

    @staticmethod
    def _given_ms(session: BrokerSession, echo: int, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return when the echoed response was given.

        Return ``now_ms`` for a broker that got no response yet, and None for a response that is not remembered.
        """
        if not session.answers:
            return now_ms
        return next((given_ms for number, given_ms in session.answers if number == echo), None)

    def get(self, broker_id: int) -> BrokerSession | None:
        """Return the broker's session, or None."""
        return self._sessions.get(broker_id)

    def is_alive(self, broker_id: int, now_ms: MonotonicMs) -> bool:
        """Return whether the broker's session still runs."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and broker_id not in self._ended
            and now_ms - session.last_heard_ms <= self._session_ms
        )

    def expired(self, now_ms: MonotonicMs) -> Iterable[int]:
        """Return the brokers whose session has ended, ascending."""
        return [b for b in sorted(self._sessions) if not self.is_alive(b, now_ms)]
