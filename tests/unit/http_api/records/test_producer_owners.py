"""Producer ids belong to the principal that reserved them: every way of using one, asked by owner and others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from http_api.protocol.media import BATCH_TYPE
from http_api.routes import ROUTES
from http_api.serving.unknown import TRANSACTION_HEADER
from milena.model.access import AccessMode
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import ProducerStamp
from milena.model.columns import RecordColumns
from raft_meta.machine import producers
from raft_meta.machine.commands import DeleteUser
from tests.support.fakes.ports import CLUSTER_ID, NOW_MS, FakeNode
from tests.support.http.api_server import BATCH, serving
from tests.support.http.credentials import Allowed, ClosedNode, basic

PARTITION = "/topics/orders/partitions/0/records"
WRITE = Allowed("WRITE", "TOPIC", "orders")
NAME = Allowed("WRITE", "TRANSACTIONAL_ID", "payer")
JSON = "application/json"
RECORD = {"records": [{"value": 1}]}


def batch(producer_id: int, producer_epoch: int) -> bytes:
    columns = RecordColumns(
        offset_deltas=None, timestamp_deltas=None, keys=None, values=[b"1"], headers=None
    )
    stamp = ProducerStamp(producer_id, producer_epoch, 0)
    return encode_batch(columns, base_timestamp_ms=NOW_MS, producer=stamp)


async def encoded(api, path, identity, caller):
    return await api.post(path, batch(*identity), BATCH, headers=caller)


async def in_transaction(api, path, identity, caller):
    body = {"value": {"type": "JSON", "data": 1}} if path.startswith("/v3") else RECORD
    if path.endswith(":batch"):
        body = {"entries": [{"id": "1", **body}]}
    headers = {TRANSACTION_HEADER: f"{identity[0]}:{identity[1]}", **caller}
    return await api.post(path, body, headers=headers)


async def ended(api, path, identity, caller):
    body = {"writes": []} if path.endswith(":commit") else {}
    return await api.post(path, body, headers=caller)


def path_of(route, identity) -> str:
    names = {
        "{topic}": "orders",
        "{partition}": "0",
        "{cluster}": CLUSTER_ID,
        "{cluster_id}": CLUSTER_ID,
        "{producer_id}": str(identity[0]),
        "{producer_epoch}": str(identity[1]),
    }
    path = route.path
    for name, value in names.items():
        path = path.replace(name, value)
    assert "{" not in path, path
    return path


def ways_of(route):
    """How the id of a producer comes into a request of this route."""
    if "{producer_id}" in route.path:
        yield ended
    if TRANSACTION_HEADER in route.header_names:
        yield in_transaction
    if route.body is not None and BATCH_TYPE in route.body.content and "{partition}" in route.path:
        yield encoded


WAYS = [
    pytest.param(route, way, id=f"{way.__name__} {route.operation_id}")
    for route in ROUTES
    for way in ways_of(route)
]


@asynccontextmanager
async def closed(
    mode: AccessMode = AccessMode.REQUIRED,
) -> AsyncIterator[tuple[object, ClosedNode]]:
    node = FakeNode()
    node.image = replace(node.image, feature_level=producers.OWNERS_LEVEL)
    node.add_topic("orders")
    async with serving(node) as api:
        node_closed = ClosedNode(node, mode)
        node_closed.user("bob", WRITE, NAME)
        node_closed.user("carol", WRITE)
        yield api, node_closed


async def reserved(api, caller, name=None) -> tuple[int, int]:
    body = None if name is None else {"name": name}
    answer = await api.post("/producers", body, headers=caller)
    assert answer.status == 200, answer
    return answer.json["producer_id"], answer.json["producer_epoch"]


def told(answer, identity) -> tuple[object, ...]:
    """A refusal, but for the number that was asked for."""
    return (
        answer.status,
        answer.json["error_code"],
        answer.json["message"].replace(str(identity[0]), "N"),
    )


def test_all_three_ways_were_found():
    assert {param.values[1] for param in WAYS} == {ended, in_transaction, encoded}
    assert len(WAYS) > 8


@pytest.mark.parametrize("name", [None, "payer"])
@pytest.mark.parametrize(("route", "way"), WAYS)
async def test_another_principal_is_told_the_same_as_of_an_id_that_is_not_there(route, way, name):
    async with closed() as (api, _):
        own = await reserved(api, basic("bob"), name)
        api.node.transactions.keep_open(*own)
        absent = (987654, 0)
        before = (api.node.image, len(api.node.batch_requests), len(api.node.produce_requests))
        answers = [
            await way(api, path_of(route, identity), identity, basic("carol"))
            for identity in (own, absent)
        ]
        assert told(answers[0], own) == told(answers[1], absent)
        assert answers[0].status == 403, answers[0]
        assert "payer" not in answers[0].json["message"]
        after = (api.node.image, len(api.node.batch_requests), len(api.node.produce_requests))
        assert after == before
        for caller in ("root", "bob"):
            answer = await way(api, path_of(route, own), own, basic(caller))
            assert answer.status in {200, 207}, (caller, answer)


@pytest.mark.parametrize(("route", "way"), WAYS)
async def test_a_right_to_the_name_is_no_right_to_anothers_epoch(route, way):
    async with closed() as (api, node):
        node.allow("carol", NAME)
        former = await reserved(api, basic("bob"), "payer")
        api.node.transactions.keep_open(*former)
        assert (await way(api, path_of(route, former), former, basic("carol"))).status == 403
        present = await reserved(api, basic("carol"), "payer")
        assert present == (former[0], former[1] + 1)
        # The former holder may know that it was taken over: it may take it back.
        answer = await way(api, path_of(route, former), former, basic("bob"))
        assert answer.status == 409, answer
        assert (await way(api, path_of(route, present), present, basic("bob"))).status == 403


@pytest.mark.parametrize(("route", "way"), WAYS)
async def test_who_lost_the_right_to_the_name_writes_no_more_under_it(route, way):
    async with closed() as (api, node):
        own = await reserved(api, basic("bob"), "payer")
        node.take("bob")
        node.allow("bob", WRITE)
        assert (await way(api, path_of(route, own), own, basic("bob"))).status == 403


@pytest.mark.parametrize("mode", [AccessMode.REQUIRED, None])
@pytest.mark.parametrize(("route", "way"), WAYS)
async def test_no_client_writes_as_a_nodes_own_producer(route, way, mode):
    async with closed() as (api, node):
        outcome = await api.node.allocate_producer("milena.transactions.1.0")
        own = outcome.producer_id, outcome.producer_epoch
        api.node.transactions.keep_open(*own)
        if mode is None:
            api.node.image = replace(api.node.image, access_mode="off")
            api.node.callers.attend()
        node.allow("bob", Allowed("WRITE", "TRANSACTIONAL_ID", "*"))
        caller = basic("root") if mode else {}
        answer = await way(api, path_of(route, own), own, caller)
        # An operator may abort what hangs.
        assert answer.status == (200 if route.operation_id == "abortTransaction" else 422), answer


async def test_an_id_that_this_node_has_not_heard_of_is_asked_for():
    async with closed() as (api, _):
        before = api.node.image
        own = await reserved(api, basic("bob"))
        api.node.image, api.node.unheard = before, api.node.image
        assert (await encoded(api, PARTITION, own, basic("bob"))).status == 200


async def test_ids_of_before_owners_were_stored_are_any_writers():
    async with closed() as (api, _):
        api.node.image = replace(api.node.image, feature_level=producers.OWNERS_LEVEL - 1)
        own = await reserved(api, basic("bob"))
        api.node.image = replace(api.node.image, feature_level=producers.OWNERS_LEVEL)
        assert (await encoded(api, PARTITION, own, basic("carol"))).status == 200


async def test_where_refusals_are_only_logged_an_id_is_anybodys(caplog):
    async with closed(AccessMode.OPTIONAL) as (api, _):
        own = await reserved(api, basic("bob"))
        assert (await encoded(api, PARTITION, own, basic("carol"))).status == 200
        assert any("would be refused" in line for line in caplog.messages)


async def test_a_later_user_of_the_same_name_has_no_id_of_the_former():
    async with closed() as (api, node):
        own = await reserved(api, basic("bob"))
        named = await reserved(api, basic("bob"), "payer")
        node.store.apply(DeleteUser(name="bob"))
        for identity in (own, named):
            assert producers.principal_of(api.node.image, identity[0]) == ""


async def test_last_sequences_name_no_topic_that_the_caller_may_not_see(monkeypatch):
    async with closed() as (api, node):
        state = await api.node.allocate_producer("payer")
        told_of = replace(state, last_sequences={"orders": {0: 4}, "hidden": {0: 5}})

        async def known(name):
            return told_of

        monkeypatch.setattr(api.node, "allocate_producer", known)
        node.allow("bob", NAME)
        answer = await api.post("/producers", {"name": "payer"}, headers=basic("bob"))
        assert answer.json["last_sequences"] == {"orders": {"0": 4}}
