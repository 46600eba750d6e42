"""What an answer, or the lack of one, means to the client."""

import pytest
from aiohttp import web

from milena.client import Client
from milena.cluster.admin import AdminClient, cluster_view
from milena.cluster.http import HttpSession, read_answer
from milena.cluster.routing import normalise_url
from milena.errors import (
    AnswerError,
    ClientClosedError,
    ClientError,
    NeverReachedError,
    NotNowError,
    OutOfRangeError,
    ProducerFencedError,
    SequenceRefusedError,
    ServerFailedError,
    TargetExistsError,
    TargetNotFoundError,
    TooLargeError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from tests.support.http.http_server import serving
from tests.support.time.fake_clock import FakeClock


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("localhost:8082", "http://localhost:8082"),
        ("http://localhost:8082/", "http://localhost:8082"),
        ("https://milena.example/api/", "https://milena.example/api"),
    ],
)
def test_urls_are_normalised(given, used):
    assert normalise_url(given) == used


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (404, "no", TargetNotFoundError),
        (409, "taken", TargetExistsError),
        (400, "Topic 'x' already exists.", TargetExistsError),
        (400, "bad name", AnswerError),
        (413, "too big", TooLargeError),
        (429, "too many", NotNowError),
        (500, "a bug", ServerFailedError),
        (503, "no leader", NotNowError),
        (504, "not known", UnknownResultError),
    ],
)
def test_an_error_answer_becomes_its_own_error(status, message, error):
    raw = b'{"error_code": %d01, "message": "%s"}' % (status, message.encode())
    with pytest.raises(error, match=message) as caught:
        read_answer(status, raw, "GET /x")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.error_code) == (status, status * 100 + 1)


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("offset_out_of_range", 400, OutOfRangeError),
        ("topic_exists", 400, TargetExistsError),
        ("invalid_producer", 422, SequenceRefusedError),
        ("stale_producer_epoch", 409, ProducerFencedError),
        ("broker_in_use", 409, AnswerError),
        ("something_new", 400, AnswerError),
    ],
)
def test_the_kind_of_an_error_says_more_than_its_status(kind, status, error):
    with pytest.raises(error) as caught:
        read_answer(status, b'{"error_code": 1, "message": "m"}', "GET /x", kind=kind)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("sent", "kept"), [("1-ab.c", "1-ab.c"), (None, None), ("\x1b[2J", None), ("a" * 129, None)]
)
def test_an_error_names_the_request_if_its_id_can_be_shown(sent, kept):
    with pytest.raises(AnswerError) as caught:
        read_answer(400, b'{"error_code": 1, "message": "m"}', "GET /x", request_id=sent)
    assert caught.value.request_id == kept


def test_an_error_that_comes_from_an_answer_names_its_request():
    cause = AnswerError("m", status=400, error_code=None, request_id="1-a")
    error = UnreachableError("later")
    assert error.request_id is None
    error.__cause__ = cause
    assert error.request_id == "1-a"


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failure_of_something_in_between_says_nothing_of_the_result(status):
    """A proxy's 503 is not a node's: only a node knows that nothing was written."""
    with pytest.raises(ServerFailedError, match=f"GET /x: HTTP {status}"):
        read_answer(status, b"<html>Bad Gateway</html>", "GET /x")


def test_a_redirect_is_not_followed():
    with pytest.raises(UnexpectedAnswerError, match="redirects"):
        read_answer(307, b"", "GET /x")


def test_an_error_without_a_body_still_has_a_sentence():
    with pytest.raises(AnswerError, match="GET /x: HTTP 500"):
        read_answer(500, b"", "GET /x")


def test_an_answer_that_is_not_json_is_unexpected():
    with pytest.raises(UnexpectedAnswerError, match="is this a Milena node"):
        read_answer(200, b"<html>", "GET /x")
    with pytest.raises(UnexpectedAnswerError, match="is this a Milena node"):
        read_answer(404, b'{"detail": "Not Found"}', "GET /x")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://", "http://bad host:1"])
async def test_no_connection_is_unreachable(url, unused_tcp_port):
    async with AdminClient(url.format(port=unused_tcp_port), timeout_s=1) as client:
        with pytest.raises(UnreachableError):
            await client.cluster()


async def test_a_url_of_another_scheme_is_told_which_there_are():
    async with AdminClient("ftp://x", timeout_s=1) as client:
        with pytest.raises(UnreachableError, match=r"ftp://x is not .* http:// or https://"):
            await client.cluster()


