"""Who tried too many wrong passwords is turned away at once, and told what the usual way would have told them."""

import pytest

from http_api.dispatch import Dispatcher
from http_api.quick.strangers import Strangers
from http_api.routes import ROUTES
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic
from tests.unit.http_api.quick.test_lane import connected, request

HERE = "127.0.0.1"
WRITE = Allowed("WRITE", "TOPIC", "t")
GUESS = basic("ann", "a guess")["Authorization"]


@pytest.fixture
async def closed():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api:
        yield api, ClosedNode(node)


def shut(node: FakeNode, address: str = HERE) -> None:
    access = node.access
    while access.passwords.refusal(address) is None:
        access.passwords.wrong.add(address, access.clock.now_ms())


@pytest.fixture
def asked(monkeypatch):
    """Requests that reached the dispatcher."""
    seen = []
    handle = Dispatcher.handle

    async def counted(self, request):
        seen.append(request.rel_url.path)
        return await handle(self, request)

    monkeypatch.setattr(Dispatcher, "handle", counted)
    return seen


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: h", *headers, "", ""]).encode()


PLAIN = get("/topics", f"Authorization: {GUESS}")
WITH_BODY = request(f"Authorization: {GUESS}")


@pytest.mark.parametrize(
    "sent", [PLAIN, WITH_BODY, PLAIN.replace(b"Authorization", b"authorization")]
)
async def test_they_never_reach_the_dispatcher(asked, closed, sent):
    api, _ = closed
    async with connected(api) as client:
        shut(api.node)
        for _ in range(3):
            status, headers, body = await client.ask(sent)
            assert status == "HTTP/1.1 429 Too Many Requests"
            assert int(headers["Retry-After"]) >= 1
            assert b"too many wrong passwords came from 127.0.0.1" in body
    assert not asked


async def test_both_ways_say_the_same(asked, closed):
    api, _ = closed
    async with connected(api) as client:
        shut(api.node)
        quick = await client.ask(PLAIN)
        usual = await client.ask(
            get("/topics", f"Authorization: {GUESS}", "Connection: keep-alive")
        )
        assert asked == ["/topics"]
    assert quick[0] == usual[0]
    assert quick[2] == usual[2]
    varying = {"X-Request-Id", "Date"}
    assert set(quick[1]) == set(usual[1])
    assert all(quick[1][name] == usual[1][name] for name in set(quick[1]) - varying)


async def test_they_are_counted(closed):
    api, node = closed
    token = node.token("root")["Authorization"]
    async with connected(api) as client:
        shut(api.node)
        await client.ask(PLAIN)
        metrics = (await client.ask(get("/metrics", f"Authorization: {token}")))[2].decode()
    assert 'milena_http_requests_total{method="GET",path="/topics",status="429"} 1' in metrics


async def test_a_password_known_to_be_good_is_let_in(asked, closed):
    api, node = closed
    ann = node.user("ann", WRITE)["Authorization"]
    async with connected(api) as client:
        assert (await client.ask(request(f"Authorization: {ann}")))[0].split()[1] == "200"
        shut(api.node)
        for _ in range(3):
            assert (await client.ask(request(f"Authorization: {ann}")))[0].split()[1] == "200"


async def test_other_addresses_tokens_and_public_paths_are_not_touched(closed):
    api, node = closed
    node.user("ann", WRITE)
    token = node.token("ann")["Authorization"]
    async with connected(api) as client, connected(api, source="127.0.0.2") as other:
        shut(api.node)
        assert (await client.ask(request(f"Authorization: {token}")))[0].split()[1] == "200"
        assert (await client.ask(get("/livez", f"Authorization: {GUESS}")))[0].split()[1] == "200"
        assert (await other.ask(PLAIN))[0].split()[1] == "401"


async def test_an_open_cluster_asks_nobody(asked):
    node = FakeNode()
    node.add_topic("t")
    async with serving(node) as api, connected(api) as client:
        shut(api.node)
        assert (await client.ask(PLAIN))[0].split()[1] == "200"


UNCLEAR = [
    PLAIN[:-2],
    PLAIN + b"G",
    PLAIN * 2,
    WITH_BODY[:-1],
    WITH_BODY + b"x",
    PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    PLAIN.replace(b"GET", b"HEAD"),
    PLAIN.replace(b"GET ", b"GET  "),
    PLAIN.replace(b"Host: h\r\n", b"Host: h\n"),
    PLAIN.replace(b"Host: h", b"Host: h\r\n folded"),
    PLAIN.replace(b"Host: h", b"Host: h\r\nTransfer-Encoding: chunked"),
    PLAIN.replace(b"Host: h", b"Host: h\r\nContent-Length: 0\r\nContent-Length: 0"),
    PLAIN.replace(b"Host: h", b"Host: h\r\nContent-Length: +0"),
    PLAIN.replace(b"Host: h", f"Host: h\r\nAuthorization: {GUESS}".encode()),
    PLAIN.replace(b"Host: h", b"Host: h\r\nX-Request-Id: mine"),
    PLAIN.replace(b"Host: h", b"Host: h\r\nOrigin: http://elsewhere"),
    PLAIN.replace(b"Host: h", b"Host: h\r\nUpgrade: h2c"),
    PLAIN.replace(b"Basic ", b"Basic"),
    PLAIN.replace(b"/topics", b"/no/such/path"),
    PLAIN.replace(b"Authorization", b"X-Authorization"),
    b"\r\n\r\n",
]


class Connection:
    peername = (HERE, 1)
    certificate = None


@pytest.fixture
def strangers():
    node = FakeNode()
    ClosedNode(node)
    shut(node)
    return Strangers(Dispatcher(node.ports(), ROUTES))


@pytest.mark.parametrize("data", UNCLEAR, ids=range(len(UNCLEAR)))
async def test_whatever_is_unclear_goes_the_usual_way(strangers, data):
    assert strangers.answer(Connection(), PLAIN, 0.0)
    assert not strangers.answer(Connection(), data, 0.0)


async def test_the_log_hears_of_an_address_once_a_minute(strangers, caplog):
    caplog.set_level("INFO", "http_api.access")
    for now_s in (0.0, 1.0, 59.0, 60.0, 61.0):
        assert strangers.answer(Connection(), PLAIN, now_s)
    assert len([line for line in caplog.messages if "turned away" in line]) == 2
