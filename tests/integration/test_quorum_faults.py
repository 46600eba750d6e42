"""``RaftQuorum`` when something is wrong: the disk, the directory, the peers, the moment."""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from milena.model.errors import (
    CorruptLogError,
    DiskFailedError,
    FateUnknownError,
    NoQuorumError,
    StartupError,
)
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.consensus.raft_quorum import QuorumConfig, RaftQuorum
from tests.support.clusters.quorum_cluster import ListMachine, QuorumCluster
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


class Alone:
    """One node in memory; a single voter unless it is told of others."""

    def __init__(
        self, files: MemoryFiles, voters: tuple[int, ...] = (1,), **options: object
    ) -> None:
        self.fatal: list[BaseException] = []
        self.machine = ListMachine()
        self.statuses: list[QuorumStatus] = []
        self.quorum = RaftQuorum(
            QuorumConfig(
                node_id=1,
                voters=dict.fromkeys(voters, ("127.0.0.1", 1)),
                directory="/raft",
                secret=b"",
                cluster_id="",
                seed=1,
                incarnation=1,
                **{"election_timeout_ms": (50, 100), "heartbeat_ms": 15, **options},
            ),
            files=files,
            state_machine=self.machine,
            on_role_change=self.statuses.append,
            on_fatal=self.fatal.append,
        )

    async def start(self) -> RaftQuorum:
        await self.quorum.start()
        return self.quorum

    async def lead(self) -> RaftQuorum:
        await self.start()
        await until(lambda: self.quorum.status().role is Role.LEADER)
        return self.quorum


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_failed_sync_stops_the_node_and_leaves_the_command_unknown() -> None:
    files = MemoryFiles()
    alone = Alone(files)
    quorum = await alone.lead()
    await quorum.propose(b"kept", timeout_ms=20_000)
    files.fail_next_sync("wal")
    with pytest.raises(FateUnknownError):
        await quorum.propose(b"lost", timeout_ms=20_000)
    await until(lambda: bool(alone.fatal))
    assert isinstance(alone.fatal[0], DiskFailedError)
    assert quorum.status().role is not Role.LEADER
    with pytest.raises(NoQuorumError, match="stopped"):
        await quorum.propose(b"more", timeout_ms=20_000)
    await quorum.stop()
    files.crash()
    again = Alone(files)
    await again.lead()
    await again.quorum.barrier(timeout_ms=20_000)
    assert (b"kept") in [command for _, command in again.machine.commands]
    await again.quorum.stop()


async def propose_for_ever(quorum: RaftQuorum) -> None:
    while True:
        await quorum.propose(bytes(500_000), timeout_ms=20_000)


async def test_a_full_disk_refuses_commands_keeps_the_leader_and_recovers() -> None:
    files = MemoryFiles()
    alone = Alone(files)
    quorum = await alone.lead()
    files.capacity = files.used_bytes()
    with pytest.raises(NoQuorumError, match="disk is full"):
        await propose_for_ever(quorum)
    assert quorum.status().role is Role.LEADER
    assert await quorum.barrier(timeout_ms=20_000) > 0
    files.capacity = None
    await quorum.propose(bytes(500_000), timeout_ms=20_000)
    assert alone.fatal == []
    await quorum.stop()


async def test_the_log_is_compacted_and_loaded_again() -> None:
    files = MemoryFiles()
    alone = Alone(files, log_bytes_max=20_000)
    quorum = await alone.lead()
    for number in range(200):
        await quorum.propose(b"%d" % number + bytes(200), timeout_ms=20_000)
    await until(lambda: files.exists("/raft/snapshot"))
    before = list(alone.machine.commands)
    await quorum.stop()
    again = Alone(files)
    await again.lead()
    await again.quorum.barrier(timeout_ms=20_000)
    assert again.machine.commands == before
    await again.quorum.stop()


async def test_other_voters_than_the_directory_knows_refuse_to_start() -> None:
    files = MemoryFiles()
    alone = Alone(files)
    await alone.lead()
    await alone.quorum.stop()
    with pytest.raises(StartupError, match=r"made with voters \[1\]"):
        await Alone(files, voters=(1, 2, 3)).start()


