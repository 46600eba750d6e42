"""Write records in a random way; repeat writes with a key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.judge.client import Lost, Request, Response, draw_quirks
from tests.judge.model import Fate, Sent, Topic, Transaction
from tests.judge.paths.read import FORMATS
from tests.judge.paths.write import PATH, PATHS, Receipt, WritePath
from tests.judge.steps import reads
from tests.judge.world import UNSURE, Caller, World, is_told, is_unsure

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


def draw(
    world: World,
    rng: random.Random,
    topic: Topic,
    *,
    paths: Sequence[WritePath] = PATHS,
    most: int = 5,
) -> tuple[WritePath, int | None, list[Sent]]:
    """Draw a way to write, a partition, and records."""
    path = rng.choice(paths)
    number = rng.randrange(len(topic.partitions))
    if path.name == "batch":
        place: int | None = number
        own: int | None = number
    elif path.is_v3:
        place, own = None, number if rng.random() < 0.7 else None
    else:
        place = number if rng.random() < 0.6 else None
        own = place if place is not None or rng.random() < 0.6 or not path.has_extras else number
    return path, place, path.some(rng, world.model, topic, own, rng.choice((1, 1, 2, 3, most)))


@dataclass(frozen=True)
class Written:
    """A write: its request, the response, and the receipt of each record."""

    request: Request
    answer: Response | Lost
    receipts: list[Receipt]
    where: str


def send(
    world: World,
    rng: random.Random,
    path: WritePath,
    place: int | None,
    records: list[Sent],
    *headers: tuple[str, str],
    caller: Caller | None = None,
    transaction: Transaction | None = None,
    patience: float | None = None,
    note: str = "",
) -> Written:
    """Send records and update the model; with `patience`, in s, repeat them until there is a response."""
    request = path.request(records, place, world.cluster_id).with_headers(*headers)
    world.model.begin(records, transaction)
    if patience is None:
        answer = world.ask(rng, request, caller=caller)
    else:
        answer = world.until_answered(rng, request, seconds=patience, caller=caller)
    where = f"{path.name} {request.target} {note}"
    return Written(request, answer, settle(world, path, records, answer, where), where)


def settle(
    world: World, path: WritePath, records: Sequence[Sent], answer: Response | Lost, where: str
) -> list[Receipt]:
    """Update the model from a response about records; return the receipts."""
    if isinstance(answer, Lost):
        for sent in records:
            world.model.settle(sent, Fate.UNKNOWN)
        return []
    try:
        receipts = path.receipts(answer, len(records))
    except (ValueError, KeyError, TypeError) as error:
        world.check(
            "J-status", False, where, "receipts", f"{answer.status} {answer.body[:200]!r} {error!r}"
        )
        receipts = [Receipt(504)] * len(records)
    for sent, receipt in zip(records, receipts, strict=True):
        if receipt.status == 200:
            acknowledge(world, sent, receipt, where)
        elif receipt.status == 504 or receipt.code in UNSURE or receipt.status == 500:
            world.model.settle(sent, Fate.UNKNOWN)
        else:
            sent.path += f", {receipt.status} {receipt.code} by node {answer.node}"
            world.model.settle(sent, Fate.REFUSED)
    return receipts


def acknowledge(world: World, sent: Sent, receipt: Receipt, where: str) -> None:
    """Check a receipt against the model, and update the model."""
    check, topic = world.check, sent.topic
    with world.model.lock:
        number, offset = receipt.partition, receipt.offset
        if number is None or offset is None or not 0 <= number < len(topic.partitions):
            check("J-status", False, where, "partition and offset", receipt)
            world.model.settle(sent, Fate.UNKNOWN)
            return
        part = topic.partitions[number]
        check(
            "J-phantom",
            sent.partition in (None, number),
            where,
            f"partition {sent.partition}",
            receipt,
        )
        other = part.acked.get(offset, sent)
        check(
            "J-stable",
            other is sent,
            where,
            f"offset {offset} of {part.name} is w{other.uid}x by {other.path}",
            receipt,
        )
        floor = part.end_floor(sent.began)
        check(
            "J-order",
            offset >= floor,
            where,
            f"an offset from {floor}, acknowledged before it was sent",
            receipt,
        )
        place = part.uids.get(sent.uid, offset)
        check("J-once", place == offset, where, f"w{sent.uid}x at {place}", receipt)
        named = sent.partition
        world.model.settle(sent, Fate.ACKED, number, offset)
        if named is None and sent.key.data is not None and not sent.key.is_loose:
            home, by = topic.key_places.setdefault(sent.key.data, (number, where))
            check(
                "J-key", home == number, where, f"key {sent.key.data!r} in {home}, as {by}", number
            )


def write(world: World, rng: random.Random) -> None:
    """Write once, without a repetition. Half of the time read it back at once, from any node."""
    topic = world.topic(rng)
    told = send(world, rng, *draw(world, rng, topic)).receipts
    last = next((receipt for receipt in reversed(told) if receipt.status == 200), None)
    if last is not None and rng.random() < 0.5:
        part = topic.partitions[last.partition or 0]
        reads.read_from(world, rng, part, rng.choice(FORMATS), last.offset or 0)


def repeat(world: World, rng: random.Random) -> None:
    """Write with a key until there is a response, then once more on another node: the offsets must be the same."""
    topic = world.topic(rng)
    path, place, records = draw(world, rng, topic)
    key = f"{world.prefix}-key-{next(world.numbers)}"
    # A refusal promises that nothing was written, also by earlier attempts.
    patience = rng.choice((30.0, 30.0, 1.0))
    header = ("Idempotency-Key", key)
    sent = send(world, rng, path, place, records, header, patience=patience, note=f"under {key}")
    answer = sent.answer
    if is_told(answer) and answer.status in (200, 207) and not is_unsure(answer):
        _send_again(world, rng, path, sent)
        world.notes.setdefault("keyed", []).append((path, sent))


def _send_again(world: World, rng: random.Random, path: WritePath, sent: Written) -> None:
    """Repeat a request with a key that got a response: the receipts must be the same."""
    again = world.until_answered(rng, sent.request)
    if is_told(again) and not is_unsure(again):
        told = path.receipts(again, len(sent.receipts))
        got = f"{again.status} {told} {again.body[:200]!r}"
        world.check("J-once", told == sent.receipts, sent.where + " again", sent.receipts, got)


def conditional(world: World, rng: random.Random) -> None:
    """Write twice with the same `If-Match`: at most one may be written, and it must get the named offset."""
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    target = f"/topics/{topic.name}/partitions/{part.number}/records?offset=-1"
    target += rng.choice(("", "&isolation=read_uncommitted"))
    asked = world.ask(
        rng, Request("GET", target, (("Accept", "application/vnd.kafka.binary.v2+json"),))
    )
    if not isinstance(asked, Response) or asked.status != 200:
        return
    tag, named = asked.headers.get("etag", ""), int(asked.headers["milena-next-offset"])
    taken = 0
    for _ in range(2):
        path = rng.choice([path for path in PATHS if not path.is_v3])
        records = path.some(rng, world.model, topic, part.number, rng.choice((1, 2)))
        sent = send(
            world, rng, path, part.number, records, ("If-Match", tag), note=f"If-Match {tag}"
        )
        answer, where = sent.answer, sent.where
        if isinstance(answer, Lost):
            return
        offsets = [receipt.offset for receipt in sent.receipts if receipt.status == 200]
        taken += bool(offsets)
        wanted = list(range(named, named + len(records)))
        world.check("J-if-match", offsets in ([], wanted), where, f"{wanted} or nothing", offsets)
        world.check("J-if-match", taken < 2, where, "one of two writers", "both acknowledged")
        if answer.status == 412:
            end = json.loads(answer.body)["end_offset"]
            floor = part.end_floor(answer.began)
            is_true = end >= floor and end != named
            world.check("J-if-match", is_true, where, f"an end from {floor}, not {named}", end)


def pipeline(world: World, rng: random.Random) -> None:
    """Write several requests on one connection before the first response is read."""
    topic = world.topic(rng)
    drawn = [draw(world, rng, topic, most=3) for _ in range(rng.choice((2, 3, 4)))]
    requests = []
    for path, place, records in drawn:
        request = path.request(records, place, world.cluster_id)
        requests.append(request.with_quirks(draw_quirks(rng, len(request.body or b""))))
        world.model.begin(records)
    answers = world.ask_all(rng, requests)
    for (path, _, records), request, answer in zip(drawn, requests, answers, strict=True):
        settle(
            world,
            path,
            records,
            answer,
            f"pipelined {path.name} {request.target} ({request.quirks})",
        )


def unsure(world: World, rng: random.Random) -> None:
    """Write with less than `acks=all`: an acknowledged record may be lost, and nothing else is promised."""
    topic = world.topic(rng)
    path, place, records = draw(world, rng, topic)
    word = rng.choice(("acks=1", "acks=0", "async=true"))
    request = path.request(records, place, world.cluster_id)
    if path.is_v3 and word.startswith("async"):
        return
    request = Request(request.method, f"{request.target}?{word}", request.headers, request.body)
    world.model.begin(records)
    answer = world.ask(rng, request)
    is_taken = isinstance(answer, Lost) or answer.status in (200, 204, 207, 504)
    for sent in records:
        world.model.settle(sent, Fate.UNKNOWN if is_taken else Fate.REFUSED)


def old_key(world: World, rng: random.Random) -> None:
    """Send an earlier request with its key again: it must get its first response, whatever happened since."""
    kept = world.notes.get("keyed")
    if not kept:
        return
    _send_again(world, rng, *rng.choice(kept))


def sequenced(world: World, rng: random.Random) -> None:
    """Write batches with sequences: a repeat is a duplicate, a gap is refused, and a former holder is fenced."""
    topic = world.topic(rng)
    check, part = world.check, rng.choice(topic.partitions)
    path = PATH["batch"]
    name = f"{world.prefix}-p{next(world.numbers)}"
    made = world.until_answered(rng, world.json("POST", "/producers", {"name": name}))
    if not isinstance(made, Response) or made.status != 200:
        return
    told, sequence = json.loads(made.body), 0
    for step in rng.sample(("next", "next", "again", "gap", "taken over"), 5):
        if step == "taken over":
            taken = world.until_answered(rng, world.json("POST", "/producers", {"name": name}))
            if not isinstance(taken, Response) or taken.status != 200:
                return
        records = path.some(rng, world.model, topic, part.number, rng.choice((1, 3)))
        first = sequence + 5 if step == "gap" else sequence
        body = path.batch(records, told["producer_id"], told["producer_epoch"], first)
        request = path.request(records, part.number, world.cluster_id)
        request = Request("POST", request.target, request.headers, body)
        where = f"{request.target} producer {told['producer_id']} sequence {first} ({step})"
        world.model.begin(records)
        answer = world.until_answered(rng, request)
        settle(world, path, records, answer, where)
        if not is_told(answer) or is_unsure(answer):
            return
        if step in ("gap", "taken over"):
            rule = "J-tx-fence" if step == "taken over" else "J-once"
            check(rule, answer.status != 200, where, "a refusal", answer.body[:200])
            if step == "taken over":
                return
            continue
        check(
            "J-once", answer.status == 200, where, "200", f"{answer.status} {answer.body[:200]!r}"
        )
        sequence += len(records)
        if step == "again" and answer.status == 200:
            again = world.until_answered(rng, request)
            if isinstance(again, Response) and again.status == 200:
                is_same = path.receipts(again, len(records)) == path.receipts(answer, len(records))
                is_same = is_same and json.loads(again.body)["is_duplicate"]
                check("J-once", is_same, where + " again", answer.body[:200], again.body[:200])
