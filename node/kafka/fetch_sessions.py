"""Fetch sessions: a client names its partitions once, and then only what changes. Pure. Source: KIP-227.

A full fetch (epoch 0) opens a session, and has all partitions. An incremental one (epoch above 0) has partitions that
are new or changed, and those that it gives up. Its response has only partitions with records, with an error, with a
nearer replica, or with other ends than before.

A session is lost with its node, and may be evicted. The client then gets an error, and sends a full fetch again. So
nothing depends on a session but the size of messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.types import MonotonicMs
from node.kafka.wire.fetch import FetchedPartition, RecordsRow, WireFetch

NO_SESSION = 0
FULL, FINAL = 0, -1
"""Epochs of requests with all partitions: one opens a session, the other one does not. Both end the former one."""
EPOCH_MAX = (1 << 31) - 1
SESSIONS_MAX = 1_000
"""Sessions of one node. Source: Kafka's ``max.incremental.fetch.session.cache.slots``."""
PARTITIONS_MAX = 200_000
"""Partitions of all sessions together. Each takes about 300 bytes."""
EVICTABLE_MS = 120_000
"""After this time, a session may be evicted. Source: Kafka's ``min.incremental.fetch.session.eviction.ms``."""

FetchTopic = tuple[str, bytes, list[FetchedPartition]]
_Key = tuple[str, bytes, int]
"""The name of a topic, or its id, and a partition."""
_Ends = tuple[int, int, int]
_NEVER_TOLD: _Ends = (-1, -1, -1)
Owner = tuple[str, str]
"""The principal and host, and the client id of a client. Another client cannot use its session by guessing the id."""


@dataclass(slots=True)
class _Kept:
    """A partition of a session. ``told``: the ends in the last response that had it."""

    part: FetchedPartition
    told: _Ends = _NEVER_TOLD


@dataclass(slots=True)
class _Session:
    session_id: int
    owner: Owner
    has_ids: bool
    """Whether topics are named by ids."""
    opened_ms: MonotonicMs
    used_ms: MonotonicMs
    epoch: int = 1
    """The epoch of the next request."""
    partitions: dict[_Key, _Kept] = field(default_factory=dict)
    """In the order in which they are read: those that had records last come last."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The partitions of one request. ``session``: the one that the response belongs to."""

    topics: list[FetchTopic]
    session: _Session | None = None
    is_incremental: bool = False

    @property
    def session_id(self) -> int:
        """The session id of the response."""
        return NO_SESSION if self.session is None else self.session.session_id

    def told(
        self, topics: list[tuple[str, bytes, list[RecordsRow]]]
    ) -> list[tuple[str, bytes, list[RecordsRow]]]:
        """Return the rows of the response, out of those of all partitions, and remember what the client is told."""
        session = self.session
        if session is None:
            return topics
        found = [
            (name, topic_id, [row for row in rows if self._is_told(session, name, topic_id, row)])
            for name, topic_id, rows in topics
        ]
        return [topic for topic in found if topic[2]] if self.is_incremental else found

    def _is_told(self, session: _Session, name: str, topic_id: bytes, row: RecordsRow) -> bool:
        key = (name, topic_id, row.partition)
        kept = session.partitions.get(key)
        if kept is None:
            return True
        ends = (row.high_watermark, row.last_stable_offset, row.log_start_offset)
        is_news = bool(row.pieces or row.error_code or row.preferred >= 0 or ends != kept.told)
        is_told = is_news or not self.is_incremental
        # A partition with an error is told again when the error is gone.
        kept.told = _NEVER_TOLD if row.error_code else ends
        if row.pieces:
            # A response has a bounded size. Without this, the first partitions could fill it every time.
            session.partitions[key] = session.partitions.pop(key)
        return is_told


