"""Who brings bad credentials again is turned away, told what the usual way would tell them, and made to wait for it."""

import asyncio

import pytest

from http_api.ports.node import ApiLimits
from http_api.quick import strangers as strangers_module
from http_api.quick.connection import QuickConnection
from http_api.quick.strangers import Strangers, _Rest
from http_api.routes import ROUTES
from http_api.serving import dispatch
from http_api.serving.dispatch import Dispatcher
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode, basic, bearer
from tests.support.time.virtual_time import VirtualLoop
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
    PLAIN.replace(b"Host: h", b"Host: h\r\nSec-Fetch-Dest: empty"),
    PLAIN.replace(b"Basic ", b"Basic"),
    PLAIN.replace(b"/topics", b"/no/such/path"),
    PLAIN.replace(b"Authorization", b"X-Authorization"),
    b"\r\n\r\n",
]


TOKEN = bearer("nothere1")["Authorization"]
WITH_TOKEN = get("/topics", f"Authorization: {TOKEN}")


@pytest.mark.parametrize("sent", [WITH_TOKEN, request(f"Authorization: {TOKEN}")])
async def test_a_connection_that_brought_bad_credentials_is_turned_away_the_next_time(
    asked, closed, sent
):
    api, _ = closed
    async with connected(api) as client:
        usual = await client.ask(sent)
        assert len(asked) == 1
        for _ in range(3):
            quick = await client.ask(sent)
            assert quick[0] == usual[0] == "HTTP/1.1 401 Unauthorized"
            assert quick[2] == usual[2]
            assert set(quick[1]) == set(usual[1])
            assert quick[1]["WWW-Authenticate"] == usual[1]["WWW-Authenticate"]
    assert len(asked) == 1


async def test_good_credentials_on_such_a_connection_are_let_in_and_trusted_again(asked, closed):
    api, node = closed
    good = get("/topics", f"Authorization: {node.token('root')['Authorization']}")
    async with connected(api) as client:
        for count in (1, 2):
            await client.ask(WITH_TOKEN)
            await client.ask(WITH_TOKEN)
            assert (await client.ask(good))[0] == "HTTP/1.1 200 OK"
            assert len(asked) == 2 * count


async def test_one_connections_bad_credentials_are_not_held_against_another(asked, closed):
    api, _ = closed
    async with connected(api) as client, connected(api) as other:
        await client.ask(WITH_TOKEN)
        await other.ask(WITH_TOKEN)
    assert len(asked) == 2


@pytest.fixture
def rests(monkeypatch):
    """How long refusals of the usual way rested."""
    found = []

    async def rested(seconds):
        found.append(seconds)

    monkeypatch.setattr(dispatch, "pause", rested)
    return found


async def test_who_brings_nothing_does_not_guess(asked, rests, closed):
    api, _ = closed
    async with connected(api) as client:
        for _ in range(3):
            assert (await client.ask(get("/topics")))[0] == "HTTP/1.1 401 Unauthorized"
    assert len(asked) == 3
    assert not rests


async def test_the_usual_way_lets_a_refusal_rest_as_long_but_for_the_first(rests):
    node = FakeNode()
    ClosedNode(node)
    unclear = get("/topics", f"Authorization: {TOKEN}", "X-Request-Id: mine")
    limits = ApiLimits(bad_credentials_delay_ms=700)
    async with serving(node, limits=limits) as api, connected(api) as client:
        for count in range(3):
            assert (await client.ask(unclear))[0] == "HTTP/1.1 401 Unauthorized"
            assert rests == [0.7] * count


class Connection:
    """One that was refused, as ``Strangers`` sees it."""

    peername = (HERE, 1)
    certificate = None

    def __init__(self, strangers: Strangers) -> None:
        self.answers = []
        strangers._connections.add(self)

    def finish_quick(self, answer):
        self.answers.append(answer)

    def force_close(self):
        self.answers.append(b"closed")


