"""Calls to a group's coordinator: wherever it is, as often as is safe, and no longer than is bearable."""

import asyncio

import pytest

from http_api.ports.groups import Heartbeat, HeartbeatAnswer
from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    GroupNotFoundError,
    InvalidRequestError,
    NoQuorumError,
    NotCoordinatorError,
)
from node.config.budgets import COORDINATOR_WAIT_MS
from node.groups.coordinator_calls import Repeat
from node.groups.group_messages import GroupRequest
from node.peers.messages import Blob, CallType, Message
from node.peers.port import Fields, Reply
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.overtaken import former_coordinator, hear_again
from tests.support.time.virtual_time import after, virtual


class WorkRequest(GroupRequest, frozen=True, kw_only=True):
    word: str
    load: Blob


class WorkAnswer(Message, frozen=True, kw_only=True):
    said: str
    wait_ms: int
    load: Blob


WORK = CallType("work", WorkRequest, WorkAnswer)


class Work:
    """A handler on every node, and where it was run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.done: list[int] = []
        self.requests: list[WorkRequest] = []
        self.delay_ms = 0
        self.error: Exception | None = None
        for node in cluster.nodes.values():
            self.serve(node)

    def serve(self, node: SimNode) -> None:
        async def work(request: WorkRequest) -> WorkAnswer:
            self.done.append(node.node_id)
            self.requests.append(request)
            await asyncio.sleep(self.delay_ms / 1000)
            if self.error is not None:
                raise self.error
            load = Blob(b"a" + request.load.data)
            return WorkAnswer(said=request.word, wait_ms=request.wait_ms, load=load)

        calls = node.groups.calls
        calls.serve(WORK, work)
        self.cluster.network.handlers[node.node_id]["work"] = calls.peer_handlers["work"]

    def coordinator(self) -> int:
        found = coordinator_of(self.cluster.image, "g")
        assert found is not None
        return found

    async def ask(
        self, node_id: int, repeat: Repeat = Repeat.NEVER, *, wait_ms: int = 0
    ) -> WorkAnswer:
        return await self.cluster.nodes[node_id].groups.calls.call(
            WORK, wanted(wait_ms=wait_ms), repeat=repeat
        )


def wanted(*, wait_ms: int = 0) -> WorkRequest:
    return WorkRequest(group_id="g", wait_ms=wait_ms, word="yes", load=Blob(b"b"))


async def started() -> tuple[Cluster, Work]:
    cluster = await Cluster().start()
    return cluster, Work(cluster)


@virtual
async def test_any_node_has_it_done_by_the_coordinator() -> None:
    cluster, work = await started()
    for node_id in cluster.node_ids:
        answer = await work.ask(node_id, wait_ms=70)
        assert answer == WorkAnswer(said="yes", wait_ms=70, load=Blob(b"ab"))
    assert work.done == [work.coordinator()] * 3
    await cluster.close()


@virtual
async def test_on_the_coordinator_itself_nothing_is_packed() -> None:
    cluster, work = await started()
    request = wanted()
    calls = cluster.nodes[work.coordinator()].groups.calls
    await calls.call(WORK, request, repeat=Repeat.NEVER)
    assert work.requests[0] is request
    assert not [kind for *_, kind, _ in cluster.network.calls if kind == "work"]
    await cluster.close()


@virtual
async def test_a_later_try_lets_the_answer_be_held_back_for_what_is_left() -> None:
    cluster, work = await started()
    lost = work.coordinator()
    node_id = next(i for i in cluster.node_ids if i != lost)
    work.delay_ms = 500
    asking = asyncio.create_task(work.ask(node_id, Repeat.ALWAYS, wait_ms=3_000))
    await after(400)
    cluster.nodes[node_id].peer.disconnect(lost)
    assert (await asking).wait_ms < 2_700
    assert work.requests[0].wait_ms == 3_000
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
    assert (await work.ask(node_id)).load == Blob(b"ab")
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
    assert (await asking).load == Blob(b"ab")
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
    answer = await calls.call(WORK, wanted(), repeat=Repeat.ALWAYS, answer_ms=2_000)
    assert answer.said == "yes"
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


class TestAFormerCoordinator:
    """Another node coordinates the group, and the former coordinator has not heard of it."""

    @virtual
    async def test_its_refusal_does_not_count(self) -> None:
        async with cluster_of() as cluster:
            former, third = await former_coordinator(cluster)
            joined = await beat(cluster, third, 0)
            hear_again(cluster, former)
            answer = await beat(cluster, former, joined.member_epoch)
            assert answer.member_id == "m"

    @virtual
    async def test_without_a_majority_it_is_not_ready(self) -> None:
        async with cluster_of() as cluster:
            former, third = await former_coordinator(cluster)
            joined = await beat(cluster, third, 0)
            with pytest.raises(NoQuorumError):
                await beat(cluster, former, joined.member_epoch)

    @virtual
    async def test_one_that_has_coordinated_meanwhile_counts_too(self) -> None:
        """The former coordinator coordinates the group again, and missed what another one did in between."""
        async with cluster_of() as cluster:
            former, third = await former_coordinator(cluster)
            joined = await beat(cluster, third, 0)
            (later,) = set(cluster.nodes) - {former, third}
            await cluster.kill(later)
            await cluster.until(lambda: coordinator_of(cluster.image, "g") == former)
            hear_again(cluster, former)
            answer = await beat(cluster, former, joined.member_epoch)
            assert answer.member_id == "m"


async def beat(cluster: Cluster, node_id: int, member_epoch: int) -> HeartbeatAnswer:
    heartbeat = Heartbeat(group_id="g", member_id="m", member_epoch=member_epoch, topics=("t",))
    return await cluster.nodes[node_id].groups.service.heartbeat(heartbeat)
