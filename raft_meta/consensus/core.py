"""One Raft node without I/O of its own: the library's core behind the guards.

Inputs: ``connected``, ``disconnected``, ``receive``, ``propose``, ``barrier`` and ``tick``. Outputs: messages through
a ``MessageSender``, the log through a ``Wal``, calls of a ``StateMachine``. Time and chance are injected, so
production and the simulation run this same class.

The driver of a core has these duties, as users of etcd's raft have:

1. Call the core from one thread. Nothing here is locked.
2. After any input (messages, connections, commands), call ``advance``. Inputs that arrive together share one call.
3. Then deliver the responses that the core gave, before ``sync``. No response waits for the sync of later entries.
4. Then call ``sync``, always, and before the next ``advance``. ``tick`` calls both, if no responses are delivered.
5. Call the core at ``next_due`` even without input: elections, heartbeats and news of commits depend on it.
6. Stop the process if the core raises. A log that could not be written keeps no promises.

The order inside ``advance`` is the contract:

1. Flush the messages that the inputs caused. A message that promises that something is on disk waits for a sync.
2. Sync the entries that must not be counted before they are on disk.
3. Commit, apply and respond, send appends, take new commands. Repeat this step while the log grows.
4. Flush again.

A follower thus acknowledges before it applies, and its leader waits only for the follower's disk.

If the commit index moved and nothing else is to be sent, the next append carries the news. Without a next append, an
append without entries carries it after ``NEWS_SECONDS``. This halves the messages of a busy cluster. A node that
forwarded a command to this leader gets the news at once.

Not implemented: changes of membership, read leases, log entries above the append batch size.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from milena.model.errors import CorruptLogError
from raft_meta.consensus.guards import PreVote, VoteBook, matching_count
from raft_meta.consensus.installer import Installer
from raft_meta.consensus.library import COMMAND, NO_OP, Callback, Failure, Library
from raft_meta.consensus.messages import Entry, Message
from raft_meta.consensus.outbox import MessageSender, Outbox
from raft_meta.consensus.quorum import QuorumStatus, Role, StateMachine
from raft_meta.consensus.replicator import WINDOW_PIECES, Replicator
from raft_meta.consensus.snapshot import SnapshotStore
from raft_meta.consensus.snapshotter import Background, Snapshotter
from raft_meta.consensus.wal import Wal

_log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_INCARNATION_BITS: Final = 31
_REQUEST_BITS: Final = 32

_FROM_ANYONE: Final = frozenset({"next_node_idx", "apply_command"})
"""Messages that an observer may send; all others only voters may."""

NEWS_SECONDS: Final = 0.002
"""How long the news that the commit index moved may wait for entries to travel with. About the time of one commit."""

_TO_VOTERS: Final = frozenset(
    {"request_vote", "response_vote", "pre_vote", "pre_vote_reply", "timeout_now"}
)
"""Messages that an observer does not respond to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """The settings of one node. Times in seconds.

    ``voters``: ids of all voters; a node that is not among them is an observer. ``incarnation``: larger than
    at any former start of this node. ``leader_fallback_s``: a leader steps down after so long without responses
    of a majority. If a majority needs a snapshot, the value must be longer than sending and loading it takes.
    """

    node_id: int
    voters: tuple[int, ...]
    incarnation: int
    election_timeout_s: tuple[float, float] = (0.5, 1.0)
    heartbeat_s: float = 0.1
    leader_fallback_s: float = 1.0
    batch_bytes: int = 4 << 20
    window_pieces: int = WINDOW_PIECES
    log_bytes_max: int = 64 << 20


