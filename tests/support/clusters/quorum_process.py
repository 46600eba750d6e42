"""A voter in its own process, for tests that kill it.

    python -m tests.support.clusters.quorum_process NODE_ID LISTENING_FD DIRECTORY INCARNATION ID=HOST:PORT...

The process proposes commands one after the other, and prints ``ack INDEX COMMAND`` for each acknowledged command. The
line ``stop`` on standard input ends the proposals. The process then waits for a barrier and prints ``log INDEX:COMMAND
...``. It remains a voter until the next line, because other voters need it for their barriers.
"""

import asyncio
import os
import socket
import sys

from milena.disk.os_files import OsFiles
from milena.model.errors import FateUnknownError, NoQuorumError
from raft_meta.consensus.quorum import Role
from raft_meta.consensus.raft_quorum import QuorumConfig, RaftQuorum
from tests.support.clusters.quorum_cluster import ListMachine, PeerListener


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _propose(quorum: RaftQuorum, name: str) -> None:
    number = 0
    while True:
        number += 1
        command = f"{name}.{number}"
        try:
            response = await quorum.propose(command.encode(), timeout_ms=2000)
        except (NoQuorumError, FateUnknownError):
            continue
        index = response.partition(b":")[0].decode()
        _say(f"ack {index} {command}")


async def _main() -> None:
    node_id, descriptor, directory, incarnation, *addresses = sys.argv[1:]
    voters = {}
    for address in addresses:
        voter, _, place = address.partition("=")
        host, _, port = place.partition(":")
        voters[int(voter)] = (host, int(port))
    machine = ListMachine()

    def on_role_change(status: object) -> None:
        if getattr(status, "role", None) is Role.LEADER:
            _say("leader")

    quorum = RaftQuorum(
        QuorumConfig(
            node_id=int(node_id),
            voters=voters,
            directory=directory,
            secret=b"s",
            cluster_id="",
            seed=int(incarnation) * 10 + int(node_id),
            incarnation=int(incarnation),
            log_bytes_max=30_000,
        ),
        files=OsFiles(),
        state_machine=machine,
        on_role_change=on_role_change,
        on_fatal=lambda _error: os._exit(70),
    )
    listener = PeerListener(socket.socket(fileno=int(descriptor)))
    listener.quorum = quorum
    listener.start()
    await quorum.start()
    proposing = asyncio.create_task(_propose(quorum, f"{node_id}-{incarnation}"))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)
    proposing.cancel()
    await quorum.barrier(timeout_ms=20_000)
    _say("log " + " ".join(f"{index}:{command.decode()}" for index, command in machine.commands))
    await loop.run_in_executor(None, sys.stdin.readline)
    await quorum.stop()
    await listener.close()


if __name__ == "__main__":
    asyncio.run(_main())
