"""Create topics, delete records, delete topics and create them again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.judge.checks import Read
from tests.judge.client import Request, Response
from tests.judge.model import Deletion, Fate, Topic
from tests.judge.paths.read import FORM, FORMATS, events
from tests.judge.paths.write import PATHS, WritePath
from tests.judge.steps import reads, writes
from tests.judge.world import World, body_of, code_of, is_told, is_unsure

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping


def create(
    world: World,
    rng: random.Random,
    name: str = "",
    *,
    is_shared: bool = True,
    most: int = 3,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Topic | None:
    """Create a topic, with a new name unless one is given, and with random optional fields."""
    is_new = not name
    name = name or f"{world.prefix}-{next(world.numbers)}"
    partitions = min(most, rng.choice((1, 1, 2, 3)))
    # Some logs have many short segments: a response must not end where a segment ends.
    short = {"configs": [{"name": "segment.ms", "value": "200"}]} if rng.random() < 0.4 else {}
    body = {"topic_name": name, "partitions_count": partitions, **short, **more}
    answer = world.until_answered(rng, world.json("POST", "/admin/topics", body))
    if isinstance(answer, Response) and (
        answer.status == 201 or (is_new and code_of(answer) == 40002)
    ):
        ask(world, rng, name, 200)
        if is_new and answer.status == 201 and "is_prepared" in world.notes:
            world.notes.setdefault("created", []).append(name)
        return world.model.create(name, partitions, is_shared=is_shared)
    return None


def ask(world: World, rng: random.Random, name: str, wanted: int) -> None:
    """Request a topic from any node: it must know a topic that another node has just created."""
    target = rng.choice((f"/topics/{name}", f"/v3/clusters/{world.cluster_id}/topics/{name}"))
    answer = world.ask(rng, Request("GET", target))
    if is_told(answer):
        where = f"{target} at node {answer.node}"
        got = f"{answer.status} {answer.body[:200]!r}"
        world.check("J-known", answer.status == wanted, where, wanted, got)


def create_shared(world: World, rng: random.Random) -> None:
    """Create a topic for all workers."""
    create(world, rng)


def delete_records(world: World, rng: random.Random) -> None:
    """Delete the oldest records of a partition."""
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    end = part.end_floor(world.now)
    is_all = rng.random() < 0.1
    before = 1 << 62 if is_all else rng.randint(0, end)
    deletion = Deletion(world.now, before)
    with world.model.lock:
        part.deletions.append(deletion)
    target = f"/topics/{topic.name}/partitions/{part.number}/records:delete"
    answer = world.ask(
        rng, world.json("POST", target, {"before_offset": "latest" if is_all else before})
    )
    check, where = world.check, f"{target} {'latest' if is_all else before}"
    with world.model.lock:
        if isinstance(answer, Response) and answer.status == 200:
            start = body_of(answer)["log_start_offset"]
            others = max((d.before for d in part.deletions if d is not deletion), default=0)
            least = min(end, part.stable_floor(deletion.began)) if is_all else before
            is_right = start >= least and (is_all or start <= max(before, others))
            check("J-deleted", is_right, where, f"a beginning of {least}", start)
            deletion.before, deletion.ended = start, world.now
            world.notes.setdefault("deleted", []).append(topic.name)
        elif not is_unsure(answer):
            held = part.stable_floor(deletion.began) <= before
            is_fine = held or not is_told(answer)
            check("J-deleted", is_fine, where, "a deletion", getattr(answer, "body", b"")[:200])
            part.deletions.remove(deletion)


@dataclass
class _Former:
    """The state that a client keeps about a topic that will be deleted."""

    etag: str
    event_id: str
    topic_event_id: str
    key: str
    group: str


def recreate(world: World, rng: random.Random) -> None:
    """Delete a topic, create it again, and use the state that clients kept about the former one."""
    name = f"{world.prefix}-again-{next(world.numbers)}"
    first = create(world, rng, name, is_shared=False, most=1)
    if first is None:
        return
    path = PATHS[0]
    former = _live(world, rng, first, path, count=3)
    if former is None:
        return
    gone = world.until_answered(
        rng, Request("DELETE", f"/v3/clusters/{world.cluster_id}/topics/{name}")
    )
    if not isinstance(gone, Response) or gone.status not in (204, 404):
        return
    ask(world, rng, name, 404)
    second = create(world, rng, name, is_shared=False, most=1)
    if second is None:
        return
    if not _write(world, rng, second, path, 3):
        return
    _use_etag(world, rng, second, path, former)
    _write(world, rng, second, path, 2)
    _use_tags(world, rng, second, path, former)
    _use_rest(world, rng, second, path, former)


def _write(
    world: World,
    rng: random.Random,
    topic: Topic,
    path: WritePath,
    count: int,
    *more: tuple[str, str],
) -> bool:
    records = path.some(rng, world.model, topic, 0, count)
    headers = more or (("Idempotency-Key", f"{topic.name}-{next(world.numbers)}"),)
    writes.send(world, rng, path, 0, records, *headers, patience=30)
    return all(sent.fate is Fate.ACKED for sent in records)


def _live(
    world: World, rng: random.Random, topic: Topic, path: WritePath, count: int
) -> _Former | None:
    """Write to a topic, read it, and commit for it; return the state that a client keeps."""
    key, group = f"{topic.name}-kept", f"{topic.name}-group"
    if not _write(world, rng, topic, path, count, ("Idempotency-Key", key)):
        return None
    part = topic.partitions[0]
    fetched = reads.fetch(world, rng, part, FORMATS[0], {"offset": "earliest"})
    streamed = reads.fetch(world, rng, part, FORM["sse"], {"offset": "earliest"})
    target = f"/topics/{topic.name}/records?offset=earliest&follow=false"
    whole = world.ask(rng, Request("GET", target, (("Accept", "text/event-stream"),)))
    body = {"offsets": [{"topic": topic.name, "partition": 0, "offset": count}]}
    world.until_answered(rng, world.json("POST", f"/groups/{group}/offsets", body))
    answers = [
        answer
        for answer in (fetched, streamed, whole)
        if isinstance(answer, Response) and answer.status == 200
    ]
    if len(answers) < 3 or not events(answers[1].body) or not events(answers[2].body):
        return None
    ids = [events(answer.body)[-1][0] for answer in answers[1:]]
    return _Former(answers[0].headers.get("etag", ""), ids[0], ids[1], key, group)


def _use_tags(
    world: World, rng: random.Random, topic: Topic, path: WritePath, former: _Former
) -> None:
    """Use the former topic's `ETag` and `Last-Event-ID`, whose numbers would also be valid in the new topic."""
    check, part = world.check, topic.partitions[0]
    for form in (FORM["sse"], FORM["ndjson"]):
        for target, last in (
            (f"/topics/{topic.name}/partitions/0/records", former.event_id),
            (f"/topics/{topic.name}/records", former.topic_event_id),
        ):
            headers = (("Accept", form.accept), ("Last-Event-ID", last))
            answer = world.ask(rng, Request("GET", target + "?follow=false", headers))
            if not isinstance(answer, Response) or answer.status != 200:
                continue
            if world.is_apart(answer.node):
                continue  # it may not have heard of the deletion
            rows = [row for _, row in reads.rows_of(world, form, answer, target) or []]
            where = f"{form.name} {target} with Last-Event-ID {last} of the former topic"
            must = part.must_show(answer.began, answer.ended, 0)
            offsets = [row.offset for row in rows]
            check(
                "J-successor",
                not must or offsets[: len(must)] == must,
                where,
                f"{must}, or a refusal",
                offsets,
            )
            world.checker.read(Read(part, where, 0, rows, answer.began, answer.ended))


