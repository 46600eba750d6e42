"""The line between errors that end one request and errors that end the node: planted at each entry point and place.

`docs/architecture.md` lists both under "What ends a node".
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import InternalError
from milena.model.pending import Pending
from node.process.callbacks import contain_callbacks
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.http.direct import DirectApi, RawAnswer, request_bytes
from tests.support.time.virtual_time import LoopClock, after, current_loop, virtual

JSON = {"Content-Type": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
RECORD = b'{"records":[{"value":1}]}'


class PlantedError(Exception):
    """What no code means to raise."""


def broken(*_: object, **__: object) -> None:
    raise PlantedError("planted")


@asynccontextmanager
async def planted_cluster() -> AsyncIterator[Cluster]:
    """Node 1 leads the topic ``t``; node 3 asks it."""
    async with cluster_of(Cluster(is_broken=True)) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.nodes[1].write("t", "before")
        yield cluster


async def produce(node: SimNode) -> RawAnswer:
    return await DirectApi(node).ask(request_bytes("POST", "/topics/t", JSON, RECORD))


async def quick(node: SimNode) -> RawAnswer:
    """The second request of one head goes past the dispatcher."""
    api = DirectApi(node)
    request = request_bytes("POST", "/topics/t", JSON, RECORD)
    _, answer = await api.ask_twice(request)
    return answer


async def read(node: SimNode) -> RawAnswer:
    target = "/topics/t/partitions/0/records?offset=latest"
    return await DirectApi(node).ask(request_bytes("GET", target))


async def follow(node: SimNode) -> RawAnswer:
    target = "/topics/t/partitions/0/records?offset=0"
    return await DirectApi(node).ask(request_bytes("GET", target, EVENTS), patience_s=1)


Plant = Callable[[pytest.MonkeyPatch, Cluster], None]


def on_encoder(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr(cluster.nodes[1].produce, "produce", broken)


def on_log_end(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr(type(cluster.nodes[1].reads), "_resolve", broken)


def on_reading(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr("node.services.reads.first_with_records", broken)


def on_judging(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr("node.replica.append_queue.AppendQueue._find_duplicate", broken)


def on_routing(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr("http_api.serving.routing.Router._find", broken)


def on_bytes(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    patch.setattr("http_api.quick.strangers.Strangers.turn_away", broken)


CASES: list[tuple[str, Plant, Callable[[SimNode], Awaitable[RawAnswer]], int, EntryPoint]] = [
    ("a handler", on_log_end, read, 1, EntryPoint.API),
    ("a handler, after the log was looked at", on_judging, produce, 1, EntryPoint.API),
    ("a port", on_encoder, produce, 1, EntryPoint.API),
    ("the quick lane", on_encoder, quick, 1, EntryPoint.API),
    ("the quick lane, in a promise", on_judging, quick, 1, EntryPoint.API),
    ("a route", on_routing, read, 1, EntryPoint.API),
    ("bytes of a client", on_bytes, read, 1, EntryPoint.API),
    ("a stream", on_reading, follow, 1, EntryPoint.API),
    ("a forwarded read", on_log_end, read, 3, EntryPoint.PEER),
    ("a forwarded write", on_judging, produce, 3, EntryPoint.PEER),
    ("a forwarded write of the quick lane", on_judging, quick, 3, EntryPoint.PEER),
]


@pytest.mark.parametrize(
    ("where", "plant", "ask", "node_id", "entry"), CASES, ids=[c[0] for c in CASES]
)
@virtual
async def test_an_error_ends_one_request_and_not_the_node(
    where: str,
    plant: Plant,
    ask: Callable[[SimNode], Awaitable[RawAnswer]],
    node_id: int,
    entry: EntryPoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with planted_cluster() as cluster:
        node, leader = cluster.nodes[node_id], cluster.nodes[1]
        assert (await ask(node)).status == 200, where
        with monkeypatch.context() as patch:
            plant(patch, cluster)
            for _ in range(2):
                answer = await ask(node)
                told = answer.head + answer.body.decode()
                assert "Internal Server Error" in told, (where, answer)
                assert "request_id=" in told, (where, answer)
                if ask is not follow:
                    assert answer.status == 500, (where, answer)
                    assert "Milena-Error: internal_error" in answer.head, (where, answer)
        if entry is EntryPoint.API:
            assert leader.counts.contained.counts[entry] >= 2
            assert caplog.text.count("Traceback (most recent call last)") == 1, where
        else:
            # The network of simulated nodes stands where ``ServerLink`` contains.
            assert len(cluster.network.failures) >= 2
            cluster.network.failures.clear()
        assert (await ask(node)).status == 200, where
        assert not any(each.fatal for each in cluster.nodes.values())


LOG = "storage.log.partition_log.PartitionLog"
FATAL = [
    ("an append", f"{LOG}.append_as_leader", 1),
    ("an append of a follower", f"{LOG}.append_as_follower", 2),
    ("the end of a sync", "storage.log.flushing.Flushing.finish", 1),
    ("the leader's progress", "node.replica.leader.PartitionLeader.on_appended", 1),
    ("a follower's acknowledgement", "node.replica.leader.PartitionLeader.on_accepted_fetch", 1),
    ("the high watermark of a follower", "node.replica.follower_log.FollowerLog.advance", 2),
    ("a listener of the image", "node.replication.local_replicas.LocalReplicas._update_roles", 1),
]


@pytest.mark.parametrize(("where", "place", "node_id"), FATAL, ids=[case[0] for case in FATAL])
@virtual
async def test_an_error_in_the_middle_of_a_change_ends_the_node(
    where: str, place: str, node_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with planted_cluster() as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            write = asyncio.ensure_future(produce(cluster.nodes[1]))
            create = asyncio.ensure_future(
                DirectApi(cluster.nodes[3]).ask(
                    request_bytes("POST", "/admin/topics", JSON, b'{"topic_name":"u"}')
                )
            )
            await asyncio.wait([write, create], timeout=5)
        fatal = cluster.nodes[node_id].fatal
        assert any(isinstance(error, PlantedError) for error in fatal), where
        for node in cluster.nodes.values():
            node.fatal.clear()
        cluster.network.failures.clear()
        loop = current_loop()
        loop.failures = [each for each in loop.failures if not isinstance(each, PlantedError)]


@virtual
async def test_background_work_starts_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop of the node's own list, but the one that makes and removes replicas."""
    async with planted_cluster() as cluster:
        node = cluster.nodes[2]
        names = set(node.background()) - {"join", "replicas"}
        begun: list[str] = []
        for name in sorted(names):
            failures = [PlantedError(name)]

            async def work(name: str = name, failures: list[PlantedError] = failures) -> None:
                begun.append(name)
                if failures:
                    raise failures.pop()

            task = asyncio.ensure_future(node._keep_going(name, work))
            await after(2_000)
            assert task.done()
            assert begun == [name, name]
            begun.clear()
        assert node.counts.contained.counts[EntryPoint.TASK] == len(names)
        wrapped = [work for name, work in node.background().items() if name in names]
        assert all(work.func.__name__ == "_keep_going" for work in wrapped)  # type: ignore[attr-defined]


