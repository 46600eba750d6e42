"""What the API describes is what it answers: each operation, each success, each error."""

import asyncio
import re

import argon2
import orjson
import pytest
from aiohttp import encode_basic_auth

from http_api.ports.node import ApiLimits
from http_api.protocol import errors as api_errors
from http_api.protocol.errors import ERROR_TABLE, InvalidFieldError, ResourceNotFoundError
from http_api.routes import ROUTES
from http_api.serving.openapi import encode_document, errors_of
from milena.model import errors as e
from milena.model.access import AccessMode
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from node.access.passwords import WRONG_AT_ONCE
from raft_meta.machine.commands import InitAccess, PutUser
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AllocatedProducer
from tests.support.fakes.ports import CLUSTER_ID, NOW_MS, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.contract import (
    GONE_BROKER,
    asks,
    check_all,
    declared_successes,
    token_id_of,
)
from tests.support.http.openapi import Description

DOCUMENT = Description(orjson.loads(encode_document(ROUTES)))
COLUMNS = RecordColumns(
    offset_deltas=None, timestamp_deltas=None, keys=None, values=[b"1", b"2"], headers=None
)
ASKS = asks(encode_batch(COLUMNS, base_timestamp_ms=NOW_MS))
PORT_METHODS = (
    "produce", "produce_batch", "fetch", "offsets", "topic", "create_topic", "delete_topic",
    "alter_configs", "allocate_producer", "current_image", "image_since", "add_partitions", "remove_broker",
    "delete_records", "reassign", "running", "cancel",
    "transact", "begin", "commit", "abort", "open_transactions", "propose",
    *(f"group_{name}" for name in (
        "heartbeat", "commit", "committed", "describe", "groups", "delete", "reset", "places",
    )),
    *(f"consumer_{name}" for name in (
        "create", "delete", "format_of", "subscribe", "unsubscribe", "subscription", "assign", "assignments",
        "seek", "records", "commit", "committed",
    )),
)  # fmt: skip


async def send(api, ask, **changes):
    path = changes.pop("path", ask.at(CLUSTER_ID))
    headers = {**ask.sent_headers(), **changes.pop("headers", {})}
    options = {"data": ask.data, "skip_auto_headers": ("Content-Type",), **changes}
    return path, await api.call(ask.method, path, headers=headers, **options)


async def test_every_success_of_every_operation_is_as_described():
    node = FakeNode()
    node.add_broker(GONE_BROKER, is_fenced=True)
    async with serving(node) as api:
        answers, token_id = [], "none"
        for ask in ASKS:
            path, answer = await send(api, ask, path=ask.at(CLUSTER_ID, token_id))
            token_id = token_id_of(answer) or token_id
            answers.append((ask, path, answer))
    assert check_all(DOCUMENT, answers) == declared_successes(DOCUMENT)


async def test_a_probe_that_fails_is_as_described():
    async with serving() as api:
        api.node.is_ready = api.node.has_started = False
        for path in ("/startupz", "/readyz"):
            answer = await api.get(path)
            assert answer.status == 503
            DOCUMENT.check("GET", path, answer)


# -- errors ----------------------------------------------------------------------------------------


def make(kind):
    return kind("a sentence")


async def _body_that_never_ends():
    yield b"{"
    await asyncio.Event().wait()


MET_IN_THE_API = {
    e.UnsupportedMediaTypeError, e.TooManyRequestsError, e.RequestTooLargeError, api_errors.BodyTimeoutError,
    e.UnsupportedSchemaError, e.ClusterNotFoundError, e.BrokerNotFoundError, e.ConfigNotFoundError,
    ResourceNotFoundError, InvalidFieldError, e.MalformedRequestError, e.UnauthenticatedError, e.ForbiddenError,
    e.TokenNotFoundError, e.QuotaExceededError,
}  # fmt: skip
"""No part of the node needs to fail for these: the request does it."""

LIMITS = {
    e.TooManyRequestsError: ApiLimits(requests_in_flight_max=0),
    e.RequestTooLargeError: ApiLimits(request_bytes_max=1),
    api_errors.BodyTimeoutError: ApiLimits(body_wait_ms_max=1),
    e.QuotaExceededError: ApiLimits(request_rate=1),
}
"""Bounds under which any request meets this error."""


