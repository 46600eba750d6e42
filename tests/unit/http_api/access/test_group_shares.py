"""Groups, offsets and REST consumers: no principal takes those of the others."""

from dataclasses import replace

import pytest

from http_api.v2 import consumers
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import CommittedOffset, Group, Map
from tests.support.fakes.ports import NOW_MS, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic
from tests.unit.http_api.v2.test_consumer_owners import remember as remember_consumer

EVE, ANN = basic("eve"), basic("ann")


@pytest.fixture
async def closed(monkeypatch):
    # Three nodes, a quarter of it all: two through each.
    monkeypatch.setattr(group_rules, "GROUPS_MAX", 24)
    monkeypatch.setattr(group_rules, "OFFSETS_MAX", 24)
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        closed_node = ClosedNode(node)
        for name in ("eve", "ann"):
            closed_node.user(
                name,
                Allowed("READ", "GROUP", "*"),
                Allowed("READ", "TOPIC", "t"),
                Allowed("WRITE", "TOPIC", "t"),
                Allowed("WRITE", "TRANSACTIONAL_ID", "p"),
            )
        yield api


def remember(api, group: str) -> None:
    """The replicated state knows of a group that was made."""
    made = Group(
        group_id=group, version=1, generation=0, assignor="a", members=(), emptied_ms=NOW_MS
    )
    image = api.node.image
    api.node.image = replace(image, groups=image.groups.set(group, made))


OFFSETS = [{"topic": "t", "partition": 0, "offset": 0}]


async def heartbeat(api, group, caller):
    body = {"member_id": "m", "member_epoch": 0, "topics": ["t"], "owned": []}
    return await api.post(f"/groups/{group}/heartbeat", body, headers=caller)


async def commit(api, group, caller):
    return await api.post(f"/groups/{group}/offsets", {"offsets": OFFSETS}, headers=caller)


async def reset(api, group, caller):
    body = {"topic": "t", "to": 0}
    return await api.post(f"/groups/{group}/offsets:reset", body, headers=caller)


async def transact(api, group, caller):
    rows = [{"group": group, "topic": "t", "partition": 0, "next_offset": 0}]
    writes = [{"topic": "t", "records": [{"value": 1}]}]
    return await api.post("/transactions", {"writes": writes, "offsets": rows}, headers=caller)


async def end_transaction(api, group, caller):
    begun = (await api.post("/transactions:begin", {"transactional_id": "p"}, headers=caller)).json
    rows = [{"group": group, "topic": "t", "partition": 0, "next_offset": 0}]
    path = f"/transactions/{begun['producer_id']}/{begun['producer_epoch']}:commit"
    return await api.post(path, {"writes": [], "offsets": rows}, headers=caller)


async def consumer(api, group, caller):
    return await api.post(f"/consumers/{group}", {"name": "c"}, headers=caller)


@pytest.mark.parametrize("make", [heartbeat, commit, reset, transact, end_transaction, consumer])
async def test_one_principal_does_not_make_all_groups(closed, make):
    for number in range(2):
        assert (await make(closed, f"g{number}", EVE)).status < 300
        remember(closed, f"g{number}")
    refused = await make(closed, "g2", EVE)
    assert refused.error == (409, 40920), refused
    assert "delete groups" in refused.json["message"]
    assert (await make(closed, "h", ANN)).status < 300


async def test_a_group_that_was_deleted_makes_room(closed):
    for number in range(2):
        await commit(closed, f"g{number}", EVE)
        remember(closed, f"g{number}")
    closed.node.image = replace(closed.node.image, groups=closed.node.image.groups.delete("g0"))
    assert (await commit(closed, "g2", EVE)).status < 300
    remember(closed, "g2")
    assert (await commit(closed, "g3", EVE)).status == 409


async def test_nor_all_offsets(closed):
    await commit(closed, "g0", EVE)
    remember(closed, "g0")
    one = CommittedOffset(offset=1, leader_epoch=-1, metadata="", commit_ms=NOW_MS)
    offsets = Map({("t", number): one for number in range(14)})
    closed.node.image = replace(closed.node.image, offsets=Map({"g0": offsets}), offset_count=14)
    refused = await commit(closed, "g0", EVE)
    assert refused.error == (409, 40920)
    assert (await commit(closed, "h", ANN)).status < 300


async def test_nor_all_consumers(closed, monkeypatch):
    monkeypatch.setattr(consumers, "CONSUMERS_PER_PRINCIPAL_MAX", 2)
    monkeypatch.setattr(group_rules, "GROUPS_MAX", 1000)
    for number in range(2):
        instance = f"c{number}"
        answer = await closed.post("/consumers/g", {"name": instance}, headers=EVE)
        assert answer.status == 200
        remember_consumer(closed.node, instance, "User:eve")
    assert (await closed.post("/consumers/g", {"name": "c9"}, headers=EVE)).error == (409, 40920)
    assert (await closed.post("/consumers/g", {"name": "c9"}, headers=ANN)).status == 200
