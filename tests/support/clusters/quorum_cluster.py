"""Several ``RaftQuorum`` objects in one process over loopback, each with its own listener."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from milena.disk.os_files import OsFiles
from raft_meta.consensus.frames import PREFACE_BYTES, decode_preface
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.consensus.raft_quorum import QuorumConfig, RaftQuorum


class ListMachine:
    """A state machine that remembers its commands; the response is ``index:command``."""

    def __init__(self) -> None:
        self.commands: list[tuple[int, bytes]] = []

    def apply(self, index: int, command: bytes) -> bytes:
        """Remember the command."""
        self.commands.append((index, command))
        return b"%d:%s" % (index, command)

    def publish(self) -> None:
        """Do nothing: there are no readers."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Return a function that returns the present state."""
        view = list(self.commands)
        return lambda: [b"%d:%s" % item for item in view]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state."""
        pairs = [chunk.partition(b":") for chunk in chunks]
        self.commands = [(int(index), command) for index, _, command in pairs]


async def _read_preface(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    preface = b""
    while len(preface) < PREFACE_BYTES:
        data = await loop.sock_recv(connection, PREFACE_BYTES - len(preface))
        if not data:
            break
        preface += data
    return preface


class PeerListener:
    """Accepts connections of peers, reads the preface, and gives the socket to the running quorum."""

    def __init__(self, listening: socket.socket | None = None) -> None:
        self.socket = listening or socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address: tuple[str, int] = self.socket.getsockname()
        self.quorum: RaftQuorum | None = None
        self._admitting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to accept connections."""
        asyncio.get_running_loop().add_reader(self.socket, self._accept)

    def _accept(self) -> None:
        """Accept without ``loop.sock_accept``: if it is cancelled while a peer connects, the socket is lost."""
        try:
            connection, _ = self.socket.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._admit(connection))
        self._admitting.add(task)
        task.add_done_callback(lambda done: self._on_admitted(done, connection))

    async def _admit(self, connection: socket.socket) -> None:
        preface = await _read_preface(connection)
        if len(preface) < PREFACE_BYTES or self.quorum is None:
            connection.close()
            return
        decode_preface(preface)
        self.quorum.accept(connection)

    def _on_admitted(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._admitting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()

    async def close(self) -> None:
        """Stop accepting connections."""
        asyncio.get_running_loop().remove_reader(self.socket)
        self.socket.close()
        for task in self._admitting:
            task.cancel()
        await asyncio.gather(*self._admitting, return_exceptions=True)


class Member:
    """One node. Its listener stays open while its quorum is stopped and restarted."""

    def __init__(self, cluster: "QuorumCluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.directory = cluster.root / str(node_id)
        self.machine = ListMachine()
        self.listener = PeerListener()
        self.quorum: RaftQuorum | None = None
        self.statuses: list[QuorumStatus] = []
        self.fatal: list[BaseException] = []
        self.incarnation = 0

    async def start(self) -> RaftQuorum:
        """Start the quorum from the state on disk."""
        self.incarnation += 1
        self.machine = ListMachine()
        self.quorum = RaftQuorum(
            QuorumConfig(
                node_id=self.node_id,
                voters=self.cluster.addresses(),
                directory=str(self.directory),
                secret=self.cluster.secret,
                cluster_id="",
                seed=self.node_id,
                incarnation=self.incarnation,
                **self.cluster.options,
            ),
            files=OsFiles(),
            state_machine=self.machine,
            on_role_change=self.statuses.append,
            on_fatal=self.fatal.append,
        )
        self.listener.quorum = self.quorum
        await self.quorum.start()
        return self.quorum

    async def stop(self) -> None:
        """Stop the quorum; its directory stays."""
        quorum, self.quorum = self.quorum, None
        self.listener.quorum = None
        if quorum is not None:
            await quorum.stop()

    def wipe(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory)


class QuorumCluster:
    """``voters`` voters with ids from 1, then ``observers`` more nodes."""

    def __init__(self, root: Path, voters: int = 3, observers: int = 0, **options: Any) -> None:
        self.root = root
        self.secret = b"secret"
        self.options: dict[str, Any] = {
            "election_timeout_ms": (150, 300),
            "heartbeat_ms": 30,
            **options,
        }
        self.voter_ids = range(1, voters + 1)
        self.members = {
            node_id: Member(self, node_id) for node_id in range(1, voters + observers + 1)
        }

    def addresses(self) -> dict[int, tuple[str, int]]:
        """Return the addresses of the voters."""
        return {voter: self.members[voter].listener.address for voter in self.voter_ids}

    async def __aenter__(self) -> "QuorumCluster":
        for member in self.members.values():
            member.listener.start()
            await member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            await member.stop()
            await member.listener.close()

    def running(self) -> list[Member]:
        """Return the members whose quorum runs."""
        return [member for member in self.members.values() if member.quorum is not None]

    async def leader(self, timeout: float = 10.0) -> Member:
        """Return the member that leads, and that a majority follows."""
        async with asyncio.timeout(timeout):
            while True:
                for member in self.running():
                    quorum = member.quorum
                    if quorum is not None and quorum.status().role is Role.LEADER:
                        with contextlib.suppress(Exception):
                            await quorum.barrier(timeout_ms=1000)
                            if quorum.status().role is Role.LEADER:
                                return member
                await asyncio.sleep(0.01)

    def followers(self, leader: Member) -> list[Member]:
        """Return the other running voters."""
        return [m for m in self.running() if m is not leader and m.node_id in self.voter_ids]
