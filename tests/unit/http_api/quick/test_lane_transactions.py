"""One-request transactions take the quick lane, too, and nobody can tell by the answers, or may do more by it."""

import json

import pytest

from http_api.serving.dispatch import Dispatcher
from milena.model.errors import NoLeaderError
from milena.model.requests import CommittedNext, GroupOffsets
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Group
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode
from tests.unit.http_api.quick.test_lane import connected, request

WRITE = Allowed("WRITE", "TOPIC", "t")
OFFSETS = [{"group": "g", "topic": "t", "partition": 0, "next_offset": 2}]


def writes(topic="t", **fields) -> dict[str, object]:
    return {"writes": [{"topic": topic, "records": [{"value": 1}, {"value": 2}]}], **fields}


def sent(body: object, *headers: str) -> bytes:
    return request(*headers, body=json.dumps(body).encode(), path="/transactions?timeout_ms=700")


@pytest.fixture
def usual(monkeypatch):
    """Paths of requests that went the usual way."""
    paths: list[str] = []
    handle = Dispatcher.handle

    async def counted(self, found):
        paths.append(found.path)
        return await handle(self, found)

    monkeypatch.setattr(Dispatcher, "handle", counted)
    return paths


@pytest.fixture
async def node(usual):
    node = FakeNode()
    for topic in ("t", "u"):
        node.add_topic(topic, 1)
    return node


@pytest.fixture
async def api(node):
    async with serving(node) as found:
        yield found


async def test_the_second_of_a_head_takes_the_lane_and_is_answered_alike(api, node, usual):
    made = Group(group_id="g", version=1, generation=0, assignor="a", members=(), emptied_ms=1)
    node.image = replace(node.image, groups=node.image.groups.set("g", made))
    body = writes(offsets=OFFSETS)
    async with connected(api) as client:
        answers = [await client.ask(sent(body)) for _ in range(2)]
    assert usual == ["/transactions"]
    assert [status for status, _, _ in answers] == ["HTTP/1.1 200 OK"] * 2
    first, second = (json.loads(text) for _, _, text in answers)
    assert [row.pop("offset") for row in first["writes"][0]["offsets"]] == [0, 1]
    assert [row.pop("offset") for row in second["writes"][0]["offsets"]] == [2, 3]
    assert first == second
    assert set(answers[0][1]) == set(answers[1][1])
    one, other = api.node.transactions.requests
    assert (one.writes[0].records, one.offsets, one.timeout_ms) == (
        other.writes[0].records,
        other.offsets,
        700,
    )
    offset = CommittedNext(topic="t", partition=0, next_offset=2, metadata="")
    assert other.offsets == (
        GroupOffsets(group="g", member_id=None, member_epoch=-1, offsets=(offset,)),
    )


async def test_a_body_at_fault_goes_the_usual_way_which_says_what_is_wrong(api, usual):
    wrong = {"writes": [{"topic": "t", "records": [{"valeu": 1}, {"valeu": 2}]}]}
    assert len(sent(wrong)) == len(sent(writes()))
    async with connected(api) as client:
        await client.ask(sent(writes()))
        status, _, text = await client.ask(sent(wrong))
    assert len(usual) == 2
    assert status == "HTTP/1.1 422 Unprocessable Entity"
    assert "valeu" in json.loads(text)["message"]
    assert len(api.node.transactions.requests) == 1


async def test_what_the_node_refuses_is_an_answer_with_its_reason(api, usual):
    async with connected(api) as client:
        await client.ask(sent(writes()))
        api.node.errors["transact"] = NoLeaderError("nobody leads it; nothing was written")
        status, headers, text = await client.ask(sent(writes()))
    assert usual == ["/transactions"]
    assert status.split()[1] == "503"
    assert "Retry-After" in headers
    assert "nobody leads it" in json.loads(text)["message"]


async def test_a_repeat_under_its_key_is_told_its_first_answer(api, usual):
    async with connected(api) as client:
        answers = [
            await client.ask(sent(writes(), f"Idempotency-Key: {key}")) for key in ("a", "b", "b")
        ]
    assert usual == ["/transactions"]
    bodies = [json.loads(text) for _, _, text in answers]
    assert [body["is_duplicate"] for body in bodies] == [False, False, True]
    assert bodies[1]["writes"] == bodies[2]["writes"] != bodies[0]["writes"]


async def test_offsets_alone_under_a_key_are_refused_every_time(api, usual):
    alone = {"writes": [], "offsets": OFFSETS}
    async with connected(api) as client:
        for _ in range(2):
            status, _, text = await client.ask(sent(alone, "Idempotency-Key: a"))
            assert status.split()[1] == "422"
            assert "'writes' is empty" in json.loads(text)["message"]
    assert len(usual) == 2


class TestAccess:
    @pytest.fixture
    def closed(self, node):
        return ClosedNode(node)

    async def test_each_body_is_held_against_what_its_caller_may(self, closed, api, usual):
        closed.user("ann", WRITE)
        credentials = f"Authorization: {closed.token('ann')['Authorization']}"
        async with connected(api) as client:
            for _ in range(3):
                assert (await client.ask(sent(writes(), credentials)))[0].split()[1] == "200"
            quick_count = 3 - len(usual)
            assert quick_count
            for body in (writes("u"), writes(offsets=OFFSETS)):
                for _ in range(2):
                    status, _, text = await client.ask(sent(body, credentials))
                    assert status.split()[1] == "403"
                    assert "User:ann may not" in json.loads(text)["message"]
        assert len(api.node.transactions.requests) == 3

    async def test_it_is_known_on_whose_behalf_the_node_acts(self, closed, api, usual):
        closed.user("ann", WRITE)
        credentials = f"Authorization: {closed.token('ann')['Authorization']}"
        async with connected(api) as client:
            for _ in range(3):
                await client.ask(sent(writes(), credentials))
        assert len(usual) < 3
        assert api.node.transactions.on_behalf == ["User:ann"] * 3
