"""A connection: the order of requests and responses, back pressure, and what ends it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from http_api.ports.node import ApiLimits
from http_api.serving.in_flight import InFlight, RequestBytes
from milena.model.errors import NotLeaderError, TooManyRequestsError
from milena.model.turns import one_turn
from node.kafka.apis.api import (
    Api,
    Body,
    CloseConnectionError,
    KafkaCall,
    KafkaServices,
    Started,
)
from node.kafka.connection import IN_WORK_MAX, PIPELINED_PER_TURN
from node.kafka.rights import KNOWN
from node.kafka.wire.primitives import MalformedFrameError
from tests.support.clusters.kafka_clients import (
    KafkaClient,
    client_of,
    close_cluster,
    listener_of,
    request_frame,
)
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import after, settle, virtual

PIPELINED, ORDINARY, SILENT = 0, 3, 2


class Desk:
    """Handlers whose requests start and end when a test says so. A request is one byte: its name."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.may_start: dict[bytes, asyncio.Event] = {}
        self.may_end: dict[bytes, asyncio.Event] = {}
        self.errors: dict[bytes, Exception] = {}
        self.apis = {
            key: Api(
                key=key,
                name=f"Api{key}",
                first=0,
                last=3,
                flexible_from=99,
                handle=handle,
                is_pipelined=key == PIPELINED,
                bytes_max=1_000,
                access=KNOWN,
            )
            for key, handle in (
                (PIPELINED, self.pipelined),
                (ORDINARY, self.ordinary),
                (SILENT, self.silent),
            )
        }

    async def _begin(self, call: KafkaCall) -> bytes:
        name = bytes(call.reader.rest())
        if name in self.may_start:
            await self.may_start[name].wait()
        self.started.append(name)
        if name in self.errors:
            raise self.errors[name]
        return name

    async def _end(self, name: bytes) -> Body:
        if name in self.may_end:
            await self.may_end[name].wait()
        return [name]

    async def pipelined(self, services: KafkaServices, call: KafkaCall) -> Started:
        del services
        return Started(self._end(await self._begin(call)))

    async def ordinary(self, services: KafkaServices, call: KafkaCall) -> Body:
        del services
        return await self._end(await self._begin(call))

    async def silent(self, services: KafkaServices, call: KafkaCall) -> None:
        del services
        await self._begin(call)

    def hold(self, events: dict[bytes, asyncio.Event], *names: bytes) -> None:
        events.update({name: asyncio.Event() for name in names})


def ask(client: KafkaClient, key: int, *names: bytes) -> None:
    for name in names:
        client.ask(key, 0, name)


def names(client: KafkaClient) -> list[bytes]:
    return [body for _, body in client.answers()]


def at_desk(
    test: Callable[[Desk, KafkaClient, Cluster], Awaitable[None]],
) -> Callable[[], None]:
    """Run the test with a client of a node with these handlers."""

    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,), is_broken=True)) as cluster:
            desk = Desk()
            await test(desk, client_of(cluster.nodes[1], apis=desk.apis), cluster)

    run.__name__ = test.__name__  # type: ignore[attr-defined]  # a coroutine function
    return run


@at_desk
async def test_responses_leave_in_the_order_of_requests(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"a", b"b")
    ask(client, PIPELINED, b"a", b"b", b"c")
    await settle()
    assert desk.started == [b"a", b"b", b"c"]
    assert names(client) == []
    desk.may_end[b"b"].set()
    await settle()
    assert names(client) == []
    desk.may_end[b"a"].set()
    await settle()
    assert [correlation_id for correlation_id, _ in client.answers()] == [1, 2, 3]


@at_desk
async def test_the_node_rests_while_a_response_waits_for_the_one_before_it(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"a")
    ask(client, PIPELINED, b"a", b"b")
    await settle()
    looks, flush = [], client.connection._flush
    client.connection._flush = lambda: looks.append(flush())  # type: ignore[method-assign]
    await settle(200)
    assert len(looks) < 5
    desk.may_end[b"a"].set()
    await settle()
    assert names(client) == [b"a", b"b"]


