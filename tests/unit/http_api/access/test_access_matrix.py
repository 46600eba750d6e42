"""Every endpoint, asked with every kind of credentials: who is let in, and that nothing happened where nobody was."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from http_api import app
from http_api.access.needs import PUBLIC
from http_api.routes import ROUTES
from milena.model.access import ALLOWED_BY, CLUSTER_NAME, AccessMode, Operation
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from node.access import passwords
from node.access.passwords import WrongPasswords
from raft_meta.machine.commands import SetAccessMode
from raft_meta.machine.image import CommittedOffset, Map
from tests.support.fakes.ports import CLUSTER_ID, NOW_MS, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.contract import GONE_BROKER, Ask, asks, token_id_of
from tests.support.http.credentials import QUICK_HASHER, Allowed, ClosedNode, basic, grant

COLUMNS = RecordColumns(
    offset_deltas=None, timestamp_deltas=None, keys=None, values=[b"1", b"2"], headers=None
)
ASKS = [
    replace(ask, body={"mode": "required"}) if ask.operation == "setAccess" else ask
    for ask in asks(encode_batch(COLUMNS, base_timestamp_ms=NOW_MS))
]
BY_ID = {route.operation_id: route for route in ROUTES}
ROOT = basic("root")
CLUSTER_ALTER = Allowed("ALTER", "CLUSTER", CLUSTER_NAME)
ORDERS = Allowed("READ", "TOPIC", "orders")
PAYER = Allowed("WRITE", "TRANSACTIONAL_ID", "payer")

FOR_SUPERUSERS = {"setAccess"}
MORE = {
    "createTopic": (),
    "v3CreateTopic": (),
    "allocateProducer": (),
    "transact": (
        Allowed("WRITE", "TOPIC", "orders"),
        ORDERS,
        Allowed("READ", "GROUP", "billing"),
    ),
    "beginTransaction": (PAYER,),
    "commitTransaction": (PAYER, Allowed("WRITE", "TOPIC", "tallies")),
    "abortTransaction": (PAYER,),
    "subscribeConsumer": (ORDERS,),
    "assignConsumer": (ORDERS,),
    "consumeRecords": (ORDERS,),
    "commitConsumerOffsets": (ORDERS,),
    "getConsumerOffsets": (Allowed("DESCRIBE", "TOPIC", "orders"),),
    "seekConsumer": (ORDERS,),
    "seekConsumerToBeginning": (ORDERS,),
    "seekConsumerToEnd": (ORDERS,),
    "groupHeartbeat": (ORDERS,),
    "commitGroupOffsets": (ORDERS,),
    "previewGroupReset": (Allowed("DESCRIBE", "TOPIC", "orders"),),
    "resetGroupOffsets": (ORDERS,),
    "v3ResetConsumerGroupOffsets": (ORDERS,),
    "getUser": (Allowed("DESCRIBE", "CLUSTER", CLUSTER_NAME),),
    "putUser": (CLUSTER_ALTER,),
    "createToken": (),
    "listTokens": (),
    "deleteToken": (),
}
"""What is needed beside what the path says, of the requests in ``ASKS``."""

OF_QUERY = {
    "/history": Allowed("DESCRIBE", "CLUSTER", CLUSTER_NAME),
    "/history?topic=orders": Allowed("DESCRIBE", "TOPIC", "orders"),
    "/history?group=billing": Allowed("DESCRIBE", "GROUP", "billing"),
}
"""And where it is the query that names what is looked at."""


def state_of(node: FakeNode) -> object:
    """All that a request may change."""
    logs = {name: (log.high_watermark, log.log_start_offset) for name, log in node.logs.items()}
    counts = (
        len(node.produce_requests),
        len(node.batch_requests),
        len(node.drains),
        len(node.deletions),
        len(node.transactions.requests),
    )
    return node.image, logs, counts, repr(node.consumers.known), repr(node.groups.known)


def needed(ask: Ask) -> tuple[Allowed, ...]:
    """All that is asked for before the request is carried out."""
    access = BY_ID[ask.operation].access
    found: list[Allowed] = list(MORE.get(ask.operation, ()))
    if ask.path in OF_QUERY:
        found.append(OF_QUERY[ask.path])
    if ask.path.endswith("/topics/-/configs:alter"):
        found += [Allowed("ALTER_CONFIGS", "TOPIC", one["topic_name"]) for one in ask.body["data"]]
    if "Milena-Transaction" in ask.headers:
        found.append(PAYER)
    if access.needs is not None:
        name = CLUSTER_NAME
        if access.needs.path_name:
            name = path_name(ask, access.needs.path_name)
        if name != "-":
            found.append(Allowed(access.needs.operation, access.needs.resource_type, name))
    return tuple(found)


def path_name(ask: Ask, wanted: str) -> str:
    """The name that a path has in this place."""
    parts = BY_ID[ask.operation].path.split("/")
    given = ask.at(CLUSTER_ID).partition("?")[0].split("/")
    return next(
        text
        for part, text in zip(parts, given, strict=True)
        if part.partition(":")[0] == f"{{{wanted}}}"
    )


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch):
    """Of the decoy that is looked at in place of users that there are not: what a hash costs is tested elsewhere."""
    monkeypatch.setattr(passwords, "_HASHER", QUICK_HASHER)


@asynccontextmanager
async def closed(mode: AccessMode = AccessMode.REQUIRED):
    node = FakeNode()
    node.add_broker(GONE_BROKER, is_fenced=True)
    async with serving(node) as api:
        yield api, ClosedNode(node, mode)


async def send(api, ask: Ask, headers, token_id: str = "none"):
    return await api.call(
        ask.method,
        ask.at(CLUSTER_ID, token_id),
        headers={**ask.sent_headers(), **headers},
        data=ask.data,
        skip_auto_headers=("Content-Type",),
    )


async def walk(api, *, is_whole: bool = True) -> AsyncIterator[tuple[Ask, str]]:
    """The requests in their order, each carried out in the end by a superuser.

    ``is_whole``: nobody else may have done before what it is to do.
    """
    token_id = "none"
    for ask in ASKS:
        yield ask, token_id
        answer = await send(api, ask, ROOT, token_id)
        assert answer.status == ask.status or not is_whole, (ask, answer)
        token_id = token_id_of(answer) or token_id


async def holes(
    api, closed_node: ClosedNode, *, ways: Collection[str] = (), is_whole: bool = True
) -> list[str]:
    """Where somebody got in whose credentials are bad, or nobody's; ``ways`` of ``refused``, all if empty."""
    found = []
    refused = {
        name: headers for name, headers in closed_node.refused().items() if not ways or name in ways
    }
    access = closed_node.node.access
    async for ask, token_id in walk(api, is_whole=is_whole):
        is_public = BY_ID[ask.operation].access is PUBLIC
        for name, headers in refused.items():
            before = state_of(api.node)
            answer = await send(api, ask, headers, token_id)
            # No wrong password counts for the next; and while one takes its time, the quorum is heard of as ever.
            access.passwords.wrong, access.heard_ms = WrongPasswords(), access.clock.ms
            is_refused = answer.status == 401 and answer.error == (401, 40101)
            if is_refused == is_public or (not is_public and state_of(api.node) != before):
                found.append(f"{ask.operation} {ask.path}: {name}: {answer.status}")
    return found