async def test_a_damaged_snapshot_refuses_to_start() -> None:
    files = MemoryFiles()
    alone = Alone(files, log_bytes_max=5_000)
    quorum = await alone.lead()
    for number in range(100):
        await quorum.propose(b"%d" % number + bytes(100), timeout_ms=20_000)
    await until(lambda: files.exists("/raft/snapshot"))
    await quorum.stop()
    files.flip_bit("/raft/snapshot", len(files.read_bytes("/raft/snapshot")) // 2)
    with pytest.raises(CorruptLogError, match="not usable"):
        await Alone(files).start()


async def test_a_lost_snapshot_below_a_shortened_log_refuses_to_start() -> None:
    files = MemoryFiles()
    alone = Alone(files, log_bytes_max=5_000)
    quorum = await alone.lead()
    for number in range(100):
        await quorum.propose(b"%d" % number + bytes(100), timeout_ms=20_000)
    await until(lambda: files.exists("/raft/snapshot"))
    await quorum.stop()
    files.remove("/raft/snapshot")
    with pytest.raises(CorruptLogError, match="files are missing"):
        await Alone(files).start()


async def test_a_lost_log_of_a_voter_that_took_part_refuses_to_start() -> None:
    files = MemoryFiles()
    alone = Alone(files)
    await alone.lead()
    await alone.quorum.stop()
    files.remove("/raft/wal")
    with pytest.raises(CorruptLogError, match="missing or empty"):
        await Alone(files).start()


@pytest.mark.parametrize("number", range(0, 40, 3))
async def test_a_first_start_that_is_cut_off_anywhere_is_repeated(number: int) -> None:
    files = MemoryFiles()
    files.crash_before(number)
    alone = Alone(files)
    try:
        await alone.start()
        await alone.quorum.stop()
    except SimulatedCrashError:
        await alone.quorum.stop()
    files.crash()
    again = Alone(files)
    quorum = await again.lead()
    await quorum.propose(b"x", timeout_ms=20_000)
    assert again.fatal == []
    await quorum.stop()


async def test_a_first_start_without_all_voters_waits_and_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    alone = Alone(MemoryFiles(), voters=(1, 2, 3))
    quorum = await alone.start()
    with pytest.raises(NoQuorumError):
        await quorum.propose(b"x", timeout_ms=50)
    with pytest.raises(NoQuorumError):
        await quorum.barrier(timeout_ms=50)
    assert "missing=2=127.0.0.1:1,3=127.0.0.1:1" in caplog.text
    assert "missing: 2=127.0.0.1:1, 3=127.0.0.1:1" in quorum.start_obstacle()
    assert quorum.status().term == 0
    await quorum.stop()


async def test_stopping_answers_what_is_open() -> None:
    alone = Alone(MemoryFiles(), voters=(1, 2, 3))
    quorum = await alone.start()
    open_request = asyncio.create_task(quorum.propose(b"x", timeout_ms=60_000))
    await asyncio.sleep(0)
    await quorum.stop()
    with pytest.raises(NoQuorumError):
        await open_request
    await quorum.stop()


async def test_a_stopped_quorum_closes_what_it_is_handed() -> None:
    alone = Alone(MemoryFiles())
    await alone.lead()
    await alone.quorum.stop()
    ours, theirs = socket.socketpair()
    alone.quorum.accept(theirs)
    assert ours.recv(1) == b""
    ours.close()
    with pytest.raises(NoQuorumError):
        await alone.quorum.propose(b"x", timeout_ms=100)


async def test_a_single_voter_has_nobody_to_hand_leadership_to() -> None:
    alone = Alone(MemoryFiles())
    quorum = await alone.lead()
    assert not await quorum.transfer_leadership(timeout_ms=100)
    await quorum.stop()


async def test_a_role_change_is_told_once_for_each_change() -> None:
    alone = Alone(MemoryFiles())
    quorum = await alone.lead()
    await quorum.propose(b"x", timeout_ms=20_000)
    seen = [(status.role, status.leader_id, status.term) for status in alone.statuses]
    assert len(seen) == len(set(seen))
    assert seen[-1] == (Role.LEADER, 1, 1)
    await quorum.stop()


async def test_what_a_state_machine_raises_stops_the_node() -> None:
    alone = Alone(MemoryFiles())
    quorum = await alone.lead()

    def broken(_index: int, _command: bytes) -> bytes:
        raise AssertionError("the state contradicts itself")

    alone.machine.apply = broken  # type: ignore[method-assign]  # a fault on purpose
    with pytest.raises(FateUnknownError):
        await quorum.propose(b"x", timeout_ms=20_000)
    await until(lambda: bool(alone.fatal))
    assert isinstance(alone.fatal[0], AssertionError)
    await quorum.stop()


async def test_nodes_with_different_secrets_do_not_meet(tmp_path: Path) -> None:
    cluster = QuorumCluster(tmp_path)
    for node_id, member in cluster.members.items():
        member.listener.start()
        cluster.secret = b"other" if node_id == 3 else b"secret"
        await member.start()
    with pytest.raises(NoQuorumError):
        await cluster.members[1].quorum.propose(b"x", timeout_ms=300)
    await cluster.__aexit__()
