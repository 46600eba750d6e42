"""Send bodies and headers of old, unusual and broken clients: each must be handled as documented, or refused."""

from __future__ import annotations

import gzip
import time
from typing import TYPE_CHECKING

from tests.judge.client import Lost, Quirks, Request, Response
from tests.judge.model import Fate
from tests.judge.paths.read import FORMATS
from tests.judge.paths.write import PATH, PATHS
from tests.judge.steps import reads, topics, writes
from tests.judge.world import World, is_told, is_unsure

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


def neighbours(world: World, rng: random.Random) -> None:
    """Send one invalid record among valid ones: only the invalid one may be refused."""
    path = PATH[rng.choice(("v3-json", "v3-batch", "v2-json"))]
    fault = rng.choice(("late", "seconds", "partition") if path.is_v3 else ("late", "seconds"))
    bound = {"name": "message.timestamp.before.max.ms", "value": "86400000"}
    is_bounded = fault == "seconds"
    own = (
        topics.create(world, rng, is_shared=False, more={"configs": [bound]})
        if is_bounded
        else None
    )
    topic = own if is_bounded else world.topic(rng)
    if topic is None:
        return
    number = rng.randrange(len(topic.partitions))
    records = path.some(rng, world.model, topic, number, rng.choice((2, 3, 5)))
    bad = rng.choice(records)
    if fault == "partition":
        bad.partition = 99
    else:
        now_s = int(time.time())
        bad.timestamp = now_s if is_bounded else (now_s + 36 * 3600) * 1000
    note, place = f"with one bad record ({fault})", None if path.is_v3 else number
    told = writes.send(world, rng, path, place, records, note=note)
    answer, where = told.answer, told.where
    if not is_told(answer) or answer.status >= 500 or world.is_stormy:
        return
    for sent, receipt in zip(records, told.receipts, strict=True):
        is_right = (receipt.status != 200) if sent is bad else (receipt.status in (200, 503, 504))
        expected = "a refusal of the bad one" if sent is bad else "its good neighbour taken"
        world.check("J-neighbour", is_right, where, expected, f"{receipt} {answer.body[:300]!r}")


def _twice_packed(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")), gzip.compress(
        gzip.compress(body)
    )