@at_desk
async def test_a_pipelined_request_starts_when_the_one_before_it_has(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_start, b"a")
    ask(client, PIPELINED, b"a", b"b")
    await settle()
    assert desk.started == []
    desk.may_start[b"a"].set()
    await settle()
    assert desk.started == [b"a", b"b"]
    assert names(client) == [b"a", b"b"]


@at_desk
async def test_a_pipelined_request_that_comes_later_waits_for_no_response(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"a")
    ask(client, PIPELINED, b"a")
    await settle()
    ask(client, PIPELINED, b"b")
    await settle()
    assert desk.started == [b"a", b"b"]
    assert client.connection.is_busy
    desk.may_end[b"a"].set()
    await settle()
    assert names(client) == [b"a", b"b"]
    assert not client.connection.is_busy


@at_desk
async def test_any_other_request_waits_for_the_responses_before_it(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"a", b"c")
    ask(client, PIPELINED, b"a")
    ask(client, ORDINARY, b"b", b"c", b"d")
    ask(client, PIPELINED, b"e")
    await settle()
    assert desk.started == [b"a"]
    desk.may_end[b"a"].set()
    await settle()
    assert desk.started == [b"a", b"b", b"c"]
    assert names(client) == [b"a", b"b"]
    desk.may_end[b"c"].set()
    await settle()
    assert names(client) == [b"c", b"d", b"e"]


@pytest.mark.parametrize(("key", "most"), [(PIPELINED, PIPELINED_PER_TURN), (ORDINARY, 1)])
def test_other_work_runs_between_the_requests_that_came_in_one_piece(key: int, most: int) -> None:
    @at_desk
    async def run(desk: Desk, client: KafkaClient, cluster: Cluster) -> None:
        turns: list[int] = []

        async def work_beside() -> None:
            while True:
                turns.append(len(desk.started))
                await one_turn()

        beside = asyncio.create_task(work_beside())
        client.send(b"".join(request_frame(key, 0, b"%d" % number) for number in range(100)))
        await client.connection.idle()
        beside.cancel()
        assert len(desk.started) == 100
        steps = [later - sooner for sooner, later in pairwise(turns)]
        assert max(steps) <= most, "requests ran behind each other without a turn of other work"

    run()