class RaftCore:
    """One node.

    Invariants: ``applied_index`` ≤ ``commit_index`` ≤ last index of the log; the first two never fall.
    Owned by one thread. Any exception of a method must stop the process.
    """

    def __init__(
        self,
        config: CoreConfig,
        *,
        wal: Wal,
        snapshots: SnapshotStore,
        machine: StateMachine,
        sender: MessageSender,
        background: Background,
        clock: Callable[[], float],
        rng: random.Random,
        is_learner: bool = False,
        on_member: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._wal = wal
        self._machine = machine
        self._clock = clock
        self._rng = rng
        self._on_member = on_member
        self._is_voter = config.node_id in config.voters
        self._majority = len(config.voters) // 2 + 1
        self._pre_vote = PreVote(deadline=clock() + self.election_timeout())
        self._heard_at = -_NEVER
        self._votes = VoteBook()
        self._observers: set[int] = set()
        self._previous_index: int | None = None
        self._term_seen = 0
        self._advanced_at = clock()
        self._has_forwarded = False
        self._awaited_index = 0
        """Another node waits for the news that all entries up to this index are committed."""
        self._is_learner = is_learner and self._is_voter
        # The lost directory may hold a vote for a campaign that is still in progress. This node must not vote a second
        # time in it, so the campaign must be over before this node may prove itself and vote.
        self._proof_due = clock() + config.election_timeout_s[1]
        self._proof: bytes | None = None
        self._proofs = 0
        self._outbox = Outbox(sender, wal)
        self._check_log(snapshots)
        self._library = Library(
            self,
            node_id=config.node_id,
            voters=config.voters,
            wal=wal,
            election_timeout=config.election_timeout_s,
            heartbeat=config.heartbeat_s,
            leader_fallback=config.leader_fallback_s,
        )
        # Guard "reqid": the library counts requests from 1 at each start, so a late response to a request of the former
        # process would be taken for one of this process. 31 + 32 bits fit the integers that ``messages`` allows.
        incarnation = config.incarnation % (1 << _INCARNATION_BITS)
        self._library.start_requests_at(incarnation << _REQUEST_BITS)
        self._replicator = Replicator(
            library=self._library,
            wal=wal,
            snapshots=snapshots,
            outbox=self._outbox,
            sender=sender,
            clock=clock,
            incarnation=config.incarnation,
            batch_bytes=config.batch_bytes,
            window_pieces=config.window_pieces,
        )
        self._installer = Installer(
            library=self._library,
            wal=wal,
            snapshots=snapshots,
            machine=machine,
            acknowledge=self.on_acknowledge,
            on_installed=self._answer_orphans,
        )
        self._snapshotter = Snapshotter(
            library=self._library,
            wal=wal,
            snapshots=snapshots,
            machine=machine,
            background=background,
            clock=clock,
            log_bytes_max=config.log_bytes_max,
        )
        self._handlers: dict[str, Callable[[int, Message], None]] = {
            "pre_vote": self._on_pre_vote,
            "pre_vote_reply": self._on_pre_vote_reply,
            "request_vote": self._on_request_vote,
            "response_vote": self._on_vote,
            "next_node_idx": self._on_acknowledgement,
            "append_entries": self._on_append,
            "apply_command": self._on_command,
            "apply_command_response": self._on_command_response,
        }
        if snapshots.meta is not None:
            self._installer.load()
            # The log does not store a commit index. A snapshot holds committed entries only, so its index is safe.
            self._library.commit_index = snapshots.meta.index

    def _check_log(self, snapshots: SnapshotStore) -> None:
        first = self._wal.entries[0][1] if self._wal.entries else 1
        covered = 0 if snapshots.meta is None else snapshots.meta.index
        if first > covered + 1:
            raise CorruptLogError(
                f"the log begins at index {first}, the snapshot ends at {covered}: files are missing"
            )

    # -- what it is

    @property
    def library(self) -> Library:
        """The library's node, for tests that prepare its state."""
        return self._library

    @property
    def wal(self) -> Wal:
        """The log."""
        return self._wal

    @property
    def is_learner(self) -> bool:
        """Whether this node is a voter that lost its directory and has not proved that it caught up."""
        return self._is_learner

    @property
    def role(self) -> Role:
        """Role of this node."""
        if not self._is_voter:
            return Role.OBSERVER
        if self._is_learner:
            return Role.LEARNER
        if self._library.is_leader:
            return Role.LEADER
        return Role.CANDIDATE if self._library.is_candidate else Role.FOLLOWER

    def status(self) -> QuorumStatus:
        """Return the current view."""
        library = self._library
        return QuorumStatus(
            role=self.role,
            leader_id=library.leader_id,
            term=library.term,
            commit_index=library.commit_index,
            applied_index=library.applied_index,
        )

    def next_due(self) -> float:
        """Return when ``tick`` is needed if nothing else happens, on the clock."""
        # Counted from the last tick, not from now: the timer asks again before it ticks, and a core that is always due
        # "a heartbeat from now" would never be ticked.
        latest = self._advanced_at + self._config.heartbeat_s
        if self._library.is_leader:
            return min(self._library.heartbeat_due, latest)
        if self._is_voter and not self._is_learner:
            return self._pre_vote.deadline
        return latest

    # -- inputs

    def connected(self, node_id: int) -> None:
        """Note that the one live connection to this node is up."""
        self._outbox.forget(node_id)
        if node_id not in self._config.voters:
            self._observers.add(node_id)
        self._library.connected(node_id)

    def disconnected(self, node_id: int) -> None:
        """Note that the connection to this node is gone, with all messages in flight."""
        self._outbox.forget(node_id)
        self._observers.discard(node_id)
        self._library.disconnected(node_id)
        self._replicator.cancel(node_id)
        if node_id == self._library.leader_id:
            self._on_leader_unreachable()

    def _on_leader_unreachable(self) -> None:
        self._library.fail_forwarded()
        self._library.forget_leader()
        # Most likely the leader's process died, so do not wait for the election timeout. If the leader lives, the
        # others still hear it and refuse the pre-vote. The random delay keeps followers from asking at one moment.
        soon = self._clock() + self._config.heartbeat_s * (0.5 + self._rng.random())
        self._pre_vote.deadline = min(self._pre_vote.deadline, soon)
        # So that this node does not refuse the pre-vote of another follower that lost the leader, too.
        self._heard_at = -_NEVER

    def receive(self, node_id: int, message: Message) -> None:
        """Take a checked message from the live connection to ``node_id``."""
        kind = message["type"]
        may_send = node_id in self._observers and kind in _FROM_ANYONE
        if node_id not in self._config.voters and not may_send:
            return
        if not self._is_voter and kind in _TO_VOTERS:
            return
        handler = self._handlers.get(cast("str", kind), self._library.receive)
        handler(node_id, message)

    def propose(self, command: bytes, callback: Callback) -> int | None:
        """Submit a command to be committed and applied. The callback gets the response or the failure.

        Returns:
            A ticket for ``withdraw``; None if the callback was called already.
        """
        return self._submit(COMMAND + command, callback)

    def barrier(self, callback: Callable[[int, Failure | None], None]) -> int | None:
        """Commit a no-op; the callback gets the index applied here, or the failure. Return a ticket as ``propose``."""

        def on_result(_: bytes | None, failure: Failure | None) -> None:
            # The library calls back before it counts the no-op as applied.
            callback(self._library.applied_index + 1, failure)

        return self._submit(NO_OP, on_result)

    def _submit(self, entry: bytes, callback: Callback) -> int | None:
        ticket = self._library.submit(entry, callback)
        if ticket is None:
            callback(None, Failure.QUEUE_FULL)
        return ticket

    def withdraw(self, ticket: int) -> bool:
        """Take back a command that is still queued. Return False if it has left the queue: its fate is unknown."""
        return self._library.queue.withdraw(ticket)

    def transfer_leadership(self) -> bool:
        """Ask the most caught-up voter to take over. Return False if no voter is caught up now."""
        return self._library.is_leader and self._library.transfer_leadership()

    def force_compaction(self) -> None:
        """Write a snapshot and shorten the log at the next tick."""
        self._snapshotter.force()

    def tick(self) -> None:
        """Do all work that is due, syncs included."""
        self.advance()
        self.sync()

    def advance(self) -> None:
        """Do all work that is due, except the sync that no message or response waits for. ``sync`` must follow soon."""
        self._advanced_at = self._clock()
        self._maybe_ask()
        # Before commands are applied: a leader that waits for this acknowledgement waits for the disk only.
        self._outbox.flush()
        self._sync_before_counting()
        library = self._library
        is_done = False
        while not is_done:
            commit_index, last_index = library.commit_index, self._wal.entries[-1][1]
            library.tick()
            is_done = self._has_settled(commit_index, last_index)
        if self._term_seen != library.term:
            self._on_new_term()
        if self._is_learner:
            self._maybe_prove()
        self._outbox.flush()

    def _has_settled(self, commit_index: int, last_index: int) -> bool:
        """Return whether a tick that started with these indexes left nothing to do; schedule news of commits."""
        library = self._library
        end = self._wal.entries[-1][1]
        has_grown = end != last_index
        # The forwarded commands are in the log only now, after the tick that took them from the queue.
        if library.is_leader and self._has_forwarded:
            self._awaited_index, self._has_forwarded = end, False
        if not library.is_leader:
            return not has_grown
        if not has_grown and library.commit_index == commit_index:
            return True
        if self._majority == 1:
            # A single voter commits with its own copy alone, and the next round of the library counts it.
            self._sync_before_counting()
            library.send_soon()
            return False
        if has_grown or commit_index < self._awaited_index:
            # Sent here, because the library sends before it takes commands. Another of its rounds would cost more.
            # The new entries cannot be counted in this call: no follower can have acknowledged them yet.
            library.send_now()
            return not library.queue
        # An append of its own for each commit would double the messages: each follower acknowledges it.
        library.send_by(self._clock() + NEWS_SECONDS)
        return True

    def sync(self) -> None:
        """Sync the recorded entries that no message promises: a leader's own, while the followers sync theirs."""
        self._wal.sync()

    def _sync_before_counting(self) -> None:
        """Sync the log of a leader: the library counts the leader's own copy of every entry."""
        if self._library.is_leader:
            self._wal.sync()

    def _on_new_term(self) -> None:
        self._term_seen = self._library.term
        self._answer_orphans()
        self._replicator.cancel_all()

    def close(self) -> None:
        """Sync and close the log. Nothing may be called afterwards."""
        self._replicator.cancel_all()
        self._wal.close()

    # -- hooks of the library

    def on_send(self, node_id: int, message: Message) -> None:
        """See ``Hooks``."""
        self._outbox.put(node_id, message)

    def on_send_entries(self) -> None:
        """See ``Hooks``."""
        self._replicator.send_all()

    def on_tick_end(self) -> None:
        """See ``Hooks``."""
        self._snapshotter.maybe_compact(is_sending_snapshot=self._replicator.is_sending_snapshot)

    def on_apply(self, entry: Entry) -> bytes | None:
        """See ``Hooks``."""
        command, index, _ = entry
        if command[:1] == COMMAND:
            return self._machine.apply(index, command[1:])
        # Compared as a whole: the proof of another learner, or of an earlier start of this node, proves nothing.
        if self._is_learner and command == self._proof:
            self._become_member()
        return None

    def on_acknowledge(
        self, node_id: int, *, reset: bool, next_index: int | None, success: bool
    ) -> None:
        """See ``Hooks``."""
        end = self._wal.entries[-1][1]
        previous = self._previous_index
        # Guard "hint": on a mismatch the library goes back by one entry a round trip. Committed entries match the log
        # of every leader (Raft paper, 5.4), so the leader may continue behind them. If this log is too short, its end
        # is the hint.
        if reset and (previous is None or previous <= end):
            next_index = self._library.commit_index + 1
        self._outbox.put(
            node_id,
            {
                "type": "next_node_idx",
                "term": self._library.term,
                "next_node_idx": end + 1 if next_index is None else next_index,
                "reset": reset,
                "success": success,
                "learner": self._is_learner,
            },
        )

    def election_deadline(self) -> float:
        """Return the deadline of ``Hooks``. It is never reached before a majority approved the campaign."""
        # Guard "prevote": the library has no pre-votes. A follower that hears no leader would raise its term again and
        # again, and depose a working leader when it is connected again (Ongaro's dissertation, 9.6).
        if self._is_learner:
            return _NEVER
        may_campaign = self._pre_vote.is_approved or self._library.is_transfer_pending
        return 0.0 if may_campaign else _NEVER

    def on_election_deadline(self, deadline: float) -> None:
        """See ``Hooks``."""
        self._pre_vote.reset(deadline)

    def election_timeout(self) -> float:
        """See ``Hooks``."""
        least, most = self._config.election_timeout_s
        return least + (most - least) * self._rng.random()

    def has_room(self, command: bytes) -> bool:
        """See ``Hooks``."""
        return self._wal.has_room(len(command), is_urgent=command[:1] == NO_OP)

    # -- elections

    def _maybe_ask(self) -> None:
        """Ask the others whether they would vote for this node, if it has not heard a leader for long."""
        now = self._clock()
        if not self._is_voter or self._is_learner:
            return
        if self._library.is_leader or self._pre_vote.is_approved or now < self._pre_vote.deadline:
            return
        least = self._config.election_timeout_s[0]
        again = now + least * (0.4 + 0.8 * self._rng.random())
        self._pre_vote.begin(self._config.node_id, again, self._majority)
        for node_id in self._library.others:
            self._outbox.put(
                node_id, {"type": "pre_vote", **self._position(), "round": self._pre_vote.round}
            )

    def _position(self) -> Message:
        _, index, term = self._wal.entries[-1]
        return {"term": self._library.term, "last_log_index": index, "last_log_term": term}

    def _on_pre_vote(self, node_id: int, message: Message) -> None:
        _, index, term = self._wal.entries[-1]
        theirs = (_int(message, "last_log_term"), _int(message, "last_log_index"))
        # A node that heard a leader within the least election timeout refuses. One that alone lost the leader must not
        # disturb the others (Raft paper, end of section 6). The logs are compared as for a vote (5.4.1).
        is_quiet = self._clock() - self._heard_at >= self._config.election_timeout_s[0]
        would_vote = not self._library.is_leader and not self._is_learner and is_quiet
        self._outbox.put(
            node_id,
            {
                "type": "pre_vote_reply",
                "term": self._library.term,
                "round": message["round"],
                "ok": would_vote and theirs >= (term, index),
            },
        )

    def _on_pre_vote_reply(self, node_id: int, message: Message) -> None:
        # ``_on_pre_vote`` ignores the asker's term, and the asker adopts the term of the reply. Otherwise a node with a
        # newer log at a lower term could never win.
        if _int(message, "term") > self._library.term:
            self._adopt(_int(message, "term"))
        if message["ok"]:
            self._pre_vote.on_support(node_id, _int(message, "round"), self._majority)

    def _on_request_vote(self, node_id: int, message: Message) -> None:
        # Guard "learner": the lost directory may hold a vote of this term.
        if not self._is_learner:
            self._library.receive(node_id, message)

    def _on_vote(self, node_id: int, message: Message) -> None:
        # Guard "votes": the library counts messages. Two votes of one node would make a leader of a minority.
        if self._votes.is_new(_int(message, "term"), node_id):
            self._library.receive(node_id, message)

    def _adopt(self, term: int) -> None:
        self._library.set_term(term, None)
        self._library.step_down()

    # -- appends

    def _on_append(self, node_id: int, message: Message) -> None:
        term = self._library.term
        if _int(message, "term") < term:
            # Guard "stepdown": the library ignores an append of a lower term silently. This node would stay out for
            # good: the others hear their leader, so they refuse its pre-votes, and never learn its higher term.
            self.on_acknowledge(node_id, reset=False, next_index=1, success=False)
            return
        self._heard_at = self._clock()
        if "serialized" in message:
            self._installer.on_piece(node_id, message)
            return
        self._library.receive(node_id, self._trimmed(message))
        # ``_trimmed`` may have set it, for this message only.
        self._library.keep_tail(keep=False)
        if self._library.term != term or message["entries"]:
            self._answer_orphans()

    def _trimmed(self, message: Message) -> Message:
        """Return the part of the message that is new here, with no commit index beyond what the message verifies."""
        entries = cast("list[Entry]", message["entries"])
        trimmed = dict(message)
        # Guard "trim": the library truncates behind ``prevLogIdx`` at each append. A late append would cut off entries
        # that were acknowledged. A follower must truncate on conflict only (Raft paper, figure 2, AppendEntries 3).
        known = matching_count(entries, self._wal.entries)
        if known and entries[known - 1][1] >= self._wal.entries[0][1]:
            _, trimmed["prevLogIdx"], trimmed["prevLogTerm"] = entries[known - 1]
            trimmed["entries"] = entries[known:]
        self._drop_without_room(trimmed)
        rest = cast("list[Entry]", trimmed["entries"])
        # Without new entries there is no conflict. The library would truncate all the same.
        self._library.keep_tail(keep=not rest)
        # Guard "cap": the library commits up to the end of its log. Entries behind the last one of this message may
        # conflict with the leader's (Raft paper, figure 2, AppendEntries 5).
        matched = cast("int | None", trimmed["prevLogIdx"])
        end = 0 if matched is None else matched + len(rest)
        trimmed["commit_index"] = min(_int(message, "commit_index"), end)
        self._previous_index = matched
        return trimmed

    def _drop_without_room(self, message: Message) -> None:
        """Take no entries on a full disk. They are not acknowledged, so the leader sends them again."""
        entries = cast("list[Entry]", message["entries"])
        size = sum(len(command) for command, _, _ in entries)
        if entries and not self._wal.has_room(size, count=len(entries)):
            message["entries"] = []

    def _on_acknowledgement(self, node_id: int, message: Message) -> None:
        library, term = self._library, _int(message, "term")
        if term > library.term:
            self._adopt(term)
            return
        # Guard "ackterm": the library's acknowledgements have no term. One of an earlier term may be about entries that
        # were replaced since, and must not count for the entries of this term.
        if term != library.term or not library.is_leader:
            return
        answer = dict(message)
        answered_before = library.response_time(node_id)
        next_before = library.next_index(node_id)
        if answer["learner"]:
            # A learner is sent entries but counts for no commit: as a reset, its success moves the next index alone.
            answer["success"], answer["reset"] = False, answer["success"] or answer["reset"]
        elif answer["reset"]:
            # Guard "nextback": a late refusal names a position that the follower has passed since.
            matched = library.match_index(node_id) + 1
            answer["next_node_idx"] = max(_int(answer, "next_node_idx"), matched)
        library.receive(node_id, answer)
        if answer["learner"]:
            # Learners must not keep a leader in office that a majority of members does not hear.
            library.set_response_time(node_id, answered_before)
        # Guard "nextback": the library goes back to the acknowledged index, and would send entries in flight again.
        if answer["success"]:
            library.set_next_index(node_id, max(next_before, library.next_index(node_id)))
        # Neither success nor reset: the response to a snapshot piece, whose "index" is the bytes received, plus one.
        is_progress = not answer["success"] and not answer["reset"]
        self._replicator.on_answer(node_id, _int(answer, "next_node_idx") - 1 if is_progress else 0)

    # -- commands of other nodes

    def _on_command(self, node_id: int, message: Message) -> None:
        self._has_forwarded = True
        self._library.receive(node_id, message)

    # -- commands that the library would never respond to

    def _on_command_response(self, node_id: int, message: Message) -> None:
        self._library.receive(node_id, message)
        self._answer_orphans()

    def _answer_orphans(self) -> None:
        library = self._library
        if not library.is_anything_waiting:
            return
        log = self._wal.entries
        first, last = log[0][1], log[-1][1]

        def is_lost(index: int, term: int) -> bool:
            # Applying an entry removes its callbacks. One that is left was passed over by an installed snapshot.
            if index <= library.applied_index:
                return True
            # An entry of the current term that is not here may still be in flight: the response to a forwarded command
            # can arrive before the append. At an older term it was truncated, or never came.
            here = log[index - first][2] if index <= last else None
            return term != here and term < library.term

        library.fail_waiting(is_lost)

    # -- a voter that lost its directory

    def _maybe_prove(self) -> None:
        """Propose an entry of this node. Once it is applied here, all entries acknowledged before are here, too."""
        now = self._clock()
        if self._library.leader_id is None or now < self._proof_due:
            return
        self._proof_due = now + self._config.election_timeout_s[1]
        self._proofs += 1
        proof = f"learner {self._config.node_id} {self._config.incarnation} {self._proofs}"
        self._proof = NO_OP + proof.encode()
        self._submit(self._proof, lambda _response, _failure: None)

    def _become_member(self) -> None:
        # The lost directory may hold a vote of this term. A vote for itself keeps this node from voting again in it.
        self._library.set_term(self._library.term, self._config.node_id)
        self._wal.sync()
        self._is_learner = False
        self._on_member()
        _log.info("caught up and votes again node_id=%d", self._config.node_id)


def _int(message: Message, field: str) -> int:
    return cast("int", message[field])
