"""What the audit log is told of beside changes of the replicated state: actions on records, and callers turned away."""

import pytest

from http_api.access.refusals import ROWS_MAX, Refusals
from milena.model.errors import NoQuorumError
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AllocatedProducer, KafkaTransactionalId
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic

ROOT = basic("root")


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("orders")
    node.add_topic("__audit")
    async with serving(node) as api:
        yield api, ClosedNode(node)


async def delete_records(api, topic="orders"):
    path = f"/topics/{topic}/partitions/0/records:delete"
    return await api.post(path, {"before_offset": "latest"}, headers=ROOT)


async def reset(api):
    return await api.post("/groups/g/offsets:reset", {"topic": "orders", "to": 0}, headers=ROOT)


async def abort(api):
    begun = await api.post("/transactions:begin", {"transactional_id": "p"}, headers=ROOT)
    path = f"/transactions/{begun.json['producer_id']}/{begun.json['producer_epoch']}:abort"
    return await api.post(path, {}, headers=ROOT)


async def delete_audit(api):
    return await delete_records(api, "__audit")


ACTIONS = {
    delete_records: ("delete_records", {"topic": "orders", "partition": 0, "before_offset": None}),
    delete_audit: ("delete_records", {"topic": "__audit", "partition": 0, "before_offset": None}),
    reset: ("reset_group", {"group_id": "g", "topic": "orders", "partitions": None, "to": 0}),
    abort: ("abort_transaction", {"producer_id": 1, "producer_epoch": 0}),
}


@pytest.mark.parametrize("act", ACTIONS)
async def test_an_action_is_told_with_the_name_of_its_caller(closed, act):
    api, _ = closed
    assert (await act(api)).status == 200
    assert api.node.noted == [(*ACTIONS[act], "User:root")]


@pytest.mark.parametrize("act", ACTIONS)
async def test_what_cannot_be_told_is_not_done(closed, act):
    api, _ = closed
    api.node.errors["note"] = NoQuorumError("the audit log cannot be told; nothing was done")
    before = (list(api.node.deletions), list(api.node.transactions.aborts))
    assert (await act(api)).status == 503
    assert (list(api.node.deletions), list(api.node.transactions.aborts)) == before


@pytest.mark.parametrize(
    ("path", "field"), [("/transactions:begin", "transactional_id"), ("/producers", "name")]
)
async def test_who_takes_a_name_from_another_principal_is_told_of(closed, path, field):
    api, closed_node = closed
    node = api.node
    ann = closed_node.user("ann", Allowed("WRITE", "TRANSACTIONAL_ID", "p"))
    producer = AllocatedProducer(producer_id=7, producer_epoch=0, name="p", principal="User:ann")
    known = replace(
        node.image,
        producers=node.image.producers.set(7, producer),
        producer_names=node.image.producer_names.set("p", 7),
    )
    change = {"name": "p", "producer_id": 7, "principal": "User:ann"}
    told = [("take_over_producer", change, "User:root")]
    for name, caller, expected in (("p", ann, []), ("new", ROOT, []), ("p", ROOT, told)):
        node.image = known
        assert (await api.post(path, {field: name}, headers=caller)).status == 200
        assert node.noted == expected
    # The name of a Kafka client is refused, so nobody took it over.
    node.noted.clear()
    row = KafkaTransactionalId(
        name="p",
        version=1,
        producer_id=9,
        producer_epoch=0,
        former_epoch=-1,
        timeout_ms=1,
        began_ms=0,
    )
    node.image = replace(known, transactional_ids=known.transactional_ids.set("p", row))
    await api.post(path, {field: "p"}, headers=ROOT)
    assert node.noted == []


class TestRefusals:
    async def test_failed_sign_ins_and_refusals_are_counted(self, closed):
        api, closed_node = closed
        closed_node.user("eve", Allowed("DESCRIBE", "TOPIC", "orders"))
        for _ in range(3):
            await api.get("/users", headers=basic("eve"))
        await api.get("/topics", headers=basic("eve", "a wrong password"))
        await api.get("/topics", headers=basic("s3cret typed as a name"))
        await api.get("/topics")
        await api.get("/topics", headers={"Authorization": "Bearer mln_x_y"})
        told = api.node.refusals.take()["refusals"]
        rows = {(row["principal"], row["what"]): row["count"] for row in told}
        (refused,) = [what for principal, what in rows if principal == "User:eve"]
        assert "DESCRIBE CLUSTER" in refused
        assert rows["User:eve", refused] == 3
        strangers = [what for principal, what in rows if principal is None]
        assert any("(user eve)" in what for what in strangers)
        assert len(strangers) == 4
        # A password in the place of a name is not written down.
        assert not any("s3cret" in what for what in strangers)
        assert {row["address"] for row in told} == {"127.0.0.1"}
        assert api.node.refusals.take() is None

    def test_strangers_fill_nothing_and_hide_no_known_principal(self):
        refusals = Refusals()
        for number in range(10_000):
            refusals.add("", f"10.0.{number // 250}.{number % 250}", "no" * number)
        refusals.add("User:eve", "h", "may not")
        taken = refusals.take()
        assert len(taken["refusals"]) == ROWS_MAX + 1
        assert taken["others"] == 10_000 - ROWS_MAX
        assert taken["refusals"][0]["principal"] == "User:eve"
        assert len(str(taken)) < 16_000
