"""Write records: v2 in its formats, lines, v3, encoded batches. Each path draws records and parses receipts."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.judge import wire
from tests.judge.client import Request, Response
from tests.judge.model import Datum, Model, Sent, Topic

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_NUMBERS = [
    "0",
    "-1",
    "1.10",
    "0.1",
    "1.0",
    "-0.0",
    "-0",
    "1e5",
    "1E+2",
    "2.50e-3",
    "2147483648",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "-9223372036854775809",
    "1000000000000000000000000000001",
    "3.141592653589793238462643",
    "0.30000000000000000001",
]
_STRINGS = (
    "",
    "plain",
    "Grüße",
    "日本語",
    "🦜🦜",
    "a\nb\tc",
    '"quoted" \\',
    "null",
    "\u2028",
    "\x7f",
    "nul\x00in",
    "  ",
)


@dataclass(frozen=True)
class Receipt:
    """The response about one record; `status` is 200, or what refused it."""

    status: int
    partition: int | None = None
    offset: int | None = None
    code: int = 0


@dataclass(frozen=True)
class WritePath:
    """A way to write; `data` is the family of its keys and values: json, text, bytes or line."""

    name: str
    content_type: str
    data: str
    has_extras: bool = True
    is_v3: bool = False

    def draw(self, rng: random.Random, model: Model, topic: Topic, partition: int | None) -> Sent:
        """Draw a record that this path can send."""
        uid = model.next_uid()
        mark = f"w{uid}x"
        key, value = _draw_data(rng, self.data, mark, has_key=self.has_extras)
        headers: tuple[tuple[str, bytes], ...] = ()
        timestamp = None
        if self.has_extras and rng.random() < 0.3:
            headers = tuple(
                (f"h{n}", rng.choice((b"", b"x", b"\xff\x00"))) for n in range(rng.randint(1, 3))
            )
        if self.has_extras and rng.random() < 0.3:
            timestamp = int(time.time() * 1000) - rng.choice(
                (0, 1, 1000, rng.randint(0, 3_000_000))
            )
        return Sent(uid, topic, key, value, headers, timestamp, partition, 0.0, self.name)

    def some(
        self, rng: random.Random, model: Model, topic: Topic, partition: int | None, count: int
    ) -> list[Sent]:
        """Draw `count` records."""
        return [self.draw(rng, model, topic, partition) for _ in range(count)]

    def request(self, records: Sequence[Sent], partition: int | None, cluster: str) -> Request:
        """Return the request that writes records to one topic."""
        topic = records[0].topic
        base = f"/topics/{topic.name}"
        if self.is_v3:
            tail = ":batch" if self.name == "v3-batch" else ""
            target = f"/v3/clusters/{cluster}/topics/{topic.name}/records{tail}"
        elif self.name == "batch":
            target = f"{base}/partitions/{partition}/records"
        elif partition is None:
            target = base
        else:
            target = f"{base}/partitions/{partition}" + (
                "/records" if records[0].uid % 3 == 0 else ""
            )
        headers = (("Content-Type", self.content_type),) if self.content_type else ()
        return Request("POST", target, headers, self.body(records, partition))

    def body(self, records: Sequence[Sent], partition: int | None) -> bytes:
        """Return the body."""
        if self.data == "line":
            return b"".join((sent.value.data or b"null") + b"\n" for sent in records)
        if self.name == "batch":
            return self.batch(records)
        if self.name == "v3-batch":
            entries = ",".join(
                _v3_record(sent, self.data, f"e{n}") for n, sent in enumerate(records)
            )
            return f'{{"entries":[{entries}]}}'.encode()
        if self.is_v3:
            return "\n".join(_v3_record(sent, self.data, "") for sent in records).encode()
        return f'{{"records":[{",".join(v2_record(sent, self.data, partition) for sent in records)}]}}'.encode()

    def batch(
        self, records: Sequence[Sent], producer: int = -1, epoch: int = -1, sequence: int = -1
    ) -> bytes:
        """Return records as an encoded batch."""
        return wire.encode([_row(sent) for sent in records], producer, epoch, sequence)

    def receipts(self, answer: Response, count: int) -> list[Receipt]:
        """Return the receipt of each record in a response, in the order of the records."""
        if answer.status not in (200, 207):
            return [Receipt(answer.status, code=error_code(answer))] * count
        if self.name == "v3-batch":
            return _v3_batch_receipts(json.loads(answer.body), count)
        if self.is_v3:
            told = [_v3_receipt(item) for item in objects(answer.body)]
            return told[:count] + [Receipt(504)] * (count - len(told))
        told = json.loads(answer.body)
        if self.name == "batch":
            first = told["base_offset"]
            return [Receipt(200, told["partition"], first + n) for n in range(count)]
        return [
            Receipt(
                _status(item["error_code"]),
                item["partition"],
                item["offset"],
                item["error_code"] or 0,
            )
            for item in told["offsets"]
        ]


PATHS = (
    WritePath("v2-json", "application/vnd.kafka.json.v2+json", "json"),
    WritePath("v2-json-plain", "application/json", "json"),
    WritePath("v2-json-untyped", "", "json"),
    WritePath("v2-binary", "application/vnd.kafka.binary.v2+json", "bytes"),
    WritePath("v2-binary-short", "application/vnd.kafka.v2+json", "bytes"),
    WritePath("v2-text", "application/vnd.kafka.text.v2+json", "text"),
    WritePath("plain", "text/plain", "line", has_extras=False),
    WritePath("ndjson", "application/x-ndjson", "line", has_extras=False),
    WritePath("v3-json", "application/json", "json", is_v3=True),
    WritePath("v3-binary", "application/json", "bytes", is_v3=True),
    WritePath("v3-string", "application/json", "text", is_v3=True),
    WritePath("v3-batch", "application/json", "json", is_v3=True),
    WritePath("batch", "application/vnd.milena.batch", "bytes"),
)
PATH = {path.name: path for path in PATHS}


def error_code(answer: Response) -> int:
    """Return the `error_code` of a response, or 0."""
    try:
        return int(json.loads(answer.body)["error_code"])
    except (ValueError, KeyError, TypeError):
        return 0


def objects(body: bytes) -> list[Any]:
    """Return the JSON objects that follow each other in a body."""
    decoder, text, found = json.JSONDecoder(), body.decode().strip(), []
    while text:
        item, end = decoder.raw_decode(text)
        found.append(item)
        text = text[end:].lstrip()
    return found


def _status(code: int | None) -> int:
    return 200 if code is None else int(str(code)[:3])


def _v3_receipt(item: dict[str, Any]) -> Receipt:
    code = item.get("error_code", 200)
    return Receipt(_status(code), item.get("partition_id"), item.get("offset"), code)


def _v3_batch_receipts(told: dict[str, Any], count: int) -> list[Receipt]:
    by_id = {
        item["id"]: Receipt(200, item["partition_id"], item["offset"]) for item in told["successes"]
    }
    by_id |= {item["id"]: _v3_receipt(item) for item in told["failures"]}
    return [by_id.get(f"e{n}", Receipt(504)) for n in range(count)]


def draw_json(rng: random.Random, mark: str) -> str:
    """Draw a JSON text that contains the mark."""
    odd = rng.choice(_NUMBERS) if rng.random() < 0.5 else _draw_odd(rng)
    space = rng.choice(("", "", " ", "\t"))
    form = rng.randrange(4)
    if form == 0:
        return f'{{"id":{space}"{mark}",{space}"v":{odd}}}'
    if form == 1:
        return f'[{space}"{mark}",{odd}{space}]'
    if form == 2:
        return json.dumps(mark + " " + rng.choice(_STRINGS), ensure_ascii=rng.random() < 0.5)
    return f'{{"v":[{odd},{{"deep":{{"id":"{mark}"}}}}]}}'


def _draw_odd(rng: random.Random) -> str:
    form = rng.randrange(5)
    if form == 0:
        return rng.choice(("null", "true", "false", "{}", "[]", '{"a":null}', '{"":0}'))
    if form == 1:
        return "[" * 20 + "1" + "]" * 20
    if form == 2 and rng.random() < 0.1:
        return json.dumps("L" * rng.choice((1000, 70_000, 300_000)))
    return json.dumps(rng.choice(_STRINGS), ensure_ascii=rng.random() < 0.5)


def _draw_data(rng: random.Random, family: str, mark: str, *, has_key: bool) -> tuple[Datum, Datum]:
    if family == "line":
        return Datum(None), Datum(draw_json(rng, mark).encode())
    if has_key and rng.random() < 0.2:  # the mark is in the key, so the value may be anything
        key = f'"{mark}"' if family == "json" else mark
        value = None if rng.random() < 0.5 else rng.choice(_NUMBERS)
        is_loose = family == "json"
        return Datum(key.encode(), is_loose), Datum(
            None if value is None else value.encode(), is_loose
        )
    plain_key = rng.choice((None, None, "k1", "k2", "schlüssel"))
    if family == "json":
        key_datum = Datum(
            None if plain_key is None else json.dumps(plain_key, ensure_ascii=False).encode(), True
        )
        return key_datum, Datum(draw_json(rng, mark).encode(), True)
    text = mark + " " + rng.choice(_STRINGS) if rng.random() < 0.7 else draw_json(rng, mark)
    data = text.encode() + (rng.choice((b"", b"\xff\xfe", b"\x00")) if family == "bytes" else b"")
    return Datum(None if plain_key is None else plain_key.encode()), Datum(data)


def _row(sent: Sent) -> wire.Row:
    return wire.Row(
        sent.key.data, sent.value.data, sent.headers, sent.timestamp or int(time.time() * 1000)
    )


def _written(datum: Datum, family: str) -> str:
    if datum.data is None:
        return "null"
    if family == "json":
        return datum.data.decode()
    if family == "text":
        return json.dumps(datum.data.decode())
    return json.dumps(base64.b64encode(datum.data).decode())


def v2_record(sent: Sent, family: str, partition: int | None) -> str:
    """Return a record of a v2 body."""
    fields = [f'"value":{_written(sent.value, family)}']
    fields += [f'"key":{_written(sent.key, family)}'] if sent.key.data is not None else []
    fields += (
        [f'"partition":{sent.partition}']
        if sent.partition is not None and partition is None
        else []
    )
    fields += [f'"timestamp":{sent.timestamp}'] if sent.timestamp is not None else []
    if sent.headers:
        pairs = [
            {"key": name, "value": base64.b64encode(data).decode()} for name, data in sent.headers
        ]
        fields.append(f'"headers":{json.dumps(pairs)}')
    return "{" + ",".join(fields) + "}"


def _v3_record(sent: Sent, family: str, entry: str) -> str:
    kind = {"json": "JSON", "bytes": "BINARY", "text": "STRING"}[family]
    fields = [f'"id":"{entry}"'] if entry else []
    for name, datum in (("key", sent.key), ("value", sent.value)):
        if datum.data is not None:
            fields.append(f'"{name}":{{"type":"{kind}","data":{_written(datum, family)}}}')
    fields += [f'"partition_id":{sent.partition}'] if sent.partition is not None else []
    fields += [f'"timestamp":{sent.timestamp}'] if sent.timestamp is not None else []
    if sent.headers:
        pairs = [
            {"name": name, "value": base64.b64encode(data).decode()} for name, data in sent.headers
        ]
        fields.append(f'"headers":{json.dumps(pairs)}')
    return "{" + ",".join(fields) + "}"
