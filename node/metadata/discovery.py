"""Finds the voters for a node that joins as an observer: it asks any node of the running cluster."""

import logging
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from milena.model.clock import Clock
from milena.model.errors import MilenaError, StartupError
from node.config.budgets import ANSWER_MS, BACKGROUND_RETRY_MS
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.peers.messages import CallType, Message, ask, peer_handler
from node.peers.port import PeerClient
from node.process.tls import PeerTls
from raft_meta.consensus.frames import PeerIdentity
from raft_meta.machine.image import Image

logger = logging.getLogger(__name__)

PATIENCE_MS = 60_000
_NAMELESS = "node 0 cannot be reached: "
"""Start of a client's messages. This node does not know yet which node it asks, so it asks for node 0."""


VoterId = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]


class VotersRequest(Message, frozen=True, kw_only=True):
    """Asks for the voters and their addresses."""


class VotersAnswer(Message, frozen=True, kw_only=True):
    """The host and port of each voter's peer port, by voter id."""

    voters: dict[VoterId, tuple[str, int]]


VOTERS = CallType("voters", VotersRequest, VotersAnswer)


class VoterDirectory:
    """Answers with the voters and their addresses."""

    def __init__(self, told: Mapping[int, Address]) -> None:
        self._told = dict(told)
        self.image = Image()
        self.on_voters = peer_handler(VOTERS, self._tell_voters)
        """The handler. It gives the address of a voter's last registration, else the address from this node's start."""

    async def _tell_voters(self, request: VotersRequest) -> VotersAnswer:
        del request
        found = {}
        for voter, address in self._told.items():
            broker = self.image.brokers.get(voter)
            found[str(voter)] = address if broker is None else (broker.peer_host, broker.peer_port)
        return VotersAnswer(voters=found)


async def find_voters(
    config: NodeConfig, *, secret: bytes, tls: PeerTls | None, clock: Clock
) -> dict[int, Address]:
    """Ask the nodes of ``--join`` one after the other, until one responds; return the voters' addresses.

    Raises:
        StartupError: none of them responded within a minute (``is_temporary``), this node has the id of a voter, or
            the response has no voters.
    """
    identity = PeerIdentity(node_id=config.node_id, cluster_id="", is_voter=False)
    # Keep one client for each address, so that a repeated failure is logged once.
    clients = {
        address: PeerClient(
            identity=lambda: identity,
            secret=secret,
            resolve=lambda _, where=address: (where.host, where.port),  # type: ignore[misc]  # mypy has no default in Callable
            tls=None if tls is None else tls.client,
            is_anyone=True,
            verifies_id=config.peer_tls_verify_id,
        )
        for address in config.join
    }
    deadline = clock.now_ms() + PATIENCE_MS
    reasons: dict[Address, str] = {}
    try:
        while clock.now_ms() < deadline:
            for address, client in clients.items():
                try:
                    answer = await ask(client, 0, VOTERS, VotersRequest(), timeout_ms=ANSWER_MS)
                    voters = _voters_of(answer)
                except MilenaError as error:
                    reason = error.message.removeprefix(_NAMELESS)
                    if reasons.get(address) != reason:
                        logger.warning("join address=%s: %s", address, reason)
                    reasons[address] = reason
                else:
                    _check_id(config.node_id, voters)
                    return voters
            await clock.sleep(BACKGROUND_RETRY_MS)
    finally:
        for client in clients.values():
            await client.close()
    raise StartupError(
        "no node of --join answered: "
        + "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        + (
            ""
            if secret
            else ". This node was started without a cluster secret (cluster_secret_file)"
        ),
        is_temporary=True,
    )


def _voters_of(answer: VotersAnswer) -> dict[int, Address]:
    if not answer.voters:
        raise StartupError("the node of --join named no voters")
    return {int(voter): Address(host, port) for voter, (host, port) in answer.voters.items()}


def _check_id(node_id: int, voters: Mapping[int, Address]) -> None:
    if node_id in voters:
        raise StartupError(
            f"node_id {node_id} is the voter at {voters[node_id]}: give a node that joins another id. "
            "A voter starts with --peers, also if its disk was lost"
        )
