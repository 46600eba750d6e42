"""Calls to nodes: which node is asked, what an answer must look like, and what a silence means."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from milena.client import Client
from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import LOOK_MS, ClusterTransport
from milena.errors import (
    AnswerError,
    ConditionFailedError,
    NotNowError,
    OutOfRangeError,
    ServerFailedError,
    TargetNotFoundError,
    TooLargeError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.records import LastN, ProducerIdentity, StartAt, TimestampMs
from tests.support.fakes.scripted_http import ScriptedHttp
from tests.support.http.http_server import serving
from tests.support.time.virtual_time import LoopClock, after, virtual

BATCH = "application/vnd.milena.batch"
OFFSETS = {
    "Milena-Start-Offset": "3",
    "Milena-Next-Offset": "7",
    "Milena-High-Watermark": "9",
    "Milena-Log-Start-Offset": "1",
}


class StandIn:
    """A server that answers metadata as a cluster would, and anything else as the test says."""

    def __init__(self):
        self.requests = []
        self.urls = {}
        self.leader = 1
        self.metadata_calls = 0
        self.answer = lambda request: web.json_response({})

    async def handle(self, request):
        if request.path == "/metadata":
            self.metadata_calls += 1
            return web.json_response(self.metadata())
        body = await request.read()
        self.requests.append((request.method, request.path_qs, body, dict(request.headers)))
        found = self.answer(request)
        return await found if asyncio.iscoroutine(found) else found

    def metadata(self):
        return {
            "cluster_id": "c",
            "version": self.metadata_calls,
            "controller_id": 1,
            "brokers": [
                {"broker_id": n, "url": url, "rack": None, "is_fenced": False}
                for n, url in self.urls.items()
            ],
            "topics": [
                {
                    "name": "t",
                    "topic_id": "i",
                    "configs": {},
                    "partitions": [
                        {
                            "partition": 0,
                            "leader": self.leader,
                            "leader_epoch": 0,
                            "replicas": [1, 2],
                            "isr": [1, 2],
                        }
                    ],
                }
            ],
        }

    def app(self):
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app


@asynccontextmanager
async def stand_in(**options):
    server = StandIn()
    async with serving(server.app()) as url:
        server.urls = {1: url}
        async with Client(url, **{"timeout_s": 5, **options}) as client:
            yield server, client


def fetch(client, **changes):
    return client.transport.fetch(
        "t", 0, **{"offset": 3, "max_bytes": 1000, "wait_ms": 0, **changes}
    )


def append(client, batch=b"batch", **changes):
    return client.transport.append(
        "t", 0, batch, **{"acks": "all", "timeout_ms": 2000, "if_match": None, **changes}
    )


# -- conditions --------------------------------------------------------------------------------------


async def test_an_append_names_its_offset_and_a_refusal_tells_the_end():
    async with stand_in() as (server, client):
        refusal = {"error_code": 412, "message": "elsewhere", "end_offset": 9}
        server.answer = lambda _: web.json_response(
            refusal, status=412, headers={"Milena-Error": "precondition_failed"}
        )
        with pytest.raises(ConditionFailedError) as refused:
            await append(client, if_match=7)
    assert refused.value.end_offset == 9
    assert server.requests[0][3]["If-Match"] == '"7"'


async def test_an_append_without_a_condition_sends_none():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response({"base_offset": 0, "last_offset": 0})
        await append(client)
    assert "If-Match" not in server.requests[0][3]


async def test_a_batch_under_a_key_names_it_and_its_transaction():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response({"base_offset": 7, "last_offset": 7})
        found = await append(client, key="0/1", transaction="7:2:900000")
    assert (found.base_offset, found.is_duplicate) == (7, False)
    _, path, _, headers = server.requests[0]
    assert path.startswith("/topics/t/partitions/0/records?acks=all")
    assert headers["Idempotency-Key"] == "0/1"
    assert headers["Milena-Transaction"] == "7:2:900000"
    assert headers["Content-Type"] == BATCH


# -- fetch -------------------------------------------------------------------------------------------


async def test_a_fetch_gives_the_bytes_and_where_the_partition_stands():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.Response(body=b"bytes", content_type=BATCH, headers=OFFSETS)
        answer = await fetch(client)
    assert answer.data == b"bytes"
    assert (answer.start_offset, answer.next_offset) == (3, 7)
    assert (answer.high_watermark, answer.log_start_offset) == (9, 1)
    method, path, _, headers = server.requests[0]
    assert (method, path) == (
        "GET",
        "/topics/t/partitions/0/records?offset=3&max_bytes=1000&timeout=0",
    )
    assert headers["Accept"] == BATCH


async def test_a_node_can_be_asked_to_check_what_it_sends():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.Response(body=b"bytes", content_type=BATCH, headers=OFFSETS)
        await fetch(client, is_verified=True)
    assert server.requests[0][1].endswith("?offset=3&max_bytes=1000&timeout=0&verify=true")


@pytest.mark.parametrize(
    ("position", "query"),
    [
        (0, "offset=0"),
        (StartAt.EARLIEST, "offset=earliest"),
        (StartAt.LATEST, "offset=latest"),
        (TimestampMs(17), "timestamp=17"),
        (LastN(5), "offset=-5"),
        (LastN(0), "offset=latest"),
    ],
)
async def test_every_kind_of_position_has_its_question(position, query):
    async with stand_in() as (server, client):
        server.answer = lambda _: web.Response(body=b"", content_type=BATCH, headers=OFFSETS)
        await fetch(client, offset=position)
    assert f"?{query}&" in server.requests[0][1]


@pytest.mark.parametrize(
    "answer",
    [
        {"body": b"x", "content_type": "text/html", "headers": OFFSETS},
        {"body": b"x", "content_type": BATCH},
        {"body": b"x", "content_type": BATCH, "headers": {**OFFSETS, "Milena-Next-Offset": "-1"}},
        {
            "body": b"x",
            "content_type": BATCH,
            "headers": {**OFFSETS, "Milena-Next-Offset": "9" * 30},
        },
        {"body": b"x", "content_type": BATCH, "headers": {**OFFSETS, "Milena-Start-Offset": "+3"}},
        {"status": 204, "headers": OFFSETS},
        {"status": 302, "headers": {"Location": "http://elsewhere.example/"}},
        {"status": 418, "body": b"not json"},
    ],
)
async def test_a_fetch_believes_no_answer_of_another_shape(answer):
    async with stand_in() as (server, client):
        server.answer = lambda _: web.Response(**answer)
        with pytest.raises(UnexpectedAnswerError):
            await fetch(client)


async def test_no_more_of_a_body_is_read_than_was_allowed(monkeypatch):
    monkeypatch.setattr("milena.cluster.transport.FETCH_ANSWER_BYTES_MIN", 10_000)
    sent = []

    async def endless(request):
        response = web.StreamResponse(headers={**OFFSETS, "Content-Type": BATCH})
        await response.prepare(request)
        try:
            while len(sent) < 10_000:
                sent.append(1)
                await response.write(b"x" * 10_000)
        except ConnectionError:
            pass
        return response

    async with stand_in() as (server, client):
        server.answer = endless
        with pytest.raises(UnexpectedAnswerError, match="more than 10000 bytes"):
            await fetch(client)
    assert len(sent) < 10_000


async def test_a_compressed_bomb_is_not_unpacked():
    def bomb(_):
        response = web.Response(body=b"\0" * (8 << 20), content_type=BATCH, headers=OFFSETS)
        response.enable_compression(web.ContentCoding.gzip, strategy=0)
        return response

    async with stand_in() as (server, client):
        server.answer = bomb
        with pytest.raises(UnexpectedAnswerError, match="in 'gzip', which was not asked for"):
            await fetch(client)


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "offset_out_of_range", OutOfRangeError),
        (404, "partition_not_found", TargetNotFoundError),
        (503, "no_leader", NotNowError),
    ],
)
async def test_a_refused_fetch_says_why(status, kind, error):
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response(
            {"error_code": status * 100 + 2, "message": "because"},
            status=status,
            headers={"Milena-Error": kind},
        )
        with pytest.raises(error, match="because"):
            await fetch(client)


# -- append ------------------------------------------------------------------------------------------


async def test_an_append_carries_the_batch_and_gives_its_offsets():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response(
            {"partition": 0, "base_offset": 4, "last_offset": 6, "is_duplicate": True}
        )
        answer = await append(client, b"x" * 3_000_000, acks=1)
    assert (answer.base_offset, answer.last_offset, answer.is_duplicate) == (4, 6, True)
    method, path, body, headers = server.requests[0]
    assert (method, path) == ("POST", "/topics/t/partitions/0/records?acks=1&timeout_ms=2000")
    assert body == b"x" * 3_000_000
    assert headers["Content-Type"] == BATCH


@pytest.mark.parametrize("epoch", [0, 1])
async def test_a_leader_epoch_above_the_known_one_says_that_another_node_leads(epoch):
    async with stand_in(metadata_max_age_ms=1e9) as (server, client):
        await client.metadata.view()
        receipt = {
            "partition": 0,
            "base_offset": 4,
            "last_offset": 4,
            "is_duplicate": False,
            "leader_epoch": epoch,
        }
        server.answer = lambda _: web.json_response(receipt)
        await append(client)
        assert client.metadata._is_stale == (epoch == 1)


@pytest.mark.parametrize("epoch", [0, 1])
async def test_a_fetch_tells_of_another_leader_too(epoch):
    async with stand_in(metadata_max_age_ms=1e9) as (server, client):
        await client.metadata.view()
        headers = {**OFFSETS, "Milena-Leader-Epoch": str(epoch)}
        server.answer = lambda _: web.Response(body=b"", content_type=BATCH, headers=headers)
        await fetch(client)
        assert client.metadata._is_stale == (epoch == 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status": 200, "text": "<html>"}, UnexpectedAnswerError),
        ({"status": 200, "text": "[1]"}, UnexpectedAnswerError),
        ({"status": 200, "text": "[" * 100_000}, UnexpectedAnswerError),
        ({"status": 200, "text": '{"base_offset": "4"}'}, UnexpectedAnswerError),
        ({"status": 200, "text": "x" * (2 << 20)}, UnexpectedAnswerError),
        ({"status": 307, "headers": {"Location": "/elsewhere"}}, UnexpectedAnswerError),
        ({"status": 413, "text": '{"error_code": 413, "message": "m"}'}, TooLargeError),
        ({"status": 503, "text": '{"error_code": 50302, "message": "m"}'}, NotNowError),
        ({"status": 503, "text": "proxy"}, ServerFailedError),
        ({"status": 502, "text": "proxy"}, ServerFailedError),
        ({"status": 504, "text": "proxy"}, UnknownResultError),
        ({"status": 500, "text": '{"error_code": 500, "message": "m"}'}, ServerFailedError),
        ({"status": 422, "text": '{"error_code": 42208, "message": "m"}'}, AnswerError),
    ],
)
async def test_what_an_answer_to_an_append_means(answer, error):
    async with stand_in() as (server, client):
        server.answer = lambda _: web.Response(**answer)
        with pytest.raises(error) as caught:
            await append(client)
    assert type(caught.value) is error
    assert len(server.requests) == 1


async def test_a_connection_that_breaks_under_an_append_leaves_its_fate_unknown():
    async with stand_in() as (server, client):

        def hang_up(request):
            request.transport.abort()
            return web.Response()

        server.answer = hang_up
        with pytest.raises(UnknownResultError, match="no answer"):
            await append(client)
    assert len(server.requests) == 1


async def test_a_silence_under_an_append_leaves_its_fate_unknown(monkeypatch):
    monkeypatch.setattr("milena.cluster.transport.APPEND_MARGIN_S", 0.0)
    async with stand_in() as (server, client):

        async def never(_):
            await asyncio.Event().wait()

        server.answer = never
        with pytest.raises(UnknownResultError, match="no answer"):
            await append(client, timeout_ms=50)
    assert len(server.requests) == 1


# -- routes ------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_nodes(**options):
    one, two = StandIn(), StandIn()
    async with serving(one.app()) as url_one, serving(two.app()) as url_two:
        one.urls = two.urls = {1: url_one, 2: url_two}
        for node in (one, two):
            node.answer = lambda _: web.json_response({"base_offset": 0, "last_offset": 0})
        async with Client(url_one, timeout_s=5, **options) as client:
            yield one, two, client


async def test_the_leader_is_asked_first():
    async with two_nodes() as (one, two, client):
        one.leader = 2
        await append(client)
    assert (len(one.requests), len(two.requests)) == (0, 1)


async def test_a_leader_that_cannot_be_reached_is_passed_over(unused_tcp_port):
    async with two_nodes() as (one, two, client):
        one.leader = 3
        one.urls = {**one.urls, 3: f"http://127.0.0.1:{unused_tcp_port}"}
        await append(client)
        await append(client)
    assert len(one.requests) + len(two.requests) == 2


async def test_nobody_asked_is_unreachable_and_names_the_node(unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with Client([url, "127.0.0.1:1"]) as client:
        with pytest.raises(UnreachableError, match=f"cannot reach {url}"):
            await append(client)
        with pytest.raises(UnreachableError):
            await client.metadata.topic("t")


async def test_any_of_several_urls_is_enough(unused_tcp_port):
    async with stand_in() as (server, _):
        urls = [f"http://127.0.0.1:{unused_tcp_port}", server.urls[1]]
        async with Client(urls) as client:
            assert await client.metadata.partition_count("t") == 1


async def test_a_fetch_that_gets_no_answer_is_asked_of_another_node():
    async with two_nodes() as (one, two, client):

        def hang_up(request):
            request.transport.abort()
            return web.Response()

        one.answer = hang_up
        two.answer = lambda _: web.Response(body=b"", content_type=BATCH, headers=OFFSETS)
        assert (await fetch(client)).next_offset == 7
        asked = len(one.requests)
        # The one that hung up is left alone for a while.
        await fetch(client)
    assert (len(one.requests), len(two.requests)) == (asked, 2)


async def test_what_is_meant_for_one_node_goes_to_no_other(unused_tcp_port):
    async with stand_in() as (server, _):
        urls = [f"http://127.0.0.1:{unused_tcp_port}", server.urls[1]]
        async with Client(urls) as client:
            await client.metadata.topic("t")
            with pytest.raises(UnreachableError):
                await client.admin.drain(timeout_ms=10)
    assert not server.requests


# -- producers and topics ----------------------------------------------------------------------------


async def test_a_producer_id_comes_with_its_epoch():
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response({"producer_id": 7, "producer_epoch": 2})
        assert await client.transport.allocate_producer("me") == ProducerIdentity(7, 2)
        await client.transport.allocate_producer()
    assert [request[2] for request in server.requests] == [b'{"name": "me"}', b"{}"]


@pytest.mark.parametrize(("status", "is_there"), [(422, True), (404, False)])
async def test_a_write_of_nothing_finds_out_whether_a_topic_is_made(status, is_there):
    async with stand_in() as (server, client):
        server.answer = lambda _: web.json_response(
            {"error_code": status, "message": "m"}, status=status
        )
        assert await client.transport.can_make_topic("t") is is_there
    assert server.requests[0][2] == b""


async def test_a_node_that_takes_a_write_of_nothing_is_none_of_ours():
    async with stand_in() as (_, client):
        with pytest.raises(UnexpectedAnswerError, match="empty batch"):
            await client.transport.can_make_topic("t")


# -- a leader that stands still ----------------------------------------------------------------------


class StandingStill(ScriptedHttp):
    """Records are never answered; the metadata's leader epoch is what the test says."""

    def __init__(self):
        super().__init__()
        self.epoch = 1
        self.waiting = 0

    async def send(self, call, *, preferred=None):
        if "/records" not in call.path:
            return await super().send(call, preferred=preferred)
        self.waiting += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.waiting -= 1

    def metadata(self):
        found = super().metadata()
        for topic in found["topics"]:
            for partition in topic["partitions"]:
                partition["leader_epoch"] = self.epoch
        return found


