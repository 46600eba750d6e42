"""Broker sessions: which brokers the controller counts as alive. Pure.

A heartbeat echoes the number of a response. It extends the session only as far as that response is recent. So a broker
that can send but cannot receive counts as dead: it would not learn that other brokers lead its partitions. Several
heartbeats may be in flight, so the echoed response need not be the last one.

The broker counts its lease from the moment when it *sent* a heartbeat that was answered. The controller counts the
session from about the arrival of that heartbeat. So the lease ends before the session.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from milena.model.types import MonotonicMs

ANSWERS_KEPT = 16
"""How many responses to each broker are remembered: twice the number of heartbeats that it may have in flight."""
GRACES_PER_SESSION = 6
"""A response counts as recent for a sixth of a session, which is the interval of heartbeats. This is needed because a
broker echoes a response only with its next heartbeat."""


@dataclass(slots=True)
class BrokerSession:
    """One broker's session under one broker epoch. Times are monotonic ms."""

    broker_epoch: int
    last_heard_ms: MonotonicMs
    answers: deque[tuple[int, MonotonicMs]] = field(
        default_factory=lambda: deque(maxlen=ANSWERS_KEPT)
    )
    """Pairs of the number of a response and the time when it was given, for the last responses."""
    applied_index: int = -1
    """The index of the broker's image at its last heartbeat."""
    is_draining: bool = False
    is_disk_full: bool = False
    has_reported: bool = False
    """Whether the broker has sent a valid heartbeat to this controller. Before that, its silence proves nothing."""


class BrokerSessions:
    """The sessions of all registered brokers.

    Invariants:
        One controller never uses the number of a response twice. Only ``end`` and ``backdate`` shorten a session.
    """

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, BrokerSession] = {}
        self._answers = 0
        self._ended: set[int] = set()

    def arm(self, broker_epochs: Mapping[int, int], now_ms: MonotonicMs) -> None:
        """Start a full session for every broker without one; remove brokers that are not registered any more."""
        for broker_id, epoch in broker_epochs.items():
            session = self._sessions.get(broker_id)
            if session is None or session.broker_epoch != epoch:
                self._sessions[broker_id] = BrokerSession(epoch, now_ms)
                self._ended.discard(broker_id)
        for broker_id in self._sessions.keys() - broker_epochs.keys():
            del self._sessions[broker_id]

    def rearm(self, now_ms: MonotonicMs) -> None:
        """Restart all sessions after a stall of this node: heartbeats may have waited unread during the stall."""
        for session in self._sessions.values():
            session.last_heard_ms = now_ms

    def backdate(self, broker_id: int, heard_ms: MonotonicMs) -> None:
        """Start the session of the previous Raft leader at ``heard_ms``, when its last message arrived."""
        session = self._sessions.get(broker_id)
        if session is not None and not session.has_reported:
            session.last_heard_ms = min(session.last_heard_ms, heard_ms)

    def end(self, broker_id: int) -> None:
        """End the broker's session now: its process is known to be gone."""
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
        """Note a heartbeat; return the number of the response, or None for a stale broker epoch."""
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
        """Return when the response with the number ``echo`` was given.

        Return ``now_ms`` if the broker has not got any response yet, and None if the number is not remembered.
        """
        if not session.answers:
            return now_ms
        return next((given_ms for number, given_ms in session.answers if number == echo), None)

    def get(self, broker_id: int) -> BrokerSession | None:
        """Return the broker's session, or None."""
        return self._sessions.get(broker_id)

    def is_alive(self, broker_id: int, now_ms: MonotonicMs) -> bool:
        """Return whether the broker's session has not ended."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and broker_id not in self._ended
            and now_ms - session.last_heard_ms <= self._session_ms
        )

    def expired(self, now_ms: MonotonicMs) -> Iterable[int]:
        """Return the ids of brokers whose session has ended, in ascending order."""
        return [b for b in sorted(self._sessions) if not self.is_alive(b, now_ms)]
