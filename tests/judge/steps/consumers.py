"""REST consumers: read to the end, lose answers, commit, and ask for the lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.judge.checks import Read, Row
from tests.judge.client import Request, Response
from tests.judge.model import Topic, parse_json
from tests.judge.paths.read import row_of
from tests.judge.steps import groups
from tests.judge.world import World, body_of

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_KINDS = {"json": "json", "binary": "binary", "text": "text"}


def consume(world: World, rng: random.Random) -> None:
    """Create a consumer, read a topic to its end with calls to any node, and check the records."""
    topic = world.topic(rng)
    group, form = f"{world.prefix}-c{next(world.numbers)}", rng.choice(sorted(_KINDS))
    settings = {
        "name": "c1",
        "format": form,
        "auto.offset.reset": "earliest",
        "auto.commit.enable": "false",
    }
    settings["consumer.request.timeout.ms"] = "200"
    made = world.until_answered(rng, world.json("POST", f"/consumers/{group}", settings))
    if not isinstance(made, Response) or made.status not in (200, 409):
        return
    base = f"/consumers/{group}/instances/c1"
    if rng.random() < 0.5:
        answer = world.until_answered(
            rng, world.json("POST", f"{base}/subscription", {"topics": [topic.name]})
        )
    else:
        parts = [{"topic": topic.name, "partition": part.number} for part in topic.partitions]
        answer = world.until_answered(
            rng, world.json("POST", f"{base}/assignments", {"partitions": parts})
        )
    if isinstance(answer, Response) and answer.status == 204:
        if rng.random() < 0.3:
            _disturb(world, rng, topic, base)
        if not _read_all(world, rng, topic, base, form):
            return
        _commit_and_ask(world, rng, topic, base, group)
    world.until_answered(rng, Request("DELETE", base), seconds=5)


def _disturb(world: World, rng: random.Random, topic: Topic, base: str) -> None:
    """Request records as a page of another origin, and seek to the first record by a time: no position may move."""
    page = (
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "no-cors"),
        ("Origin", "http://evil.example"),
    )
    world.ask(rng, Request("GET", f"{base}/records", page[: rng.choice((1, 3))]))
    if rng.random() < 0.5:
        times = [
            {"topic": topic.name, "partition": part.number, "timestamp": -1}
            for part in topic.partitions
        ]
        world.ask(rng, world.json("POST", f"{base}/positions", {"timestamps": times}))


def _read_all(world: World, rng: random.Random, topic: Topic, base: str, form: str) -> bool:
    """Read until a response is empty, each response twice with its token; return whether all calls got a response."""
    positions = {
        part.number: part.start_range(world.now, world.now)[0] for part in topic.partitions
    }
    began = world.now
    for number in range(40):
        request = Request(
            "GET", f"{base}/records?token=r.{number}" + rng.choice(("", "", "&max_bytes=1"))
        )
        answer = world.until_answered(rng, request)
        if not isinstance(answer, Response) or answer.status != 200:
            return False
        if rng.random() < 0.5 and not world.is_stormy:
            again = world.ask(rng, request)
            if isinstance(again, Response) and again.status == 200:
                is_same = again.body == answer.body
                world.check(
                    "J-consumer",
                    is_same,
                    f"{base} token r.{number} again",
                    answer.body[:300],
                    again.body[:300],
                )
        rows = [row_of(item, form) for item in parse_json(answer.body)]
        _judge_answer(
            world,
            topic,
            positions,
            rows,
            answer,
            f"REST consumer {form} {base} at node {answer.node}",
        )
        if not rows:
            break
    with world.model.lock:
        for part in topic.partitions:
            left = [
                o
                for o in part.must_show(began, world.now, positions[part.number])
                if world.is_stormy is False
            ]
            world.check(
                "J-consumer",
                not left,
                f"{base} {part.name}",
                "all records read",
                f"without {left[:9]}",
            )
    return True


def _judge_answer(
    world: World,
    topic: Topic,
    positions: dict[int, int],
    rows: Sequence[tuple[int, Row]],
    answer: Response,
    where: str,
) -> None:
    for part in topic.partitions:
        own = [row for number, row in rows if number == part.number]
        if not own:
            continue
        start = positions[part.number]
        if world.is_stormy:  # a coordinator that takes over begins at the commit
            start = min(start, own[0].offset)
        world.checker.read(Read(part, where, start, own, answer.began, answer.ended))
        positions[part.number] = own[-1].offset + 1


def _commit_and_ask(world: World, rng: random.Random, topic: Topic, base: str, group: str) -> None:
    answer = world.until_answered(rng, Request("POST", f"{base}/offsets"))
    if not isinstance(answer, Response) or answer.status != 204 or world.is_stormy:
        return
    lags = world.ask(rng, Request("GET", f"/groups/{group}/lags?limit=1000"))
    if not isinstance(lags, Response) or lags.status != 200:
        return
    told = {
        item["partition"]: item for item in body_of(lags)["lags"] if item["topic"] == topic.name
    }
    for part in topic.partitions:
        if part.number not in told:
            where = f"{base} {part.name} behind a commit without a body"
            world.check("J-lag", False, where, "where the consumer stands", sorted(told))
            continue
        groups.judge_lag(
            world, part, told[part.number], lags, f"{base} after a commit of everything"
        )
