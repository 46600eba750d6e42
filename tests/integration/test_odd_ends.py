"""Connections that end oddly around a request: it is answered or the connection closes, and nothing stays behind."""

import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    metric,
    running_cluster,
    values,
)

pytestmark = pytest.mark.integration

TOPIC = "odd"
PATH = f"/topics/{TOPIC}/partitions/0"
PATIENCE_S = 20


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("odd"), node_count=1) as cluster:
        (node,) = cluster.nodes
        create_topic(node, TOPIC, replicas=1)
        yield node


class Wire:
    """A client without manners."""

    def __init__(self, node) -> None:
        self.host = f"127.0.0.1:{node.api_port}"
        self.socket = socket.create_connection(("127.0.0.1", node.api_port), timeout=PATIENCE_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, wanted: bytes) -> bytes:
        """Read up to there, or to the end."""
        found = b""
        while wanted not in found and (data := self.socket.recv(65536)):
            found += data
        return found

    def rest(self, *, has_ended: bool = True) -> list[int]:
        """The statuses of all answers that come, until the node closes."""
        if has_ended:
            self.socket.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while data := self.socket.recv(65536):
                found += data
        except ConnectionResetError:
            pass
        return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", found)]

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def request(
    value: str,
    *lines: str,
    method: str = "POST",
    target: str = PATH,
    version: str = "1.1",
    more: int = 0,
) -> bytes:
    """A write of one record; ``more``: bytes that the head announces beyond those that come."""
    body = json.dumps({"records": [{"value": value}]}).encode()
    head = [
        f"{method} {target} HTTP/{version}",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body) + more}",
        *lines,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(target: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: localhost", *lines]).encode() + b"\r\n\r\n"


def half_close(wire: Wire, name: str) -> list[int]:
    wire.send(request(name))
    return wire.rest()


def half_close_of_a_read(wire: Wire, name: str) -> list[int]:
    wire.send(get(f"{PATH}/offsets"))
    return wire.rest()


def reset_at_once(wire: Wire, name: str) -> list[int]:
    wire.send(request(name))
    wire.reset()
    return []


def reset_behind_chunks(wire: Wire, name: str) -> list[int]:
    body = request(name).split(b"\r\n\r\n", 1)[1]
    head = f"POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    wire.reset()
    return []


def gone_from(target: str, *lines: str, first: bytes = b"") -> Callable[[Wire, str], list[int]]:
    def act(wire: Wire, name: str) -> list[int]:
        wire.send(get(target, *lines))
        if first:
            assert first in wire.until(first)
        wire.reset()
        return []

    return act


def reset_behind(data: bytes) -> Callable[[Wire, str], list[int]]:
    def act(wire: Wire, name: str) -> list[int]:
        wire.send(request(name) + data)
        wire.reset()
        return []

    return act


def pipelined(wire: Wire, name: str) -> list[int]:
    wire.send(request(name) + get("/topics") + request(f"{name} two", "Connection: close"))
    return wire.rest(has_ended=False)


def garbage_behind(wire: Wire, name: str) -> list[int]:
    wire.send(request(name))
    first = wire.until(b"}")
    wire.send(b"\x00\x01garbage\r\n\r\n")
    return [int(first.split()[1]), *wire.rest(has_ended=False)]


def garbage_with_it(wire: Wire, name: str) -> list[int]:
    wire.send(request(name) + b"\x16\x03\x01garbage\r\n\r\n")
    return wire.rest(has_ended=False)


def longer_body(wire: Wire, name: str) -> list[int]:
    wire.send(request(name) + b'{"records":[{"value":"smuggled"}]}\r\n\r\n')
    return wire.rest(has_ended=False)


def shorter_body(wire: Wire, name: str) -> list[int]:
    wire.send(request(name, more=5))
    return wire.rest()


def shorter_body_reset(wire: Wire, name: str) -> list[int]:
    wire.send(request(name, more=5))
    wire.reset()
    return []


def expects_and_goes(wire: Wire, name: str) -> list[int]:
    wire.send(request(name, "Expect: 100-continue").split(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert b"100 Continue" in wire.until(b"\r\n\r\n")
    wire.socket.close()
    return []


def expects_and_says_other(wire: Wire, name: str) -> list[int]:
    wire.send(request(name, "Expect: 100-continue").split(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert b"100 Continue" in wire.until(b"\r\n\r\n")
    wire.send(get("/topics"))
    return wire.rest()


def expects_and_does_not_wait(wire: Wire, name: str) -> list[int]:
    wire.send(request(name, "Expect: 100-continue", "Connection: close"))
    return [status for status in wire.rest(has_ended=False) if status != 100]


def of(*lines: str, **options: object) -> Callable[[Wire, str], list[int]]:
    def act(wire: Wire, name: str) -> list[int]:
        wire.send(request(name, *lines, "Connection: close", **options))
        return wire.rest(has_ended=False)

    return act


def old_kept_alive(wire: Wire, name: str) -> list[int]:
    first = request(name, "Connection: keep-alive", version="1.0")
    wire.send(first)
    status = int(wire.until(b"}").split()[1])
    wire.send(request(f"{name} two", version="1.0"))
    return [status, *wire.rest(has_ended=False)]


def raw(data: bytes) -> Callable[[Wire, str], list[int]]:
    def act(wire: Wire, name: str) -> list[int]:
        wire.send(data)
        return wire.rest()

    return act


@dataclass(frozen=True)
class Case:
    act: Callable[[Wire, str], list[int]]
    statuses: tuple[tuple[int, ...], ...]
    """Sequences of statuses that may come; an empty one: the connection closes without an answer."""
    records: tuple[int, ...]
    """How many of its records may be there."""


TAKEN = ((200,),)
MAYBE = ((200,), ())
REFUSED = ((400,), (400, 400), ())
STREAM = "application/x-ndjson"
CASES = {
    "half-close": Case(half_close, MAYBE, (0, 1)),
    "half-close of a read": Case(half_close_of_a_read, MAYBE, (0,)),
    "reset while the answer is made": Case(reset_at_once, ((),), (0, 1)),
    "reset behind chunks": Case(reset_behind_chunks, ((),), (0, 1)),
    "reset with a request behind": Case(reset_behind(get("/topics") * 20), ((),), (0, 1)),
    "reset with half a request behind": Case(reset_behind(request("x")[:40]), ((),), (0, 1)),
    "reset with garbage behind": Case(reset_behind(b"\x00\r\n\r\n"), ((),), (0, 1)),
    "gone from a long poll": Case(
        gone_from(f"{PATH}/records?offset=latest&timeout=30000"), ((),), (0,)
    ),
    "gone from lines": Case(
        gone_from(f"{PATH}/records?follow=true", f"Accept: {STREAM}", first=b" 200 "), ((),), (0,)
    ),
    "gone from events": Case(
        gone_from(f"{PATH}/records", "Accept: text/event-stream", first=b" 200 "), ((),), (0,)
    ),
    "gone from events of a topic": Case(
        gone_from(f"/topics/{TOPIC}/records", "Accept: text/event-stream", first=b" 200 "),
        ((),),
        (0,),
    ),
    "pipelined": Case(pipelined, ((200, 200, 200),), (2,)),
    "garbage after the answer": Case(garbage_behind, ((200, 400), (200,)), (1,)),
    "garbage with it": Case(garbage_with_it, ((200, 400), (200,)), (1,)),
    "body longer than announced": Case(longer_body, ((200, 400), (200,)), (1,)),
    "body shorter than announced": Case(shorter_body, REFUSED, (0,)),
    "body shorter, then reset": Case(shorter_body_reset, ((),), (0,)),
    "100-continue and gone": Case(expects_and_goes, ((),), (0,)),
    "100-continue and another request": Case(expects_and_says_other, REFUSED, (0,)),
    "100-continue without waiting": Case(expects_and_does_not_wait, TAKEN, (1,)),
    "another expectation": Case(of("Expect: 200-maybe"), (*TAKEN, (417,)), (0, 1)),
    "HTTP/1.0": Case(of(version="1.0"), TAKEN, (1,)),
    "HTTP/1.0 kept alive": Case(old_kept_alive, ((200, 200),), (2,)),
    "absolute-form": Case(of(target=f"http://localhost{PATH}"), TAKEN, (1,)),
    "absolute-form of another host": Case(
        of(target=f"http://example.com{PATH}"), (*TAKEN, (400,), (421,)), (0, 1)
    ),
    "LWP": Case(of("TE: deflate,gzip;q=0.3", "Connection: TE"), TAKEN, (1,)),
    "Java's offer of HTTP/2": Case(
        of("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA"),
        TAKEN,
        (1,),
    ),
    "authority-form": Case(
        of(method="CONNECT", target="localhost:80"), ((400,), (404,), (405,), (501,)), (0,)
    ),
    "TRACE": Case(of(method="TRACE"), ((405,), (400,), (501,)), (0,)),
    "unknown method": Case(of(method="BREW"), ((405,), (400,), (501,)), (0,)),
    "long target": Case(of(target="/" + "a" * 100_000), ((414,),), (0,)),
    "long header": Case(of("X-Long: " + "a" * 100_000), ((431,),), (0,)),
    "many headers": Case(of(*(f"X-{n}: 1" for n in range(5_000))), ((431,),), (0,)),
    "a line without end": Case(raw(b"G" * 200_000), ((400,), (414,), (431,), ()), (0,)),
    "line feeds alone": Case(raw(b"GET /topics HTTP/1.1\nHost: h\n\n"), ((400,), (200,), ()), (0,)),
    "nothing": Case(raw(b""), ((),), (0,)),
    "half a head": Case(raw(b"POST /topics/odd HTTP/1.1\r\nHost:"), ((400,), ()), (0,)),
    "no version": Case(raw(b"GET /topics\r\n\r\n"), ((400,), ()), (0,)),
}


def at_rest(node) -> tuple[float, ...]:
    """Ask a node what it has under way beside the question itself."""
    return tuple(
        metric(node, f"http_{name}")
        for name in ("requests_in_flight", "body_bytes_in_flight", "streams_open")
    )


@pytest.mark.parametrize("name", CASES)
def test_it_is_answered_or_closed_and_nothing_stays_behind(node, name):
    case = CASES[name]
    pid, before = node.process.pid, at_rest(node)
    wire = Wire(node)
    with closing(wire.socket):
        found = case.act(wire, name)
    assert tuple(found) in case.statuses
    eventually(lambda: at_rest(node) == before)
    contained = re.findall(
        rb"\nmilena_contained_errors_total\S* (\S+)", call(node, "GET /metrics").body
    )
    assert not any(map(float, contained))
    assert node.process.pid == pid
    assert node.process.is_running
    records = [value for value in values(node, TOPIC) if value in (name, f"{name} two")]
    assert len(records) in case.records
    if found and found[0] == 200 and case.records != (0,):
        # An answer means that it is there.
        assert name in records
    assert len(set(records)) == len(records)
    assert "smuggled" not in values(node, TOPIC)