def _use_etag(
    world: World, rng: random.Random, topic: Topic, path: WritePath, former: _Former
) -> None:
    """Write with the former topic's `ETag`, whose number is the end of the new topic."""
    records, tag = path.some(rng, world.model, topic, 0, 1), ("If-Match", former.etag)
    sent = writes.send(world, rng, path, 0, records, tag, note=f"{tag} of the former topic")
    is_taken = isinstance(sent.answer, Response) and sent.answer.status == 200
    world.check("J-successor", not is_taken, sent.where, "a refusal", "200")


def _use_rest(
    world: World, rng: random.Random, topic: Topic, path: WritePath, former: _Former
) -> None:
    """Use the former topic's idempotency key and group."""
    check = world.check
    target = f"/groups/{former.group}/offsets?topic={topic.name}"
    answer = world.ask(rng, Request("GET", target))
    if isinstance(answer, Response) and answer.status == 200:
        told = json.loads(answer.body)["offsets"].get(topic.name, {})
        check("J-successor", not told, target, "no offsets of the former topic", told)
    records, key = path.some(rng, world.model, topic, 0, 1), ("Idempotency-Key", former.key)
    sent = writes.send(
        world, rng, path, 0, records, key, patience=30, note="under a key of the former topic"
    )
    if is_told(sent.answer) and sent.answer.status < 500:
        check("J-successor", sent.answer.status == 200, sent.where, "200", sent.answer.body[:200])
