"""No request ends a node: every operation, each of its values at and beyond its bounds, asked of every kind of node.

The quick version takes every so many-th request, the deep one all. Nodes are simulated, the API is the real one.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle

import orjson
import pytest

from http_api.routes import ROUTES
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from tests.support.clusters.compacted_cluster import CONFIGS, compact
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.http.api_server import EVENTS, JSON_V2, NDJSON
from tests.support.http.contract import Ask, asks
from tests.support.http.direct import DirectApi, RawAnswer, request_bytes
from tests.support.http.variations import IN_QUERY, requests_of
from tests.support.time.virtual_time import LoopClock, current_loop, virtual

AT_ONCE = 30
STATES = ("empty", "written", "expired", "cut", "compacted", "open", "aborted", "committed")
LEADER, FOLLOWER, OTHER_FOLLOWER, WITHOUT_REPLICA = 1, 2, 3, 4
REPLICAS = (LEADER, FOLLOWER, OTHER_FOLLOWER)


class Nodes:
    """A cluster and the APIs of its nodes, and whatever of an answer was wrong."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.apis = {number: DirectApi(node) for number, node in cluster.nodes.items()}
        self.faults: list[str] = []
        self.count = 0

    async def ask(self, node_id: int, request: bytes) -> RawAnswer:
        self.count += 1
        answer = await self.apis[node_id].ask(request)
        fault = self._fault(answer)
        if fault:
            self.faults.append(f"{fault}: node {node_id} {request[:400]!r} -> {answer}")
            assert len(self.faults) < 40, "\n".join(self.faults)
        return answer

    def _fault(self, answer: RawAnswer) -> str:
        loop = current_loop()
        if loop.failures:
            failures, loop.failures = loop.failures, []
            return f"a callback failed: {failures!r}"
        if self.cluster.network.failures:
            failures, self.cluster.network.failures = self.cluster.network.failures, []
            return f"a peer failed: {failures!r}"
        for each in self.cluster.nodes.values():
            if each.fatal:
                fatal, each.fatal = each.fatal, []
                return f"node {each.node_id} ended: {fatal!r}"
            if each.counts.contained.total:
                counts = {k.value: n for k, n in each.counts.contained.counts.items() if n}
                each.counts.contained.counts = dict.fromkeys(each.counts.contained.counts, 0)
                return f"node {each.node_id} contained {counts}"
        if answer.status == 500:
            return "500"
        has_body = "Content-Length: 0" not in answer.head
        if answer.status >= 400 and has_body and b'"error_code":' not in answer.body:
            return "an error without an envelope"
        if answer.status and "X-Request-Id: " not in answer.head:
            return "no request id"
        return ""

    async def ask_all(self, requests: Iterable[bytes], nodes: Iterator[int]) -> None:
        pending: set[asyncio.Task[RawAnswer]] = set()
        for request in requests:
            pending.add(asyncio.ensure_future(self.ask(next(nodes), request)))
            if len(pending) >= AT_ONCE:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*pending)

    def check(self) -> None:
        assert not self.faults, "\n".join(self.faults)


@asynccontextmanager
async def nodes_of() -> AsyncIterator[Nodes]:
    async with cluster_of(Cluster(node_ids=(1, 2, 3, 4))) as cluster:
        yield Nodes(cluster)


def a_batch() -> bytes:
    columns = RecordColumns(None, None, [b"k", None], [b"1", b"2"], None)
    return encode_batch(columns, base_timestamp_ms=LoopClock().wall_ms())


def base(ask: Ask, target: str) -> bytes:
    return request_bytes(ask.method, target, ask.sent_headers(), ask.data)


async def sweep(stride: int, first: int = 0) -> None:
    """All operations in the order of the contract, each with its variations before it."""
    async with nodes_of() as nodes:
        cluster_id = nodes.cluster.image.cluster_id
        placed = cycle((LEADER, FOLLOWER, OTHER_FOLLOWER, WITHOUT_REPLICA))
        token_id, seen, number = "none", set(), first
        for ask in asks(a_batch()):
            target = ask.at(cluster_id, token_id)
            seen.add(ask.operation)
            if ask.operation != "drain":
                requests = list(requests_of(ask, target))
                await nodes.ask_all(requests[number % stride :: stride], placed)
                number += 1
            answer = await nodes.ask(next(placed), base(ask, target))
            made = re.search(rb'"token_id":"([^"]+)"', answer.body)
            if made is not None and answer.status == 201:
                token_id = made[1].decode()
        nodes.check()
        assert seen == {route.operation_id for route in ROUTES}
        assert nodes.count > 90_000 // stride * 0.8


