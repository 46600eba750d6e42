"""The wrapper of the library pysyncobj: typed names for its private ones, which no other module uses.

Milena uses the library's elections, log-matching check, commit rule, command queue and forwarding. This module replaces
everything that touches a disk, a socket, a clock, pickle or snapshots. The library's version is pinned and checked,
because its private names may change. Before another version is used, all simulations must run with it.

The library reads the time, and makes its poller and its journal, through functions that are global in its module.
``_patched`` replaces the last two while a core is built. The clock can only be replaced for the whole process
(``use_clock``). A core must use the same clock as the library.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from typing import Final, Protocol, cast

import pysyncobj.syncobj as _syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from milena.model.errors import StartupError
from raft_meta.consensus.messages import Entry, Message
from raft_meta.consensus.wal import Wal

REQUIRED_VERSION: Final = "0.3.17"

COMMAND: Final = b"\x00"
"""First byte of an entry that the state machine applies."""

NO_OP: Final = b"\x01"
"""First byte of an entry that the state machine does not get: a new leader's no-op, a learner's proof."""

COMMAND_BYTES_MAX: Final = 1 << 20
"""Largest command. It is below the append batch size, so no entry is ever cut in pieces."""

QUEUE_LENGTH_MAX: Final = 20_000
QUEUE_BYTES_MAX: Final = 64 << 20

_build_lock = threading.Lock()

# The library's default clock is the raw monotonic clock. It drifts from the clock by which event loops wait.
_syncobj.monotonicTime = time.monotonic  # noqa: TID251  # the clock of every event loop


@unique
class Failure(IntEnum):
    """The reason why a command failed. The codes are the library's; nodes send them to each other.

    All except ``LEADER_CHANGED`` and ``UNKNOWN_OUTCOME`` are definite: the command was not applied and never will be.
    """

    QUEUE_FULL = 1
    MISSING_LEADER = 2
    DISCARDED = 3
    NOT_LEADER = 4
    LEADER_CHANGED = 5
    REQUEST_DENIED = 6
    UNKNOWN_OUTCOME = 7

    @property
    def is_definite(self) -> bool:
        """Whether the command was not applied and never will be."""
        return self not in {Failure.LEADER_CHANGED, Failure.UNKNOWN_OUTCOME}


Callback = Callable[[bytes | None, Failure | None], None]
"""Gets the response of a command, or its failure. It must not raise: the library counts an entry as applied only after
the callback, so an exception would make it apply the entry a second time."""

_LibraryCallback = Callable[[object, int], None]


class Hooks(Protocol):
    """The functions that the library calls in the core."""

    def on_send(self, node_id: int, message: Message) -> None:
        """Send the message, unless the connection to the node is gone."""

    def on_apply(self, entry: Entry) -> bytes | None:
        """Apply a committed entry; return the response."""

    def has_room(self, command: bytes) -> bool:
        """Whether the leader may add this command to its log."""

    def on_acknowledge(
        self, node_id: int, *, reset: bool, next_index: int | None, success: bool
    ) -> None:
        """Acknowledge or refuse the leader's append.

        ``reset``: the log does not match. ``next_index``: the entry to send next; None for the end of the log.
        """

    def on_send_entries(self) -> None:
        """Send every connected node the entries that it lacks, or a heartbeat."""

    def on_tick_end(self) -> None:
        """Compact the log if this is due."""

    def election_deadline(self) -> float:
        """Return the time at which to campaign, on the library's clock."""

    def on_election_deadline(self, deadline: float) -> None:
        """Note that the library set another election deadline."""

    def election_timeout(self) -> float:
        """Return a random election timeout in seconds."""


def check_version() -> None:
    """Raise if another version of the library is installed.

    Raises:
        StartupError: the installed version is not ``REQUIRED_VERSION``.
    """
    if VERSION != REQUIRED_VERSION:
        raise StartupError(
            f"pysyncobj {VERSION} is installed; this program needs exactly {REQUIRED_VERSION}"
        )


@contextmanager
def use_clock(clock: Callable[[], float]) -> Iterator[None]:
    """Make the library use another clock (seconds, monotonic), in the whole process."""
    previous = _syncobj.monotonicTime
    _syncobj.monotonicTime = clock
    try:
        yield
    finally:
        _syncobj.monotonicTime = previous


