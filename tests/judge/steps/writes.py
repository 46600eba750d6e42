"""Write records by a random path; repeat writes under a key."""

from __future__ import annotations


from tests.judge.client import Lost, Response
from tests.judge.model import Fate, Sent, Topic
from tests.judge.paths.write import PATHS, Receipt, WritePath
from tests.judge.world import UNSURE, World, code_of, is_unsure
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    import random


def draw(
    world: World,
    rng: random.Random,
    topic: Topic,
    *,
    paths: Sequence[WritePath] = PATHS,
    most: int = 5,
) -> tuple[WritePath, int | None, list[Sent]]:
    """Draw a path, a partition of the path's, and records."""
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
    count = rng.choice((1, 1, 2, 3, most))
    return path, place, [path.draw(rng, world.model, topic, own) for _ in range(count)]


def settle(
    world: World, path: WritePath, records: Sequence[Sent], answer: Response | Lost, where: str
) -> list[Receipt]:
    """Tell the model what an answer says of records; return the receipts."""
    if isinstance(answer, Lost):
        for sent in records:
            world.model.settle(sent, Fate.UNKNOWN)
        return []
    try:
        receipts = path.receipts(answer, len(records))
    except (ValueError, KeyError, TypeError) as error:
        world.verdicts.check(
            "J-status", False, where, "receipts", f"{answer.status} {answer.body[:200]!r} {error!r}"
        )
        receipts = [Receipt(504)] * len(records)
    for sent, receipt in zip(records, receipts, strict=True):
        if receipt.status == 200:
            acknowledge(world, sent, receipt, where, answer.began)
        elif receipt.status == 504 or receipt.code in UNSURE or receipt.status == 500:
            world.model.settle(sent, Fate.UNKNOWN)
        else:
            world.model.settle(sent, Fate.REFUSED)
    return receipts


def acknowledge(world: World, sent: Sent, receipt: Receipt, where: str, began: float) -> None:
    """Judge a receipt against what is known, and tell the model."""
    check, topic = world.verdicts.check, sent.topic
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
        floor = part.end_floor(began)
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
    """Write once; whatever the answer is, it is not repeated."""
    topic = world.topic(rng)
    if topic is None:
        return
    path, place, records = draw(world, rng, topic)
    request = path.request(records, topic, place, world.cluster_id)
    world.model.begin(records)
    answer = world.ask(rng, request)
    where = f"{path.name} {request.target} ({request.quirks})"
    settle(world, path, records, answer, where)


def repeat(world: World, rng: random.Random) -> None:
    """Write under a key until there is an answer, then once more elsewhere: the offsets are the first ones."""
    topic = world.topic(rng)
    if topic is None:
        return
    path, place, records = draw(world, rng, topic)
    key = f"{world.prefix}-key-{next(world.numbers)}"
    request = path.request(records, topic, place, world.cluster_id).with_headers(
        ("Idempotency-Key", key)
    )
    world.model.begin(records)
    answer = world.until_answered(rng, request)
    where = f"{path.name} {request.target} under {key}"
    first = settle(world, path, records, answer, where)
    if isinstance(answer, Lost) or answer.status not in (200, 207) or is_unsure(answer):
        return
    again = world.until_answered(rng, request)
    if (
        isinstance(again, Lost)
        or is_unsure(again)
        or code_of(again) in (429, 42901)
        or again.status == 503
    ):
        return
    told = path.receipts(again, len(records))
    world.verdicts.check(
        "J-once",
        told == first,
        where + " again",
        first,
        f"{again.status} {told} {again.body[:200]!r}",
    )
    world.notes.setdefault("keyed", []).append((request, path, records, first))
