"""A test bench for one ``RaftCore``: memory files, a manual clock, and a list of all messages that it sends."""

import random
from collections.abc import Callable, Iterable

from raft_meta.consensus.core import RaftCore
from raft_meta.consensus.messages import Entry, Message
from raft_meta.consensus.parts import CoreConfig
from raft_meta.consensus.snapshot import SnapshotMeta, SnapshotStore, write_snapshot
from raft_meta.consensus.wal import Wal
from tests.support.disk.memory_files import MemoryFiles

DIRECTORY = "/raft"
PIECE_BYTES = 64


def entry(index: int, term: int = 1) -> Entry:
    """Return a command at an index; index 1 is the no-op at the start of every log."""
    return (b"\0%d" % index, index, term) if index > 1 else (b"\1", 1, 0)


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    """Return commands at the indexes ``first`` to ``last``, both inclusive."""
    return [entry(index, term) for index in range(first, last + 1)]


class BenchMachine:
    """Remembers the applied commands; its state is the list of them."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.on_apply: Callable[[], None] = lambda: None

    def apply(self, index: int, command: bytes) -> bytes:
        """Remember the command."""
        self.on_apply()
        self.applied.append(command)
        return command

    def publish(self) -> None:
        """Do nothing: there are no readers."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Return a function that returns the present state."""
        view = list(self.applied)
        return lambda: view

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state."""
        self.applied = list(chunks)


class Bench:
    """Runs node 0 of ``voters``; the other nodes exist only as messages. ``sent`` has (node id, message)."""

    def __init__(
        self,
        *,
        voters: int = 3,
        node_id: int = 0,
        is_learner: bool = False,
        files: MemoryFiles | None = None,
        incarnation: int = 5,
    ) -> None:
        self.now = 100.0
        self.voters = tuple(range(voters))
        self.node_id = node_id
        self.files = files or MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.sent: list[tuple[int, Message]] = []
        self.jobs: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        self.on_send: Callable[[Message], None] = lambda _message: None
        self.became_member = False
        self.is_blocked = False
        self.incarnation = incarnation
        self.boot(is_learner=is_learner)

    def boot(self, *, is_learner: bool = False) -> None:
        """Create the core from the state on disk."""
        self.machine = BenchMachine()
        self.wal = Wal(self.files, f"{DIRECTORY}/wal", room_step_bytes=4096, reserve_bytes=1024)
        self.snapshots = SnapshotStore(self.files, DIRECTORY, piece_bytes=PIECE_BYTES)
        self.core = RaftCore(
            CoreConfig(
                node_id=self.node_id,
                voters=self.voters,
                incarnation=self.incarnation,
                window_pieces=2,
            ),
            wal=self.wal,
            snapshots=self.snapshots,
            machine=self.machine,
            sender=self,
            background=lambda job, done: self.jobs.append((job, done)),
            clock=lambda: self.now,
            rng=random.Random(1),
            is_learner=is_learner,
            on_member=self._on_member,
        )
        for other in self.voters:
            if other != self.node_id:
                self.core.connected(other)

    def _on_member(self) -> None:
        self.became_member = True

    def send(self, node_id: int, message: Message) -> None:
        """Note a message; part of ``MessageSender``."""
        self.on_send(message)
        self.sent.append((node_id, message))

    def is_congested(self, _node_id: int) -> bool:
        """Return False; part of ``MessageSender``."""
        return self.is_blocked

    # -- inputs

    def append(
        self,
        *,
        previous: Entry,
        new: list[Entry],
        leader: int = 1,
        term: int = 1,
        commit: int = 1,
    ) -> None:
        """Deliver an append from a leader."""
        self.core.receive(
            leader,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "prevLogIdx": previous[1],
                "prevLogTerm": previous[2],
                "entries": new,
            },
        )

    def piece(
        self,
        data: bytes | None,
        *,
        offset: int = 0,
        is_last: bool = False,
        serial: int = 1,
        leader: int = 1,
        term: int = 1,
        commit: int = 1,
    ) -> None:
        """Deliver a snapshot piece from a leader."""
        chunk = None if data is None else (data, offset == 0, is_last, (1, serial), offset)
        self.core.receive(
            leader,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "serialized": chunk,
            },
        )

    def acknowledge(
        self, node_id: int, next_index: int, *, term: int, success: bool = True, reset: bool = False
    ) -> None:
        """Deliver a follower's response to an append."""
        self.core.receive(
            node_id,
            {
                "type": "next_node_idx",
                "term": term,
                "next_node_idx": next_index,
                "reset": reset,
                "success": success,
                "learner": False,
            },
        )

    def lead(self, term: int = 4) -> None:
        """Make the core the leader of a term, and let it announce that."""
        self.core.library.set_term(term, self.node_id)
        self.core.library.campaign_as_leader()
        self.core.tick()

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass, with a tick each ``step`` seconds."""
        end = self.now + seconds
        while self.now < end:
            self.now += step
            self.core.tick()

    def finish_jobs(self) -> None:
        """Run the jobs that wait in the background."""
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            job()
            done(None)

    # -- outputs

    def take(self, kind: str) -> list[Message]:
        """Tick; return and forget the sent messages of a type."""
        self.core.tick()
        found = [message for _, message in self.sent if message["type"] == kind]
        self.sent.clear()
        return found

    @property
    def last_index(self) -> int:
        """Return the index of the last entry."""
        return self.wal.entries[-1][1]


def snapshot_bytes(index: int, term: int = 1) -> bytes:
    """Return the file of a snapshot with the entries up to ``index``."""
    files = MemoryFiles()
    meta = SnapshotMeta(last=entry(index, term), previous=entry(index - 1, term))
    state = [command[1:] for command, _, _ in entries(2, index, term)]
    write_snapshot(files, "/snapshot", meta, state)
    return files.read_bytes("/snapshot")
