"""One Raft node without I/O of its own: the library's core behind the guards.

Inputs: ``connected``, ``disconnected``, ``receive``, ``propose``, ``barrier`` and ``tick``. Outputs: messages through
a ``MessageSender``, the log through a ``Wal``, calls of a ``StateMachine``. Time and randomness are injected, so
production and the simulation run this same class.

The class that drives a core has these duties (etcd's raft has similar ones):

1. Call the core from one thread. It uses no locks.
2. After any input (messages, connections, commands), call ``advance``. Inputs that arrive together share one call.
3. Then deliver the responses that the core gave, before ``sync``. So no response waits for the sync of later entries.
4. Then call ``sync``, always, and before the next ``advance``. If no responses are to be delivered, ``tick`` calls
   both.
5. Call the core at ``next_due`` even without input: elections, heartbeats and news of commits depend on it.
6. Stop the process if the core raises: after a failed write, the core cannot know which of its promises are on disk.

``advance`` works in this order:

1. Flush the messages that the inputs caused. A message that promises that something is on disk waits for a sync.
2. If this node leads, sync the log, because the library counts the leader's own copy of every entry.
3. Commit, apply and respond, send appends, take new commands. Repeat this step while the log grows.
4. Flush again.

So a follower acknowledges entries before it applies commands, and its leader waits only for the follower's disk.

A leader tells its followers with its next append how far the log is committed. If no append follows within
``NEWS_SECONDS``, it sends one without entries. This halves the number of messages in a busy cluster. If another node
forwarded commands to this leader, the leader sends the news of their commit at once.

Not implemented: changes of membership, read leases, log entries above the append batch size.
"""

import logging
import random
from collections.abc import Callable
from typing import Final, cast

from milena.model.errors import CorruptLogError
from raft_meta.consensus.guards import PreVote, VoteBook, matching_count
from raft_meta.consensus.installer import Installer
from raft_meta.consensus.library import COMMAND, NO_OP, Callback, Failure, Library
from raft_meta.consensus.messages import Entry, Message
from raft_meta.consensus.outbox import MessageSender, Outbox
from raft_meta.consensus.parts import CoreConfig, CoreParts
from raft_meta.consensus.quorum import QuorumStatus, Role, StateMachine
from raft_meta.consensus.reads import Reads
from raft_meta.consensus.replicator import Replicator
from raft_meta.consensus.snapshot import SnapshotStore
from raft_meta.consensus.snapshotter import Background, Snapshotter
from raft_meta.consensus.wal import Wal

_log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_INCARNATION_BITS: Final = 31
_REQUEST_BITS: Final = 32

_FROM_ANYONE: Final = frozenset({"next_node_idx", "apply_command", "read_index"})
"""Messages that this node takes from observers. It takes all other messages from voters only."""

NEWS_SECONDS: Final = 0.002
"""How long the news of a commit may wait for an append with entries. About the time of one commit."""

_TO_VOTERS: Final = frozenset(
    {"request_vote", "response_vote", "pre_vote", "pre_vote_reply", "timeout_now", "read_round"}
)
"""Messages that are for voters only: an observer ignores them."""