@virtual
async def test_callbacks_of_a_promise_and_of_the_loop_are_contained() -> None:
    loop, contained = current_loop(), ContainedErrors()
    before = loop.get_exception_handler()
    contain_callbacks(loop, contained)
    pending: Pending[int] = Pending()
    heard: list[int] = []
    pending.add_done_callback(broken)
    pending.add_done_callback(lambda done: heard.append(done.result()))
    pending.set_result(1)
    loop.call_soon(broken)
    task = loop.create_task(_failing())
    await after(10)
    del task
    assert heard == [1]
    assert contained.counts[EntryPoint.CALLBACK] == 3
    loop.set_exception_handler(before)


async def _failing() -> None:
    raise PlantedError("nobody waits for it")


def test_an_internal_error_leaves_the_fate_of_a_write_unknown() -> None:
    answer = ContainedErrors().report(EntryPoint.API, PlantedError(), "request_id", "1-1")
    assert isinstance(answer, InternalError)
    assert not answer.is_retriable
    assert "planted" not in answer.message


def test_the_documents_name_the_metric_and_every_entry_point() -> None:
    docs = Path(__file__).parents[4] / "docs"
    troubleshooting = (docs / "troubleshooting.md").read_text(encoding="utf-8")
    assert "milena_contained_errors_total" in troubleshooting
    assert "milena_contained_errors_total" in (docs / "architecture.md").read_text(encoding="utf-8")
    for entry in EntryPoint:
        assert f"| `{entry.value}` |" in troubleshooting


@virtual
async def test_the_metric_counts_by_entry_point() -> None:
    async with planted_cluster() as cluster:
        node = cluster.nodes[1]
        node.counts.contained.report(EntryPoint.PEER, PlantedError(), "request_id", "2-rpc-1")
        text = node.metrics.render().decode()
        assert 'milena_contained_errors_total{entry="peer"} 1.0' in text
        assert 'milena_contained_errors_total{entry="api"} 0.0' in text
        await LoopClock().sleep(1)