class FetchSessions:
    """The sessions of one node. Belongs to the data loop."""

    def __init__(
        self, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[int, _Session] = {}
        """By id, those that were used last at the end."""
        self._last_id = NO_SESSION
        self.partition_count = 0

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def plan(
        self,
        request: WireFetch,
        *,
        has_ids: bool,
        owner: Owner,
        now_ms: MonotonicMs,
        may_open: bool = True,
    ) -> FetchPlan | KafkaCode:
        """Return the partitions that a request asks for, or the code of the reason why it must send all of them.

        ``has_ids``: whether its version names topics by ids. ``may_open``: whether a session may begin.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in {FULL, FINAL}:
            if session is not None:
                self._drop(session)
            if request.session_epoch == FINAL or not request.topics or not may_open:
                return FetchPlan(request.topics)
            return FetchPlan(request.topics, self._opened(request, has_ids, owner, now_ms))
        if session is None:
            return KafkaCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return KafkaCode.INVALID_FETCH_SESSION_EPOCH
        if session.has_ids != has_ids:
            return KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR
        return self._continued(session, request, now_ms)

    def _continued(
        self, session: _Session, request: WireFetch, now_ms: MonotonicMs
    ) -> FetchPlan | KafkaCode:
        before = len(session.partitions)
        for name, topic_id, numbers in request.forgotten:
            for number in numbers:
                session.partitions.pop((name, topic_id, number), None)
        _add(session, request.topics)
        self.partition_count += len(session.partitions) - before
        if not session.partitions or self.partition_count > self._partitions_max:
            is_empty = not session.partitions
            self._drop(session)
            return FetchPlan([]) if is_empty else KafkaCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchPlan(list(_topics_of(session)), session, is_incremental=True)

    def _opened(
        self, request: WireFetch, has_ids: bool, owner: Owner, now_ms: MonotonicMs
    ) -> _Session | None:
        """Return a new session with the partitions of a request; None if there is no room for it."""
        session = _Session(self._next_id(), owner, has_ids, now_ms, now_ms)
        _add(session, request.topics)
        size = len(session.partitions)
        if not size or not self._has_room(size, now_ms):
            return None
        self._last_id = session.session_id
        self._sessions[session.session_id] = session
        self.partition_count += size
        return session

    def _next_id(self) -> int:
        found = self._last_id
        while True:
            found = 1 if found == EPOCH_MAX else found + 1
            if found not in self._sessions:
                return found

    def _has_room(self, size: int, now_ms: MonotonicMs) -> bool:
        """Return whether a session of this size may be opened; evict others for it, as far as that is allowed."""
        while self._sessions:
            is_full = len(self._sessions) >= self._sessions_max
            if not is_full and self.partition_count + size <= self._partitions_max:
                return True
            evicted = self._evictable(size, now_ms)
            if evicted is None:
                return False
            self._drop(evicted)
        return size <= self._partitions_max

    def _evictable(self, size: int, now_ms: MonotonicMs) -> _Session | None:
        """Return a session that is not in use, or else one that is old and smaller than ``size``."""
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > EVICTABLE_MS:
            return oldest
        smallest = min(
            (one for one in self._sessions.values() if now_ms - one.opened_ms > EVICTABLE_MS),
            key=lambda one: len(one.partitions),
            default=None,
        )
        return smallest if smallest is not None and len(smallest.partitions) < size else None

    def _drop(self, session: _Session) -> None:
        del self._sessions[session.session_id]
        self.partition_count -= len(session.partitions)


def _add(session: _Session, topics: Iterable[FetchTopic]) -> None:
    """Add partitions to a session, or change them."""
    for name, topic_id, parts in topics:
        for part in parts:
            kept = session.partitions.get((name, topic_id, part.partition))
            if kept is None:
                session.partitions[name, topic_id, part.partition] = _Kept(part)
            else:
                kept.part = part


def _topics_of(session: _Session) -> Iterable[FetchTopic]:
    """Yield the partitions of a session in their order; those of a topic that follow each other are together."""
    rows = ((name, topic_id, kept.part) for (name, topic_id, _), kept in session.partitions.items())
    for (name, topic_id), of_topic in groupby(rows, itemgetter(0, 1)):
        yield name, topic_id, [part for _, _, part in of_topic]
