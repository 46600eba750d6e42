"""Requests that come through proxies: whose address counts, and whose word."""

import pytest

from node.access import passwords
from raft_meta.machine.commands import AlterAcls
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import (
    QUICK_HASHER,
    Allowed,
    ClosedNode,
    basic,
    entry,
)


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch):
    monkeypatch.setattr(passwords, "_HASHER", QUICK_HASHER)


class TestProxies:
    """Behind a proxy that is believed each client has its own address; nobody else's word counts."""

    OURS = ("127.0.0.1", "10.0.0.0/8")

    @pytest.fixture
    async def behind(self):
        node = FakeNode()
        async with serving(node, proxies=self.OURS) as api:
            yield api, ClosedNode(node)

    async def wrong(self, api, address, count=1):
        headers = {**basic("root", "a wrong password"), "X-Forwarded-For": address}
        statuses = []
        for _ in range(count):
            statuses.append((await api.get("/topics", headers=headers)).status)
        return statuses

    async def test_one_client_does_not_lock_the_others_out(self, behind):
        api, _ = behind
        assert (await self.wrong(api, "203.0.113.7", 60))[-1] == 429
        assert await self.wrong(api, "203.0.113.8") == [401]
        good = {**basic("root"), "X-Forwarded-For": "203.0.113.9"}
        assert (await api.get("/topics", headers=good)).status == 200

    async def test_what_a_client_writes_itself_does_not_count(self, behind):
        api, _ = behind
        # The proxy adds what it saw behind what the client said.
        for number in range(60):
            (status,) = await self.wrong(api, f"198.51.100.{number}, 203.0.113.7, 10.1.2.3")
        assert status == 429

    async def test_nobody_else_is_believed(self):
        node = FakeNode()
        async with serving(node, proxies=("192.0.2.1",)) as api:
            ClosedNode(node)
            for number in range(60):
                (status,) = await self.wrong(api, f"203.0.113.{number}")
            assert status == 429

    @pytest.mark.parametrize(
        ("name", "value", "address"),
        [
            ("X-Forwarded-For", "203.0.113.7", "203.0.113.7"),
            ("X-Forwarded-For", "203.0.113.7:4711", "203.0.113.7"),
            ("X-Forwarded-For", "[2001:db8::1]:4711", "2001:db8::1"),
            ("X-Forwarded-For", "2001:db8::1", "2001:db8::1"),
            ("X-Forwarded-For", "::ffff:203.0.113.7", "203.0.113.7"),
            ("X-Forwarded-For", "unknown", "127.0.0.1"),
            ("X-Forwarded-For", "203.0.113.7, hidden, 10.0.0.1", "10.0.0.1"),
            ("X-Forwarded-For", "", "127.0.0.1"),
            ("Forwarded", 'for="[2001:db8::1]:4711";proto=https', "2001:db8::1"),
            ("Forwarded", "for=198.51.100.1, for=203.0.113.7;by=10.0.0.1", "203.0.113.7"),
            ("Forwarded", "by=10.0.0.1", "127.0.0.1"),
        ],
    )
    async def test_the_address_is_the_last_that_is_no_proxys(self, behind, name, value, address):
        api, _ = behind
        headers = {**basic("root", "a wrong password"), name: value}
        await api.get("/topics", headers=headers)
        (row,) = api.node.refusals.take()["refusals"]
        assert row["address"] == address

    async def test_writes_and_streams_go_through_as_ever(self, behind):
        api, _ = behind
        api.node.add_topic("t")
        headers = {**basic("root"), "X-Forwarded-For": "203.0.113.7"}
        for _ in range(3):
            body = {"records": [{"value": 1}]}
            assert (await api.post("/topics/t", body, headers=headers)).status == 200
        path = "/topics/t/partitions/0/records?count=3"
        answer = await api.get(path, headers={**headers, "Accept": "text/event-stream"})
        assert answer.body.count(b"data:") == 3

    async def test_an_entry_for_one_address_holds_for_its_client_alone(self, behind):
        api, closed_node = behind
        api.node.add_topic("t")
        ann = closed_node.user("ann")
        what = Allowed("READ", "TOPIC", "t")
        acl = entry("User:ann", what, host="203.0.113.7")
        closed_node.store.apply(AlterAcls(added=(acl,), removed=()))
        path = "/topics/t/partitions/0/records"
        for _ in range(2):
            for address, status in (("203.0.113.7", 200), ("203.0.113.8", 403)):
                headers = {**ann, "X-Forwarded-For": address}
                assert (await api.get(path, headers=headers)).status == status
