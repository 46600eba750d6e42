"""A REST consumer is its maker's: others are told that there is none, and a quota bounds how many somebody has."""

import pytest

from raft_meta.machine.commands import AlterQuota
from raft_meta.machine.copies import replace
from raft_meta.machine.groups.consumers import counts_by_principal
from raft_meta.machine.image import RestConsumer
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode

READS = (Allowed("ALL", "TOPIC", "t"), Allowed("ALL", "GROUP", "g"))
PATH = "/consumers/g/instances/c"


def remember(
    node: FakeNode, instance: str, principal: str, *, created_index: int = 0, **reads: object
) -> None:
    """The replicated state knows of a consumer; 0: it was made just now."""
    consumer = RestConsumer(
        group_id="g",
        instance=instance,
        created_index=created_index or node.image.index,
        format="json",
        auto_offset_reset="latest",
        is_auto_commit=True,
        fetch_min_bytes=1,
        request_timeout_ms=1000,
        principal=principal,
        **reads,
    )
    consumers = node.image.consumers.set(("g", instance), consumer)
    counts = counts_by_principal(consumers.values())
    node.image = replace(node.image, consumers=consumers, consumer_counts=counts)


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        closed = ClosedNode(node)
        for name in ("ann", "bob"):
            closed.user(name, *READS)
        yield (
            api,
            node,
            {name: closed.token(name, f"token{name}") for name in ("ann", "bob", "root")},
        )


async def test_who_makes_one_is_written_down(closed):
    api, node, as_ = closed
    assert (await api.post("/consumers/g", {"name": "c"}, headers=as_["ann"])).status == 200
    assert node.consumers.known["g", "c"].settings.principal == "User:ann"


async def test_another_is_told_that_there_is_none(closed):
    api, node, as_ = closed
    await api.post("/consumers/g", {"name": "c"}, headers=as_["ann"])
    remember(node, "c", "User:ann")
    for method, path, body in (
        ("GET", f"{PATH}/subscription", None),
        ("GET", f"{PATH}/assignments", None),
        ("GET", f"{PATH}/records", None),
        ("POST", f"{PATH}/subscription", {"topics": ["t"]}),
        ("POST", f"{PATH}/offsets", {}),
        ("DELETE", PATH, None),
    ):
        refused = await api.call(method, path, json=body, headers=as_["bob"])
        missing = await api.call(
            method, path.replace(PATH, PATH[:-1] + "x"), json=body, headers=as_["bob"]
        )
        assert refused.error == missing.error == (404, 40403), (method, path)
        told = missing.json["message"].replace("'x'", "'c'")
        assert refused.json["message"] == told, "another text would reveal that it exists"
    for name in ("root", "ann"):
        assert (await api.get(f"{PATH}/subscription", headers=as_[name])).status == 200


READING = (
    ("GET", f"{PATH}/records", None),
    ("GET", f"{PATH}/records?token=a", None),
    ("GET", f"{PATH}/records?follow=true", None),
    ("POST", f"{PATH}/offsets", {}),
    ("POST", f"{PATH}/positions/beginning", {"partitions": [{"topic": "t", "partition": 0}]}),
)
"""Calls that take records, or pass over them."""


@pytest.mark.parametrize("kind", ["topics", "pattern", "assigned"])
async def test_who_may_not_read_any_more_neither_takes_nor_passes_over_anything(closed, kind):
    api, node, as_ = closed
    await api.post("/consumers/g", {"name": "c"}, headers=as_["root"])
    topic_id = node.image.topic_ids["t"]
    read = {"topics": ("t",), "pattern": "t.*", "assigned": ((topic_id, (0,)),)}
    remember(node, "c", "", **{kind: read[kind]})
    asked = []
    for name in ("records", "commit", "seek"):
        real = getattr(node.consumers, name)

        def spy(*args, real=real, **options):
            asked.append(args)
            return real(*args, **options)

        setattr(node.consumers, name, spy)
    closed_node = ClosedNode(node)
    closed_node.user("eve", Allowed("ALL", "GROUP", "g"))
    eve = closed_node.token("eve", "tokeneve")
    for method, path, body in READING:
        refused = await api.call(method, path, json=body, headers=eve)
        assert refused.status == 403, (method, path, refused)
    assert asked == []


async def test_a_user_of_the_same_name_inherits_none(closed):
    api, node, as_ = closed
    await api.post("/consumers/g", {"name": "c"}, headers=as_["ann"])
    user_index = node.image.users["ann"].created_index
    remember(node, "c", "User:ann", created_index=user_index - 1)
    refused = await api.get(f"{PATH}/subscription", headers=as_["ann"])
    assert refused.error == (404, 40403)
    remember(node, "c", "User:ann", created_index=user_index + 1)
    assert (await api.get(f"{PATH}/subscription", headers=as_["ann"])).status == 200


async def test_one_that_nobody_was_asked_for_is_everybodys_who_may_read_its_group(closed):
    api, node, as_ = closed
    await api.post("/consumers/g", {"name": "c"}, headers=as_["ann"])
    remember(node, "c", "")
    assert (await api.get(f"{PATH}/subscription", headers=as_["bob"])).status == 200


async def test_a_quota_bounds_how_many_somebody_has(closed):
    api, node, as_ = closed
    node.access.store.apply(AlterQuota(user="ann", client_id="", changes=(("consumer_count", 1),)))
    remember(node, "first", "User:ann")
    remember(node, "other", "User:bob")
    refused = await api.post("/consumers/g", {"name": "c"}, headers=as_["ann"])
    assert refused.error == (429, 42903)
    assert refused.headers["Retry-After"] == "1"
    assert (await api.post("/consumers/g", {"name": "c"}, headers=as_["bob"])).status == 200