@virtual
async def test_a_fetch_from_a_leader_that_stands_still_ends_with_its_leadership():
    http, clock = StandingStill(), LoopClock()
    metadata = MetadataCache(http, clock)
    transport = ClusterTransport(http, metadata)

    async def wait_for_records():
        await transport.fetch("t", 0, offset=3, max_bytes=1, wait_ms=60_000)

    await metadata.refresh()
    waiting = [asyncio.create_task(wait_for_records()) for _ in range(10)]
    asked = len(http.asked)
    await after(20_500)
    assert http.waiting == 10
    assert 5 <= len(http.asked) - asked <= 11, "ten fetches share a look"
    http.epoch = 2
    await after(LOOK_MS)
    done, _ = await asyncio.wait(waiting, timeout=0)
    assert len(done) == 10
    for task in done:
        with pytest.raises(UnreachableError, match="another leader"):
            task.result()
    assert http.waiting == 0
    await metadata.close()


@virtual
async def test_a_fetch_that_waits_is_not_disturbed_by_nodes_that_do_not_tell_who_leads():
    http, clock = StandingStill(), LoopClock()
    metadata = MetadataCache(http, clock)
    transport = ClusterTransport(http, metadata)
    await metadata.refresh()
    waiting = asyncio.create_task(transport.fetch("t", 0, offset=3, max_bytes=1, wait_ms=60_000))
    http.failure = UnreachableError("gone")
    await after(30_000)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert http.waiting == 0
    await metadata.close()
