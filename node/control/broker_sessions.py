"""Broker sessions: which brokers the controller believes to be alive. Pure.

A heartbeat extends a session only as far as the answer that it echoes is young: a broker that can send but not hear is
as good as dead, it would not learn of its demotion. Several heartbeats may be under way at once, so the answer that is
echoed need not be the last. The broker counts its own lease from the moment that it *sent* the heartbeat that was
answered, the controller from about its arrival, so the lease ends first.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from milena.model.types import MonotonicMs

ANSWERS_KEPT = 16
"""Twice the heartbeats that a broker has under way."""
GRACES_PER_SESSION = 6
"""An answer counts as news for a sixth of a session: a heartbeat's interval. A broker that waits for its next turn with
the echo has heard us all the same."""


@dataclass(slots=True)
class BrokerSession:
    """One broker's session under one broker epoch. Times are monotonic ms."""

    broker_epoch: int
    last_heard_ms: MonotonicMs
    answers: deque[tuple[int, MonotonicMs]] = field(
        default_factory=lambda: deque(maxlen=ANSWERS_KEPT)
    )
    """Numbers of the last answers, and when each was given; empty: none was yet."""
    applied_index: int = -1
    """How far the broker's image was at its last heartbeat."""
    is_draining: bool = False
    is_disk_full: bool = False
    has_reported: bool = False
    """Whether the broker itself sent a heartbeat in this session: silence since take-over proves nothing."""


class BrokerSessions:
    """The controller's view of every registered broker.

    Invariants:
        An answer's number is never reused within one controller. A session never shrinks but by ``end``.
    """

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, BrokerSession] = {}
        self._answers = 0
        self._ended: set[int] = set()

    def arm(self, broker_epochs: Mapping[int, int], now_ms: MonotonicMs) -> None:
        """Give every broker without a session a full one; forget brokers that are gone."""
        for broker_id, epoch in broker_epochs.items():
            session = self._sessions.get(broker_id)
            if session is None or session.broker_epoch != epoch:
                self._sessions[broker_id] = BrokerSession(epoch, now_ms)
                self._ended.discard(broker_id)
        for broker_id in self._sessions.keys() - broker_epochs.keys():
            del self._sessions[broker_id]

    def rearm(self, now_ms: MonotonicMs) -> None:
        """After a stall of our own: what was silent may have been our not listening."""
        for session in self._sessions.values():
            session.last_heard_ms = now_ms

    def backdate(self, broker_id: int, heard_ms: MonotonicMs) -> None:
        """Count the broker's session from an earlier sign of life: the previous Raft leader's last message."""
        session = self._sessions.get(broker_id)
        if session is not None and not session.has_reported:
            session.last_heard_ms = min(session.last_heard_ms, heard_ms)

    def end(self, broker_id: int) -> None:
        """The process is known to be gone: its session is over now."""
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
        """Take a heartbeat; returns the number of the answer, or None for a stale broker epoch."""
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
        """When the echoed answer was given: now for a broker that was given none, None for one long forgotten."""
        if not session.answers:
            return now_ms
        return next((given_ms for number, given_ms in session.answers if number == echo), None)

    def get(self, broker_id: int) -> BrokerSession | None:
        """The broker's session."""
        return self._sessions.get(broker_id)

    def is_alive(self, broker_id: int, now_ms: MonotonicMs) -> bool:
        """Whether the session still runs."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and broker_id not in self._ended
            and now_ms - session.last_heard_ms <= self._session_ms
        )

    def expired(self, now_ms: MonotonicMs) -> Iterable[int]:
        """Brokers whose session is over, ascending."""
        return [b for b in sorted(self._sessions) if not self.is_alive(b, now_ms)]
