"""Rules of answers under a token: the same one again brings the same answer, another one says that it has arrived."""

import asyncio

import pytest

from http_api.ports.groups import Seek
from milena.model.errors import FeatureLevelError, InvalidRequestError
from node.consumers.consumer_messages import (
    ACKNOWLEDGE,
    RECORDS,
    TOKEN_RECORDS,
    ConsumerRecordsRequest,
)
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.groups.sim_consumers import Client
from tests.support.time.virtual_time import after, virtual


async def reading(
    cluster: Cluster, *values: str, is_auto_commit: bool = True, partitions: int = 1
) -> Client:
    await cluster.create("t", *[(1, 2, 3)] * partitions)
    for number, value in enumerate(values):
        await cluster.any.write("t", value, partition=number % partitions)
    await after(50)
    client = await Client(cluster).create(is_auto_commit=is_auto_commit)
    return await client.subscribe("t")


class TestTheSameAgain:
    @virtual
    async def test_it_brings_the_same_records_on_every_node_whatever_was_written_since(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a", "b", "c", partitions=2)
            first = await client.read(token="1")
            assert sorted(first) == ["a", "b", "c"]
            await cluster.any.write("t", "d")
            for node_id in (1, 2, 3, 1):
                assert await client.read(node_id, token="1") == first
            assert await client.read(token="2") == ["d"]

    @virtual
    async def test_it_is_cut_as_it_was(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            await cluster.any.write("t", "a", "b", "c")
            for token, value in (("1", "a"), ("2", "b"), ("3", "c")):
                assert await client.read(token=token, max_bytes=1) == [value]
                assert await client.read(token=token) == [value]

    @virtual
    async def test_an_empty_answer_comes_again_at_once(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            assert await client.read(token="1", timeout_ms=100) == []
            await cluster.any.write("t", "a")
            # Whichever copy of the answer reached its client: neither had records.
            assert await client.read(token="1", timeout_ms=60_000) == []
            assert await client.read(token="2") == ["a"]

    @virtual
    async def test_one_that_comes_while_the_first_still_waits_gets_its_answer(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            first = asyncio.ensure_future(client.read(token="1", timeout_ms=60_000))
            await after(100)
            again = asyncio.ensure_future(client.read(2, token="1", timeout_ms=60_000))
            await after(100)
            await cluster.any.write("t", "a")
            assert await first == await again == ["a"]
            await cluster.any.write("t", "b")
            assert await client.read(token="2") == ["b"]

    @virtual
    async def test_a_client_that_hung_up_while_it_was_gathered_gets_it_under_the_token(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            waiting = asyncio.ensure_future(client.read(token="1", timeout_ms=60_000))
            await after(100)
            waiting.cancel()
            await after(100)
            await cluster.any.write("t", "a")
            assert await client.read(token="1") == ["a"]

    @virtual
    async def test_an_answer_that_a_node_could_not_send_is_not_taken_back(self) -> None:
        # A copy of it may have reached the client on another way.
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            service = cluster.nodes[2].consumers.service
            found = await service.records(*client.name, timeout_ms=100, max_bytes=None, token="1")
            service.take_back(*client.name, found)
            await after(100)
            await cluster.any.write("t", "b")
            assert await client.read(token="2") == ["b"]

    @virtual
    async def test_an_answer_that_its_client_was_refused_is_given_under_any_token(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            service = cluster.nodes[2].consumers.service
            for token in ("1", "2"):
                found = await service.records(
                    *client.name, timeout_ms=100, max_bytes=None, token=token
                )
                assert len(found.deliveries) == 1
                await service.refuse(*client.name, found)
            assert await client.read() == ["a"]

    @virtual
    async def test_that_it_was_refused_is_told_later_if_it_cannot_be_told_now(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            others = {client.coordinator, cluster.image.controller_id}
            asked = next(node_id for node_id in cluster.nodes if node_id not in others)
            service = cluster.nodes[asked].consumers.service
            found = await service.records(*client.name, timeout_ms=100, max_bytes=None, token="1")
            cluster.network.cut(asked, client.coordinator)
            await service.refuse(*client.name, found)
            cluster.heal()
            assert await client.read(asked, token="2") == ["a"]

    @virtual
    async def test_records_that_were_deleted_since_are_gone_and_no_others(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a", "b", "c")
            assert await client.read(token="1") == ["a", "b", "c"]
            await cluster.any.delete_records("t", 2)
            assert await client.read(token="1") == ["c"]
            await cluster.any.delete_records("t", 3)
            assert await client.read(token="1") == []

    @virtual
    async def test_partitions_that_another_member_has_since_are_left_out(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a", "b", partitions=2)
            assert sorted(await client.read(token="1")) == ["a", "b"]
            other = await (await Client(cluster, "d").create()).subscribe("t")
            await after(200)
            mine, others = await client.read(token="1"), await other.read()
            assert sorted(mine + others) == ["a", "b"]
            assert len(mine) == 1


class TestAnotherOne:
    @virtual
    @pytest.mark.parametrize("token", ["2", ""])
    async def test_it_says_that_the_answer_before_has_arrived(self, token: str) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            assert await client.read(token="1") == ["a"]
            await after(6_000)
            assert await client.committed() == {}
            assert await client.read(token=token, timeout_ms=0) == []
            assert await client.committed() == {0: 1}

    @virtual
    async def test_one_that_repeats_does_not(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            for _ in range(3):
                assert await client.read(token="1") == ["a"]
                await after(6_000)
            assert await client.committed() == {}

    @virtual
    async def test_the_one_before_the_last_is_another_one(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            await cluster.any.write("t", "a", "b", "c")
            for token, value in (("1", "a"), ("2", "b"), ("1", "c")):
                assert await client.read(token=token, max_bytes=1) == [value]


class TestClosing:
    @virtual
    @pytest.mark.parametrize(
        ("last", "told", "committed"),
        [("1", "", {}), ("1", "1", {0: 1}), ("1", "0", {}), ("", "", {0: 1})],
    )
    async def test_what_certainly_arrived_is_committed_and_all_without_tokens(
        self, last: str, told: str, committed: dict[int, int]
    ) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            assert await client.read(token=last) == ["a"]
            await cluster.any.consumers.service.delete(*client.name, token=told)
            again = await Client(cluster).create()
            assert await again.committed() == committed

    @virtual
    @pytest.mark.parametrize(("told", "committed"), [("", {}), ("1", {0: 1})])
    async def test_giving_up_the_subscription_is_the_same(
        self, told: str, committed: dict[int, int]
    ) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            assert await client.read(token="1") == ["a"]
            await cluster.any.consumers.service.unsubscribe(*client.name, token=told)
            assert await client.committed() == committed

    @virtual
    @pytest.mark.parametrize(("told", "expected"), [("", ["a", "b"]), ("1", ["b"])])
    async def test_so_is_another_assignment(self, told: str, expected: list[str]) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.create("u", (1, 2, 3))
            await cluster.any.write("t", "a")
            client = await Client(cluster).create(is_auto_commit=True)
            assign = cluster.any.consumers.service.assign
            await assign(*client.name, [("t", 0)])
            assert await client.read(token="1") == ["a"]
            await assign(*client.name, [("u", 0)], token=told)
            await cluster.any.write("t", "b")
            await assign(*client.name, [("t", 0)])
            assert await client.read(token="2") == expected

    @virtual
    async def test_subscribing_to_more_says_too_that_the_answer_has_arrived(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            await cluster.create("u", (1, 2, 3))
            assert await client.read(token="1") == ["a"]
            await cluster.any.consumers.service.subscribe(*client.name, ("t", "u"), None, token="1")
            await cluster.any.consumers.service.delete(*client.name)
            again = await Client(cluster).create()
            assert await again.committed() == {0: 1}

    @virtual
    async def test_a_commit_without_a_body_says_what_was_delivered(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a", is_auto_commit=False)
            assert await client.read(token="1") == ["a"]
            await client.commit()
            assert await client.committed() == {0: 1}


class TestSeeking:
    @virtual
    async def test_a_seek_voids_the_token(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster, "a", "b", "c")
            assert await client.read(token="1") == ["a", "b", "c"]
            seek = Seek(topic="t", partition=0, offset=1)
            await cluster.any.consumers.service.seek(*client.name, [seek])
            assert await client.read(token="1") == ["b", "c"]
            assert await client.read(token="1") == ["b", "c"]


class TestAnotherCoordinator:
    @virtual
    async def test_it_knows_no_token_and_begins_at_the_commit(self) -> None:
        async with cluster_of() as cluster:
            client = await reading(cluster)
            await cluster.any.write("t", "a", "b", "c")
            assert await client.read(token="1", max_bytes=1) == ["a"]
            await client.commit()
            assert await client.read(token="2", max_bytes=1) == ["b"]
            await cluster.kill(client.coordinator)
            await after(3_000)
            assert await client.read(token="2") == ["b", "c"], "it may repeat, and never skips"

    @virtual
    async def test_one_of_an_earlier_release_refuses(self) -> None:
        # It would pass over the token, and take a repetition for a receipt.
        async with cluster_of() as cluster:
            client = await reading(cluster, "a")
            coordinator = client.coordinator

            async def unknown(*_: object) -> None:
                raise InvalidRequestError("this node knows no request 'consumer_token_records'")

            handlers = cluster.network.handlers[coordinator]
            handlers[TOKEN_RECORDS.name] = unknown  # type: ignore[assignment]
            node_id = next(i for i in cluster.nodes if i != coordinator)
            with pytest.raises(FeatureLevelError, match="of a release that cannot do this"):
                await client.read(node_id, token="1")
            assert await client.read(node_id) == ["a"]
            handlers[ACKNOWLEDGE.name] = unknown  # type: ignore[assignment]
            await cluster.nodes[node_id].consumers.service.delete(*client.name, token="1")

    def test_a_token_never_travels_in_a_call_that_earlier_releases_know(self) -> None:
        assert TOKEN_RECORDS.name != RECORDS.name
        assert "token" not in ConsumerRecordsRequest.__struct_fields__
