"""Transactions in one request and step by step: commit, abort, take over, or leave open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.judge.client import Lost, Request, Response
from tests.judge.model import FOREVER, Fate, Partition, Sent, Topic, Transaction
from tests.judge.paths.read import FORM, FORMATS
from tests.judge.paths.write import PATHS, Receipt, WritePath, v2_record
from tests.judge.steps import reads, writes
from tests.judge.world import World, body_of, code_of, is_told, is_unsure

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_HEARD = 0.3  # seconds for which an end waits for leaders that do not respond
_AGAIN = 10.0  # seconds within which readers see an end whose response had "visible": false
_V2 = tuple(path for path in PATHS if path.name in ("v2-json", "v2-binary", "v2-text"))
_NOTHING = (40926, 40924, 40412)  # aborted, fenced, never started or forgotten


def one_request(world: World, rng: random.Random) -> None:
    """Write to several partitions with `POST /transactions`, with or without a key."""
    path = rng.choice(_V2)
    parts: list[tuple[Topic, int | None, list[Sent]]] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        topic = world.topic(rng)
        number = rng.randrange(len(topic.partitions)) if rng.random() < 0.7 else None
        records = path.some(rng, world.model, topic, number, rng.choice((1, 2)))
        parts.append((topic, number, records))
    tx = Transaction(f"{world.prefix}-one-{next(world.numbers)}", world.now, may_show=world.now)
    everything = [sent for _, _, records in parts for sent in records]
    world.model.begin(everything, tx)
    body = ",".join(_write_text(path, *part) for part in parts)
    headers = [("Content-Type", path.content_type)]
    is_keyed = rng.random() < 0.6
    headers += [("Idempotency-Key", tx.name)] if is_keyed else []
    request = Request("POST", "/transactions", tuple(headers), f'{{"writes":[{body}]}}'.encode())
    answer = world.until_answered(rng, request) if is_keyed else world.ask(rng, request)
    where = f"POST /transactions {path.name} {tx.name}"
    receipts = _settle_one(world, tx, everything, answer, where)
    if receipts and is_keyed and isinstance(answer, Response):
        again = world.until_answered(rng, request)
        if is_told(again) and not is_unsure(again):
            told = _receipts(again) if again.status == 200 else []
            world.check(
                "J-once",
                told == receipts,
                where + " again",
                receipts,
                f"{again.status} {again.body[:300]!r}",
            )


def _write_text(path: WritePath, topic: Topic, number: int | None, records: Sequence[Sent]) -> str:
    place = "" if number is None else f',"partition":{number}'
    return f'{{"topic":"{topic.name}"{place},"records":[{",".join(v2_record(s, path.data, number) for s in records)}]}}'


def _receipts(answer: Response) -> list[Receipt]:
    told = [item for write in body_of(answer)["writes"] for item in write["offsets"]]
    return [Receipt(200, item["partition"], item["offset"]) for item in told]


def _settle_one(
    world: World, tx: Transaction, everything: Sequence[Sent], answer: Response | Lost, where: str
) -> list[Receipt]:
    if is_unsure(answer):
        for sent in everything:
            world.model.settle(sent, Fate.UNKNOWN)
        world.model.end(tx, Fate.UNKNOWN)
        return []
    assert isinstance(answer, Response)
    if answer.status != 200:
        for sent in everything:
            world.model.settle(sent, Fate.REFUSED)
        world.model.end(tx, Fate.REFUSED, after_s=_AGAIN)
        return []
    receipts = _receipts(answer)
    is_visible = bool(body_of(answer)["visible"])
    for sent, receipt in zip(everything, receipts, strict=True):
        writes.acknowledge(world, sent, receipt, where)
    world.model.end(tx, Fate.ACKED, after_s=0.0 if is_visible else _AGAIN)
    return receipts


def session(world: World, rng: random.Random) -> None:
    """Begin, write in several ways, read meanwhile, and end in one of four ways."""
    name = f"{world.prefix}-tx-{world.worker()}-{rng.randrange(2)}"
    timeout_ms = rng.choice((10_000, 20_000, 60_000))
    begun = world.until_answered(
        rng,
        world.json(
            "POST", "/transactions:begin", {"transactional_id": name, "timeout_ms": timeout_ms}
        ),
    )
    if not isinstance(begun, Response) or begun.status != 200:
        return
    told = body_of(begun)
    tx = Transaction(f"{name} {told['transaction']}", world.now)
    mark = ("Milena-Transaction", told["transaction"])
    is_sure = _write_some(world, rng, tx, mark)
    if rng.random() < 0.5:
        world.sleep(rng.choice((0.05, 0.3, 6.0 if world.is_stormy else 0.3)))
    if rng.random() < 0.6:
        _write_behind(world, rng, tx)
    base = f"/transactions/{told['producer_id']}/{told['producer_epoch']}"
    draw = rng.random()
    if draw < 0.6:
        _commit(world, rng, tx, base, timeout_ms / 1000, is_sure=is_sure)
    elif draw < 0.8:
        answer = _end(world, rng, tx, Request("POST", f"{base}:abort"))
        is_over = isinstance(answer, Response) and (
            answer.status == 200 or code_of(answer) in _NOTHING
        )
        if is_over:
            _discarded(world, rng, tx, answer)
        else:
            world.model.end(tx, Fate.UNKNOWN)
    elif draw < 0.9:
        again = world.json("POST", "/transactions:begin", {"transactional_id": name})
        taken = _end(world, rng, tx, again)
        if isinstance(taken, Response) and taken.status == 200:
            _discarded(world, rng, tx, taken)
            world.until_answered(
                rng,
                Request(
                    "POST",
                    "/transactions/{producer_id}/{producer_epoch}:abort".format(**body_of(taken)),
                ),
            )
    else:
        world.model.end(tx, Fate.REFUSED, after_s=timeout_ms / 1000 + 30)  # its time ends it
        return
    if tx.ended < FOREVER:
        _write_late(world, rng, tx, mark)


def _end(world: World, rng: random.Random, tx: Transaction, request: Request) -> Response | Lost:
    """Request the end of a transaction. If the response comes soon, every leader knows of the end."""
    began = world.now
    answer = world.until_answered(rng, request)
    is_told = isinstance(answer, Response) and answer.status == 200
    tx.is_heard = is_told and world.now < began + _HEARD and "until" not in request.target
    return answer


def _write_behind(world: World, rng: random.Random, tx: Transaction) -> None:
    """Write a record outside of the transaction, after its records in a partition."""
    written = [sent for sent in tx.sent if sent.fate is Fate.ACKED and sent.partition is not None]
    if not written:
        return
    sent = rng.choice(written)
    path = rng.choice(_V2)
    records = path.some(rng, world.model, sent.topic, sent.partition, 1)
    writes.send(world, rng, path, sent.partition, records, note=f"behind {tx.name}")


def _discarded(world: World, rng: random.Random, tx: Transaction, answer: Response | Lost) -> None:
    """Note that a transaction is aborted. If the response calls its end visible, no reader stops at it."""
    is_visible = isinstance(answer, Response) and body_of(answer).get("visible") is True
    world.model.end(tx, Fate.REFUSED, after_s=0.0 if is_visible else _AGAIN)
    if is_visible:
        _read_past(world, rng, tx)


def _read_past(world: World, rng: random.Random, tx: Transaction) -> None:
    """Read on every node, from the first record of an ended transaction."""
    parts = {
        sent.topic.partitions[sent.partition] for sent in tx.sent if sent.partition is not None
    }
    for part in sorted(parts, key=lambda part: part.name):
        start = max(part.first(world.now), min(tx.low.get(part, 0), part.end_floor(world.now)))
        for node in rng.sample(world.nodes, len(world.nodes)):
            form = FORM[rng.choice(("binary", "ndjson-binary"))]
            reads.read_from(
                world, rng, part, form, start, node=node, is_all=True, rule="J-tx-visible"
            )


def _write_some(world: World, rng: random.Random, tx: Transaction, mark: tuple[str, str]) -> bool:
    """Write within a transaction; return whether every response came."""
    is_sure = True
    for _ in range(rng.choice((1, 2, 3))):
        topic = world.topic(rng)
        path, place, records = writes.draw(world, rng, topic, most=3)
        headers, patience = [mark], None
        if not path.is_v3 and rng.random() < 0.5:
            headers.append(("Idempotency-Key", f"{tx.name.split()[0]}-{next(world.numbers)}"))
            patience = 30
        note = f"within {tx.name}"
        writes.send(
            world, rng, path, place, records, *headers, transaction=tx, patience=patience, note=note
        )
        is_sure = is_sure and all(sent.fate is not Fate.UNKNOWN for sent in records)
        if rng.random() < 0.4:
            part = rng.choice(topic.partitions)
            form = rng.choice(FORMATS)
            reads.read_from(world, rng, part, form, part.first(world.now))
    return is_sure


def _extents(tx: Transaction) -> list[dict[str, object]]:
    parts: dict[Partition, list[int]] = {}
    for sent in tx.sent:
        if sent.fate is Fate.ACKED and sent.partition is not None and sent.offset is not None:
            parts.setdefault(sent.topic.partitions[sent.partition], []).append(sent.offset)
    return [
        {
            "topic": part.topic.name,
            "partition": part.number,
            "end_offset": max(offsets) + 1,
            "records": len(offsets),
        }
        for part, offsets in parts.items()
    ]


def _commit(
    world: World, rng: random.Random, tx: Transaction, base: str, timeout_s: float, *, is_sure: bool
) -> None:
    check, where = world.check, f"commit of {tx.name}"
    tx.may_show = world.now
    until = rng.choice(("", "", "?until=committed"))
    request = world.json("POST", f"{base}:commit{until}", {"writes": _extents(tx)})
    answer = _end(world, rng, tx, request)
    if is_unsure(answer) or not is_told(answer):
        world.model.end(tx, Fate.UNKNOWN)
        return
    if answer.status == 200:
        is_visible = bool(body_of(answer)["visible"])
        world.model.end(tx, Fate.ACKED, after_s=0.0 if is_visible else _AGAIN)
        if is_visible:
            _read_past(world, rng, tx)
        again = world.until_answered(rng, request)
        if isinstance(again, Response) and again.status < 500:
            check(
                "J-once",
                again.status == 200,
                where + " again",
                "200",
                f"{again.status} {again.body[:200]!r}",
            )
        return
    code = code_of(answer)
    lasted = world.now - tx.began
    if code in _NOTHING:
        is_late = lasted >= timeout_s - 0.5
        check(
            "J-tx-time",
            is_late,
            where,
            f"open for {timeout_s} s",
            f"{answer.body[:200]!r} after {lasted:.1f} s",
        )
    elif code == 40928:
        check(
            "J-tx-atomic",
            not is_sure,
            where,
            "the records that were acknowledged",
            f"{answer.body[:200]!r}",
        )
        world.until_answered(rng, Request("POST", f"{base}:abort"))
    else:
        check(
            "J-tx-atomic",
            False,
            where,
            "committed",
            f"{answer.status} {answer.body[:200]!r} {request.body!r}",
        )
    world.model.end(tx, Fate.REFUSED, after_s=_AGAIN)


def _write_late(world: World, rng: random.Random, tx: Transaction, mark: tuple[str, str]) -> None:
    """Write with a transaction that has ended: the write must be refused, and none of its records may appear."""
    topic = world.topic(rng)
    if rng.random() < 0.5:
        return
    late = Transaction(tx.name + " late", world.now)
    path, place, records = writes.draw(world, rng, topic, most=2)
    request = path.request(records, place, world.cluster_id).with_headers(mark)
    world.model.begin(records, late)
    answer = world.ask(rng, request)
    receipts = [] if isinstance(answer, Lost) else path.receipts(answer, len(records))
    taken = [receipt for receipt in receipts if receipt.status == 200 and tx.is_heard]
    world.check(
        "J-tx-fence",
        not taken,
        f"{path.name} {request.target} within {late.name}",
        "a refusal",
        taken,
    )
    for sent in records:
        world.model.settle(sent, Fate.REFUSED if receipts else Fate.UNKNOWN)
    world.model.end(late, Fate.REFUSED, after_s=_AGAIN)


def look(world: World, rng: random.Random) -> None:
    """List transactions: if none is open, the ended ones must not hold up readers."""
    began = world.now
    answer = world.ask(rng, Request("GET", "/transactions"))
    if not isinstance(answer, Response) or answer.status != 200 or body_of(answer)["total"]:
        return
    with world.model.lock:
        for tx in {tx for topic in world.model.topics.values() for tx in topic.transactions}:
            if tx.over <= began and tx.fate is not Fate.UNKNOWN:
                tx.ended = min(tx.ended, world.now)
                if tx.fate is Fate.ACKED:
                    tx.visible = min(tx.visible, tx.ended)


def all_over(world: World, rng: random.Random) -> bool:
    """Return whether no transaction of the episode is open."""
    answer = world.ask(rng, Request("GET", "/transactions"))
    if not isinstance(answer, Response) or answer.status != 200:
        return False
    names = [str(item.get("transactional_id")) for item in json.loads(answer.body)["transactions"]]
    return not any(world.prefix in name for name in names)