def library_clock() -> float:
    """Return the time of the clock that the library uses now. The default is the clock of event loops."""
    return cast("float", _syncobj.monotonicTime())


class _NoPoller:
    def poll(self, _timeout: float) -> None:
        """Do nothing: the sockets are the transport's, not the library's."""


class _Outlet(Transport):  # type: ignore[misc]  # the library ships no types
    """The library's view of its transport: it passes messages to the hooks and stores the library's callbacks."""

    # While its transport is not ready, the library applies entries but neither elects nor sends.
    ready = True

    def __init__(self, hooks: Hooks) -> None:
        super().__init__(None, None, None)
        self._hooks = hooks

    def send(self, node: Node, message: Message) -> bool:
        self._hooks.on_send(node.id, message)
        return True


class _Journal:
    """The library's view of its journal: it maps the library's camel-case methods to the durable log."""

    # ``clear`` and ``deleteEntriesTo`` are missing: only the library's own snapshots would call them.

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self.keeps_tail = False

    def add(self, command: bytes, index: int, term: int) -> None:
        self._wal.append((command, index, term))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802
        # The library truncates at every append that is not at the end of its log, even without a conflict: see the
        # guard "trim".
        entries = self._wal.entries
        if not self.keeps_tail and position < len(entries):
            self._wal.truncate_from(entries[position][1])

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:  # noqa: N802
        self._wal.set_hard_state(term, voted_for)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._wal.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return self._wal.voted_for

    def setRaftCommitIndex(self, _index: int) -> None:  # noqa: N802
        """Ignore the index: after a restart, the node starts at its snapshot and learns the rest from the leader."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        # At a start, the library counts entry 1, its own no-op, as applied.
        return 1

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: the core syncs the log."""

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._wal.entries[item]

    def __len__(self) -> int:
        return len(self._wal.entries)


class CommandQueue:
    """The commands that wait for the log or for the leader. Bounded in number and bytes.

    The library calls ``put_nowait`` and ``get_nowait``. ``refuse`` is called with each command before it leaves the
    queue for the log. If the command may not enter the log, ``refuse`` fails the command and returns True.
    """

    def __init__(self, refuse: Callable[[bytes, object], bool]) -> None:
        self._refuse = refuse
        self._items: dict[int, tuple[bytes, object]] = {}
        self._tickets = itertools.count(1)
        self.bytes = 0

    def put(self, command: bytes, callback: object) -> int | None:
        """Append a command; return a ticket for ``withdraw``, or None if the queue is full."""
        if len(self._items) >= QUEUE_LENGTH_MAX or self.bytes + len(command) > QUEUE_BYTES_MAX:
            return None
        ticket = next(self._tickets)
        self._items[ticket] = (command, callback)
        self.bytes += len(command)
        return ticket

    def withdraw(self, ticket: int) -> bool:
        """Remove a command; return False if it has left the queue already."""
        item = self._items.pop(ticket, None)
        if item is None:
            return False
        self.bytes -= len(item[0])
        return True

    def put_nowait(self, item: tuple[bytes, object]) -> None:
        """Append a command that another node forwarded. Called by the library.

        Raises:
            queue.Full: the queue is full.
        """
        if self.put(*item) is None:
            raise queue.Full

    def get_nowait(self) -> tuple[bytes, object]:
        """Remove and return the oldest command that may enter the log.

        Raises:
            queue.Empty: no command is left.
        """
        # Check here, at the last step before the log: while a command waits for a leader, the disk may become full.
        while self._items:
            ticket = next(iter(self._items))
            command, callback = self._items.pop(ticket)
            self.bytes -= len(command)
            if not self._refuse(command, callback):
                return command, callback
        raise queue.Empty

    def __len__(self) -> int:
        return len(self._items)


