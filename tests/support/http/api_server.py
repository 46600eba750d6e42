"""The API over a fake node, on a free port, and a client for it."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from http_api.app import build_runner
from http_api.ports.node import ApiLimits
from tests.support.fakes.ports import CLUSTER_ID, FakeNode

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
TEXT_V2 = "application/vnd.kafka.text.v2+json"
V2 = "application/vnd.kafka.v2+json"
BATCH = "application/vnd.milena.batch"
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
V3 = f"/v3/clusters/{CLUSTER_ID}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> tuple[int, int]:
        """Return the status and the error code; check that the body is an error and nothing else."""
        envelope = self.json
        assert set(envelope) == {"error_code", "message"}, envelope
        assert envelope["message"], envelope
        return self.status, envelope["error_code"]


class ApiClient:
    """A client of one API; ``node`` is the fake node behind it."""

    def __init__(self, node: FakeNode, base_url: str, session: aiohttp.ClientSession) -> None:
        self.node = node
        self.base_url = base_url
        self.session = session

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        url = path if "://" in path else self.base_url + path
        async with self.session.request(method, url, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, accept: str | None = None, **options: Any) -> Answer:
        headers = {} if accept is None else {"Accept": accept}
        return await self.call(
            "GET", path, headers={**headers, **options.pop("headers", {})}, **options
        )

    async def post(
        self, path: str, body: object = None, type_: str | None = JSON_V2, **options: Any
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        headers = dict(options.pop("headers", {}))
        if type_ is not None:
            headers["Content-Type"] = type_
        skip = () if type_ is not None else ("Content-Type",)
        return await self.call(
            "POST", path, data=data, headers=headers, skip_auto_headers=skip, **options
        )

    async def produce(
        self, topic: str, records: list[Any], query: str = "", **options: Any
    ) -> Answer:
        return await self.post(f"/topics/{topic}{query}", {"records": records}, **options)

    async def records(self, topic: str, query: str = "", accept: str | None = None) -> Answer:
        return await self.get(f"/topics/{topic}/partitions/0/records{query}", accept)


@asynccontextmanager
async def serving(
    node: FakeNode | None = None,
    limits: ApiLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[ApiClient]:
    """Serve the API during the block; yield a client for it."""
    node = node or FakeNode()
    runner = build_runner(node.ports(limits), **options)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            scheme = "http" if tls is None else "https"
            yield ApiClient(node, f"{scheme}://{host}:{port}", session)
    finally:
        await runner.cleanup()
