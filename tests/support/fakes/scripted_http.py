"""The client's HTTP session without a network: metadata from its fields, and planned failures."""

import json
from typing import TYPE_CHECKING, Any

from milena.cluster.http import HttpCall, RawAnswer
from milena.cluster.routing import NodeRoutes

if TYPE_CHECKING:
    import asyncio

A, B = "http://a:1", "http://b:1"


class ScriptedHttp:
    """Responds to ``/metadata`` from its fields, or fails with ``failure``."""

    def __init__(self) -> None:
        self.routes = NodeRoutes(A)
        self.asked: list[str] = []
        self.preferred: list[str | None] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.version = 1
        self.topics: dict[str, list[int | None]] = {"t": [1, 2]}
        self.fenced: set[int] = set()
        self.other: dict[str, Any] = {}

    async def send(self, call: HttpCall, *, preferred: str | None = None) -> RawAnswer:
        self.asked.append(call.path)
        self.preferred.append(preferred)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if call.path.startswith("/metadata"):
            return self.reply(200, self.metadata())
        name = call.path.rpartition("/")[2]
        if name in self.other:
            return self.reply(200, self.other[name])
        return self.reply(404, {"error_code": 40403, "message": f"no topic {name}"})

    def reply(self, status: int, body: object) -> RawAnswer:
        return RawAnswer(status=status, headers={}, body=json.dumps(body).encode(), url=A)

    def metadata(self) -> dict[str, Any]:
        return {
            "cluster_id": "c",
            "version": self.version,
            "controller_id": 1,
            "brokers": [
                {"broker_id": n, "url": url, "rack": None, "is_fenced": n in self.fenced}
                for n, url in ((1, A), (2, B))
            ],
            "topics": [
                {
                    "name": name,
                    "topic_id": "i",
                    "configs": {},
                    "partitions": [
                        {
                            "partition": p,
                            "leader": leader,
                            "leader_epoch": 7,
                            "replicas": [1, 2],
                            "isr": [1, 2],
                        }
                        for p, leader in enumerate(leaders)
                    ],
                }
                for name, leaders in self.topics.items()
            ],
        }