class _Core(SyncObj):  # type: ignore[misc]  # the library ships no types
    """The library's node. It calls the hooks instead of the library's own methods, whose mangled names it overrides."""

    _is_built = False

    def __init__(
        self, hooks: Hooks, self_node: Node | None, others: list[Node], conf: SyncObjConf
    ) -> None:
        self._hooks = hooks
        super().__init__(self_node, others, conf, nodeClass=Node, transport=_Outlet(hooks))
        self._is_built = True

    @property
    def _SyncObj__raftElectionDeadline(self) -> float:  # noqa: N802
        # The library's constructor reads all attributes of the object, to find methods. The hooks are not usable then.
        return self._hooks.election_deadline() if self._is_built else float("inf")

    @_SyncObj__raftElectionDeadline.setter
    def _SyncObj__raftElectionDeadline(self, deadline: float) -> None:  # noqa: N802
        self._hooks.on_election_deadline(deadline)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return self._hooks.election_timeout()

    def _SyncObj__onSetCodeVersion(self, _version: int) -> None:  # noqa: N802
        """Ignore the version: each command has its own version."""

    def _SyncObj__parseChangeClusterRequest(self, _command: bytes) -> None:  # noqa: N802
        """Find no request: the voters never change, and the library would unpickle the command."""

    def _SyncObj__doApplyCommand(self, command: bytes) -> bytes | None:  # noqa: N802
        # The library would unpickle the command and call a method of its own object. It passes neither index nor term.
        # It counts the entry as applied only after this call, therefore + 1.
        index = self.raftLastApplied + 1
        log = self._SyncObj__raftLog
        return self._hooks.on_apply((command, index, log[index - log[0][1]][2]))

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Node,
        reset: bool = False,
        nextNodeIdx: int | None = None,  # noqa: N803  # the library calls it by this name
        success: bool = False,
    ) -> None:
        self._hooks.on_acknowledge(node.id, reset=reset, next_index=nextNodeIdx, success=success)

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        # The docstring of ``replicator`` says why the library's own sender is not used.
        conf = self.conf
        self._SyncObj__newAppendEntriesTime = _syncobj.monotonicTime() + conf.appendEntriesPeriod
        self._hooks.on_send_entries()

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        self._hooks.on_tick_end()


@contextmanager
def _patched(wal: Wal) -> Iterator[None]:
    """Make the library build its core with the journal and poller of this module."""
    # The factories are global in the library's module: two quorums of one process must not be built at the same time.
    with _build_lock:
        journal, poller = _syncobj.createJournal, _syncobj.createPoller
        _syncobj.createJournal = lambda *_: _Journal(wal)
        _syncobj.createPoller = lambda *_: _NoPoller()
        try:
            yield
        finally:
            _syncobj.createJournal, _syncobj.createPoller = journal, poller


