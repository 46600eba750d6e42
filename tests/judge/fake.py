"""A small fake cluster without sockets or clocks, into which the tests of the judge plant faults.

It keeps the promises of the documents that the steps in `STEPS` use. A fault is a name in `faults`.
"""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from tests.judge import wire
from tests.judge.client import Lost, Request, Response
from tests.judge.model import Number, is_json, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS = (
    *(
        "write",
        "repeat",
        "old-key",
        "conditional",
        "pipeline",
        "read",
        "read-topic",
        "end",
        "create",
        "delete-records",
    ),
    *("recreate", "tx-one", "tx-session", "tx-list", "offsets"),
)
FAULTS = {
    "lost record": ("J-read-ack", "J-gap"),
    "stale reads": ("J-read-ack",),
    "stale end": ("J-end",),
    "repeat writes again": ("J-once",),
    "floats": ("J-value",),
    "decimals": ("J-value",),
    "headers dropped": ("J-value",),
    "times rounded": ("J-value",),
    "values of a neighbour": ("J-value", "J-once", "J-phantom"),
    "tail counts markers": ("J-tail",),
    "time starts late": ("J-time",),
    "refused and written": ("J-refused",),
    "undocumented 500": ("J-status",),
    "swapped answers": ("J-own-answer",),
    "open is read": ("J-tx-isolation",),
    "aborted is read": ("J-tx-isolation",),
    "an end is not waited for": ("J-tx-visible",),
    "half a transaction": ("J-read-ack", "J-gap"),
    "early abort": ("J-tx-time",),
    "late writes of a transaction": ("J-tx-fence",),
    "If-Match ignored": ("J-if-match",),
    "412 tells a false end": ("J-if-match",),
    "deleted comes back": ("J-deleted",),
    "deletes one more": ("J-deleted", "J-read-ack"),
    "lag off by one": ("J-lag",),
    "markers count as lag": ("J-lag",),
    "commit on one node": ("J-commit",),
    "tag of the former topic": ("J-successor",),
    "event id of the former topic": ("J-successor",),
    "key of the former topic": ("J-successor",),
    "records of the former topic": ("J-successor", "J-stable", "J-phantom"),
    "keys move": ("J-key",),
    "offset given twice": ("J-stable",),
    "order swapped": ("J-order",),
    "wrong type": ("J-accept",),
    "topics known late": ("J-known",),
}


_Answer = tuple[int, dict[str, str], bytes]


@dataclass
class _Stored:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int
    transaction: str = ""
    is_marker: bool = False
    is_lost: bool = False


@dataclass
class _Log:
    records: list[_Stored] = field(default_factory=list)
    start: int = 0
    keys: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0


