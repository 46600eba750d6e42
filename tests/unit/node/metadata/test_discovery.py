"""How an observer finds the voters, and how any node tells them."""

from dataclasses import replace

import pytest

from milena.model.errors import StartupError
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.metadata import discovery
from node.metadata.discovery import VoterDirectory, find_voters
from node.peers.port import PeerUnreachableError
from tests.support.clusters.control import Control
from tests.support.time.virtual_time import LoopClock, virtual

TOLD = {1: Address("one", 7001), 2: Address("two", 7002)}


@virtual
async def test_voters_are_where_they_registered_last_else_where_we_were_told() -> None:
    control = await Control().start(1)
    directory = VoterDirectory(TOLD)
    directory.image = control.image
    answer, body = await directory.on_voters(9, {}, b"")
    assert answer == {"voters": {"1": ("127.0.0.1", 7001), "2": ("two", 7002)}}
    assert not body
    control.stop()


class Clients:
    """Stands in for ``PeerClient``: one for each address of ``--join``."""

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers
        self.asked: list[Address] = []
        self.closed = 0

    def __call__(self, **options: object) -> "Clients":
        return self

    async def call(self, *_: object, **__: object) -> tuple[object, bytes]:
        answer = self.answers.pop(0) if self.answers else PeerUnreachableError("nobody")
        if isinstance(answer, Exception):
            raise answer
        return answer, b""

    async def close(self) -> None:
        self.closed += 1


async def find(
    monkeypatch: pytest.MonkeyPatch, *answers: object, node_id: int = 9
) -> dict[int, Address]:
    clients = Clients(list(answers))
    monkeypatch.setattr(discovery, "PeerClient", clients)
    config = replace(NodeConfig(), node_id=node_id, join=(Address("a", 1), Address("b", 2)))
    try:
        return await find_voters(config, secret=b"", tls=None, clock=LoopClock())
    finally:
        assert clients.closed > 0


@virtual
async def test_the_first_node_that_answers_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await find(
        monkeypatch, PeerUnreachableError("down"), {"voters": {"3": ["three", 7003]}}
    )
    assert found == {3: Address("three", 7003)}


@virtual
async def test_nodes_that_start_later_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [PeerUnreachableError("down")] * 9
    found = await find(monkeypatch, *refusals, {"voters": {"1": ["one", 1]}})
    assert found == {1: Address("one", 1)}


@virtual
async def test_it_gives_up_and_names_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = [PeerUnreachableError("node 0 cannot be reached: nobody")] * 1_000
    with pytest.raises(
        StartupError, match=r"a:1: nobody; b:2: nobody\. This node .* secret"
    ) as caught:
        await find(monkeypatch, *unnamed)
    assert caught.value.is_temporary


@virtual
@pytest.mark.parametrize("voters", [None, {}, {"1": "x"}, {"1": ["h", "p"]}, {"x": ["h", 1]}])
async def test_an_answer_of_another_shape_is_refused(
    monkeypatch: pytest.MonkeyPatch, voters: object
) -> None:
    with pytest.raises(StartupError):
        await find(monkeypatch, {"voters": voters})


@virtual
async def test_a_node_that_joins_may_not_have_the_id_of_a_voter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StartupError, match="node_id 1 is the voter at one:7003") as caught:
        await find(monkeypatch, {"voters": {"1": ["one", 7003]}}, node_id=1)
    assert not caught.value.is_temporary
