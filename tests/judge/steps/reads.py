"""Read in a random format from a random offset, on a random node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.judge.checks import Read, Row
from tests.judge.client import Request, Response
from tests.judge.model import Partition, is_json
from tests.judge.paths.read import FORMATS, Format, is_error_line
from tests.judge.world import World, body_of, code_of

if TYPE_CHECKING:
    import random


def fetch(
    world: World,
    rng: random.Random,
    part: Partition,
    form: Format,
    parameters: dict[str, str],
    *,
    node: int | None = None,
    method: str = "GET",
) -> Response | None:
    """Fetch records of a partition; return None if the response shows nothing."""
    query = urlencode({**dict(form.parameters), **parameters})
    target = f"/topics/{part.topic.name}/partitions/{part.number}/records" + (
        f"?{query}" if query else ""
    )
    headers = (("Accept", form.accept),) if form.accept else ()
    answer = world.ask(rng, Request(method, target, headers), node=node)
    if not isinstance(answer, Response):
        return None
    if answer.status == 200 and method == "GET":
        kind = answer.headers.get("content-type", "").split(";")[0]
        world.check("J-accept", kind in form.answers, f"{form.name} {target}", form.answers, kind)
    return answer


def rows_of(
    world: World, form: Format, answer: Response, where: str
) -> list[tuple[int, Row]] | None:
    """Return the records of a response; None if it cannot be parsed."""
    try:
        return form.parse(answer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        world.check(
            "J-value",
            False,
            where,
            f"an answer in {form.name}",
            f"{error!r} in {answer.body[:300]!r}",
        )
        return None


def read(world: World, rng: random.Random) -> None:
    """Read a partition from a random start, in a random format."""
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    form = rng.choice(FORMATS)
    draw = rng.random()
    if draw < 0.25:
        tail(world, rng, part, form)
    elif draw < 0.45:
        by_time(world, rng, part, form)
    else:
        end = part.end_floor(world.now)
        start = 0 if draw < 0.6 else rng.randint(0, end)
        read_from(world, rng, part, form, start)


def read_from(
    world: World,
    rng: random.Random,
    part: Partition,
    form: Format,
    start: int,
    *,
    node: int | None = None,
    is_all: bool = False,
    rule: str = "J-read-ack",
) -> int | None:
    """Read from an offset and check the response; return the next offset. `rule` is for a response that ends early."""
    parameters = {"offset": str(start)}
    count = 0 if is_all else rng.choice((0, 0, 0, 1, 2))
    parameters |= {"count": str(count)} if count else {}
    parameters |= {"max_bytes": "1"} if rng.random() < 0.1 and not is_all else {}
    answer = fetch(world, rng, part, form, parameters, node=node)
    where = f"{form.name} {part.name}?{urlencode(parameters)}"
    if answer is None:
        return None
    if answer.status != 200:
        _refused(world, part, form, start, answer, where)
        return None
    found = rows_of(world, form, answer, where)
    if found is None:
        return None
    rows = [row for _, row in found]
    is_full = count or "max_bytes" in parameters or len(answer.body) > 300_000
    is_whole = not is_full and (_is_to_the_end(world, form) and not is_error_line(answer.body))
    if form.name == "batch":
        rows = [row for row in rows if row.offset >= start]
        rows = [row for row in rows if row.offset < int(answer.headers["milena-next-offset"])]
    told = answer.headers.get("milena-next-offset") if not form.is_stream else None
    next_offset = None if told is None or form.name == "batch" else int(told)
    world.checker.read(
        Read(
            part,
            f"{where} at node {answer.node}",
            start,
            rows,
            answer.began,
            answer.ended,
            is_whole,
            next_offset,
            rule=rule,
        )
    )
    return next_offset


def _is_to_the_end(world: World, form: Format) -> bool:
    """Return whether a response that is not full must reach the end of the partition.

    If the leader cannot be asked, a fetch returns what the node has, and a stream ends with an error.
    """
    return form.is_stream or (
        not world.is_stormy and form.name in ("kafka", "kafka-any", "binary", "arrow")
    )


def _refused(
    world: World, part: Partition, form: Format, start: int, answer: Response, where: str
) -> None:
    """Check the reason why a read was refused."""
    code, message = code_of(answer), answer.body.decode("utf-8", "replace")
    if code == 42203:
        found = re.search(r"at offset (\d+)", message)
        sent = part.acked.get(int(found.group(1))) if found else None
        if sent is not None:
            datums = [datum.data for datum in (sent.key, sent.value) if datum.data is not None]
            is_right = not all(map(_is_utf8 if form.name == "text" else is_json, datums))
            world.check(
                "J-value", is_right, where, f"{sent.key} {sent.value} by {sent.path}", message
            )
    elif code == 40002:
        sure, maybe = part.start_range(answer.began, answer.ended)
        is_deleted = start < maybe
        world.check(
            "J-read-ack",
            is_deleted,
            where,
            f"offset {start}, which is not below {sure}, to be read",
            message,
        )
    else:
        is_fine = answer.status in (429, 503)
        world.check("J-read-ack", is_fine, where, "records", f"{answer.status} {message[:200]}")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except ValueError:
        return False
    return True


def tail(world: World, rng: random.Random, part: Partition, form: Format) -> None:
    """Read the last N records."""
    if form.name == "batch":
        return
    last = rng.choice((1, 2, 3, 10, 1000))
    answer = fetch(world, rng, part, form, {"offset": str(-last)})
    where = f"{form.name} {part.name}?offset=-{last}"
    if answer is None or answer.status != 200:
        return
    found = rows_of(world, form, answer, where)
    if found is None or is_error_line(answer.body):
        return
    rows = [row for _, row in found]
    start = min((row.offset for row in rows), default=0)
    where += f" at node {answer.node}"
    world.checker.read(Read(part, where, start, rows, answer.began, answer.ended))
    with world.model.lock:
        if part.is_quiet(answer.began) and form.name not in ("json", "json-old", "text"):
            wanted = part.must_show(answer.began, answer.ended, 0)[-last:]
            offsets = [row.offset for row in rows]
            is_right = offsets == wanted or sum(len(row.value.text()) for row in rows) > 500_000
            world.check("J-tail", is_right, where, wanted, offsets)


def by_time(world: World, rng: random.Random, part: Partition, form: Format) -> None:
    """Read from a time; also look up the offset of the time."""
    times = [sent.timestamp for sent in list(part.acked.values()) if sent.timestamp is not None]
    near = [time + rng.choice((-1, 0, 1)) for time in times[-5:]]
    bounds: list[int | str] = [
        -1,
        0,
        1,
        -(2**63),
        2**63 - 1,
        253402300799999,
        "1969-12-31T23:59:59Z",
        "2026-01-01T00:00:00Z",
    ]
    asked: int | str = rng.choice(near) if near and rng.random() < 0.5 else rng.choice(bounds)
    answer = fetch(world, rng, part, form, {"timestamp": str(asked)})
    where = f"{form.name} {part.name}?timestamp={asked}"
    if answer is None or answer.status != 200 or form.name == "batch" or not isinstance(asked, int):
        return
    found = rows_of(world, form, answer, where)
    if found is None or is_error_line(answer.body):
        return
    rows = [row for _, row in found]
    start = min((row.offset for row in rows), default=1 << 62)
    world.checker.read(
        Read(part, f"{where} at node {answer.node}", start, rows, answer.began, answer.ended)
    )
    with world.model.lock:
        late = [
            o
            for o in part.must_show(answer.began, answer.ended, 0)
            if (part.acked[o].timestamp or 0) >= asked
        ]
        first = rows[0].offset if rows else None
        if late and form.name not in ("json", "json-old", "text"):
            is_right = first is not None and first <= late[0]
            world.check("J-time", is_right, where, f"{late[0]} or before", first)


def read_topic(world: World, rng: random.Random) -> None:
    """Read all partitions of a topic by one request."""
    topic = world.topic(rng)
    form = rng.choice([form for form in FORMATS if form.is_stream])
    start = (
        {"offset": "earliest"}
        if rng.random() < 0.7
        else {"timestamp": str(rng.choice((-1, 0, -(2**63))))}
    )
    target = f"/topics/{topic.name}/records?{urlencode({**dict(form.parameters), **start})}"
    answer = world.ask(rng, Request("GET", target, (("Accept", form.accept),)))
    if not isinstance(answer, Response) or answer.status != 200 or is_error_line(answer.body):
        return
    found = rows_of(world, form, answer, target)
    if found is None:
        return
    for part in topic.partitions:
        rows = [row for number, row in found if number == part.number]
        world.checker.read(
            Read(
                part,
                f"{form.name} {target} at node {answer.node}",
                0,
                rows,
                answer.began,
                answer.ended,
                is_whole=True,
            )
        )


def end(world: World, rng: random.Random) -> None:
    """Request the first and the end offset of a partition in each API version."""
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    targets = (
        f"/topics/{topic.name}/partitions/{part.number}/offsets",
        f"/v3/clusters/{world.cluster_id}/topics/{topic.name}/partitions/{part.number}/offset",
    )
    target = rng.choice(targets)
    answer = world.ask(rng, Request("GET", target))
    if not isinstance(answer, Response) or answer.status != 200:
        return
    told = body_of(answer)
    told_end = told.get("end_offset", told.get("latest_offset"))
    begin = told.get("beginning_offset", told.get("earliest_offset"))
    with world.model.lock:
        floor, where = part.end_floor(answer.began), f"{target} at node {answer.node}"
        world.check("J-end", told_end >= floor, where, f"an end from {floor}", told_end)
        stable, least = told.get("last_stable_offset"), part.stable_floor(answer.began)
        is_right = stable is None or min(floor, least) <= stable <= told_end
        world.check("J-end", is_right, where, f"stable from {min(floor, least)}", stable)
        sure, maybe = part.start_range(answer.began, answer.ended)
        world.check(
            "J-deleted", sure <= begin <= maybe, where, f"a beginning of {sure} to {maybe}", begin
        )