class Library:
    """One node of the library, under typed names. Other nodes are given by their ids.

    Owned by one thread. If ``Hooks.on_apply`` raises, ``tick`` raises the same exception.
    """

    def __init__(
        self,
        hooks: Hooks,
        *,
        node_id: int,
        voters: tuple[int, ...],
        wal: Wal,
        election_timeout: tuple[float, float],
        heartbeat: float,
        leader_fallback: float,
    ) -> None:
        check_version()
        conf = SyncObjConf(
            # The driver ticks, on the quorum's thread.
            autoTick=False,
            # Without batches, the library sends after each command and after each tick that applied an entry.
            appendEntriesUseBatch=True,
            appendEntriesPeriod=heartbeat,
            raftMinTimeout=election_timeout[0],
            raftMaxTimeout=election_timeout[1],
            leaderFallbackTimeout=leader_fallback,
            # Only the library's own transport uses this. But the library refuses a value below the election timeout.
            connectionTimeout=max(3.5, election_timeout[1]),
            dynamicMembershipChange=False,
            # Without a leader, commands stay in the queue. There ``withdraw`` can remove them.
            commandsWaitLeader=True,
            # ``Snapshotter`` compacts. The library would decide by the number of entries, and pickle its own state.
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
            password=None,
        )
        self._nodes = {voter: Node(voter) for voter in voters}
        self.others = tuple(voter for voter in voters if voter != node_id)
        with _patched(wal):
            self._core = _Core(
                hooks,
                # None for an observer: the library's node then neither campaigns nor votes.
                self._nodes.get(node_id),
                [self._nodes[other] for other in self.others],
                conf,
            )
        self._hooks = hooks
        # The library's own queue limits the number of commands but not their bytes, and cannot remove one.
        self.queue = CommandQueue(self._refuse)
        self._core._SyncObj__commandsQueue = self.queue

    # -- state

    @property
    def term(self) -> int:
        """Current term."""
        return cast("int", self._core._SyncObj__raftCurrentTerm)

    @property
    def is_leader(self) -> bool:
        """Whether this node believes that it leads. At a newer term, another node may lead."""
        return bool(self._state == _syncobj._RAFT_STATE.LEADER)

    @property
    def is_candidate(self) -> bool:
        """Whether this node is campaigning."""
        return bool(self._state == _syncobj._RAFT_STATE.CANDIDATE)

    @property
    def _state(self) -> int:
        return cast("int", self._core._SyncObj__raftState)

    @property
    def leader_id(self) -> int | None:
        """Id of the leader; None if this node knows of no leader."""
        leader = self._core._SyncObj__raftLeader
        return None if leader is None else cast("int", leader.id)

    @property
    def commit_index(self) -> int:
        """Highest index known to be committed."""
        return cast("int", self._core._SyncObj__raftCommitIndex)

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._core._SyncObj__raftCommitIndex = index

    @property
    def applied_index(self) -> int:
        """Index of the last entry that was applied."""
        return cast("int", self._core._SyncObj__raftLastApplied)

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._core._SyncObj__raftLastApplied = index

    @property
    def is_transfer_pending(self) -> bool:
        """Whether the leader told this node to campaign at once."""
        return cast("bool", self._core._SyncObj__transferInProgress)

    @property
    def heartbeat_due(self) -> float:
        """The latest time of the leader's next message, on the library's clock."""
        return cast("float", self._core._SyncObj__newAppendEntriesTime)

    def send_soon(self) -> None:
        """Make the next tick send without waiting for the heartbeat. Entries of one tick are sent together."""
        self._core._SyncObj__newAppendEntriesTime = 0

    def send_now(self) -> None:
        """Send every connected node the entries that it lacks, outside of a tick."""
        self._core._SyncObj__sendAppendEntries()

    def send_by(self, moment: float) -> None:
        """Make the library send at ``moment`` at the latest, on the library's clock."""
        core = self._core
        core._SyncObj__newAppendEntriesTime = min(core._SyncObj__newAppendEntriesTime, moment)

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Set term and vote, in memory and in the log."""
        self._core._SyncObj__setCurrentTerm(term, voted_for)

    def step_down(self) -> None:
        """Become a follower that knows of no leader."""
        self._core._SyncObj__setState(_syncobj._RAFT_STATE.FOLLOWER)
        self._core._SyncObj__raftLeader = None

    def keep_tail(self, *, keep: bool) -> None:
        """While ``keep`` is True, let the library's truncations do nothing: the message conflicts with no entry."""
        self._core._SyncObj__raftLog.keeps_tail = keep

    # -- what the leader knows of the others

    def next_index(self, node_id: int) -> int:
        """Return the index of the entry that the node is sent next."""
        return cast("int", self._core._SyncObj__raftNextIndex[self._node(node_id)])

    def set_next_index(self, node_id: int, index: int) -> None:
        """Set the index of the entry that the node is sent next."""
        self._core._SyncObj__raftNextIndex[self._node(node_id)] = index

    def match_index(self, node_id: int) -> int:
        """Return the highest index up to which the node is known to have the leader's entries on disk."""
        return cast("int", self._core._SyncObj__raftMatchIndex[self._node(node_id)])

    def response_time(self, node_id: int) -> float | None:
        """Return when the node last responded to this leader, on the library's clock; None for never."""
        times = cast("dict[Node, float]", self._core._SyncObj__lastResponseTime)
        return times.get(self._node(node_id))

    def set_response_time(self, node_id: int, moment: float | None) -> None:
        """Set the time of the last response back, after a response that must not count. None changes nothing."""
        if moment is not None:
            self._core._SyncObj__lastResponseTime[self._node(node_id)] = moment

    def connected_ids(self) -> list[int]:
        """Return the ids of connected voters and observers, sorted, so that a simulated run repeats."""
        nodes = cast("set[Node]", self._core._SyncObj__connectedNodes)
        return sorted(node.id for node in nodes)

    # -- inputs

    def receive(self, node_id: int, message: Message) -> None:
        """Pass a message to the library. The codec has checked its fields."""
        self._core._SyncObj__onMessageReceived(self._node(node_id), message)

    def connected(self, node_id: int) -> None:
        """Note that a connection to the node is up."""
        if node_id in self._nodes:
            self._core._SyncObj__onNodeConnected(self._nodes[node_id])
        else:
            self._core._SyncObj__onReadonlyNodeConnected(Node(node_id))

    def disconnected(self, node_id: int) -> None:
        """Note that the connection to the node is gone."""
        if node_id in self._nodes:
            self._core._SyncObj__onNodeDisconnected(self._nodes[node_id])
        else:
            self._core._SyncObj__onReadonlyNodeDisconnected(Node(node_id))

    def tick(self) -> None:
        """Do the work that is due: campaign, commit, apply, send, take commands."""
        self._core.doTick(0)

    def campaign_as_leader(self) -> None:
        """Become leader of the current term without a vote. For tests only."""
        self._core._SyncObj__onBecomeLeader()

    def transfer_leadership(self) -> bool:
        """Tell the connected follower with the longest log to campaign.

        Returns:
            False if this follower lacks entries, or if no follower is connected.
        """
        # The library calls back before it returns. Success means only that the message was sent.
        outcomes: list[int] = []
        self._core.transferLeadership(None, lambda _, outcome: outcomes.append(outcome))
        return outcomes == [0]

    # -- commands

    def submit(self, command: bytes, callback: Callback) -> int | None:
        """Queue a command (with its kind byte); return a ticket, or None if the queue is full."""
        return self.queue.put(command, _adapted(callback))

    def _refuse(self, command: bytes, callback: object) -> bool:
        # Only a leader needs room: a follower forwards the command and writes nothing.
        if not self.is_leader or self._hooks.has_room(command):
            return False
        self._core._SyncObj__callErrCallback(int(Failure.REQUEST_DENIED), callback)
        return True

    def start_requests_at(self, number: int) -> None:
        """Set the counter of request ids. The next id is ``number`` plus one."""
        self._core._SyncObj__commandsLocalCounter = number

    def fail_forwarded(self) -> None:
        """Fail all forwarded commands as ``LEADER_CHANGED``: the leader is out of reach, so their fate is unknown."""
        # Guard "lost": the library does this only when it campaigns or hears another leader. If the same leader comes
        # back, the commands or their responses may be lost with the connection. Their callers would wait for ever.
        self._core._SyncObj__onLeaderChanged()

    def forget_leader(self) -> None:
        """Keep new commands in the queue until a leader is known."""
        self._core._SyncObj__raftLeader = None

    def fail_waiting(self, is_lost: Callable[[int, int], bool]) -> None:
        """Fail the commands whose entry this node will never apply, as ``UNKNOWN_OUTCOME``.

        ``is_lost``: takes the index and term of an entry; returns whether it will never be applied here.
        """
        waiting = cast(
            "dict[int, list[tuple[int, _LibraryCallback]]]",
            self._core._SyncObj__commandsWaitingCommit,
        )
        # In order of index, so that a simulated run repeats.
        for index in sorted(waiting):
            gone = [item for item in waiting[index] if is_lost(index, item[0])]
            if not gone:
                continue
            waiting[index] = [item for item in waiting[index] if item not in gone]
            if not waiting[index]:
                del waiting[index]
            for _, callback in gone:
                callback(None, Failure.UNKNOWN_OUTCOME)

    @property
    def is_anything_waiting(self) -> bool:
        """Whether any command waits for an index to be applied."""
        return bool(self._core._SyncObj__commandsWaitingCommit)

    def _node(self, node_id: int) -> Node:
        # This object keeps no node of an observer. The library compares nodes by id, so a new node is as good.
        node = self._nodes.get(node_id)
        return Node(node_id) if node is None else node


def _adapted(callback: Callback) -> _LibraryCallback:
    def call(result: object, error: int) -> None:
        if error:
            callback(None, Failure(error))
        else:
            callback(cast("bytes", result), None)

    return call