@pytest.fixture
def strangers():
    node = FakeNode()
    ClosedNode(node)
    shut(node)
    limits = ApiLimits(bad_credentials_delay_ms=500)
    return Strangers(Dispatcher(node.ports(limits), ROUTES))


def in_virtual_time(test):
    """The loop's clock moves only when all wait."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test)


def test_refusals_rest_and_are_given_together(strangers):
    async def check():
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        connections = [Connection(strangers) for _ in range(100)]
        for connection in connections:
            assert strangers.turn_away(connection, PLAIN, loop.time())
            loop.stall(0.4)
        turns = []
        while not all(connection.answers for connection in connections):
            await asyncio.sleep(0.001)
            given = sum(bool(connection.answers) for connection in connections)
            assert given == 0 or loop.time() >= began_s + 0.5
            if not turns or turns[-1][1] != given:
                turns.append((loop.time(), given))
        assert loop.time() < began_s + 0.04 + 0.5 + 0.06
        assert len(turns) <= 4
        assert all(len(connection.answers) == 1 for connection in connections)

    in_virtual_time(check())


def test_nothing_is_kept_of_who_does_not_wait_for_it(strangers):
    async def check():
        connection = Connection(strangers)
        refusal = strangers.turn_away(connection, PLAIN, asyncio.get_running_loop().time())
        over = refusal.over()
        refusal.cancel()
        assert refusal.is_over
        assert over.done()
        assert refusal._connection is None
        assert refusal._answer == b""
        await asyncio.sleep(10)
        assert not connection.answers
        assert not strangers._rest._resting

    in_virtual_time(check())


async def test_who_sends_on_meanwhile_is_not_read_from(monkeypatch):
    refused, held = asyncio.Event(), asyncio.Event()
    add, hold = _Rest.add, QuickConnection._hold

    def rest(self, refusal):
        add(self, refusal)
        refused.set()

    def noted(self, data):
        hold(self, data)
        assert not self.transport.is_reading()
        held.set()

    monkeypatch.setattr(_Rest, "add", rest)
    monkeypatch.setattr(QuickConnection, "_hold", noted)
    node = FakeNode()
    ClosedNode(node)
    limits = ApiLimits(bad_credentials_delay_ms=2_000)
    async with asyncio.timeout(60), serving(node, limits=limits) as api, connected(api) as client:
        shut(node)
        client.send(PLAIN)
        await refused.wait()
        client.send(PLAIN)
        await held.wait()


@pytest.mark.parametrize("data", UNCLEAR, ids=range(len(UNCLEAR)))
async def test_whatever_is_unclear_goes_the_usual_way(strangers, data):
    assert strangers.turn_away(Connection(strangers), PLAIN, 0.0)
    assert not strangers.turn_away(Connection(strangers), data, 0.0)


async def test_the_log_hears_of_an_address_once_a_minute(strangers, caplog):
    caplog.set_level("INFO", "http_api.access")
    for now_s in (0.0, 1.0, 59.0, 60.0, 61.0):
        assert strangers.turn_away(Connection(strangers), PLAIN, now_s)
    assert len([line for line in caplog.messages if "turned away" in line]) == 2


async def test_what_is_remembered_of_strangers_has_an_end(strangers, monkeypatch):
    monkeypatch.setattr(strangers_module, "ADDRESSES_MAX", 3)
    monkeypatch.setattr(strangers_module, "SAID_MAX", 3)
    for number in range(20):
        connection = Connection(strangers)
        connection.peername = (f"10.0.0.{number}", 1)
        strangers._connections.distrust(connection)
        # Each is told of its own address, once it was wrong too often.
        for _ in range(40):
            strangers._callers.passwords.wrong.add(connection.peername[0], 1_700_000_000_000)
        refusal = strangers.turn_away(connection, PLAIN, 0.0)
        assert connection.peername[0].encode() in refusal._answer
        refusal.cancel()
        strangers._connections.discard(connection)
    assert len(strangers._told_s) == len(strangers._said) == 3
    assert not strangers._connections._distrusted