class _Error(Exception):
    def __init__(self, status: int, code: int, message: str = "refused", **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = json.dumps({"error_code": code, "message": message, **more}).encode()


@dataclass
class FakeCluster:
    """A `Transport` that responds like a cluster of three nodes."""

    faults: frozenset[str] = frozenset()
    ticks: int = 0
    topics: dict[str, list[_Log]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    former: dict[str, list[_Log]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)  # transaction: open, committed or aborted
    late: dict[str, int] = field(
        default_factory=dict
    )  # transaction: tick until which readers stop at it
    done: dict[str, bytes] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    turns: int = 0

    def now(self) -> float:
        """Return a time that is later at each call."""
        self.ticks += 1
        return self.ticks / 1000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.ticks += int(seconds * 1000)

    def exchange(self, node: int, requests: Sequence[Request]) -> list[Response | Lost]:
        """Respond to requests in order."""
        answers: list[Response | Lost] = []
        for request in requests:
            began = self.now()
            try:
                status, headers, body = self._answer(node, request)
            except _Error as error:
                status, headers, body = error.status, {}, error.body
            mark = dict(request.headers).get("X-Request-Id", "")
            answers.append(
                Response(status, {"x-request-id": mark, **headers}, body, began, self.now(), node)
            )
        if "swapped answers" in self.faults and len(answers) > 1:
            answers.reverse()
        return answers

    def _has(self, fault: str, one_in: int = 1) -> bool:
        self.turns += 1
        return fault in self.faults and self.turns % one_in == 0

    def _answer(self, node: int, request: Request) -> _Answer:
        parts = urlsplit(request.target)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query))
        path = re.sub(
            r"^/v3/clusters/[^/]*/topics/([^/]+)/records(:batch)?$", r"/v3records\2/\1", path
        )
        if self._has("undocumented 500", 40):
            return 500, {}, b"oops"
        routes: tuple[tuple[str, str, Callable[..., _Answer]], ...] = (
            ("POST", r"/admin/topics", self._create),
            ("DELETE", r"/v3/clusters/[^/]*/topics/([^/]+)", self._delete),
            ("POST", r"/topics/([^/]+)/partitions/(\d+)/records:delete", self._delete_records),
            ("POST", r"/topics/([^/]+)(?:/partitions/(\d+)(?:/records)?)?", self._produce),
            ("POST", r"/v3records(:batch)?/([^/]+)", self._produce_v3),
            ("GET", r"/topics/([^/]+)/partitions/(\d+)/records", self._fetch),
            ("GET", r"/topics/([^/]+)/records", self._stream),
            ("GET", r"/topics/([^/]+)/partitions/(\d+)/offsets", self._ends),
            ("GET", r"/v3/clusters/[^/]*/topics/([^/]+)/partitions/(\d+)/offset", self._ends),
            ("POST", r"/transactions", self._transact),
            ("POST", r"/transactions:begin", self._begin),
            ("POST", r"/transactions/(\d+)/(\d+):(commit|abort)", self._finish),
            ("GET", r"/transactions", self._list),
            ("POST", r"/groups/([^/]+)/offsets", self._commit),
            ("POST", r"/groups/([^/]+)/offsets:reset", self._reset),
            ("GET", r"(?:/v3/clusters/[^/]*)?/topics/([^/]+)", self._describe),
            ("GET", r"/groups/([^/]+)(?:/offsets)?", self._committed),
            ("GET", r"(?:/groups|.*/consumer-groups)/([^/]+)/(?:lags|lag-summary)", self._lags),
        )
        for method, pattern, handler in routes:
            found = re.fullmatch(pattern, path)
            if method == request.method and found:
                return handler(node, request, query, *found.groups())
        raise _Error(404, 404)

    # -- topics --

    def _create(self, _node: int, request: Request, _query: object) -> _Answer:
        told = json.loads(request.body or b"")
        name = told["topic_name"]
        if name in self.topics:
            raise _Error(400, 40002)
        self.topics[name] = [_Log() for _ in range(told["partitions_count"])]
        self.ids[name] = len(self.ids) + 1 + self.ids.get(name, 0) * 1000
        if name in self.former and "records of the former topic" in self.faults:
            self.topics[name][0].records = self.former[name][0].records
        if name in self.former and "key of the former topic" in self.faults:
            self.topics[name][0].keys = self.former[name][0].keys
        return 201, {}, b"{}"

    def _delete(self, _node: int, _request: Request, _query: object, name: str) -> _Answer:
        self.former[name] = self.topics.pop(name)
        for offsets in self.groups.values():
            for place in [place for place in offsets if place[0] == name]:
                del offsets[place]
        return 204, {}, b""

    def _describe(self, _node: int, _request: Request, _query: object, name: str) -> _Answer:
        if name not in self.topics or self._has("topics known late", 3):
            raise _Error(404, 40403)
        return 200, {}, b"{}"

    def _log(self, name: str, number: str | int) -> _Log:
        try:
            return self.topics[name][int(number)]
        except (KeyError, IndexError):
            raise _Error(404, 40402) from None

    def _delete_records(
        self, _node: int, request: Request, _query: object, name: str, number: str
    ) -> _Answer:
        log, before = self._log(name, number), json.loads(request.body or b"")["before_offset"]
        before = log.end if before == "latest" else before
        if before > log.end:
            raise _Error(400, 40002)
        start = max(log.start, before + (before < log.end and self._has("deletes one more")))
        log.start = 0 if "deleted comes back" in self.faults else start
        return 200, {}, json.dumps({"partition": int(number), "log_start_offset": start}).encode()

    # -- writes --

    def _produce(
        self, _node: int, request: Request, _query: object, name: str, number: str | None
    ) -> _Answer:
        kind = dict(request.headers).get("Content-Type", "application/json")
        body = request.body or b""
        if kind == "application/vnd.milena.batch":
            rows = wire.decode(body)
            items: list[Any] = [
                (int(number or 0), r.key, r.value, list(r.headers), r.timestamp) for r in rows
            ]
        elif kind in ("text/plain", "application/x-ndjson"):
            items = [
                (None if number is None else int(number), None, line, [], None)
                for line in body.split(b"\n")[:-1]
            ]
        else:
            items = [self._record(item, kind, number) for item in parse_json(body)["records"]]
        offsets = self._append(name, items, request)
        if kind == "application/vnd.milena.batch":
            told: dict[str, object] = {
                "partition": offsets[0][0],
                "base_offset": offsets[0][1],
                "is_duplicate": False,
            }
            return 200, {}, json.dumps(told).encode()
        receipts = [
            {"partition": place, "offset": offset, "error_code": None} for place, offset in offsets
        ]
        return 200, {}, json.dumps({"offsets": receipts}).encode()

    def _record(self, item: dict[str, Any], kind: str, number: str | None) -> Any:
        def data(value: Any) -> bytes | None:
            if value is None:
                return None
            if "binary" in kind or kind == "application/vnd.kafka.v2+json":
                return base64.b64decode(value)
            return str(value).encode() if "text" in kind else self._dump(value).encode()

        headers = [
            (pair["key"], base64.b64decode(pair["value"])) for pair in item.get("headers", ())
        ]
        place = item["partition"].text if "partition" in item else number
        timestamp = int(item["timestamp"].text) if "timestamp" in item else None
        return (
            None if place is None else int(place),
            data(item.get("key")),
            data(item.get("value")),
            headers,
            timestamp,
        )

    def _dump(self, value: Any) -> str:
        if isinstance(value, Number):
            is_decimal = any(letter in value.text for letter in ".eE")
            if ("decimals" in self.faults and is_decimal) or (
                "floats" in self.faults and len(value.text) > 18
            ):
                return repr(float(value.text))
            return value.text
        if isinstance(value, dict):
            return (
                "{"
                + ",".join(f"{json.dumps(key)}:{self._dump(item)}" for key, item in value.items())
                + "}"
            )
        if isinstance(value, list):
            return "[" + ",".join(map(self._dump, value)) + "]"
        return json.dumps(value, ensure_ascii=False)

    def _produce_v3(
        self, _node: int, request: Request, _query: object, batch: str | None, name: str
    ) -> _Answer:
        text = (request.body or b"").decode()
        entries = (
            parse_json(text)["entries"]
            if batch
            else [parse_json(line) for line in text.split("\n")]
        )
        items = []
        for entry in entries:
            data = {}
            for word in ("key", "value"):
                told = entry.get(word) or {"type": "JSON", "data": None}
                value = told["data"]
                if value is not None:
                    kind = told["type"]
                    data[word] = (
                        base64.b64decode(value)
                        if kind == "BINARY"
                        else (value.encode() if kind == "STRING" else self._dump(value).encode())
                    )
            headers = [
                (pair["name"], base64.b64decode(pair["value"])) for pair in entry.get("headers", ())
            ]
            place = int(entry["partition_id"].text) if "partition_id" in entry else None
            timestamp = int(entry["timestamp"].text) if "timestamp" in entry else None
            items.append((place, data.get("key"), data.get("value"), headers, timestamp))
        offsets = self._append(name, items, request)
        told_all = [
            {"error_code": 200, "partition_id": place, "offset": offset, "id": entry.get("id")}
            for entry, (place, offset) in zip(entries, offsets, strict=True)
        ]
        if batch:
            return 207, {}, json.dumps({"successes": told_all, "failures": []}).encode()
        return 200, {}, "\n".join(map(json.dumps, told_all)).encode()

    def _append(
        self, name: str, items: Sequence[Any], request: Request, transaction: str = ""
    ) -> list[tuple[int, int]]:
        headers = dict(request.headers)
        logs = self.topics.get(name)
        if logs is None:
            raise _Error(404, 40401)
        transaction = transaction or headers.get("Milena-Transaction", "")
        if (
            transaction
            and self.open.get(transaction) != "open"
            and "late writes of a transaction" not in self.faults
        ):
            raise _Error(409, 40926)
        key, body = headers.get("Idempotency-Key", ""), request.body or b""
        kept = logs[0].keys.get(key)
        if key and kept and not (self._has("repeat writes again", 3)):
            if kept[0] != body:
                raise _Error(422, 42211)
            return [(place, offset) for place, offset in json.loads(kept[1])]
        if "If-Match" in headers:
            self._match(headers["If-Match"], name, logs, items)
        if self._has("refused and written", 10):
            self._store(logs, items, transaction)
            raise _Error(503, 50302)
        offsets = self._store(logs, items, transaction)
        if key:
            logs[0].keys[key] = (body, json.dumps(offsets).encode())
        return offsets

    def _match(self, tag: str, name: str, logs: list[_Log], items: Sequence[Any]) -> None:
        number, identity = int(tag.strip('"').split("-")[-1]), tag.strip('"').split("-")[0]
        log = logs[items[0][0] or 0]
        is_own = identity == str(self.ids[name]) or "tag of the former topic" in self.faults
        if (number != log.end or not is_own) and "If-Match ignored" not in self.faults:
            end = number if "412 tells a false end" in self.faults else log.end
            raise _Error(412, 412, end_offset=end)

    def _store(
        self, logs: list[_Log], items: Sequence[Any], transaction: str
    ) -> list[tuple[int, int]]:
        offsets = []
        for named, key, value, headers, timestamp in items:
            turn = self.ticks if self._has("keys move") or key is None else sum(key)
            place = turn % len(logs) if named is None else named
            log = logs[place]
            offset = log.end
            stored = _Stored(offset, key, value, headers, timestamp or 1, transaction)
            stored.is_lost = self._has("lost record", 9)
            log.records.append(stored)
            if self._has("offset given twice", 9) and offset:
                offset -= 1
            offsets.append((place, offset))
        return offsets

    # -- reads --

    def _visible(self, log: _Log) -> list[_Stored]:
        found = []
        for record in log.records:
            state = self.open.get(record.transaction, "committed")
            is_held = state == "open" or self.late.get(record.transaction, 0) > self.ticks
            if is_held and "open is read" not in self.faults:
                break
            is_shown = state != "aborted" or "aborted is read" in self.faults
            if (
                record.offset >= log.start
                and is_shown
                and not record.is_marker
                and not record.is_lost
            ):
                found.append(record)
        return found

    def _choose(self, log: _Log, query: dict[str, str]) -> tuple[int, list[_Stored]]:
        """Return the offset at which a response starts, and its records."""
        shown, word = self._visible(log), query.get("offset", "earliest")
        if "timestamp" in query:
            try:
                asked = int(query["timestamp"])
            except ValueError:
                asked = 0
            late = [n for n, record in enumerate(shown) if record.timestamp >= asked]
            first = late[0] + ("time starts late" in self.faults) if late else len(shown)
            return log.start, shown[first:]
        if word.startswith("-") and "tail counts markers" in self.faults:
            least = log.end + int(word)
            return max(0, least), [record for record in shown if record.offset >= least]
        if word.startswith("-"):
            rows = shown[int(word) :]
            return rows[0].offset if rows else log.end, rows
        start = log.start if word == "earliest" else int(word)
        if not log.start <= start <= log.end:
            raise _Error(400, 40002, f"offset {start} is not there")
        return start, [record for record in shown if record.offset >= start]

    def _fetch(
        self, node: int, request: Request, query: dict[str, str], name: str, number: str
    ) -> _Answer:
        log, headers = self._log(name, number), dict(request.headers)
        last = headers.get("Last-Event-ID")
        if last is not None and "-" in last:
            identity, _, offset = last.partition("-")
            if identity == str(self.ids[name]) or "event id of the former topic" in self.faults:
                query = {**query, "offset": str(min(log.end, int(offset) + 1))}
        start, rows = self._choose(log, query)
        if node == 3 and self._has("stale reads", 2):
            rows = rows[:-1]
        count = int(query.get("count", 0))
        accept = headers.get("Accept", "")
        fitting = self._strict(rows[:count] if count else rows, accept)
        is_last, rows = len(fitting) == len(rows), fitting
        where = rows[-1].offset + 1 if rows and not is_last else max(log.end, start)
        if node == 3 and "stale reads" in self.faults:
            where = rows[-1].offset + 1 if rows else start
        told = {
            "milena-next-offset": str(where),
            "milena-high-watermark": str(log.end),
            "etag": f'"{self.ids[name]}-{where}"',
        }
        kind, body = self._body(name, int(number), self._spoil(rows), accept, query)
        if self._has("wrong type", 5):
            kind = "text/html"
        return 200, {**told, "content-type": kind}, body

    def _spoil(self, rows: list[_Stored]) -> list[_Stored]:
        if "headers dropped" in self.faults:
            rows = [replace(record, headers=[]) for record in rows]
        if "times rounded" in self.faults:
            rows = [replace(record, timestamp=record.timestamp // 1000 * 1000) for record in rows]
        if len(rows) > 1 and self._has("values of a neighbour", 4):
            rows = [replace(rows[0], value=rows[1].value, key=rows[1].key), *rows[1:]]
        if len(rows) > 1 and self._has("order swapped", 4):
            rows = [rows[1], rows[0], *rows[2:]]
        return rows

    def _strict(self, rows: list[_Stored], accept: str) -> list[_Stored]:
        """Return the records before the first that the format cannot show."""
        is_text = "text.v2" in accept
        if "json.v2" not in accept and not is_text:
            return rows
        fits = _is_text if is_text else is_json
        good = 0
        while good < len(rows) and all(
            fits(d) for d in (rows[good].key, rows[good].value) if d is not None
        ):
            good += 1
        if rows and not good:
            raise _Error(422, 42203, f"the record at offset {rows[0].offset} is none")
        return rows[:good]

    def _body(
        self, name: str, number: int, rows: list[_Stored], accept: str, query: dict[str, str]
    ) -> tuple[str, bytes]:
        form = query.get("format", "json")
        if accept.startswith("application/vnd.apache.arrow"):
            return accept, _arrow(name, number, rows)
        if accept == "application/vnd.milena.batch":
            return accept, b"".join(_batch(record) for record in rows)
        if accept in ("application/x-ndjson", "text/event-stream"):
            lines = [_item(name, number, record, form) for record in rows]
            if accept == "application/x-ndjson":
                return accept, "".join(line + "\n" for line in lines).encode()
            return accept, self._events(name, rows, lines)
        form = "binary" if "binary" in accept else "text" if "text" in accept else "json"
        items = ",".join(_item(name, number, record, form) for record in rows)
        return f"application/vnd.kafka.{form}.v2+json", f"[{items}]".encode()

    def _events(self, name: str, rows: list[_Stored], lines: list[str]) -> bytes:
        marked = [
            (f"{self.ids[name]}-{record.offset}", line)
            for record, line in zip(rows, lines, strict=True)
        ]
        return "".join(f"id: {mark}\ndata: {line}\n\n" for mark, line in marked).encode()

    def _stream(self, node: int, request: Request, query: dict[str, str], name: str) -> _Answer:
        bodies = []
        for number in range(len(self.topics.get(name, ()))):
            bodies.append(self._fetch(node, request, query, name, str(number))[2])
        return 200, {"content-type": dict(request.headers).get("Accept", "")}, b"".join(bodies)

    def _ends(
        self, _node: int, _request: Request, _query: object, name: str, number: str
    ) -> _Answer:
        log = self._log(name, number)
        end = log.end - (1 if log.end and self._has("stale end", 3) else 0)
        told = {
            "beginning_offset": log.start,
            "end_offset": end,
            "earliest_offset": log.start,
            "latest_offset": end,
        }
        return 200, {}, json.dumps(told).encode()

    # -- transactions and groups --

    def _transact(self, _node: int, request: Request, _query: object) -> _Answer:
        headers, told = dict(request.headers), parse_json(request.body or b"")
        key = headers.get("Idempotency-Key", "")
        if key and key in self.done:
            return 200, {}, self.done[key]
        mark = f"one-{self.ticks}"
        self.open[mark] = "open"
        plain = replace(request, headers=(), body=b"")
        kind = headers.get("Content-Type", "")
        writes = []
        for write in told.get("writes", ()):
            place = write["partition"].text if "partition" in write else None
            items = [self._record(item, kind, place) for item in write["records"]]
            offsets = self._append(write["topic"], items, plain, mark)
            writes.append({"offsets": [{"partition": p, "offset": o} for p, o in offsets]})
        for item in told.get("offsets", ()):
            place = (item["topic"], int(item["partition"].text))
            self.groups.setdefault(item["group"], {})[place] = int(item["next_offset"].text)
        self._mark(mark, "committed")
        body = json.dumps(
            {"committed": True, "visible": True, "is_duplicate": False, "writes": writes}
        ).encode()
        self.done[key] = body
        return 200, {}, body

    def _list(self, *_: object) -> _Answer:
        """List no transaction, as if all that were left open had timed out."""
        for mark in [mark for mark, state in self.open.items() if state == "open"]:
            self._mark(mark, "aborted")
        return 200, {}, b'{"total":0,"transactions":[]}'

    def _mark(self, mark: str, state: str) -> None:
        """End a transaction: append a marker to each of its partitions."""
        for logs in self.topics.values():
            for log in logs:
                own = [record for record in log.records if record.transaction == mark]
                if own:
                    if state == "committed" and self._has("half a transaction", 2):
                        own[0].is_lost = True
                    log.records.append(_Stored(log.end, None, None, [], 0, is_marker=True))
        self.open[mark] = state
        if state == "aborted" and self._has("an end is not waited for"):
            self.late[mark] = self.ticks + 40

    def _begin(self, _node: int, request: Request, _query: object) -> _Answer:
        told = json.loads(request.body or b"")
        name = told["transactional_id"]
        identity = 1 + sum(map(ord, name)) * 1000
        for mark in [
            m for m, state in self.open.items() if m.startswith(f"{identity}:") and state == "open"
        ]:
            self._mark(mark, "aborted")
        epoch = sum(mark.startswith(f"{identity}:") for mark in self.open)
        mark = f"{identity}:{epoch}:30000"
        self.open[mark] = "open"
        body = {
            "transactional_id": name,
            "producer_id": identity,
            "producer_epoch": epoch,
            "transaction": mark,
            "visible": True,
        }
        return 200, {}, json.dumps(body).encode()

    def _finish(
        self, _node: int, _request: Request, _query: object, identity: str, epoch: str, word: str
    ) -> _Answer:
        mark = f"{identity}:{epoch}:30000"
        state = self.open.get(mark)
        wanted = "committed" if word == "commit" else "aborted"
        if word == "commit" and self._has("early abort", 2):
            wanted = "aborted"
        if state == "open":
            self._mark(mark, wanted)
        if state is None or self.open[mark] != ("committed" if word == "commit" else "aborted"):
            raise _Error(409, 40926)
        return (
            200,
            {},
            json.dumps({word: True, "visible": True, "next_epoch": int(epoch) + 1}).encode(),
        )

    def _commit(self, node: int, request: Request, _query: object, group: str) -> _Answer:
        if not (node == 2 and "commit on one node" in self.faults):
            for item in json.loads(request.body or b"")["offsets"]:
                self.groups.setdefault(group, {})[item["topic"], item["partition"]] = item["offset"]
        return 204, {}, b""

    def _reset(self, _node: int, request: Request, _query: object, group: str) -> _Answer:
        told = json.loads(request.body or b"")
        for number in told["partitions"]:
            if told["to"] > self._log(told["topic"], number).end:
                raise _Error(400, 40002)
            self.groups.setdefault(group, {})[told["topic"], number] = told["to"]
        offsets = {str(number): {"offset": told["to"]} for number in told["partitions"]}
        return 200, {}, json.dumps({"offsets": {told["topic"]: offsets}}).encode()

    def _committed(self, _node: int, _request: Request, _query: object, group: str) -> _Answer:
        if group not in self.groups:
            raise _Error(404, 40405)
        told: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, number), offset in self.groups[group].items():
            told.setdefault(topic, {})[str(number)] = {"offset": offset}
        return 200, {}, json.dumps({"offsets": told}).encode()

    def _lags(self, _node: int, _request: Request, _query: object, group: str) -> _Answer:
        lags = []
        for (topic, number), offset in self.groups.get(group, {}).items():
            log = self._log(topic, number)
            shown = [record.offset for record in self._visible(log)]
            left: int | None = max(0, shown[-1] + 1 - max(offset, log.start)) if shown else 0
            if offset > log.end:
                left = None
            elif "lag off by one" in self.faults:
                left = (left or 0) + 1
            elif "markers count as lag" in self.faults:
                left = log.end - offset
            lags.append(
                {
                    "topic": topic,
                    "partition": number,
                    "offset": offset,
                    "end_offset": log.end,
                    "lag": left,
                }
            )
        return 200, {}, json.dumps({"lags": lags}).encode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except ValueError:
        return False
    return True


def _item(name: str, number: int, record: _Stored, form: str) -> str:
    fields = [f'"topic":{json.dumps(name)}', f'"partition":{number}', f'"offset":{record.offset}']
    for word, data in (("key", record.key), ("value", record.value)):
        if data is None:
            fields.append(f'"{word}":null')
        elif form == "binary":
            fields.append(f'"{word}":"{base64.b64encode(data).decode()}"')
        elif form == "text" and _is_text(data):
            fields.append(f'"{word}":{json.dumps(data.decode())}')
        elif form == "json" and is_json(data):
            fields.append(f'"{word}":{data.decode()}')
        elif _is_text(data):
            fields.append(f'"{word}_text":{json.dumps(data.decode())}')
        else:
            fields.append(f'"{word}_base64":"{base64.b64encode(data).decode()}"')
    pairs = [{"key": key, "value": base64.b64encode(data).decode()} for key, data in record.headers]
    return (
        "{"
        + ",".join([*fields, f'"timestamp":{record.timestamp}', f'"headers":{json.dumps(pairs)}'])
        + "}"
    )


def _batch(record: _Stored) -> bytes:
    body = wire.encode(
        [wire.Row(record.key, record.value, tuple(record.headers), record.timestamp)]
    )
    return wire.stamped(body, record.offset)


def _arrow(name: str, number: int, rows: list[_Stored]) -> bytes:
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    fields = [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
    ]
    schema = pa.schema(
        [*fields, ("value", pa.binary()), ("headers", pairs)],
        {"topic": name, "partition": str(number)},
    )
    items = [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": data} for key, data in record.headers],
        }
        for record in rows
    ]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(items, schema))
    return sink.getvalue()