def provoked(kind, ask):
    """Changes to a good request that may lead to this error, most telling first."""
    path = ask.at(CLUSTER_ID)
    if kind is api_errors.BodyTimeoutError:
        yield {"data": _body_that_never_ends()}
    if kind is e.MalformedRequestError:
        yield {"data": b"{"}
        yield {"path": re.sub(r"/(orders|pages)", r"/%01", path)}
        yield {"path": re.sub(r"/brokers/\d+", "/brokers/%01", path)}
        yield {"path": re.sub(r"/(rest|billing|live)\b", "/%01", path)}
        yield {"headers": {"X-Forwarded-Proto": "mqtt"}}
        yield {"path": f"{path}?x=%ff"}
        yield {"path": f"{path}?since=x"}
    if kind is e.ForbiddenError or kind is e.TooManyRequestsError:
        yield {"headers": {"Authorization": MARY}}
        yield {"headers": {"Authorization": MARY}, "path": path.replace("/topics/-/", "/topics/t/")}
    if kind is e.QuotaExceededError:
        yield from [{}] * 4
    if kind is e.TopicNotFoundError:
        # Where it is the query that names one.
        yield {"path": f"{path}?topic=nothing"}
    if kind is e.UserNotFoundError:
        yield {"path": path.replace("alice", "nobody")}
    if kind is e.UnsupportedMediaTypeError:
        yield {"headers": {"Content-Type": "text/html"}, "data": ask.data or b"{}"}
    if kind is e.NotAcceptableError:
        yield {"headers": {"Accept": "text/html"}}
    if kind is InvalidFieldError:
        yield {"data": b'{"unknown":1}', "headers": {"Content-Type": "application/json"}}
        yield {"data": b'{"value":null}', "headers": {"Content-Type": "application/json"}}
        yield {"data": b'{"name":""}', "headers": {"Content-Type": "application/json"}}
        yield {"data": b" ", "headers": {"Content-Type": "application/json"}}
    if kind is e.UnsupportedSchemaError:
        yield {"data": b'{"records":[{"value":1}],"value_schema_id":1}'}
        yield {"data": b'{"format":"avro"}'}
    if kind is e.InvalidRecordError:
        yield {"data": b'{"entries":[]}'}
    if kind is e.ClusterNotFoundError:
        yield {"path": path.replace(CLUSTER_ID, "another")}
    if kind is e.BrokerNotFoundError:
        yield {"path": re.sub(r"/brokers/\d+", "/brokers/99", path)}
        yield {"data": b'{"drain":99}', "headers": {"Content-Type": "application/json"}}
    if kind is e.ConfigNotFoundError:
        yield {"path": path.replace("retention.ms", "no.such.config")}
    if kind is ResourceNotFoundError:
        yield {"path": path.replace("/topics/-/partitions/-", "/topics/pages/partitions/0")}
        yield {"path": re.sub(r"/replicas/\d+", "/replicas/99", path)}
        yield {"path": re.sub(r"/partitions/\d+", "/partitions/99", path)}
    yield {}


def ask_for(route):
    """A good request of the operation, with a body if it takes one."""
    found = [ask for ask in ASKS if ask.operation == route.operation_id]
    return next((ask for ask in found if ask.body is not None), found[0])


CASES = [(route, kind) for route in ROUTES for kind in errors_of(route)]


MARY = encode_basic_auth("mary", "a good password")


def close(node):
    """Let the node ask for credentials; Mary has some, and may do nothing."""
    verifier = argon2.PasswordHasher(memory_cost=8, time_cost=1, parallelism=1).hash(
        "a good password"
    )
    node.access.store.apply(InitAccess(name="root", verifier="x", access_mode=AccessMode.REQUIRED))
    node.access.store.apply(
        PutUser(name="mary", version=0, verifiers=(verifier,), is_superuser=False)
    )


def prepared(kind, *, is_raised_by_node, is_exempt=False):
    node = FakeNode()
    if kind in (e.UnauthenticatedError, e.ForbiddenError):
        close(node)
    if kind is e.TooManyRequestsError and is_exempt:
        # No bound on requests in flight is for this one; that on passwords is.
        close(node)
        for _ in range(WRONG_AT_ONCE):
            node.access.passwords.wrong.add("127.0.0.1", node.access.clock.now_ms())
    for name in ("orders", "pages"):
        node.add_topic(name, 2)
    # Those that good requests end.
    node.transactions.keep_open(1, 0)
    payer = AllocatedProducer(producer_id=1, producer_epoch=0, name="payer")
    node.image = replace(
        node.image, producers=node.image.producers.set(1, payer), next_producer_id=2
    )
    if is_raised_by_node:
        node.errors = dict.fromkeys(PORT_METHODS, make(kind))
    elif kind is ResourceNotFoundError:
        # A group with a member, and nothing committed.
        node.groups.join("live", "c1", ["orders"], None)
    elif kind is e.NotReadyError:
        node.set_cluster_id("")
        node.access.heard_ms = None
        close(node)
    return node


@pytest.mark.parametrize(
    ("route", "kind"), CASES, ids=[f"{r.operation_id}-{k.code}" for r, k in CASES]
)
async def test_every_error_of_every_operation_is_met_and_as_described(route, kind):
    ask = ask_for(route)
    code = ERROR_TABLE[kind].error_code
    if kind is e.TopicNotFoundError:
        code = route.topic_missing_code
    met = []
    for is_raised_by_node in (False,) if kind in MET_IN_THE_API else (False, True):
        node = prepared(kind, is_raised_by_node=is_raised_by_node, is_exempt=route.is_exempt)
        async with serving(node, LIMITS.get(kind)) as api:
            for changes in provoked(kind, ask):
                path, answer = await send(api, ask, **changes)
                if answer.status >= 400:
                    _, status, met_code = DOCUMENT.check(ask.method, path, answer)
                    met.append((status, met_code, answer.headers.get("Milena-Error")))
                if (ERROR_TABLE[kind].status, code, kind.code) in met:
                    return
    pytest.fail(f"met only {met}")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)
async def test_a_fault_of_the_node_is_as_described(route):
    ask = ask_for(route)
    node = prepared(e.NoQuorumError, is_raised_by_node=False)
    node.errors = dict.fromkeys(PORT_METHODS, RuntimeError("a bug"))
    async with serving(node) as api:
        path, answer = await send(api, ask)
        assert answer.status in (ask.status, 500)
        DOCUMENT.check(ask.method, path, answer)
