"""Callers with different rights in a cluster with access control: a forbidden request must do and show nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.judge.client import Lost, Quirks, Request, Response
from tests.judge.model import Fate, Transaction
from tests.judge.paths.read import FORMATS
from tests.judge.paths.write import PATH, PATHS
from tests.judge.steps import writes
from tests.judge.world import ADMIN, NOBODY, Caller, World, basic, body_of, is_told

if TYPE_CHECKING:
    import random

_PASSWORD = "a password of the judge"


def prepare(world: World, rng: random.Random) -> bool:
    """Create users: two that read and write, one that only reads, and one without any rights."""
    users = {"writer": ("ALL",), "other": ("ALL",), "reader": ("READ",), "none": ()}
    entries = []
    for role, operations in users.items():
        name = f"{world.prefix}-{role}"
        made = world.until_answered(
            rng, world.json("PUT", f"/users/{name}", {"password": _PASSWORD})
        )
        if not isinstance(made, Response) or made.status not in (200, 201):
            return False
        token = world.until_answered(
            rng, world.json("POST", f"/users/{name}/tokens", {"note": "judge"})
        )
        if not isinstance(token, Response) or token.status != 201:
            return False
        world.callers[role] = Caller(name, "Bearer " + body_of(token)["token"])
        entries += [_entry(world, name, "TOPIC", word) for word in operations]
        entries += [_entry(world, name, "GROUP", word) for word in operations]
        entries += [_entry(world, name, "TRANSACTIONAL_ID", "ALL")] if role == "writer" else []
    target = f"/v3/clusters/{world.cluster_id}/acls:batch"
    answer = world.until_answered(rng, world.json("POST", target, {"data": entries}))
    is_known = all(_is_known(world, rng, caller) for caller in world.callers.values())
    return is_known and isinstance(answer, Response) and answer.status == 201


def other_hosts(world: World, rng: random.Random) -> None:
    """Send requests with the host name of another site (DNS rebinding): they must be refused."""
    host = rng.choice(("evil.example", "evil.example:8082", "10.77.0.1.evil.example"))
    gets = [Request("GET", target) for target in ("/topics", "/groups", "/brokers", "/metadata")]
    request = rng.choice([*gets, world.json("POST", "/consumers/g", {"name": "c"})])
    answer = world.ask(rng, request.with_headers(("Host", host)), caller=NOBODY)
    if is_told(answer):
        is_refused = answer.status == 403 or (world.is_closed and answer.status == 401)
        where, got = f"{request.method} {request.target} with Host {host}", f"{answer.status}"
        world.check("J-access", is_refused, where, "403", got)


def _entry(world: World, user: str, resource: str, operation: str) -> dict[str, str]:
    return {
        "principal": f"User:{user}",
        "resource_type": resource,
        "resource_name": world.prefix,
        "pattern_type": "PREFIXED",
        "operation": operation,
        "permission": "ALLOW",
        "host": "*",
    }


def _refused(world: World, answer: Response | Lost, where: str, caller: Caller) -> None:
    """Check that a caller without rights got 401 or 403 and no data."""
    if is_told(answer):
        wanted = (
            403
            if caller.authorization.startswith("Bearer") and "wrong" not in caller.authorization
            else 401
        )
        world.check(
            "J-access",
            answer.status == wanted,
            where,
            f"{wanted} for {caller.name}",
            f"{answer.status} {answer.body[:200]!r}",
        )


def forbidden(world: World, rng: random.Random) -> None:
    """Send requests that the caller may not make."""
    topic = world.topic(rng)
    strangers = [
        NOBODY,
        Caller("a wrong token", "Bearer wrong"),
        Caller("a wrong password", basic("admin", "wrong!!!")),
    ]
    if rng.random() < 0.5:
        caller = rng.choice([world.callers["reader"], world.callers["none"], *strangers[:2]])
        path, place, records = writes.draw(world, rng, topic)
        sent = writes.send(world, rng, path, place, records, caller=caller, note=caller.name)
        _refused(world, sent.answer, sent.where, caller)
        return
    caller = rng.choice([world.callers["none"], *strangers])
    part = rng.choice(topic.partitions)
    form = rng.choice(FORMATS)
    group = f"{world.prefix}-secret"
    admin = world.json(
        "POST", f"/topics/{topic.name}/partitions/0/records:delete", {"before_offset": 0}
    )
    commit = {"offsets": [{"topic": topic.name, "partition": 0, "offset": 0}]}
    requests = [
        Request(
            "GET",
            f"/topics/{topic.name}/partitions/{part.number}/records?follow=false",
            (("Accept", form.accept or "*/*"),),
        ),
        Request("GET", f"/topics/{topic.name}/records?follow=false"),
        Request("GET", f"/topics/{topic.name}"),
        Request("GET", f"/groups/{group}/lags"),
        Request("DELETE", f"/v3/clusters/{world.cluster_id}/topics/{topic.name}"),
        world.json("POST", f"/groups/{group}/offsets", commit),
        world.json("POST", "/transactions:begin", {"transactional_id": f"{world.prefix}-x"}),
        world.json(
            "PUT",
            f"/v3/clusters/{world.cluster_id}/topics/{topic.name}/configs/retention.ms",
            {"value": "1"},
        ),
        admin,
    ]
    request = rng.choice(requests)
    _refused(
        world, world.ask(rng, request, caller=caller), f"{request.method} {request.target}", caller
    )


def lists(world: World, rng: random.Random) -> None:
    """Request lists as a caller without rights: no name of this episode may be in them."""
    caller = world.callers["none"]
    v3 = f"/v3/clusters/{world.cluster_id}"
    targets: tuple[str, ...] = (
        "/topics",
        "/groups",
        "/transactions",
        "/metadata",
        "/metadata/topics",
        f"{v3}/topics",
        f"{v3}/consumer-groups",
    )
    targets += (
        "/users",
        "/quotas",
        "/reassignments",
        f"{v3}/acls",
        "/metadata/summary",
        "/history",
    )
    answer = world.ask(rng, Request("GET", rng.choice(targets)), caller=caller)
    if isinstance(answer, Response) and answer.status < 400:
        body = answer.body.decode("utf-8", "replace").replace(caller.name, "")
        is_silent = world.prefix not in body
        where = f"a list for {caller.name}"
        world.check("J-access", is_silent, where, "no name of what it may not see", body[:400])


def transactions_of_others(world: World, rng: random.Random) -> None:
    """List transactions as a reader of the topic: transactional ids of others must not be shown."""
    topic = world.topic(rng)
    name = f"{world.prefix}-hidden-{next(world.numbers)}"
    begun = world.until_answered(
        rng, world.json("POST", "/transactions:begin", {"transactional_id": name})
    )
    if not isinstance(begun, Response) or begun.status != 200:
        return
    told = body_of(begun)
    tx = Transaction(name, world.now)
    records = PATHS[0].some(rng, world.model, topic, 0, 1)
    mark = ("Milena-Transaction", told["transaction"])
    writes.send(world, rng, PATHS[0], 0, records, mark, transaction=tx, note=f"within {name}")
    listed = world.ask(rng, Request("GET", "/transactions"), caller=world.callers["reader"])
    if isinstance(listed, Response) and listed.status == 200:
        is_hidden = name not in listed.body.decode()
        world.check(
            "J-access", is_hidden, "GET /transactions for a reader", f"no {name}", listed.body[:300]
        )
    world.until_answered(
        rng, Request("POST", f"/transactions/{told['producer_id']}/{told['producer_epoch']}:abort")
    )
    world.model.end(tx, Fate.REFUSED, after_s=10)


def producer_of_another(world: World, rng: random.Random) -> None:
    """Write a batch with the producer id of another user: it must be refused, and must not affect that user."""
    topic = world.topic(rng)
    owner, thief = world.callers["writer"], world.callers["other"]
    made = world.until_answered(rng, Request("POST", "/producers"), caller=owner)
    if not isinstance(made, Response) or made.status != 200:
        return
    told = body_of(made)
    part = rng.choice(topic.partitions)
    path = PATH["batch"]
    for caller in (thief, owner):
        records = [path.draw(rng, world.model, topic, part.number)]
        body = path.batch(records, told["producer_id"], told["producer_epoch"], 0)
        request = path.request(records, part.number, world.cluster_id)
        request = Request("POST", request.target, request.headers, body)
        world.model.begin(records)
        first = world.until_answered(rng, request, caller=caller)
        where = (
            f"{request.target} of producer {told['producer_id']} of {owner.name} by {caller.name}"
        )
        writes.settle(world, path, records, first, where)
        if not is_told(first) or first.status >= 500:
            return
        if caller is thief:
            world.check("J-access", first.status != 200, where, "a refusal", first.body[:200])


def key_of_another(world: World, rng: random.Random) -> None:
    """Use an `Idempotency-Key` that another user has used: the two keys must be independent."""
    topic = world.topic(rng)
    key = f"{world.prefix}-shared-{next(world.numbers)}"
    for role in ("writer", "other"):
        caller = world.callers[role]
        path = rng.choice([path for path in PATHS if not path.is_v3 and path.name != "batch"])
        records, header = path.some(rng, world.model, topic, 0, 1), ("Idempotency-Key", key)
        note = "under a key of another user"
        sent = writes.send(
            world, rng, path, 0, records, header, caller=caller, patience=30, note=note
        )
        if isinstance(sent.answer, Response) and sent.answer.status < 429:
            is_taken = sent.answer.status == 200
            got = sent.answer.body[:200]
            world.check("J-access", is_taken, sent.where, "its own record written", got)


def trailers(world: World, rng: random.Random) -> None:
    """Put headers into the trailers of a chunked request: none may affect the next request on the connection."""
    topic = world.topic(rng)
    path = rng.choice([path for path in PATHS if path.name in ("v2-text", "v2-json", "plain")])
    groups = [path.some(rng, world.model, topic, 0, 1) for _ in range(3)]
    requests = [path.request(records, 0, world.cluster_id) for records in groups]
    key = f"{world.prefix}-trailer-{next(world.numbers)}"
    stolen = ADMIN.authorization
    choices = (
        [(("Idempotency-Key", key),), (("Authorization", stolen),)]
        if world.is_closed
        else [(("Idempotency-Key", key),)]
    )
    extra = rng.choice([*choices, (("If-Match", '"1000000"'),), (("X-Request-Id", "stolen"),)])
    body = requests[0].body or b""
    requests[0] = requests[0].with_quirks(Quirks(chunks=(max(1, len(body)),), trailers=extra))
    is_stolen = extra[0][0] == "Authorization"
    caller = ADMIN if world.is_closed else None
    for records in groups:
        world.model.begin(records)
    mark = [("X-Request-Id", f"{world.prefix}-{next(world.numbers)}") for _ in requests]
    asked = []
    for number, request in enumerate(requests):
        own = caller if number == 0 or not is_stolen else None
        credentials = [("Authorization", own.authorization)] if own is not None else []
        asked.append(request.with_headers(mark[number], *credentials))
    node = rng.choice(world.nodes)
    if rng.random() < 0.5:
        answers = world.transport.exchange(node, asked)
    else:
        answers = [world.transport.exchange(node, [request])[0] for request in asked]
    for number, (records, answer) in enumerate(zip(groups, answers, strict=True)):
        where = f"{path.name} {requests[number].target} behind trailers {extra[0][0]}"
        writes.settle(world, path, records, answer, where)
        if number == 0 or isinstance(answer, Lost) or answer.status in (429, 503, 504):
            continue
        wanted = 401 if is_stolen else 200
        got = f"{answer.status} {answer.headers.get('x-request-id')} {answer.body[:200]!r}"
        is_own = answer.headers.get("x-request-id") == mark[number][1]
        world.check(
            "J-trailer",
            answer.status == wanted and is_own,
            where,
            f"{wanted} {mark[number][1]}",
            got,
        )


def tokens(world: World, rng: random.Random) -> None:
    """Create tokens with tokens: none may have more rights, a longer life, or administer beyond its grants."""
    name, check = world.callers["writer"].name, world.check
    owner = Caller(name, basic(name, _PASSWORD))
    grant = {
        "resource_type": "TOPIC",
        "name": world.prefix,
        "operations": ["READ"],
        "pattern_type": "PREFIXED",
    }
    narrow = _token(world, rng, owner, {"note": "narrow", "lifetime_ms": 60_000, "grants": [grant]})
    if narrow is not None:
        _narrow(
            world,
            rng,
            Caller(f"a narrow token of {name}", "Bearer " + narrow["token"]),
            name,
            narrow["token_id"],
        )
    odd = world.json(
        "POST", f"/users/{name}/tokens", {"note": "red \x1b[31m\n", "lifetime_ms": 60_000}
    )
    answer = world.ask(rng, odd, caller=owner)
    if is_told(answer):
        check(
            "J-text",
            answer.status == 422,
            "a token's note with ESC and a line feed",
            "422",
            answer.status,
        )
    first = _token(world, rng, owner, {"note": "first", "lifetime_ms": 60_000})
    if first is None:
        return
    maker = Caller("a token", "Bearer " + first["token"])
    second = _token(world, rng, maker, {"note": "second"}) if _is_known(world, rng, maker) else None
    if second is None:
        return
    is_short = second["expires_ms"] is not None and second["expires_ms"] <= first["expires_ms"]
    check(
        "J-token",
        is_short,
        "a token made by a token",
        f"an end by {first['expires_ms']}",
        second["expires_ms"],
    )
    target = f"/users/{name}/tokens/{first['token_id']}"
    gone = world.until_answered(rng, Request("DELETE", target), caller=owner)
    if isinstance(gone, Response) and gone.status == 204 and not world.is_stormy:
        world.sleep(0.5)  # each node learns it within milliseconds
        answer = world.ask(
            rng, Request("GET", "/topics"), caller=Caller("an heir", "Bearer " + second["token"])
        )
        is_gone = isinstance(answer, Lost) or answer.status in (401, 429, 503)
        check(
            "J-token",
            is_gone,
            "a token whose maker was deleted",
            "401",
            getattr(answer, "status", 0),
        )


def _is_known(world: World, rng: random.Random, caller: Caller) -> bool:
    """Wait until every node knows a new token, which takes milliseconds."""
    for node in world.nodes:
        until = world.now + 5
        while world.now < until:
            answer = world.ask(rng, Request("GET", "/access"), node=node, caller=caller)
            if isinstance(answer, Response) and answer.status == 200:
                break
            world.sleep(0.05)
        else:
            where = f"a new token at node {node}"
            world.check("J-token", world.is_stormy, where, "known within 5 s", "unknown")
            return False
    return True


def _token(
    world: World, rng: random.Random, caller: Caller, body: dict[str, object]
) -> dict[str, Any] | None:
    """Create a token of the user that writes."""
    target = f"/users/{world.callers['writer'].name}/tokens"
    made = world.until_answered(rng, world.json("POST", target, body), caller=caller)
    if not isinstance(made, Response) or made.status != 201:
        return None
    told = body_of(made)
    return {"expires_ms": None, "token_id": "", **told}


def _narrow(world: World, rng: random.Random, caller: Caller, user: str, token_id: str) -> None:
    """Check that a token for reading one topic allows nothing else, and shows only itself in lists."""
    topic = world.topic(rng)
    if not _is_known(world, rng, caller):
        return
    records = PATHS[0].some(rng, world.model, topic, 0, 1)
    written = writes.send(world, rng, PATHS[0], 0, records, caller=caller, note=caller.name)
    password = world.json("PUT", f"/users/{user}", {"password": "another password"})
    calls = {
        "write": written.answer,
        "make a token": world.ask(
            rng, world.json("POST", f"/users/{user}/tokens", {}), caller=caller
        ),
        "change the password": world.ask(rng, password, caller=caller),
    }
    check = world.check
    for name, told in calls.items():
        if is_told(told):
            got = f"{told.status} {told.body[:200]!r}"
            check("J-token", told.status == 403, f"{name} by {caller.name}", "403", got)
    listed = world.ask(rng, Request("GET", f"/users/{user}/tokens"), caller=caller)
    if isinstance(listed, Response) and listed.status == 200:
        seen = [item["token_id"] for item in body_of(listed)["tokens"]]
        check(
            "J-token", seen == [token_id], f"the tokens that {caller.name} sees", [token_id], seen
        )


def read_as_reader(world: World, rng: random.Random) -> None:
    """Read as a caller with the right to read."""
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    target = f"/topics/{topic.name}/partitions/{part.number}/records"
    answer = world.ask(
        rng,
        Request("GET", target, (("Accept", FORMATS[4].accept),)),
        caller=world.callers["reader"],
    )
    if is_told(answer):
        is_deleted = answer.status == 400
        world.check(
            "J-access",
            answer.status == 200 or is_deleted,
            target,
            "200 for a reader",
            answer.body[:200],
        )