class RaftCore:
    """One Raft node.

    Invariants: ``applied_index`` ≤ ``commit_index`` ≤ last index of the log; the first two never fall.
    One thread owns the core. If any method raises, the process must stop.
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
        """Another node forwarded commands with entries up to this index. It waits for the news of their commit."""
        self._is_learner = is_learner and self._is_voter
        # The lost directory may hold a vote in an election that is not over. If this node voted again in the same
        # term, two leaders could win. So it waits until that election must be over before it proves that it caught up.
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
        # Guard "reqid": the library numbers its requests from 1 at each start. A late response to a request of the
        # former process would count for the request of this process with the same number. 31 + 32 bits fit the
        # integers that ``messages`` allows.
        incarnation = config.incarnation % (1 << _INCARNATION_BITS)
        self._library.start_requests_at(incarnation << _REQUEST_BITS)
        parts = CoreParts(
            config=config,
            library=self._library,
            wal=wal,
            snapshots=snapshots,
            machine=machine,
            outbox=self._outbox,
            clock=clock,
        )
        self._replicator = Replicator(parts, sender)
        self._installer = Installer(
            parts, acknowledge=self.on_acknowledge, on_installed=self._answer_orphans
        )
        self._snapshotter = Snapshotter(parts, background)
        self._reads = Reads(parts)
        self._handlers: dict[str, Callable[[int, Message], None]] = {
            "pre_vote": self._on_pre_vote,
            "pre_vote_reply": self._on_pre_vote_reply,
            "request_vote": self._on_request_vote,
            "response_vote": self._on_vote,
            "next_node_idx": self._on_acknowledgement,
            "append_entries": self._on_append,
            "apply_command": self._on_command,
            "apply_command_response": self._on_command_response,
            "read_index": self._reads.on_question,
            "read_index_reply": lambda _, message: self._reads.on_answer(message),
            "read_round": self._on_read_round,
            "read_round_reply": self._reads.on_confirmation,
        }
        if snapshots.meta is not None:
            self._installer.load()
            # The log stores no commit index. A snapshot contains committed entries only, so its index is committed.
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
        """The wrapper of the library's node, for tests that prepare its state."""
        return self._library

    @property
    def wal(self) -> Wal:
        """The log."""
        return self._wal

    @property
    def is_learner(self) -> bool:
        """Whether this voter lost its directory and has not yet proved that it caught up."""
        return self._is_learner

    @property
    def role(self) -> Role:
        """The Raft role of this node."""
        if not self._is_voter:
            return Role.OBSERVER
        if self._is_learner:
            return Role.LEARNER
        if self._library.is_leader:
            return Role.LEADER
        return Role.CANDIDATE if self._library.is_candidate else Role.FOLLOWER

    def status(self) -> QuorumStatus:
        """Return role, leader, term and indexes as of now."""
        library = self._library
        return QuorumStatus(
            role=self.role,
            leader_id=library.leader_id,
            term=library.term,
            commit_index=library.commit_index,
            applied_index=library.applied_index,
        )

    def next_due(self) -> float:
        """Return when ``tick`` is needed if no input arrives, in seconds of the core's clock."""
        # Count from the last tick, not from now. The driver's timer asks again before it ticks: if the answer were
        # always "a heartbeat from now", the timer would never tick.
        latest = self._advanced_at + self._config.heartbeat_s
        if self._library.is_leader:
            return min(self._library.heartbeat_due, latest)
        if self._is_voter and not self._is_learner:
            return self._pre_vote.deadline
        return latest

    # -- inputs

    def connected(self, node_id: int) -> None:
        """Note that the one live connection to this node exists now."""
        self._outbox.forget(node_id)
        if node_id not in self._config.voters:
            self._observers.add(node_id)
        self._library.connected(node_id)

    def disconnected(self, node_id: int) -> None:
        """Note that the connection to this node is closed, and that all messages in flight are lost."""
        self._outbox.forget(node_id)
        self._observers.discard(node_id)
        self._library.disconnected(node_id)
        self._replicator.cancel(node_id)
        self._reads.disconnected(node_id)
        if node_id == self._library.leader_id:
            self._on_leader_unreachable()

    def _on_leader_unreachable(self) -> None:
        self._library.fail_forwarded()
        self._library.forget_leader()
        # Most likely the leader's process died, so this node does not wait for the election timeout. If the leader
        # lives, the other nodes still hear it and refuse the pre-vote. A random delay keeps the followers from asking
        # at the same time.
        soon = self._clock() + self._config.heartbeat_s * (0.5 + self._rng.random())
        self._pre_vote.deadline = min(self._pre_vote.deadline, soon)
        # Another follower that lost the leader may ask for a pre-vote. This node must not refuse it.
        self._heard_at = -_NEVER

    def receive(self, node_id: int, message: Message) -> None:
        """Handle a message that arrived on the live connection to ``node_id``. The codec has checked its fields."""
        kind = message["type"]
        may_send = node_id in self._observers and kind in _FROM_ANYONE
        if node_id not in self._config.voters and not may_send:
            return
        if not self._is_voter and kind in _TO_VOTERS:
            return
        handler = self._handlers.get(cast("str", kind), self._library.receive)
        handler(node_id, message)

    def propose(self, command: bytes, callback: Callback) -> int | None:
        """Submit a command, to be committed and applied. The callback gets the response or the failure.

        Returns:
            A ticket for ``withdraw``; None if the queue was full and the callback was called with that failure.
        """
        return self._submit(COMMAND + command, callback)

    def barrier(self, callback: Callable[[int, Failure | None], None]) -> int | None:
        """Wait until all that is committed now is applied here; the callback gets the applied index.

        The only failure is a full queue. Without a leader, the barrier waits (``reads``).

        Returns:
            A ticket for ``withdraw_barrier``; None if there are too many barriers and the callback got that failure.
        """
        ticket = self._reads.ask(lambda index: callback(index, None))
        if ticket is None:
            callback(0, Failure.QUEUE_FULL)
        return ticket

    def _submit(self, entry: bytes, callback: Callback) -> int | None:
        ticket = self._library.submit(entry, callback)
        if ticket is None:
            callback(None, Failure.QUEUE_FULL)
        return ticket

    def withdraw(self, ticket: int) -> bool:
        """Remove a command from the queue. Return False if it has left the queue already: its fate is unknown."""
        return self._library.queue.withdraw(ticket)

    def withdraw_barrier(self, ticket: int) -> bool:
        """Forget a barrier. Return False if it is over."""
        return self._reads.withdraw(ticket)

    def transfer_leadership(self) -> bool:
        """Ask the voter with the longest log to take over. Return False if no voter has all entries now."""
        return self._library.is_leader and self._library.transfer_leadership()

    def force_compaction(self) -> None:
        """Write a snapshot and shorten the log at the next tick."""
        self._snapshotter.force()

    def tick(self) -> None:
        """Do all work that is due, syncs included."""
        self.advance()
        self.sync()

    def advance(self) -> None:
        """Do all work that is due, except the sync of entries that no message promises. ``sync`` must follow soon."""
        self._advanced_at = self._clock()
        self._maybe_ask()
        self._reads.advance()
        # Flush before commands are applied, so that a leader waits only for the disk and not for this node's ``apply``.
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
        # Once more: the tick has applied entries, and may have elected this node.
        self._reads.advance()
        self._outbox.flush()

    def _has_settled(self, commit_index: int, last_index: int) -> bool:
        """Return whether a tick that started with these indexes left nothing to do.

        If the commit index moved, this also schedules the append that tells the followers.
        """
        library = self._library
        end = self._wal.entries[-1][1]
        has_grown = end != last_index
        # Only now, after the tick took the forwarded commands from the queue, are they in the log.
        if library.is_leader and self._has_forwarded:
            self._awaited_index, self._has_forwarded = end, False
        if not library.is_leader:
            return not has_grown
        if not has_grown and library.commit_index == commit_index:
            return True
        if self._majority == 1:
            # The only voter needs no other copy. After this sync, the next round of the library commits the entries.
            self._sync_before_counting()
            library.send_soon()
            return False
        if has_grown or commit_index < self._awaited_index:
            # The library sends before it takes commands, so the new entries are not sent yet. Sending them here saves
            # another round. No follower can have acknowledged them yet, so this call has nothing to commit.
            library.send_now()
            return not library.queue
            # If each commit got an append of its own, there would be twice as many messages: followers acknowledge
            # each append.
        library.send_by(self._clock() + NEWS_SECONDS)
        return True

    def sync(self) -> None:
        """Sync the entries that no message has promised: a leader's own, while the followers sync their copies."""
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
        """Sync and close the log. No method may be called afterwards."""
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
            # The whole proof is compared: another learner's, or one of an earlier start of this node, proves nothing.
        if self._is_learner and command == self._proof:
            self._become_member()
        return None

    def on_acknowledge(
        self, node_id: int, *, reset: bool, next_index: int | None, success: bool
    ) -> None:
        """See ``Hooks``."""
        end = self._wal.entries[-1][1]
        previous = self._previous_index
        # Guard "hint": on a mismatch the library goes back by one entry a round trip. Committed entries are the same in
        # the log of every leader (Raft paper, 5.4), so the leader may continue right behind this node's commit index.
        # If this log is too short, the leader may continue at its end.
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
        """Return the deadline of ``Hooks``: infinity until a majority approved the campaign or the leader asked for it.

        So the library campaigns only then.
        """
        # Guard "prevote": the library has no pre-votes. A follower that hears no leader would raise its term again and
        # again. When it is connected again, its term would depose a working leader (Ongaro's dissertation, 9.6).
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
        """If this node has not heard a leader for an election timeout, ask the other voters for their pre-votes."""
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
        # A node that heard a leader within the shortest election timeout refuses: a node that alone lost the leader
        # must not disturb the others (Raft paper, end of section 6). The logs are compared as for a vote (5.4.1).
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
        # A node whose log is newer, but whose term is lower, must be able to win. So ``_on_pre_vote`` ignores the
        # term of the node that asks, and that node adopts the term of the reply here.
        if _int(message, "term") > self._library.term:
            self._adopt(_int(message, "term"))
        if message["ok"]:
            self._pre_vote.on_support(node_id, _int(message, "round"), self._majority)

    def _on_request_vote(self, node_id: int, message: Message) -> None:
        # Guard "learner": the lost directory may hold a vote in this term, so this node must not vote.
        if not self._is_learner:
            self._library.receive(node_id, message)

    def _on_vote(self, node_id: int, message: Message) -> None:
        # Guard "votes": the library counts messages, not nodes. Two vote messages of one node could make a leader
        # without a majority.
        if self._votes.is_new(_int(message, "term"), node_id):
            self._library.receive(node_id, message)

    def _adopt(self, term: int) -> None:
        self._library.set_term(term, None)
        self._library.step_down()

    # -- appends

    def _on_append(self, node_id: int, message: Message) -> None:
        term = self._library.term
        if _int(message, "term") < term:
            # Guard "stepdown": the library ignores an append of a lower term without a response. Then this node would
            # never rejoin: the others hear their leader and refuse this node's pre-votes, so they never learn its term.
            self.on_acknowledge(node_id, reset=False, next_index=1, success=False)
            return
        self._heard_at = self._clock()
        if "serialized" in message:
            self._installer.on_piece(node_id, message)
            return
        self._library.receive(node_id, self._trimmed(message))
        # ``_trimmed`` may have turned the library's truncation off, for this message only.
        self._library.keep_tail(keep=False)
        if self._library.term != term or message["entries"]:
            self._answer_orphans()

    def _trimmed(self, message: Message) -> Message:
        """Return the message without the entries that this log has, and with a commit index that is safe here.

        A commit index is safe up to the last entry that the message shows to be the leader's.
        """
        entries = cast("list[Entry]", message["entries"])
        trimmed = dict(message)
        # Guard "trim": the library truncates its log behind ``prevLogIdx`` at each append. So a late append would cut
        # off acknowledged entries. A follower must truncate on conflict only (Raft paper, figure 2, AppendEntries 3).
        known = matching_count(entries, self._wal.entries)
        if known and entries[known - 1][1] >= self._wal.entries[0][1]:
            _, trimmed["prevLogIdx"], trimmed["prevLogTerm"] = entries[known - 1]
            trimmed["entries"] = entries[known:]
        self._drop_without_room(trimmed)
        rest = cast("list[Entry]", trimmed["entries"])
        # Without new entries there is no conflict. The library would truncate even so.
        self._library.keep_tail(keep=not rest)
        # Guard "cap": the library commits up to the end of its log. Entries of this log behind the last one of the
        # message may conflict with the leader's log (Raft paper, figure 2, AppendEntries 5).
        matched = cast("int | None", trimmed["prevLogIdx"])
        end = 0 if matched is None else matched + len(rest)
        trimmed["commit_index"] = min(_int(message, "commit_index"), end)
        self._previous_index = matched
        return trimmed

    def _drop_without_room(self, message: Message) -> None:
        """Drop the entries if the disk is full. They are not acknowledged, so the leader sends them again."""
        entries = cast("list[Entry]", message["entries"])
        size = sum(len(command) for command, _, _ in entries)
        if entries and not self._wal.has_room(size, count=len(entries)):
            message["entries"] = []

    def _on_acknowledgement(self, node_id: int, message: Message) -> None:
        library, term = self._library, _int(message, "term")
        if term > library.term:
            self._adopt(term)
            return
        # Guard "ackterm": the library's acknowledgements have no term. After an acknowledgement of an earlier term, the
        # follower's entries may have been replaced. So it must not count for the entries of this term.
        if term != library.term or not library.is_leader:
            return
        answer = dict(message)
        answered_before = library.response_time(node_id)
        next_before = library.next_index(node_id)
        if answer["learner"]:
            # A learner gets entries, but no commit may count its copy. As a "reset", its success only moves the next
            # index.
            answer["success"], answer["reset"] = False, answer["success"] or answer["reset"]
        elif answer["reset"]:
            # Guard "nextback": a late refusal names an index that the follower has passed in the meantime.
            matched = library.match_index(node_id) + 1
            answer["next_node_idx"] = max(_int(answer, "next_node_idx"), matched)
        library.receive(node_id, answer)
        if answer["learner"]:
            # A leader that a majority of members does not hear must step down, even if learners respond to it.
            library.set_response_time(node_id, answered_before)
        # Guard "nextback": the library goes back to the acknowledged index. It would send entries in flight again.
        if answer["success"]:
            library.set_next_index(node_id, max(next_before, library.next_index(node_id)))
        # Neither success nor reset: a response to a snapshot piece. Its "index" is the number of bytes received, plus
        # one.
        is_progress = not answer["success"] and not answer["reset"]
        self._replicator.on_answer(node_id, _int(answer, "next_node_idx") - 1 if is_progress else 0)

    # -- commands and reads of other nodes

    def _on_read_round(self, node_id: int, message: Message) -> None:
        self._reads.on_round(node_id, message, is_learner=self._is_learner)

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
            # Applying an entry removes its callbacks. If one is left, an installed snapshot skipped the entry.
            if index <= library.applied_index:
                return True
            # If an entry of the current term is not in this log, it may still be in flight: the response to a forwarded
            # command can arrive before the append. An entry of an older term was truncated, or was never sent here.
            here = log[index - first][2] if index <= last else None
            return term != here and term < library.term

        library.fail_waiting(is_lost)

    # -- a voter that lost its directory

    def _maybe_prove(self) -> None:
        """Propose an entry of this node. When it is applied here, so are all entries acknowledged before the loss."""
        now = self._clock()
        if self._library.leader_id is None or now < self._proof_due:
            return
        self._proof_due = now + self._config.election_timeout_s[1]
        self._proofs += 1
        proof = f"learner {self._config.node_id} {self._config.incarnation} {self._proofs}"
        self._proof = NO_OP + proof.encode()
        self._submit(self._proof, lambda _response, _failure: None)

    def _become_member(self) -> None:
        # The lost directory may hold a vote in this term. Voting for itself keeps this node from voting for another
        # node in this term.
        self._library.set_term(self._library.term, self._config.node_id)
        self._wal.sync()
        self._is_learner = False
        self._on_member()
        _log.info("caught up and votes again node_id=%d", self._config.node_id)


def _int(message: Message, field: str) -> int:
    return cast("int", message[field])