def _twice_said(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Encoding", "identity"), ("Content-Encoding", "gzip")), gzip.compress(body)


def _listed(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Encoding", "gzip, gzip"),), gzip.compress(gzip.compress(body))


def _packed_transfer(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Transfer-Encoding", "gzip, chunked"),), gzip.compress(body)


def _unknown(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Encoding", "zstd"),), body


def _two_types(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Type", "application/vnd.kafka.binary.v2+json"),), body


def _two_lengths(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Content-Length", str(len(body))), ("Content-Length", str(len(body) - 1))), body


def _two_keys(body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    return (("Idempotency-Key", "one"), ("Idempotency-Key", "two")), body


_FRAMES: tuple[Callable[[bytes], tuple[tuple[tuple[str, str], ...], bytes]], ...] = (
    _twice_packed,
    _twice_said,
    _listed,
    _packed_transfer,
    _unknown,
    _two_types,
    _two_lengths,
    _two_keys,
)


_WANTED = {
    _twice_packed: 415,
    _listed: 415,
    _packed_transfer: 400,
    _unknown: 415,
    _two_lengths: 400,
    _two_keys: 400,
}


def frames(world: World, rng: random.Random) -> None:
    """Describe a body with unusual headers: either the described body is stored, or nothing."""
    topic = world.topic(rng)
    path = rng.choice([path for path in PATHS if path.name != "batch"])
    records = [path.draw(rng, world.model, topic, None)]
    plain = path.request(records, None, world.cluster_id)
    change = rng.choice(_FRAMES)
    if change is _two_types and not path.content_type:
        return  # Then it is the only type, and the records are what their base64 stands for.
    headers, body = change(plain.body or b"")
    request = Request("POST", plain.target, (*plain.headers, *headers), body, Quirks(is_fresh=True))
    world.model.begin(records)
    answer = world.ask(rng, request, is_plain=True)
    where = f"{path.name} {request.target} {change.__name__.strip('_')}"
    writes.settle(world, path, records, answer, where)
    if is_told(answer) and change in _WANTED:
        got = f"{answer.status} {answer.body[:200]!r}"
        world.check("J-body", answer.status == _WANTED[change], where, f"{_WANTED[change]}", got)
    if isinstance(answer, Response) and answer.status == 200 and records[0].fate is Fate.ACKED:
        part = topic.partitions[records[0].partition or 0]
        reads.read_from(world, rng, part, rng.choice(FORMATS), records[0].offset or 0)


def heads(world: World, rng: random.Random) -> None:
    """Send `Accept` headers of old clients, pipelines, and HEAD: the response must have a documented type."""
    topic = world.topic(rng)
    v2, json_type = "application/vnd.kafka.v2+json", "application/json"
    accepts = (
        f"{v2}, application/vnd.kafka+json; q=0.9, {json_type}; q=0.8",
        f"application/vnd.kafka.v1+json, {json_type}; q=0.5",
        "application/vnd.kafka+json",
        "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
        "*/*;q=0.8, application/json;q=0.9",
        "application/*",
        "Application/JSON",
    )
    targets = ("/topics", f"/topics/{topic.name}", f"/topics/{topic.name}/partitions", "/brokers")
    requests = [
        Request(
            rng.choice(("GET", "GET", "HEAD")),
            rng.choice(targets),
            (("Accept", rng.choice(accepts)),),
        )
        for _ in range(3)
    ]
    for request, answer in zip(requests, world.ask_all(rng, requests), strict=True):
        if not is_told(answer):
            continue
        where = f"{request.method} {request.target} Accept {request.headers[0][1]}"
        world.check(
            "J-accept", answer.status == 200, where, "200", f"{answer.status} {answer.body[:200]!r}"
        )
        if request.method == "HEAD":
            world.check("J-body", not answer.body, where, "no body", answer.body[:100])


def followed(world: World, rng: random.Random) -> None:
    """Close the connection right after requests with keys, or only the sending side. Repeats must add no records.

    Under faults, the topic has two replicas, and writes need both. The repeats come two seconds later. A 503 promises
    that nothing was written, also by the first attempt.
    """
    more = {"replication_factor": 2, "configs": [{"name": "min.insync.replicas", "value": "2"}]}
    topic = topics.create(world, rng, more=more) if world.is_stormy else world.topic(rng)
    if topic is None:
        return
    left = []
    for _ in range(20 if world.is_stormy else 1):
        path = rng.choice([path for path in PATHS if not path.is_v3])
        number = rng.randrange(len(topic.partitions))
        records = path.some(rng, world.model, topic, number, 1)
        key = ("Idempotency-Key", f"{world.prefix}-cut-{next(world.numbers)}")
        request = path.request(records, number, world.cluster_id).with_headers(key)
        world.model.begin(records)
        is_abandoned = world.is_stormy or rng.random() < 0.5
        quirks = Quirks(is_abandoned=is_abandoned, is_shut=not is_abandoned, is_fresh=True)
        node = rng.choice(world.nodes)
        first = world.ask(rng, request.with_quirks(quirks), node=node)
        left.append((path, records, request, first))
        # Make sure that the node is not paused: a paused node would read the first attempt after the repeat.
        world.ask(rng, Request("GET", "/livez"), node=node)
        world.sleep(0.1 if world.is_stormy else 0)
    for path, records, request, first in left:
        answer = world.until_answered(rng, request, seconds=0 if world.is_stormy else 30)
        if isinstance(answer, Response) and 400 <= answer.status < 500:
            answer = Lost("a refusal under a key speaks of this try alone")
        where = f"{path.name} {request.target} under {request.headers[-1][1]} again"
        writes.settle(world, path, records, answer, where)
        if is_told(first) and first.status == 200 and is_told(answer) and not is_unsure(answer):
            same = answer.status == 200 and path.receipts(answer, 1) == path.receipts(first, 1)
            world.check("J-once", same, where, first.body[:200], answer.body[:200])
