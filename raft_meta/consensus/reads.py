"""Reads of the committed state without an entry in the log: ReadIndex (Ongaro's dissertation, section 6.4).

A read asks for an index such that the log up to there has every command that was committed before the read began. The
read is over when this node has applied that index. Nothing is written, so a read costs no sync, and it works while a
disk is full.

The leader notes its commit index, and then asks the voters whether they still are in its term: a *round*. If a majority
is, no leader of a later term was elected before the round began. So no command was committed that this leader does not
know of. Two conditions belong to it:

- A new leader does not know how far the log is committed, until an entry of its own term is (section 6.4, step 1).
- A learner does not answer: its lost directory may hold a vote in a later term.

No answer depends on a clock. A node asks again if the leader or the connection changes. Questions and rounds without an
answer are repeated after ``patience_s``.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raft_meta.consensus.library import QUEUE_LENGTH_MAX
from raft_meta.consensus.messages import Message
from raft_meta.consensus.parts import CoreParts

Applied = Callable[[int], None]
"""Gets the index that is applied here. It must not raise."""

ROUNDS_MAX: Final = 64
"""Most rounds without an answer. Later reads wait for room; a leader without a majority steps down soon."""


@dataclass(slots=True)
class _ReadRound:
    """A question to the voters. ``readers``: for each node that asked, the number of its question."""

    number: int
    index: int
    readers: list[tuple[int, int]]
    confirmed: set[int] = field(default_factory=set)


class Reads:
    """The reads of one node, and on the leader also those of others. Owned by the core.

    Invariants: a ticket is in exactly one of ``_waiting``, ``_asked`` and ``_found``, until its callback ran or it was
    withdrawn. ``_rounds`` is empty unless this node leads in the term ``_under``.
    """

    def __init__(self, parts: CoreParts) -> None:
        self._node_id = parts.config.node_id
        self._majority = len(parts.config.voters) // 2 + 1
        self._library = parts.library
        self._wal = parts.wal
        self._outbox = parts.outbox
        self._clock = parts.clock
        self._patience_s = parts.config.election_timeout_s[0]
        """A question or a round that has no answer for this long is repeated."""
        self._tickets = 0
        self._callbacks: dict[int, Applied] = {}
        self._waiting: dict[int, None] = {}
        self._asked: dict[int, list[int]] = {}
        """By the number of a question to the leader: the tickets that wait for its answer."""
        self._asked_at = 0.0
        self._found: list[tuple[int, list[int]]] = []
        """Indexes that are not applied here yet, with the tickets that wait for them."""
        self._under: tuple[int, int | None] = (0, None)
        """Term and leader to which the questions and rounds belong."""
        self._questions = 0
        # Of the leader.
        self._first_own = 0
        """An index from the leader's own term: once it is committed, the commit index is current."""
        self._arrived: list[tuple[int, int]] = []
        self._rounds: deque[_ReadRound] = deque()
        self._round = 0
        self._sent_at = 0.0

    # -- callers on this node

    def ask(self, callback: Applied) -> int | None:
        """Take a read; return its ticket, or None if there are too many reads."""
        if len(self._callbacks) >= QUEUE_LENGTH_MAX:
            return None
        self._tickets += 1
        self._callbacks[self._tickets] = callback
        self._waiting[self._tickets] = None
        return self._tickets

    def withdraw(self, ticket: int) -> bool:
        """Forget a read; return False if it is over."""
        self._waiting.pop(ticket, None)
        return self._callbacks.pop(ticket, None) is not None

    # -- events of the core

    def disconnected(self, node_id: int) -> None:
        """Ask again: questions and answers in flight are lost with the connection."""
        if node_id == self._under[1]:
            self._ask_again()
        self._arrived = [reader for reader in self._arrived if reader[0] != node_id]
        for round_ in self._rounds:
            round_.readers = [reader for reader in round_.readers if reader[0] != node_id]

    def advance(self) -> None:
        """Send the questions and rounds that are due, and end the reads whose index is applied."""
        library = self._library
        under = (library.term, library.leader_id)
        if under != self._under:
            self._under = under
            self._ask_again()
            self._arrived.clear()
            self._rounds.clear()
            # A new leader appends a no-op at once, so the last entry is of its term.
            self._first_own = self._wal.entries[-1][1]
        if self._asked and self._clock() - self._asked_at >= self._patience_s:
            self._ask_again()
        if self._waiting and under[1] is not None:
            self._ask_leader(under[1])
        if library.is_leader:
            self._maybe_begin_round()
        self._end_applied()

    def _ask_again(self) -> None:
        for tickets in self._asked.values():
            self._waiting |= dict.fromkeys(t for t in tickets if t in self._callbacks)
        self._asked.clear()

    def _ask_leader(self, leader_id: int) -> None:
        """Ask one question for all reads that wait."""
        self._questions += 1
        self._asked[self._questions] = list(self._waiting)
        self._asked_at = self._clock()
        self._waiting.clear()
        if leader_id == self._node_id:
            self._arrived.append((self._node_id, self._questions))
        else:
            self._outbox.put(leader_id, {"type": "read_index", "number": self._questions})

    def _end_applied(self) -> None:
        applied = self._library.applied_index
        due = [tickets for index, tickets in self._found if index <= applied]
        if not due:
            return
        self._found = [item for item in self._found if item[0] > applied]
        for tickets in due:
            for ticket in tickets:
                callback = self._callbacks.pop(ticket, None)
                if callback is not None:
                    callback(applied)

    def on_answer(self, message: Message) -> None:
        """Take the leader's answer to a question."""
        number, index = message["number"], message["index"]
        assert isinstance(number, int)
        assert isinstance(index, int)
        tickets = self._asked.pop(number, None)
        if tickets is not None:
            self._found.append((index, tickets))

    # -- the leader

    def on_question(self, node_id: int, message: Message) -> None:
        """Take another node's question. A node that does not lead ignores it: the asker asks the next leader."""
        number = message["number"]
        assert isinstance(number, int)
        if self._library.is_leader:
            self._arrived.append((node_id, number))

    def _maybe_begin_round(self) -> None:
        if self._library.commit_index < self._first_own:
            return
        is_late = bool(self._rounds) and self._clock() - self._sent_at >= self._patience_s
        if not (is_late or (self._arrived and len(self._rounds) < ROUNDS_MAX)):
            return
        self._round += 1
        readers, self._arrived = self._arrived, []
        self._rounds.append(_ReadRound(self._round, self._library.commit_index, readers))
        self._sent_at = self._clock()
        for voter in self._library.others:
            self._outbox.put(
                voter, {"type": "read_round", "term": self._library.term, "round": self._round}
            )
        self._on_confirmed(self._node_id, self._round)

    def on_confirmation(self, node_id: int, message: Message) -> None:
        """Take a voter's word that it still was in this leader's term when a round reached it."""
        number = message["round"]
        assert isinstance(number, int)
        if self._library.is_leader and message["term"] == self._library.term == self._under[0]:
            self._on_confirmed(node_id, number)

    def _on_confirmed(self, node_id: int, number: int) -> None:
        for round_ in self._rounds:
            # A voter that confirms a later round was in this term during the earlier ones, too.
            if round_.number <= number:
                round_.confirmed.add(node_id)
        while self._rounds and len(self._rounds[0].confirmed) >= self._majority:
            round_ = self._rounds.popleft()
            for reader, question in round_.readers:
                answer: Message = {
                    "type": "read_index_reply",
                    "number": question,
                    "index": round_.index,
                }
                if reader == self._node_id:
                    self.on_answer(answer)
                else:
                    self._outbox.put(reader, answer)

    # -- the voters

    def on_round(self, node_id: int, message: Message, *, is_learner: bool) -> None:
        """Confirm that this voter is in the leader's term, if it is."""
        if message["term"] == self._library.term and not is_learner:
            self._outbox.put(
                node_id,
                {
                    "type": "read_round_reply",
                    "term": message["term"],
                    "round": message["round"],
                },
            )
