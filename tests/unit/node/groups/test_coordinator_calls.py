"""Calls to a group's coordinator: wherever it is, as often as is safe, and no longer than is bearable."""

import asyncio

import pytest

from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    GroupNotFoundError,
    InvalidRequestError,
    NotCoordinatorError,
)
from node.groups.coordinator_calls import COORDINATOR_WAIT_MS, Repeat, Reply
from node.peers.codec import Fields
from raft_meta.machine.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.time.virtual_time import after, virtual


class Work:
    """A handler on every node, and where it was run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.done: list[int] = []
        self.delay_ms = 0
        self.error: Exception | None = None
        for node in cluster.nodes.values():
            self.serve(node)

    def serve(self, node: SimNode) -> None:
        async def work(fields: Fields, body: bytes) -> Reply:
            self.done.append(node.node_id)
            await asyncio.sleep(self.delay_ms / 1000)
            if self.error is not None:
                raise self.error
            return {"said": fields["word"], "wait": fields["wait_ms"]}, [b"a", body]

        node.groups.calls.serve("work", work)
        self.cluster.network.handlers[node.node_id]["work"] = node.groups.calls.peer_handler("work")

    def coordinator(self) -> int:
        found = coordinator_of(self.cluster.image, "g")
        assert found is not None
        return found

    async def ask(
        self, node_id: int, repeat: Repeat = Repeat.NEVER, *, wait_ms: int = 0
    ) -> tuple[Fields, bytes]:
        return await self.cluster.nodes[node_id].groups.calls.call(
            "work", "g", {"word": "yes"}, b"b", repeat=repeat, wait_ms=wait_ms
        )


async def started() -> tuple[Cluster, Work]:
    cluster = await Cluster().start()
    return cluster, Work(cluster)


@virtual
async def test_any_node_has_it_done_by_the_coordinator() -> None:
    cluster, work = await started()
    for node_id in cluster.node_ids:
        assert await work.ask(node_id, wait_ms=70) == ({"said": "yes", "wait": 70}, b"ab")
    assert work.done == [work.coordinator()] * 3
    await cluster.close()


@virtual
async def test_what_the_handler_refuses_is_the_answer() -> None:
    cluster, work = await started()
    work.error = GroupNotFoundError("no such group")
    for node_id in cluster.node_ids:
        with pytest.raises(GroupNotFoundError):
            await work.ask(node_id)
    await cluster.close()


@virtual
async def test_another_node_takes_over_from_a_coordinator_that_is_gone() -> None:
    cluster, work = await started()
    gone = work.coordinator()
    await cluster.kill(gone)
    node_id = next(iter(cluster.nodes))
    assert (await work.ask(node_id))[1] == b"ab"
    assert gone not in work.done
    await cluster.close()


@virtual
async def test_what_may_have_been_done_is_unknown_unless_it_may_be_repeated() -> None:
    cluster, work = await started()
    lost = work.coordinator()
    node_id = next(i for i in cluster.node_ids if i != lost)
    cluster.network.lose_answers_to.add((node_id, "work"))
    with pytest.raises(FateUnknownError):
        await work.ask(node_id)
    assert work.done == [lost]
    await cluster.close()


@virtual
async def test_what_must_not_come_late_is_repeated_once_another_coordinates() -> None:
    cluster, work = await started()
    lost = work.coordinator()
    node_id = next(i for i in cluster.node_ids if i != lost)
    work.delay_ms = 200
    asking = asyncio.create_task(work.ask(node_id, Repeat.ELSEWHERE))
    await after(100)
    await cluster.kill(lost)
    assert (await asking)[1] == b"ab"
    assert work.done[0] == lost
    assert lost not in work.done[1:]
    await cluster.close()


@virtual
async def test_what_does_no_harm_is_repeated_at_the_same_coordinator() -> None:
    cluster, work = await started()
    lost = work.coordinator()
    node_id = next(i for i in cluster.node_ids if i != lost)
    cluster.network.lose_answers_to.add((node_id, "work"))
    asyncio.get_running_loop().call_later(
        1, cluster.network.lose_answers_to.discard, (node_id, "work")
    )
    calls = cluster.nodes[node_id].groups.calls
    fields, _ = await calls.call(
        "work", "g", {"word": "yes"}, repeat=Repeat.ALWAYS, answer_ms=2_000
    )
    assert fields["said"] == "yes"
    assert work.done == [lost, lost]
    await cluster.close()


@virtual
async def test_a_node_that_cannot_know_decides_nothing() -> None:
    cluster, work = await started()
    lost = work.coordinator()
    cluster.isolate(lost)
    await after(3_000)
    begin = asyncio.get_running_loop().time()
    with pytest.raises(NotCoordinatorError):
        await work.ask(lost)
    waited_ms = (asyncio.get_running_loop().time() - begin) * 1000
    assert COORDINATOR_WAIT_MS - 1 < waited_ms < COORDINATOR_WAIT_MS + 500
    assert work.done == []
    await cluster.close()


@virtual
async def test_a_coordinator_of_a_release_before_is_told_from_a_bad_request() -> None:
    cluster, work = await started()
    there = work.coordinator()

    async def unknown(peer_id: int, fields: Fields, body: bytes) -> Reply:
        raise InvalidRequestError("no such request")

    cluster.network.handlers[there]["work"] = unknown
    with pytest.raises(FeatureLevelError):
        await work.ask(next(i for i in cluster.node_ids if i != there))
    await cluster.close()
