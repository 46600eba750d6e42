"""The transactions of the fake cluster, correct ones and ones with bugs.

A record carries its transaction. One more file, which all nodes share, has the states of all transactions. So a commit
is one line of that file, and partitions need no markers: readers look into the file.
"""

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.chaos.fake import PAGE_RECORDS, Fake, Record, receipts
from tests.chaos.transaction_calls import ABORTED, COMMITTED, End

OWN_TIMEOUT_S = 3.0
"""The timeout of a transaction in one request, in s."""
SLOW_S = 0.03
"""The pause between two writes with a bug that makes them slow, in s."""


class TransactionBook:
    """The transactions that have started, and how they ended. Times are by the machine's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._deadline_s: dict[str, float] = {}
        self._is_committed: dict[str, bool] = {}
        self._epochs: dict[str, tuple[int, int]] = {}
        self.answers: dict[str, Any] = {}
        """The committed transaction of each idempotency key."""
        self.offsets: dict[str, dict[str, int]] = {}
        """The committed offset of the group, by topic and partition."""

    def begin(self, name: str, timeout_s: float, *, is_fencing: bool = True) -> str:
        """Start the next transaction of a name, and abort its previous one; return ``"ID:EPOCH"``."""
        with self._locked() as write:
            producer, epoch = self._epochs.get(name, (len(self._epochs), -1))
            if is_fencing and self._is_open(f"{producer}:{epoch}"):
                write({"transaction": f"{producer}:{epoch}", "is_commit": False})
            deadline_s = time.monotonic() + timeout_s
            write({"name": name, "producer": producer, "epoch": epoch + 1, "until": deadline_s})
            return f"{producer}:{epoch + 1}"

    def end(
        self,
        transaction: str,
        *,
        is_commit: bool,
        key: str | None = None,
        answer: Any = None,
        offsets: Sequence[dict[str, Any]] = (),
        has_offsets: bool = True,
    ) -> bool:
        """End a transaction, unless it has ended; return whether it is committed. Of one key, only one is committed."""
        with self._locked() as write:
            if self._is_open(transaction):
                is_commit = is_commit and key not in self.answers
                ended = {"transaction": transaction, "is_commit": is_commit}
                moved = {"offsets": list(offsets)} if has_offsets and offsets else {}
                write({**ended, **({"key": key, "answer": answer} if key else {}), **moved})
            return self._is_committed.get(transaction, False)

    def state(self, transaction: str, *, is_timed: bool = True) -> bool | None:
        """Return whether a transaction is committed; None if it is open. One whose time is over is aborted here."""
        self._refresh()
        if self._is_open(transaction):
            if not is_timed or time.monotonic() < self._deadline_s[transaction]:
                return None
            self.end(transaction, is_commit=False)
        return self._is_committed.get(transaction, False)

    def _is_open(self, transaction: str) -> bool:
        return transaction in self._deadline_s and transaction not in self._is_committed

    @contextmanager
    def _locked(self) -> Iterator[Any]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._refresh()

            def write(event: dict[str, Any]) -> None:
                os.write(file, json.dumps(event).encode() + b"\n")
                self._refresh()

            yield write
        finally:
            os.close(file)

    def _refresh(self) -> None:
        if not self._path.exists() or self._path.stat().st_size == self._read:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        if "name" in event:
            self._epochs[event["name"]] = event["producer"], event["epoch"]
            self._deadline_s[f"{event['producer']}:{event['epoch']}"] = event["until"]
            return
        self._is_committed[event["transaction"]] = event["is_commit"]
        if "key" in event and event["is_commit"]:
            self.answers[event["key"]] = event["answer"]
        for row in event.get("offsets", ()):
            partitions = self.offsets.setdefault(row["topic"], {})
            partitions[str(row["partition"])] = row["next_offset"]

    def group(self, topic: str) -> dict[str, int]:
        """Return the committed offset of the group, by partition."""
        self._refresh()
        return self.offsets.get(topic, {})


class TransactionalFake(Fake):
    """A node with transactions. Records of their topics are (key, [transaction or None, value])."""

    def __init__(self, node_id: int, directory: Path, peers: dict[int, str], bug: str) -> None:
        super().__init__(node_id, directory, peers, bug)
        self._book = TransactionBook(directory / "transactions")
        self._requests = 0

    async def transact(self, request: web.Request) -> web.Response:
        """POST /transactions"""
        body, key = await request.json(), request.headers.get("Idempotency-Key")
        if key and self.has("double-keyed", 0.2):
            await self._transact(body, None)
        return web.json_response(await self._transact(body, key))

    async def _transact(self, body: Any, key: str | None) -> Any:
        transaction = self._begin()
        writes = list(body["writes"])
        offsets: list[list[int]] = [[] for _ in writes]
        order = list(range(len(writes)))
        if self._bug == "cross":
            self._rng.shuffle(order)
        torn = order[-1] if self.has("torn", 0.1) else None
        for number in order:
            name = transaction if number != torn else self._begin()
            offsets[number] = self._write(writes[number], name)
            if number == torn:
                self._book.end(name, is_commit=False)
            if self._bug in ("cross", "show-open"):
                await asyncio.sleep(SLOW_S)
        answer = {
            "committed": True,
            "writes": [{"offsets": [{"offset": o} for o in found]} for found in offsets],
        }
        is_lost = self.has("lose-commit", 0.1)
        self._book.end(transaction, is_commit=not is_lost, key=key, answer=answer)
        return self._book.answers.get(key, answer) if key else answer

    def _begin(self) -> str:
        self._requests += 1
        name = f"node{self.node_id}-{os.getpid()}-{self._requests}"
        return self._book.begin(name, OWN_TIMEOUT_S)

    def _write(self, write: dict[str, Any], transaction: str) -> list[int]:
        records: list[Record] = [(r["key"], [transaction, r["value"]]) for r in write["records"]]
        is_backwards = self.has("backwards", 0.1)
        base = self.append(
            f"{write['topic']}-{write['partition']}", records[::-1] if is_backwards else records
        )
        offsets = [base + i for i in range(len(records))]
        return offsets[::-1] if is_backwards else offsets

    async def begin(self, request: web.Request) -> web.Response:
        """POST /transactions:begin"""
        body = await request.json()
        is_fencing = self._bug != "unfenced"
        timeout_s = body["timeout_ms"] / 1000
        begun = self._book.begin(body["transactional_id"], timeout_s, is_fencing=is_fencing)
        producer, epoch = map(int, begun.split(":"))
        told = {"producer_id": producer, "producer_epoch": epoch, "transaction": f"{begun}:1"}
        return web.json_response(told)

    async def produce(self, request: web.Request) -> web.Response:
        """POST /topics/{t}, of a transaction or not."""
        topic = request.match_info["t"]
        if topic == "chaos":
            return await super().produce(request)
        told = (await request.json())["records"]
        header = request.headers.get("Milena-Transaction")
        transaction = header.rpartition(":")[0] if header else None
        if transaction is not None and self._state(transaction) is not None:
            return refused(40924)
        if self._bug == "show-open":
            await asyncio.sleep(SLOW_S)
        name = f"{topic}-{told[0]['partition']}"
        records = [(r["key"], [transaction, r["value"]]) for r in told]
        log = self.log(name)
        # This may be a retry of a write by a node that is dead now.
        base = log.index(records[0]) if records[0] in log else self.append(name, records)
        return receipts(base, len(records))

    async def end(self, request: web.Request) -> web.Response:
        """POST /transactions/{producer}/{epoch}:{end}"""
        transaction = f"{request.match_info['producer']}:{request.match_info['epoch']}"
        is_commit = request.match_info["end"] == End.COMMIT
        offsets = (await request.json()).get("offsets", ())
        is_apart = bool(offsets) and self.has("offsets-alone", 0.1)
        is_committed = self._book.end(
            transaction,
            is_commit=is_commit and not is_apart,
            offsets=offsets,
            has_offsets=is_commit,
        )
        if is_committed is is_commit or self._bug == "two-faced":
            return web.json_response({})
        return refused(COMMITTED if is_committed else ABORTED)

    async def group(self, request: web.Request) -> web.Response:
        """GET /groups/{g}/offsets"""
        topic = request.query["topic"]
        found = {p: {"offset": offset} for p, offset in self._book.group(topic).items()}
        return web.json_response({"offsets": {topic: found}})

    async def fetch(self, request: web.Request) -> web.Response:
        """GET /topics/{t}/partitions/{p}/records"""
        topic, partition = request.match_info["t"], int(request.match_info["p"])
        if topic == "chaos":
            return await super().fetch(request)
        at, is_all = int(request.query["offset"]), "isolation" in request.query
        found = [one for one in self._visible(f"{topic}-{partition}", is_all) if one[0] >= at]
        if not found:
            await asyncio.sleep(SLOW_S)
        page = [
            {"topic": topic, "partition": partition, "offset": offset, "key": key, "value": value}
            for offset, key, value in found[:PAGE_RECORDS]
        ]
        return web.json_response(page)

    def _visible(self, log: str, is_all: bool) -> Iterator[tuple[int, Any, Any]]:
        for offset, (key, (transaction, value)) in enumerate(self.log(log)):
            state = True if is_all or transaction is None else self._state(transaction)
            if state is None and self._bug != "show-open":
                return
            if state is not False or self._bug == "show-aborted":
                yield offset, key, value

    def _state(self, transaction: str) -> bool | None:
        return self._book.state(transaction, is_timed=self._bug != "hang")

    def app(self) -> web.Application:
        """Return the web application."""
        app = super().app()
        app.add_routes(
            [
                web.post("/transactions", self.transact),
                web.post("/transactions:begin", self.begin),
                web.post(r"/transactions/{producer:\d+}/{epoch:\d+}:{end}", self.end),
                web.get("/groups/{g}/offsets", self.group),
            ]
        )
        return app


def refused(code: int) -> web.Response:
    """Return an error response; the code has five digits and starts with the status."""
    return web.json_response({"error_code": code, "message": "no"}, status=code // 100)
