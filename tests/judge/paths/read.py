"""Read records: every format of a fetch, streams of a partition and of a topic."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.judge import wire
from tests.judge.checks import Row
from tests.judge.model import Shown, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.judge.client import Response


@dataclass(frozen=True)
class Format:
    """A format of a fetch: its `Accept` header, its parameters, and the parser of its response."""

    name: str
    accept: str
    parse: Callable[[Response], list[tuple[int, Row]]]
    answers: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    is_stream: bool = False


def _plain(answer: Response) -> list[tuple[int, Row]]:
    return [row_of(item, "json") for item in parse_json(answer.body)]


def _binary(answer: Response) -> list[tuple[int, Row]]:
    return [row_of(item, "binary") for item in parse_json(answer.body)]


def _text(answer: Response) -> list[tuple[int, Row]]:
    return [row_of(item, "text") for item in parse_json(answer.body)]


def _rows(texts: Sequence[str | bytes], data: str) -> list[tuple[int, Row]]:
    """Return the records of a stream; the last text may be the error that ended it."""
    items = [parse_json(text) for text in texts if text.strip()]
    if items and "error_code" in items[-1] and "offset" not in items[-1]:
        items.pop()
    return [row_of(item, data) for item in items]


def _lines(data: str) -> Callable[[Response], list[tuple[int, Row]]]:
    def parse(answer: Response) -> list[tuple[int, Row]]:
        return _rows(answer.body.split(b"\n"), data)

    return parse


def _events(data: str) -> Callable[[Response], list[tuple[int, Row]]]:
    def parse(answer: Response) -> list[tuple[int, Row]]:
        return _rows([text for _, text in events(answer.body)], data)

    return parse


def events(body: bytes) -> list[tuple[str, str]]:
    """Return the id and data of each server-sent event."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append((fields.get("id", ""), fields["data"]))
    return found


def _arrow(answer: Response) -> list[tuple[int, Row]]:
    table = pa.ipc.open_stream(answer.body).read_all()
    partition = int(table.schema.metadata[b"partition"])
    rows = []
    for item in table.to_pylist():
        headers = tuple((pair["key"], pair["value"]) for pair in item["headers"] or ())
        time_ms = round(item["timestamp"].timestamp() * 1000)
        rows.append(
            (
                partition,
                Row(item["offset"], Shown(item["key"]), Shown(item["value"]), headers, time_ms),
            )
        )
    return rows


def _batches(answer: Response) -> list[tuple[int, Row]]:
    return [
        (-1, Row(row.offset, Shown(row.key), Shown(row.value), row.headers, row.timestamp))
        for row in wire.decode(answer.body)
    ]


def row_of(item: dict[str, Any], data: str) -> tuple[int, Row]:
    """Return the partition and the record of an item of a v2 response; `data` is the encoding of keys and values."""
    headers = tuple(
        (pair["key"], base64.b64decode(pair["value"] or "")) for pair in item.get("headers") or ()
    )
    timestamp = item.get("timestamp")
    return int(item["partition"].text), Row(
        int(item["offset"].text),
        _shown(item, "key", data),
        _shown(item, "value", data),
        headers,
        None if timestamp is None else int(timestamp.text),
    )


def _shown(item: dict[str, Any], name: str, data: str) -> Shown:
    if f"{name}_text" in item:
        return Shown(item[f"{name}_text"].encode())
    if f"{name}_base64" in item:
        return Shown(base64.b64decode(item[f"{name}_base64"]))
    value = item[name]
    if data == "json":
        return Shown(parsed=value, is_parsed=True)
    if value is None:
        return Shown(None)
    return Shown(base64.b64decode(value) if data == "binary" else value.encode())


_JSON = "application/vnd.kafka.json.v2+json"
_OLD_JSON = f"{_JSON}, application/vnd.kafka.v2+json; q=0.9, application/json; q=0.8"

FORMATS = (
    Format("kafka", "", _plain, ("application/vnd.kafka.v2+json", _JSON, "application/json")),
    Format(
        "kafka-any", "*/*", _plain, ("application/vnd.kafka.v2+json", _JSON, "application/json")
    ),
    Format("json", _JSON, _plain, (_JSON,)),
    Format("json-old", _OLD_JSON, _plain, (_JSON,)),
    Format(
        "binary",
        "application/vnd.kafka.binary.v2+json",
        _binary,
        ("application/vnd.kafka.binary.v2+json",),
    ),
    Format(
        "text", "application/vnd.kafka.text.v2+json", _text, ("application/vnd.kafka.text.v2+json",)
    ),
    Format(
        "arrow",
        "application/vnd.apache.arrow.stream",
        _arrow,
        ("application/vnd.apache.arrow.stream",),
    ),
    Format("batch", "application/vnd.milena.batch", _batches, ("application/vnd.milena.batch",)),
    Format(
        "ndjson", "application/x-ndjson", _lines("json"), ("application/x-ndjson",), is_stream=True
    ),
    Format(
        "ndjson-binary",
        "application/x-ndjson",
        _lines("binary"),
        ("application/x-ndjson",),
        (("format", "binary"),),
        True,
    ),
    Format(
        "sse",
        "text/event-stream",
        _events("json"),
        ("text/event-stream",),
        (("follow", "false"),),
        True,
    ),
    Format(
        "sse-text",
        "text/event-stream",
        _events("text"),
        ("text/event-stream",),
        (("follow", "false"), ("format", "text")),
        True,
    ),
)
FORM = {form.name: form for form in FORMATS}


def is_error_line(body: bytes) -> bool:
    """Return whether a stream ended with an error in its last line or event."""
    last = body.rstrip().rsplit(b"\n", 1)[-1].removeprefix(b"data: ")
    try:
        item = json.loads(last)
    except ValueError:
        return False
    return isinstance(item, dict) and "error_code" in item and "offset" not in item