async def make_states(nodes: Nodes) -> None:
    """A topic of each state: what lies in its only partition, and where its log starts and ends."""
    cluster, api = nodes.cluster, nodes.apis[LEADER]
    for name in STATES:
        configs = CONFIGS if name == "compacted" else {}
        await cluster.create(name, REPLICAS, **configs)

    async def post(target: str, body: object, status: int = 200, **headers: str) -> object:
        sent = {"Content-Type": "application/json", **headers}
        answer = await api.ask(request_bytes("POST", target, sent, orjson.dumps(body)))
        assert answer.status == status, (target, answer)
        return orjson.loads(answer.body)

    def records(*values: object) -> object:
        return {"records": [{"key": f"k{value}", "value": value} for value in values]}

    for name in STATES[1:]:
        for number in range(3):
            await post(f"/topics/{name}", records(number, number + 1, number % 2))
    await post("/topics/expired/partitions/0/records:delete", {"before_offset": "latest"})
    await post("/topics/cut/partitions/0/records:delete", {"before_offset": 4})
    await LoopClock().sleep(1_100)
    await compact(cluster, *REPLICAS)
    for name in ("open", "aborted", "committed"):
        begun = await post("/transactions:begin", {"transactional_id": name})
        identity = f"{begun['producer_id']}:{begun['producer_epoch']}"
        await post(
            f"/topics/{name}/partitions/0",
            records(7, 8),
            **{"Milena-Transaction": f"{identity}:600000"},
        )
        place = "/transactions/" + identity.replace(":", "/")
        if name == "aborted":
            await post(f"{place}:abort", {})
        elif name == "committed":
            write = {"topic": name, "partition": 0, "end_offset": 11, "records": 2}
            await post(f"{place}:commit", {"writes": [write]})
    await LoopClock().sleep(500)


def about(state: str) -> list[Ask]:
    """The contract's asks that read or move in a partition, turned to the topic of this state."""
    turned = []
    for ask in asks(a_batch()):
        text = ask.path + (
            "" if ask.data is None or ask.type is None else ask.data.decode("latin-1")
        )
        if "orders" not in text or ask.operation in ("createTopic", "reassign"):
            continue
        body = ask.body
        if body is not None and not isinstance(body, bytes):
            body = orjson.loads(orjson.dumps(body).replace(b'"orders"', b'"%s"' % state.encode()))
        turned.append(replace(ask, path=ask.path.replace("orders", state), body=body))
    return turned


async def sweep_states(stride: int, first: int = 0) -> None:
    async with nodes_of() as nodes:
        await make_states(nodes)
        cluster_id = nodes.cluster.image.cluster_id
        placed = cycle((LEADER, FOLLOWER, OTHER_FOLLOWER, WITHOUT_REPLICA))
        number = first
        for new in (ask for ask in asks(b"") if ask.operation == "createConsumer"):
            await nodes.ask(LEADER, base(new, new.path))
        for state in STATES:
            for ask in about(state):
                target = ask.at(cluster_id)
                if b"DELETE" not in ask.method.encode():
                    await nodes.ask(next(placed), base(ask, target))
                requests = list(requests_of(ask, target, has_headers=False))
                await nodes.ask_all(requests[number % stride :: stride], placed)
                number += 1
        nodes.check()


@virtual
async def test_no_value_of_any_operation_ends_a_node() -> None:
    await sweep(stride=61)


@pytest.mark.deep
@pytest.mark.parametrize("first", range(4))
@virtual
async def test_no_value_of_any_operation_ends_a_node_deep(first: int) -> None:
    await sweep(stride=4, first=first)


@virtual
async def test_no_value_ends_a_node_whatever_lies_in_the_partition() -> None:
    await sweep_states(stride=83)


@pytest.mark.deep
@pytest.mark.parametrize("first", range(4))
@virtual
async def test_no_value_ends_a_node_whatever_lies_in_the_partition_deep(first: int) -> None:
    await sweep_states(stride=4, first=first)


@virtual
async def test_no_place_to_read_from_ends_a_node() -> None:
    """Of each state, every offset and time at its bounds, asked of every node."""
    async with nodes_of() as nodes:
        await make_states(nodes)
        for state in STATES:
            for path in (f"/topics/{state}/partitions/0/records", f"/topics/{state}/records"):
                targets = [
                    f"{path}?{name}={value}&follow=false"
                    for name in ("offset", "timestamp")
                    for value in IN_QUERY
                ]
                for node_id, accept in ((1, JSON_V2), (2, JSON_V2), (3, NDJSON), (4, EVENTS)):
                    requests = [
                        request_bytes("GET", target, {"Accept": accept}) for target in targets
                    ]
                    await nodes.ask_all(requests, cycle((node_id,)))
        nodes.check()