async def test_nobody_gets_in_without_good_credentials():
    async with closed() as (api, closed_node):
        assert await holes(api, closed_node) == []


async def test_who_may_nothing_does_nothing_and_sees_no_names():
    async with closed() as (api, closed_node):
        eve = closed_node.user("eve")
        async for ask, token_id in walk(api):
            access = BY_ID[ask.operation].access
            before = state_of(api.node)
            answer = await send(api, ask, eve, token_id)
            if needed(ask) or access.has_more:
                assert (answer.status, ask.operation) == (403, ask.operation), answer
            else:
                assert answer.status < 500, (ask, answer)
                if not access.is_public:
                    assert not {b'"orders"', b'"pages"', b'"billing"'} & set(
                        answer.body.replace(b":", b" ").replace(b",", b" ").split()
                    ), ask
            assert state_of(api.node) == before, ask


async def test_what_is_needed_is_enough_and_nothing_less_is():
    async with closed() as (api, closed_node):
        ann = closed_node.user("ann")
        token_id = "none"
        for ask in ASKS:
            wanted = needed(ask)
            if ask.operation in ("createTopic", "v3CreateTopic"):
                wanted += (Allowed("CREATE", "TOPIC", ask.body["topic_name"]),)
            if ask.operation == "allocateProducer":
                name = (ask.body or {}).get("name")
                wanted += (
                    (Allowed("WRITE", "TRANSACTIONAL_ID", name),)
                    if name
                    else (Allowed("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER_NAME),)
                )
            is_for_others = ask.operation in FOR_SUPERUSERS or "/tokens" in ask.path
            if not is_for_others:
                for left_out in {what for what in wanted if is_asked(ask, what)}:
                    closed_node.take("ann")
                    closed_node.allow("ann", *(what for what in wanted if what != left_out))
                    before = state_of(api.node)
                    answer = await send(api, ask, ann, token_id)
                    assert answer.status == 403, (ask, left_out, answer)
                    assert state_of(api.node) == before, (ask, left_out)
                    closed_node.allow("ann", left_out)
                    closed_node.deny("ann", left_out)
                    assert (await send(api, ask, ann, token_id)).status == 403, (ask, left_out)
                closed_node.take("ann")
                closed_node.allow("ann", *wanted, Allowed("DESCRIBE", "TOPIC", "*"))
            answer = await send(api, ask, ROOT if is_for_others else ann, token_id)
            assert answer.status == ask.status, (ask, answer)
            token_id = token_id_of(answer) or token_id


def is_asked(ask: Ask, what: Allowed) -> bool:
    """Whether this very request asks for it: nothing else that it needs implies it, and its body names it."""
    others = [other for other in needed(ask) if other != what]
    if any(
        (other.kind, other.name) == (what.kind, what.name)
        and Operation(other.operation) in ALLOWED_BY[Operation(what.operation)]
        for other in others
    ):
        return False
    is_empty = ask.operation == "commitConsumerOffsets" and what == ORDERS
    return not (is_empty and not ask.body["offsets"]) and not (
        ask.operation == "consumeRecords" and what == ORDERS
    )


async def test_a_token_may_what_its_grants_say_and_nothing_else():
    async with closed() as (api, closed_node):
        api.node.add_topic("orders")
        api.node.add_topic("others")
        token = closed_node.token("root", "token123", grant("WRITE", "READ"))
        body = {"records": [{"value": 1}]}
        assert (await api.post("/topics/orders", body, headers=token)).status == 200
        assert (await api.post("/topics/others", body, headers=token)).status == 403
        assert (await api.get("/users", headers=token)).status == 403
        assert (await api.get("/topics", headers=token)).json == ["orders"]
        whole = closed_node.token("root", "token456")
        assert (await api.get("/users", headers=whole)).status == 200


CLOSED = sorted({ask.operation for ask in ASKS if BY_ID[ask.operation].access is not PUBLIC})
HAVE_A_SECOND_LOCK = {
    *(name for name in CLOSED if BY_ID[name].access.has_more or BY_ID[name].access.is_filtered),
    # Who may produce is asked whether it may make the topic, too; these two are about the caller itself.
    *("produceToTopic", "produceToPartition", "produceBatch", "v3ProduceRecords", "v3ProduceBatch"),
    *("getAccess", "setAccess"),
}
"""Rows whose handlers ask who calls, so that they refuse whatever the table says."""


@pytest.mark.parametrize("half", range(2))
async def test_a_hole_in_the_table_is_found(monkeypatch, half):
    """The walk above can fail: of half of the rows that let anybody in it finds each, and no other."""
    planted = set(CLOSED[half::2])
    table = tuple(
        replace(route, access=PUBLIC) if route.operation_id in planted else route
        for route in ROUTES
    )
    monkeypatch.setattr(app, "ROUTES", table)
    async with closed() as (api, closed_node):
        # Whoever comes finds it, in whatever way.
        ways = ("none", "revoked token")
        lines = await holes(api, closed_node, ways=ways, is_whole=False)
    found = {line.split()[0] for line in lines}
    assert planted - HAVE_A_SECOND_LOCK <= found <= planted


async def test_where_refusals_are_only_logged_all_is_done_but_what_changes_access(caplog):
    async with closed(AccessMode.OPTIONAL) as (api, _):
        token_id = "none"
        for ask in ASKS:
            answer = await send(api, ask, {}, token_id)
            if BY_ID[ask.operation].access.is_strict:
                assert answer.status == 403, (ask, answer)
                answer = await send(api, ask, ROOT, token_id)
            token_id = token_id_of(answer) or token_id
            assert answer.status == ask.status, (ask, answer)
            if ask.operation == "setAccess":
                back = SetAccessMode(access_mode=AccessMode.OPTIONAL)
                api.node.access.store.apply(back)
    assert any("would be refused" in line for line in caplog.messages)


async def test_what_is_revoked_while_a_body_comes_is_not_done():
    """The first half of each body comes with a superuser's token, the other half when that is gone."""
    tried = set()
    async with closed() as (api, closed_node):
        async for ask, token_id in walk(api):
            if not ask.data or BY_ID[ask.operation].access is PUBLIC:
                continue
            given = closed_node.token("root", "halfway1")
            before = state_of(api.node)

            async def halves(data=ask.data):
                yield data[: len(data) // 2]
                # It has come, and the handler waits for the rest.
                await asyncio.sleep(0.01)
                closed_node.revoke("halfway1")
                nonlocal before
                before = state_of(api.node)
                yield data[len(data) // 2 :]

            answer = await api.call(
                ask.method,
                ask.at(CLUSTER_ID, token_id),
                headers={**ask.sent_headers(), **given},
                data=halves(),
                skip_auto_headers=("Content-Type",),
            )
            assert answer.error[0] in {401, 403}, (ask, answer)
            assert state_of(api.node) == before, ask
            tried.add(ask.operation)
    assert len(tried) > 30


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer x"}, basic("root", "wrong one")])
async def test_bad_credentials_are_refused_also_where_none_are_needed(headers):
    async with closed(AccessMode.OPTIONAL) as (api, _):
        assert (await api.get("/topics", headers=headers)).status == 401
        assert (await api.get("/livez", headers=headers)).status == 200


async def test_a_groups_hour_is_not_for_who_may_not_see_one_of_its_topics():
    async with closed() as (api, closed_node):
        ann, orders = closed_node.user("ann"), api.node.add_topic("orders")
        offset = CommittedOffset(offset=1, leader_epoch=-1, metadata="", commit_ms=NOW_MS)
        of_group = Map({(orders.topic_id, 0): offset, ("deleted", 0): offset})
        api.node.image = replace(api.node.image, offsets=Map({"billing": of_group}))
        closed_node.allow("ann", Allowed("DESCRIBE", "GROUP", "billing"))
        assert (await api.get("/history?group=billing", headers=ann)).status == 403
        closed_node.allow("ann", Allowed("DESCRIBE", "TOPIC", "orders"))
        assert (await api.get("/history?group=billing", headers=ann)).status == 200