async def test_only_a_node_that_never_answered_may_want_https():
    async def hang_up(request):
        if request.query:
            return web.json_response({"groups": []})
        request.transport.close()
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/x", hang_up)])
    async with serving(app) as url, HttpSession(url, timeout_s=5) as http:
        with pytest.raises(
            UnreachableError, match="Server disconnected; the port may want https://"
        ):
            await http.get("/x")
        await http.get("/x", {"whole": "1"})
        with pytest.raises(UnreachableError, match=r"Server disconnected$"):
            await http.get("/x")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"version": "3"}, r"metadata.version: expected an integer"),
        ({"brokers": {}}, r"metadata.brokers: expected a list"),
        ({"brokers": [7]}, r"metadata.brokers\[0\]: expected a JSON object"),
        ({"topics": [{"name": None}]}, r"metadata.topics\[0\].(name|partitions): expected"),
    ],
)
def test_a_malformed_field_is_named(broken, message):
    answer = {"cluster_id": "c", "version": 3, "brokers": [], "topics": [], **broken}
    with pytest.raises(UnexpectedAnswerError, match=message):
        cluster_view(answer)


async def test_a_client_that_never_reached_a_node_warns_once(unused_tcp_port_factory, caplog):
    """A single call raises, and needs no warning; the second one is a retry."""
    urls = [f"http://127.0.0.1:{unused_tcp_port_factory()}" for _ in range(2)]
    async with HttpSession(urls, timeout_s=5, clock=FakeClock()) as http:
        for warnings in (0, 1, 1):
            with pytest.raises(UnreachableError):
                await http.get("/x")
            assert len(caplog.records) == warnings
    (warning,) = caplog.records
    for url in urls:
        assert f"cannot reach {url}: connection refused" in warning.message


async def test_a_client_that_never_reached_a_node_gives_up_in_time(unused_tcp_port_factory):
    urls = [f"http://127.0.0.1:{unused_tcp_port_factory()}" for _ in range(2)]
    clock = FakeClock()
    async with HttpSession(urls, timeout_s=5, clock=clock, connect_timeout_ms=10_000) as http:
        for wait_ms, kind in (
            (0, UnreachableError),
            (8_800, UnreachableError),
            (1, NeverReachedError),
        ):
            clock.jump(wait_ms)
            with pytest.raises(UnreachableError) as caught:
                await http.get("/x")
            assert type(caught.value) is kind
            for url in urls:
                assert f"cannot reach {url}: connection refused" in caught.value.message
    assert "10000 ms" in caught.value.message
    assert "connect_timeout_ms" in caught.value.message


async def test_a_node_that_has_responded_once_is_waited_for(unused_tcp_port):
    clock = FakeClock()
    app = web.Application()
    app.add_routes([web.get("/x", _answering(200, "{}"))])
    async with serving(app) as url:
        http = await HttpSession(url, timeout_s=5, clock=clock, connect_timeout_ms=0).__aenter__()
        await http.get("/x")
    clock.jump(60_000)
    async with http:
        with pytest.raises(UnreachableError) as caught:
            await http.get("/x")
    assert type(caught.value) is UnreachableError


@pytest.mark.parametrize(
    ("status", "body", "is_contact"),
    [
        (500, "a bug", False),
        (503, "<html>Service Unavailable</html>", False),
        (503, '{"error_code":50305,"message":"no majority"}', True),
        (401, "", True),
        (404, "", True),
    ],
)
async def test_the_failure_of_a_proxy_is_no_response_of_a_node(status, body, is_contact):
    app = web.Application()
    app.add_routes([web.get("/x", _answering(status, body))])
    async with (
        serving(app) as url,
        HttpSession(url, timeout_s=5, connect_timeout_ms=0) as http,
    ):
        with pytest.raises(ClientError) as caught:
            await http.get("/x")
    assert isinstance(caught.value, NeverReachedError) == (not is_contact)
    if not is_contact:
        assert f"{url} answers HTTP {status}, and not as a Milena node" in caught.value.message


def _answering(status, body):
    async def answer(_request):
        return web.Response(status=status, text=body)

    return answer


async def test_a_client_outside_of_its_block_says_so_at_once():
    client = Client("http://127.0.0.1:1")

    async def check_all():
        with pytest.raises(ClientClosedError, match="client is not open: use it in a block"):
            await client.admin.cluster()
        with pytest.raises(ClientClosedError, match="client is not open"):
            async with client.producer() as producer:
                await producer.send("t", b"v")
        with pytest.raises(ClientClosedError, match="client is not open"):
            async with client.consumer("t", group="g") as consumer:
                await consumer.poll(timeout_s=30)

    await check_all()
    async with client:
        pass
    await check_all()
