"""How a node that joins as an observer finds the voters: it asks any node of the running cluster."""

import logging
from collections.abc import Mapping, Sequence

from milena.disk.files import Buffer
from milena.model.errors import MilenaError, StartupError
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.peers.port import PeerClient
from node.process.clock import Clock
from node.process.tls import PeerTls
from raft_meta.consensus.frames import PeerIdentity
from raft_meta.machine.image import Image

logger = logging.getLogger(__name__)

VOTERS = "voters"
ASK_TIMEOUT_MS = 2_000
RETRY_MS = 500
PATIENCE_MS = 60_000


class VoterDirectory:
    """Answers who the voters are and where they listen."""

    def __init__(self, told: Mapping[int, Address]) -> None:
        self._told = dict(told)
        self.image = Image()

    async def on_voters(
        self, peer_id: int, header: dict[str, object], body: Buffer
    ) -> tuple[dict[str, object], Sequence[Buffer]]:
        """Each voter as it registered last, else as this node was told at its start."""
        del peer_id, header, body
        found: dict[str, object] = {}
        for voter, address in self._told.items():
            broker = self.image.brokers.get(voter)
            host, port = address if broker is None else (broker.peer_host, broker.peer_port)
            found[str(voter)] = [host, port]
        return {"voters": found}, ()


async def find_voters(
    config: NodeConfig, *, secret: bytes, tls: PeerTls | None, clock: Clock
) -> dict[int, Address]:
    """Ask the nodes of ``--join``, in turn, until one answers.

    Raises:
        StartupError: none of them did within a minute.
    """
    identity = PeerIdentity(node_id=config.node_id, cluster_id="", is_voter=False)
    # One client for each address and all tries, so that the same trouble is worth one line.
    clients = {
        address: PeerClient(
            identity=lambda: identity,
            secret=secret,
            resolve=lambda _, where=address: (where.host, where.port),  # type: ignore[misc]  # mypy has no default in Callable
            tls=None if tls is None else tls.client,
            is_anyone=True,
        )
        for address in config.join
    }
    deadline = clock.now_ms() + PATIENCE_MS
    reasons: dict[Address, str] = {}
    try:
        while clock.now_ms() < deadline:
            for address, client in clients.items():
                try:
                    answer, _ = await client.call(0, VOTERS, {}, timeout_ms=ASK_TIMEOUT_MS)
                    return _parse(answer)
                except MilenaError as error:
                    if reasons.get(address) != error.message:
                        logger.warning("join address=%s: %s", address, error)
                    reasons[address] = error.message
            await clock.sleep(RETRY_MS)
    finally:
        for client in clients.values():
            await client.close()
    raise StartupError(
        "no node of --join answered: "
        + "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
    )


def _parse(answer: Mapping[str, object]) -> dict[int, Address]:
    rows = answer.get("voters")
    voters = {}
    for voter, where in rows.items() if isinstance(rows, dict) else ():
        match where:
            case [str(host), int(port)] if str(voter).isdecimal():
                voters[int(voter)] = Address(host, port)
            case _:
                raise StartupError(f"the node of --join gave no address of voter {voter}")
    if not voters:
        raise StartupError("the node of --join named no voters")
    return voters
