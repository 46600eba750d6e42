"""Use up a node's capacity as one caller, and try wrong passwords: other callers must still be served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.judge.client import Request, Response, SocketTransport
from tests.judge.paths.read import FORM
from tests.judge.steps import reads
from tests.judge.world import ADMIN, Caller, World, basic

if TYPE_CHECKING:
    import random

TOKENS_MAX = 1000
STREAMS_MAX = 24  # the judge starts its nodes with this bound


def streams(world: World, rng: random.Random) -> None:
    """Open as many streams as a node allows as one user; another user must still get a stream."""
    topic = world.topic(rng)
    if not isinstance(world.transport, SocketTransport):
        return
    node = rng.choice(world.nodes)
    target = f"/topics/{topic.name}/partitions/0/records?offset=latest&follow=true"
    request = Request("GET", target, (("Accept", "text/event-stream"),))
    greedy = request.with_headers(("Authorization", world.callers["reader"].authorization))
    held = [world.transport.hold(node, greedy) for _ in range(STREAMS_MAX + 2)]
    modest = request.with_headers(("Authorization", world.callers["writer"].authorization))
    mine = world.transport.hold(node, modest)
    statuses = [link.status for link in held]
    if mine.status and not world.is_stormy:
        where = f"a stream of node {node} while another caller holds {statuses.count(200)}"
        world.check("J-access", mine.status in (200, 503), where, "200", mine.status)
    for link in (*held, mine):
        link.close()


def strangers(world: World, rng: random.Random) -> None:
    """Try wrong passwords from one address; a caller with a valid token must still be accepted."""
    node = rng.choice(world.nodes)
    for number in range(12):
        wrong = Caller("a stranger", basic(world.callers["writer"].name, f"wrong {number}"))
        world.ask(
            rng, Request("GET", "/topics", (("Connection", "close"),)), node=node, caller=wrong
        )
    for caller in (ADMIN, world.callers["writer"]):
        answer = world.ask(rng, Request("GET", "/topics"), node=node, caller=caller)
        if isinstance(answer, Response):
            is_in = answer.status in (200, 503)
            where = f"{caller.name} behind wrong passwords at node {node}"
            world.check("J-access", is_in, where, "200", f"{answer.status} {answer.body[:200]!r}")


def tokens(world: World, rng: random.Random) -> None:
    """Create more tokens than a user may have; once in an episode, because it takes a thousand requests."""
    if world.is_stormy or world.notes.get("has_tokens"):
        return
    world.notes["has_tokens"] = True
    name, caller = world.callers["other"].name, world.callers["other"]
    request = world.json("POST", f"/users/{name}/tokens", {"note": "many", "lifetime_ms": 900_000})
    statuses: list[int] = []
    for _ in range(21):
        answers = world.ask_all(rng, [request] * 50, caller=caller)
        statuses += [answer.status for answer in answers if isinstance(answer, Response)]
    is_bounded = statuses.count(201) <= TOKENS_MAX
    world.check(
        "J-access",
        is_bounded,
        f"POST {request.target}",
        f"{TOKENS_MAX} tokens",
        statuses.count(201),
    )


def audit(world: World, rng: random.Random) -> None:
    """Check that the audit topic has each creation of a topic, deletion of records, and number once."""
    form = FORM["ndjson"]
    created, deleted = world.notes.get("created", []), world.notes.get("deleted", [])
    until, missing, numbers = world.now + 20, [*created, *deleted], list[int]()
    while missing and world.now < until:
        answer = world.ask(
            rng, Request("GET", "/topics/__audit/partitions/0/records", (("Accept", form.accept),))
        )
        if isinstance(answer, Response) and answer.status == 200:
            rows = reads.rows_of(world, form, answer, "__audit") or []
            changes = [row.value.parsed for _, row in rows if isinstance(row.value.parsed, dict)]
            numbers = [int(item["number"].text) for item in changes]
            names = [
                str(item["change"].get("name"))
                for item in changes
                if item["action"] == "create_topic"
            ]
            missing = [f"creation of {name}" for name in created if names.count(name) != 1]
            others = "".join(
                repr(item["change"]) for item in changes if item["action"] != "create_topic"
            )
            missing += [
                f"deletion of records of {name}" for name in deleted if repr(name) not in others
            ]
        world.sleep(0.5)
    check = world.check
    check(
        "J-audit",
        not missing,
        "__audit",
        "each creation once, each deletion of records",
        json.dumps(missing),
    )
    is_rising = numbers == sorted(set(numbers))
    check("J-audit", is_rising, "__audit", "numbers that rise", json.dumps(numbers[-20:]))
