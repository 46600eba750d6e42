"""Bodies of every endpoint that takes one: in each coding, in later segments, broken off, and beside other requests."""

import gzip
import itertools
import zlib

import pytest

from http_api.routes import ROUTES
from tests.support.fakes.ports import CLUSTER_ID
from tests.unit.http_api.serving.test_separate_requests import READ, head, serving

CODINGS = {
    "": lambda body: body,
    "identity": lambda body: body,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, identity": gzip.compress,
    "gzip, broken": None,
    "gzip, deflate": gzip.compress,
    "br": lambda body: body,
}
CALLER = "127.0.0.1"
WITH_BODY = [route for route in ROUTES if route.body is not None]
NAMES = {
    "cluster": CLUSTER_ID,
    "partition": "0",
    "producer_epoch": "0",
    "producer_id": "0",
    "topic": "t",
}
V3_RECORD = b'{"value":{"type":"STRING","data":"a"}}'


def path_of(route) -> str:
    path = route.path
    for name in route.path_names:
        path = path.replace(f"{{{name}}}", NAMES.get(name, "x"))
    return path


def body_of(route) -> bytes:
    if route.path.endswith("/records") and route.path.startswith("/v3"):
        return V3_RECORD
    return b'{"records":[{"value":1}]}'


def coded(route, coding: str) -> tuple[bytes, str]:
    if coding == "gzip, broken":
        return b"\x1f\x8b no gzip" + bytes(20), "gzip"
    return CODINGS[coding](body_of(route)), coding


def request(route, coding: str, *, is_chunked: bool) -> tuple[bytes, bytes]:
    body, name = coded(route, coding)
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
    lines = [f"Content-Encoding: {name}"] if name else []
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    return head(path_of(route), *lines, length, method=route.method), framed


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: f"{route.method} {route.path}")
async def test_a_body_in_any_coding_may_come_in_pieces_and_break_off(route):
    async with serving() as server:
        in_flight = server.dispatcher.shared.in_flight
        # Another request of this caller is under way all the time.
        in_flight.enter(CALLER)
        for coding, is_chunked in itertools.product(CODINGS, (False, True)):
            start, body = request(route, coding, is_chunked=is_chunked)
            statuses = []
            for cuts in ((), (0,), (1,), (len(body) - 1,), (0, 1, len(body) // 2)):
                pieces = [body[a:b] for a, b in itertools.pairwise((0, *cuts, len(body)))]
                connection = server.connect()
                await connection.send(start + pieces[0], *(piece for piece in pieces[1:] if piece))
                (answer,) = await connection.answers(1)
                statuses.append(answer.status)
                assert in_flight._held[CALLER].requests == in_flight.request_count == 1
                await connection.rest()
                await connection.send(READ)
                assert [one.status for one in await connection.answers(1)] in ([200], [])
            assert len(set(statuses)) == 1, (coding, statuses)
            assert statuses[0] < 500 or statuses[0] == 501, (coding, statuses)
            assert (statuses[0] == 415) or coding not in ("br", "gzip, deflate"), (coding, statuses)
            for at in range(0, len(body), 7):
                connection = server.connect()
                await connection.send(start, *([body[:at]] if at else []))
                connection.protocol.connection_lost(ConnectionResetError())
                await connection.until(lambda: in_flight.request_count == 1)
                assert in_flight._held[CALLER].requests == 1
        in_flight.leave(CALLER)