@at_desk
async def test_a_request_may_get_no_response(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    ask(client, SILENT, b"a")
    ask(client, ORDINARY, b"b")
    await settle()
    assert [correlation_id for correlation_id, _ in client.answers()] == [2]


@at_desk
async def test_reading_stops_while_many_requests_are_in_work(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"\0")
    for number in range(IN_WORK_MAX):
        assert not client.transport.is_paused
        ask(client, PIPELINED, bytes([number]))
        await settle(2)
    assert client.transport.is_paused
    desk.may_end[b"\0"].set()
    await settle()
    assert not client.transport.is_paused
    assert len(client.answers()) == IN_WORK_MAX


@at_desk
async def test_a_stop_ends_a_connection_whose_next_request_waits_for_an_unsent_response(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    client.connection.pause_writing()
    ask(client, ORDINARY, b"a")
    await settle()
    client.connection.drain()
    client.connection.resume_writing()
    await settle()
    assert client.transport.is_aborted
    assert desk.started == []
    assert cluster.nodes[1].counts.contained.total == 0


@at_desk
async def test_no_request_starts_while_a_response_is_unsent(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    client.connection.pause_writing()
    ask(client, ORDINARY, b"a")
    ask(client, PIPELINED, b"b")
    await settle()
    assert desk.started == []
    client.connection.resume_writing()
    await settle()
    assert names(client) == [b"a", b"b"]


@at_desk
async def test_all_clients_share_a_bound_on_bytes(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    limits = ApiLimits(bytes_in_flight_max=60)
    listener = listener_of(cluster.nodes[1], apis=desk.apis, limits=limits)
    first, second = (KafkaClient(listener.connection()) for _ in range(2))
    desk.hold(desk.may_end, b"a" * 50)
    ask(first, ORDINARY, b"a" * 50)
    assert first.transport.is_paused
    ask(second, ORDINARY, b"b")
    assert second.transport.is_paused
    await settle()
    assert names(second) == [b"b"]
    desk.may_end[b"a" * 50].set()
    await settle()
    assert not first.transport.is_paused
    assert not second.transport.is_paused


@at_desk
async def test_if_all_clients_wait_for_the_rest_of_a_frame_one_of_them_gets_it(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    limits = ApiLimits(bytes_in_flight_max=300)
    listener = listener_of(cluster.nodes[1], apis=desk.apis, limits=limits)
    first, second = (KafkaClient(listener.connection()) for _ in range(2))
    large = request_frame(ORDINARY, 0, b"x" * 400)
    second.send(large[:150])
    # The first client sends a request, and with it the beginning of the next one.
    first.send(request_frame(ORDINARY, 0, b"a") + large[:150])
    second.send(large[150:160])
    assert first.transport.is_paused
    assert second.transport.is_paused
    await settle()
    assert names(first) == [b"a"]
    reading = [one for one in (first, second) if not one.transport.is_paused]
    assert len(reading) == 1
    reading[0].send(large[150 if reading[0] is first else 160 :])
    await settle()
    assert names(reading[0]) == [b"x" * 400]
    assert not first.transport.is_paused
    assert not second.transport.is_paused


@at_desk
async def test_both_interfaces_share_the_bound_of_the_node(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    """100 of 800 bytes are reserved for HTTP, and 100 for Kafka clients that have not authenticated."""
    shared = RequestBytes(800)
    http = InFlight(ApiLimits(bytes_in_flight_max=800), shared)
    listener = listener_of(cluster.nodes[1], apis=desk.apis, request_bytes=shared)
    first, second = (KafkaClient(listener.connection()) for _ in range(2))

    def held() -> int:
        return sum(use.held for use in shared.uses)

    # Kafka clients fill what HTTP leaves. What is reserved for HTTP is there nevertheless.
    http.reserve("ann", 300)
    desk.hold(desk.may_end, b"a" * 500)
    ask(first, ORDINARY, b"a" * 500)
    assert first.transport.is_paused
    assert not http.has_room_for("bob", 1, 0)
    # HTTP gives bytes back, so Kafka clients are read again, although none of theirs was answered.
    http.release("ann", 300)
    assert not first.transport.is_paused
    http.reserve("bob", 100)
    assert held() <= 800
    # HTTP fills what Kafka clients leave, up to their reserves.
    desk.may_end[b"a" * 500].set()
    await settle()
    http.reserve("cid", 500)
    with pytest.raises(TooManyRequestsError):
        http.reserve("dan", 1)
    ask(second, ORDINARY, b"b")
    await settle()
    assert names(second) == [b"b"]
    assert not second.transport.is_paused


@at_desk
async def test_an_unexpected_error_ends_the_connection_and_is_counted(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.errors[b"b"] = RuntimeError("a bug")
    ask(client, PIPELINED, b"a", b"b", b"c")
    await settle()
    assert client.transport.is_aborted
    assert desk.started == [b"a", b"b"]
    assert cluster.nodes[1].counts.contained.total == 1
    again = client_of(cluster.nodes[1], apis=desk.apis)
    ask(again, ORDINARY, b"d")
    await settle()
    assert names(again) == [b"d"]


@at_desk
async def test_an_unexpected_error_after_the_start_does_so_too(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    class Broken(dict[bytes, asyncio.Event]):
        def __contains__(self, key: object) -> bool:
            raise RuntimeError("a bug")

    desk.may_end = Broken()
    ask(client, PIPELINED, b"a")
    await settle()
    assert client.transport.is_aborted
    assert cluster.nodes[1].counts.contained.total == 1


@at_desk
async def test_a_response_may_be_the_end_of_the_connection(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.errors[b"a"] = CloseConnectionError(NotLeaderError("another node leads"))
    ask(client, SILENT, b"a")
    await settle()
    assert client.transport.is_aborted
    assert cluster.nodes[1].counts.contained.total == 0
    assert cluster.nodes[1].counts.kafka.refused_frames == 0


BAD = {
    "unknown key": request_frame(ORDINARY, 0, b"")[:4] + b"\x7f\xff" + bytes(8),
    "version": request_frame(ORDINARY, 1, b"a").replace(b"\0\3\0\1", b"\0\3\0\4"),
    "negative version": request_frame(ORDINARY, 1, b"a").replace(b"\0\3\0\1", b"\0\3\xff\xff"),
    "too large": request_frame(ORDINARY, 0, bytes(2_000)),
    "size": b"\xff\xff\xff\xff",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "client id": b"\0\0\0\x0a\0\3\0\0\0\0\0\1\x7f\xff",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_malformed_frame_ends_this_connection_alone(data: bytes) -> None:
    @at_desk
    async def run(desk: Desk, client: KafkaClient, cluster: Cluster) -> None:
        other = client_of(cluster.nodes[1], apis=desk.apis)
        client.send(data + request_frame(ORDINARY, 0, b"behind"))
        await settle()
        assert client.transport.is_aborted
        assert desk.started == []
        assert cluster.nodes[1].counts.kafka.refused_frames == 1
        ask(other, ORDINARY, b"a")
        await settle()
        assert names(other) == [b"a"]

    run()


@at_desk
async def test_a_handler_may_find_the_frame_malformed(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.errors[b"a"] = MalformedFrameError("odd")
    ask(client, ORDINARY, b"a")
    await settle()
    assert client.transport.is_aborted
    assert cluster.nodes[1].counts.kafka.refused_frames == 1


def test_a_flood_of_bad_frames_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    @at_desk
    async def run(desk: Desk, client: KafkaClient, cluster: Cluster) -> None:
        with caplog.at_level(logging.WARNING, "node.kafka.connection"):
            for _ in range(100):
                client_of(cluster.nodes[1], apis=desk.apis).send(BAD["http"])

    run()
    assert 1 <= len(caplog.records) <= 8


@at_desk
async def test_random_bytes_end_connections_and_nothing_else(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    rng = random.Random(5)
    good = request_frame(ORDINARY, 0, b"a")
    for _ in range(500):
        one = client_of(cluster.nodes[1], apis=desk.apis)
        data = bytearray(good * 3)
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        one.send(bytes(data[: rng.randrange(1, len(data) + 1)]))
        await settle(3)
        one.transport.abort()
    await settle()
    assert cluster.nodes[1].counts.contained.total == 0
    assert cluster.nodes[1].counts.kafka.connections == 1
    ask(client, ORDINARY, b"a")
    await settle()
    assert names(client) == [b"a"]


@at_desk
async def test_a_client_that_leaves_stops_what_it_waits_for(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    desk.hold(desk.may_end, b"a", b"b")
    ask(client, PIPELINED, b"a")
    ask(client, ORDINARY, b"b")
    await settle()
    client.transport.abort()
    await settle()
    assert cluster.nodes[1].counts.kafka.connections == 0
    assert not client.connection.is_busy


@at_desk
async def test_clients_that_keep_the_node_waiting_are_closed(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    def look(one: KafkaClient) -> bool:
        one.connection.check(asyncio.get_running_loop().time())
        return one.transport.is_aborted

    silent, slow, idle, busy = (client_of(cluster.nodes[1], apis=desk.apis) for _ in range(4))
    desk.hold(desk.may_end, b"b")
    ask(idle, ORDINARY, b"a")
    ask(busy, ORDINARY, b"b")
    ask(slow, ORDINARY, b"c")
    slow.send(b"\0\0\1\0")
    await after(11_000)
    assert look(silent)
    assert not any(map(look, (slow, idle, busy)))
    for _ in range(5):
        await after(10_000)
        slow.send(b"x")
    assert look(slow)
    assert not any(map(look, (idle, busy)))
    await after(601_000)
    assert look(idle)
    assert not look(busy)


@at_desk
async def test_a_client_that_the_node_does_not_read_from_is_not_slow(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    ask(client, ORDINARY, b"a")
    client.send(b"\0\0\1\0")
    await settle()
    client.connection.hold(True)
    for _ in range(5):
        await after(30_000)
        client.connection.check(asyncio.get_running_loop().time())
    client.connection.hold(False)
    await after(30_000)
    client.connection.check(asyncio.get_running_loop().time())
    assert not client.transport.is_aborted


@at_desk
async def test_requests_are_refused_while_the_cluster_asks_for_credentials(
    desk: Desk, client: KafkaClient, cluster: Cluster
) -> None:
    await close_cluster(cluster.nodes[1])
    ask(client, ORDINARY, b"a")
    await settle()
    assert client.transport.is_aborted
    assert desk.started == []
