"""A small fake cluster with bugs that can be switched on, to test the chaos suite itself.

Nodes are processes over one shared directory, which has one append-only file per partition, under a lock. So the
variant without a bug is trivially consistent, whichever nodes die. The checker must accept it and reject the others.
Only ``split-brain`` replicates.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

TRANSACTION_BUGS = {
    "transactions": None,
    "cross": "write-cycle",
    "show-aborted": "aborted-read",
    "torn": "torn-transaction",
    "lose-commit": "lost-write",
    "double-keyed": "doubled-transaction",
    "backwards": "reordered",
    "show-open": "circular-flow",
    "offsets-alone": "not-exactly-once",
    "unfenced": "not-exactly-once",
    "two-faced": "two-answers",
    "hang": "hanging-transaction",
}
"""The bugs of ``fake_transactions``, each with the anomaly that the checker must report:

transactions   none: it has transactions, and they are correct
cross          none: sometimes waits between two writes of a request, so that other requests come in between
show-aborted   shows records of aborted transactions
torn           sometimes aborts the last write of a request that it commits
lose-commit    acknowledges a commit, and aborts
double-keyed   carries out some requests with a key twice
backwards      sometimes writes a request's records of a partition in reverse order
show-open      shows records of open transactions, and is slow to write
offsets-alone  sometimes aborts a commit, except its offsets
unfenced       lets the former holder of a transactional id commit
two-faced      accepts every end that is requested, also after the opposite one
hang           never aborts a transaction that is left open
"""
BUGS = {
    **TRANSACTION_BUGS,
    "none": None,
    "lose-acked": "lost-write",
    "no-fsync": "lost-write",
    "ignore-full": "lost-write",
    "dirty-read": "read-then-lost",
    "reorder": "reordered",
    "wrong-offset": "inconsistent-offset",
    "damage": "damaged-record",
    "skip": "poll-skip",
    "double": "duplicate",
    "fail-visible": "aborted-visible",
    "stale-node": "replica-divergence",
    "split-brain": "lost-write",
}
"""The bugs, each with the anomaly that the checker must report:

lose-acked    acknowledges, and writes two seconds later
no-fsync      does not sync; only a power cut reveals it
ignore-full   acknowledges records that did not fit on a full disk
dirty-read    shows records before they are written
reorder       appends an acknowledged record after later ones
wrong-offset  acknowledges an offset that is one too high
damage        sometimes returns changed contents
skip          sometimes omits a record from a page
double        sometimes appends twice
fail-visible  responds 422, and appends
stale-node    one node has another value at one offset
split-brain   replicates, but the lowest id that a node reaches is its leader: no epochs, no quorum
"""
PAGE_RECORDS = 500
TAIL_BYTES = 1 << 16
SAY_ALIVE_S = 0.5
WRITE_LATE_S = 2.0
PEER_TIMEOUT_S = 0.8
"""The timeout of a call to a peer, longer than a healthy node needs on a busy machine."""

Log = int | str
"""A partition of the topic, or the name of another log."""
Record = tuple[Any, Any]
"""A record: key and value."""


class Fake:
    """One node."""

    def __init__(self, node_id: int, directory: Path, peers: dict[int, str], bug: str) -> None:
        self.node_id = node_id
        self.peers = peers
        self._bug = bug
        self._directory = directory
        self._rng = random.Random(node_id)
        self._unwritten: defaultdict[int, list[Record]] = defaultdict(list)
        self._cache: dict[Log, tuple[int, list[Record]]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def has(self, bug: str, share: float = 1.0) -> bool:
        """Return whether this bug takes effect now."""
        return self._bug == bug and self._rng.random() < share

    # -- the log

    def log(self, partition: Log) -> list[Record]:
        """Return all complete lines of a log; they are parsed again if the file grew."""
        path = self._directory / f"p{partition}.log"
        size = path.stat().st_size if path.exists() else 0
        if self._cache.get(partition, (-1,))[0] != size:
            raw = path.read_bytes() if size else b""
            whole = raw[: raw.rfind(b"\n") + 1]
            self._cache[partition] = (size, [parse(line) for line in whole.splitlines()])
        return self._cache[partition][1]

    def append(self, partition: Log, records: list[Record]) -> int:
        """Append and sync; return the offset of the first record. A full disk raises OSError."""
        path = self._directory / f"p{partition}.log"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            base = len(self.log(partition))
            self._drop_torn_line(file, self._cache[partition][0])
            data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
            try:
                written = os.write(file, data)
            except OSError:
                written = 0
            if written < len(data) and self._bug != "ignore-full":
                raise OSError("disk full")
            if self._bug != "no-fsync":
                os.fsync(file)
                self._sync_directory()
            return base
        finally:
            os.close(file)

    @staticmethod
    def _drop_torn_line(file: int, size: int) -> None:
        raw = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
        os.ftruncate(file, size - (len(raw) - raw.rfind(b"\n") - 1))

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    # -- the API

    def leader(self, partition: int) -> int:
        """Return the node that is reported as the leader. Any node would do: all nodes take writes."""
        return 1 + partition % len(self.peers)

    async def produce(self, request: web.Request) -> web.Response:
        """POST /topics/{t}"""
        told = (await request.json())["records"]
        partition = told[0]["partition"]
        records = [(r["key"], r["value"]) for r in told]
        if self._bug in ("lose-acked", "dirty-read"):
            return await self._produce_late(partition, records)
        if self.has("reorder", 0.1):
            asyncio.get_running_loop().call_later(0.3, self.append, partition, records)
            return receipts(None, len(records))
        try:
            base = self.append(partition, records)
        except OSError as error:
            return web.json_response({"error_code": 50002, "message": str(error)}, status=500)
        if self.has("double", 0.05):
            self.append(partition, records)
        if self.has("fail-visible", 0.05):
            return web.json_response({"error_code": 42201, "message": "no"}, status=422)
        return receipts(base + self.has("wrong-offset", 0.05), len(records))

    async def _produce_late(self, partition: int, records: list[Record]) -> web.Response:
        waiting = self._unwritten[partition]
        base = len(self.log(partition)) + len(waiting)
        waiting += records
        if self._bug == "dirty-read":  # acknowledged only once it is written, but shown before
            await asyncio.sleep(SAY_ALIVE_S)
            base = self.append(partition, [waiting.pop(0) for _ in records])
        return receipts(base, len(records))

    async def fetch(self, request: web.Request) -> web.Response:
        """GET /topics/{t}/partitions/{p}/records"""
        partition, at = int(request.match_info["p"]), int(request.query["offset"])
        log: list[Record] = []
        for _ in range(max(1, int(request.query["timeout"]) // 20)):
            log = self.log(partition)
            if self._bug == "dirty-read":
                log = log + self._unwritten[partition]
            if at < len(log):
                break
            await asyncio.sleep(0.02)
        page = [
            {
                "topic": request.match_info["t"],
                "partition": partition,
                "offset": at + i,
                "key": k,
                "value": v,
            }
            for i, (k, v) in enumerate(log[at : at + PAGE_RECORDS])
        ]
        return web.json_response(self._falsify(page, log))

    def _falsify(self, page: list[dict[str, Any]], log: list[Record]) -> list[dict[str, Any]]:
        if self.has("skip", 0.05) and len(page) > 1:
            return page[1:]
        if self.has("damage", 0.02) and page:
            return [*page[:-1], {**page[-1], "value": {**page[-1]["value"], "pad": "0" * 64}}]
        if self.has("stale-node") and self.node_id == 2:
            key, value = log[0] if log else (None, None)
            return [{**r, "key": key, "value": value} if r["offset"] == 3 else r for r in page]
        return page

    async def describe(self, request: web.Request) -> web.Response:
        """GET /topics/{t}/partitions/{p}"""
        partition = int(request.match_info["p"])
        replicas = [{"broker": i, "leader": False, "in_sync": True} for i in self.peers]
        return web.json_response(
            {"partition": partition, "leader": self.leader(partition), "replicas": replicas}
        )

    async def background(self, _: web.Application) -> AsyncIterator[None]:
        """Run the background work while the application runs."""
        task = asyncio.create_task(self._work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _work(self) -> None:
        while self._bug == "lose-acked":
            await asyncio.sleep(WRITE_LATE_S)
            for partition, records in self._unwritten.items():
                if records:
                    self.append(partition, records)
                    records.clear()

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/v3/clusters", fixed({"data": [{"cluster_id": "fake"}]})),
                web.post("/v3/clusters/{c}/topics", fixed({})),
                web.get("/topics/{t}/partitions/{p}", self.describe),
                web.post("/topics/{t}", self.produce),
                web.get("/topics/{t}/partitions/{p}/records", self.fetch),
            ]
        )
        app.cleanup_ctx.append(self.background)
        return app


class SplitBrain(Fake):
    """Keep the logs in memory. The lowest reachable id leads and overwrites the logs of the others.

    The leader acknowledges a write whether or not another node has copied it. This is correct until the network or a
    node fails.
    """

    _http: ClientSession

    def __init__(self, node_id: int, directory: Path, peers: dict[int, str], bug: str) -> None:
        super().__init__(node_id, directory, peers, bug)
        self._logs: defaultdict[Log, list[Record]] = defaultdict(list)
        self._alive: set[int] = set()

    def log(self, partition: Log) -> list[Record]:
        """Return the log from memory."""
        return self._logs[partition]

    def leader(self, partition: int) -> int:
        """Return the lowest reachable id, for all partitions."""
        return min(self._alive | {self.node_id})

    async def produce(self, request: web.Request) -> web.Response:
        """POST /topics/{t}"""
        body = await request.json()
        if self.leader(0) != self.node_id:
            status, answer = await self._call("POST", self.leader(0), request.path, body)
            return web.json_response(answer, status=status or 503)
        partition = body["records"][0]["partition"]
        log = self.log(partition)
        base = len(log)
        log += [(r["key"], r["value"]) for r in body["records"]]
        copy = {"partition": partition, "base": base, "records": log[base:]}
        await asyncio.gather(*(self._call("POST", peer, "/copy", copy) for peer in self._alive))
        return receipts(base, len(body["records"]))

    async def take_copy(self, request: web.Request) -> web.Response:
        """POST /copy"""
        told = await request.json()
        log = self.log(told["partition"])
        if told["base"] <= len(log):
            log[told["base"] :] = [(key, value) for key, value in told["records"]]
        return web.json_response({})

    async def _call(self, method: str, peer: int, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            async with self._http.request(method, self.peers[peer] + path, json=body) as response:
                return response.status, await response.json()
        except (ClientError, TimeoutError, OSError, ValueError):
            return 0, None

    async def _work(self) -> None:
        others = [peer for peer in self.peers if peer != self.node_id]
        async with ClientSession(timeout=ClientTimeout(total=PEER_TIMEOUT_S)) as self._http:
            while True:
                said = await asyncio.gather(
                    *(self._call("GET", peer, "/v3/clusters") for peer in others)
                )
                self._alive = {
                    p for p, (status, _) in zip(others, said, strict=True) if status == 200
                }
                if self.leader(0) == self.node_id:
                    await self._copy_all()
                await asyncio.sleep(SAY_ALIVE_S)

    async def _copy_all(self) -> None:
        for partition, log in self._logs.items():
            for peer in self._alive:
                copy = {"partition": partition, "base": 0, "records": list(log)}
                await self._call("POST", peer, "/copy", copy)

    def app(self) -> web.Application:
        """Return the web application."""
        app = super().app()
        app.router.add_post("/copy", self.take_copy)
        return app


def parse(line: bytes) -> Record:
    """Parse a line of the log. There are no checksums, so damaged records are returned."""
    try:
        key, value = json.loads(line)
    except ValueError:
        return "?", line.decode(errors="replace")
    return key, value


def receipts(base: int | None, count: int) -> web.Response:
    """Return the response to a write."""
    offsets = [None if base is None else base + i for i in range(count)]
    return web.json_response(
        {
            "offsets": [
                {"partition": 0, "offset": o, "error_code": None, "error": None} for o in offsets
            ]
        }
    )


def fixed(body: Any) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler with the same response to every request."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response(body)

    return handler
