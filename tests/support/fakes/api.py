"""The HTTP endpoints of a node as the client sees them, over plain dictionaries; for tests of the client."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.support.fakes.access_api import FakeAccessApi
from tests.support.fakes.group_api import FakeGroupApi


class FakeApi:
    """Three nodes in dictionaries. Tests change ``brokers`` and ``topics``, and read ``requests``."""

    def __init__(self) -> None:
        self.brokers = [self.broker(i) for i in (1, 2, 3)]
        self.controller_id = 1
        self.can_drain = True
        self.topics: dict[str, dict[str, Any]] = {}
        self.groups = FakeGroupApi(t=2)
        self.access = FakeAccessApi()
        self.requests: list[tuple[str, str, str]] = []
        self.planned: list[dict[str, Any]] = []
        self.moves: list[list[dict[str, Any]]] = []
        """The responses about moves, one list after the other; the last one repeats."""
        self.is_current = True
        self.is_metrics_denied = False
        self.metrics: str | None = None
        """The text of ``GET /metrics``; None if the path does not exist."""
        self.ready: tuple[int, dict[str, str]] = (200, {"status": "ok", "reason": ""})
        self.answer: tuple[int, Any] | None = None
        """The (status, body) that every request gets instead of the real response."""
        self.request_id: str | None = None
        """The value that this response has in ``X-Request-Id``."""

    @staticmethod
    def broker(node_id: int, *, is_fenced: bool = False) -> dict[str, Any]:
        return {
            "broker_id": node_id,
            "url": f"http://127.0.0.1:{8081 + node_id}",
            "rack": None,
            "is_fenced": is_fenced,
            "is_draining": False,
        }

    def add_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: Sequence[int] = (1, 2, 3),
        isr: Sequence[int] | None = None,
        leader: int | None = 1,
        configs: dict[str, str] | None = None,
    ) -> None:
        self.topics[name] = {
            "name": name,
            "configs": configs or {},
            "partitions": [
                {
                    "partition": p,
                    "leader": leader,
                    "leader_epoch": 4,
                    "replicas": list(replicas),
                    "isr": list(replicas if isr is None else isr),
                }
                for p in range(partitions)
            ],
        }

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._note])
        app.add_routes(self.groups.routes())
        app.add_routes(self.access.routes())
        app.add_routes(
            [
                web.get("/metadata", self._metadata),
                web.get("/", self._root),
                web.get("/brokers", self._broker_ids),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.post("/drain", self._drain),
                web.get("/metadata/topics/{t}", self._sizes),
                web.get("/topics", self._names),
                web.get("/topics/{t}", self._topic),
                web.get("/topics/{t}/partitions/{p}/offsets", self._offsets),
                web.get("/v3/clusters", self._clusters),
                web.post("/v3/clusters/{c}/topics", self._create),
                web.delete("/v3/clusters/{c}/topics/{t}", self._delete),
                web.patch("/v3/clusters/{c}/topics/{t}", self._grow),
                web.post("/v3/clusters/{c}/topics/{t}/configs:alter", self._alter),
                web.delete("/v3/clusters/{c}/brokers/{b}", self._remove),
                web.get("/topics/{t}/partitions/{p}/records", self._records),
                web.post("/reassignments", self._reassign),
                web.get("/reassignments", self._moves),
                web.delete("/reassignments", self._cancel_moves),
                web.post("/topics/{t}/partitions/{p}/records:delete", self._delete_records),
            ]
        )
        return app

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, request.path, await request.text()))
        if self.answer is not None:
            status, body = self.answer
            if isinstance(body, str):
                return web.Response(status=status, text=body)
            headers = {} if self.request_id is None else {"X-Request-Id": self.request_id}
            return web.json_response(body, status=status, headers=headers)
        return await handler(request)

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": 17,
                "cluster_id": "c1",
                "controller_id": self.controller_id,
                "brokers": self.brokers,
                "topics": list(self.topics.values()),
                "is_current": self.is_current,
            }
        )

    async def _sizes(self, request: web.Request) -> web.Response:
        topic = self.topics.get(request.match_info["t"])
        if topic is None:
            return self._missing(request)
        partitions = [{**p, "stored_bytes": 300} for p in topic["partitions"]]
        return web.json_response(
            {
                "topic_id": "f1c6",
                "configs": topic["configs"],
                "partition_count": len(partitions),
                "stored_bytes": 300 * len(partitions),
                "silent_nodes": [],
                "partitions": partitions,
            }
        )

    async def _root(self, request: web.Request) -> web.Response:
        return web.json_response({"milena_version": "0.1.0", "cluster_id": "c1", "node_id": 1})

    async def _broker_ids(self, request: web.Request) -> web.Response:
        return web.json_response({"brokers": [broker["broker_id"] for broker in self.brokers]})

    async def _readyz(self, request: web.Request) -> web.Response:
        status, body = self.ready
        return web.json_response(body, status=status)

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.is_metrics_denied:
            message = "User:u may not DESCRIBE the cluster"
            return web.json_response({"error_code": 40301, "message": message}, status=403)
        if self.metrics is None:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics)

    async def _drain(self, request: web.Request) -> web.Response:
        return web.json_response({"node_id": 1, "is_drained": self.can_drain})

    @staticmethod
    def planned_move(
        topic: str = "t",
        *,
        before: Sequence[int] = (1, 2),
        after: Sequence[int] = (2, 3),
        error: str | None = None,
        is_cancelled: bool = False,
    ) -> dict[str, Any]:
        return {
            "topic": topic,
            "partition": 0,
            "replicas_before": before,
            "replicas": after,
            "is_cancelled": is_cancelled,
            "error_code": None if error is None else 50303,
            "error": error,
        }

    @staticmethod
    def running_move(
        topic: str = "t", *, state: str = "catching_up", bytes_left: int | None = 1000
    ) -> dict[str, Any]:
        return {
            "topic": topic,
            "partition": 0,
            "state": state,
            "replicas_before": [1, 2],
            "replicas": [2, 3],
            "isr": [1, 2],
            "leader": 1,
            "throttle_bytes_per_s": 0,
            "max_concurrent": 0,
            "added": [
                {
                    "broker_id": 3,
                    "is_in_sync": False,
                    "offsets_left": None if bytes_left is None else 7,
                    "bytes_left": bytes_left,
                }
            ],
        }

    async def _reassign(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"dry_run": body["dry_run"], "partitions": self.planned})

    async def _moves(self, request: web.Request) -> web.Response:
        found = self.moves[0] if self.moves else []
        if len(self.moves) > 1:
            del self.moves[0]
        return web.json_response({"reassignments": found})

    async def _cancel_moves(self, request: web.Request) -> web.Response:
        return web.json_response({"dry_run": False, "partitions": self.planned})

    async def _names(self, request: web.Request) -> web.Response:
        return web.json_response(list(self.topics))

    async def _clusters(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"cluster_id": "c1"}]})

    async def _topic(self, request: web.Request) -> web.Response:
        topic = self.topics.get(request.match_info["t"])
        if topic is None:
            return self._missing(request)
        partitions = [
            {
                "partition": p["partition"],
                "leader": -1 if p["leader"] is None else p["leader"],
                "replicas": [
                    {"broker": r, "leader": r == p["leader"], "in_sync": r in p["isr"]}
                    for r in p["replicas"]
                ],
            }
            for p in topic["partitions"]
        ]
        return web.json_response({**topic, "partitions": partitions})

    async def _offsets(self, request: web.Request) -> web.Response:
        return web.json_response({"beginning_offset": 5, "end_offset": 42})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["topic_name"] in self.topics:
            message = f"Topic '{body['topic_name']}' already exists."
            return web.json_response({"error_code": 40002, "message": message}, status=400)
        configs = {c["name"]: c["value"] for c in body["configs"]}
        self.add_topic(
            body["topic_name"], partitions=body.get("partitions_count", 1), configs=configs
        )
        return web.json_response({}, status=201)

    async def _grow(self, request: web.Request) -> web.Response:
        name, body = request.match_info["t"], await request.json()
        if name not in self.topics:
            return self._missing(request)
        configs = self.topics[name]["configs"]
        self.add_topic(name, partitions=body["partitions_count"], configs=configs)
        return web.json_response({"partitions_count": body["partitions_count"]})

    async def _alter(self, request: web.Request) -> web.Response:
        if request.match_info["t"] not in self.topics:
            return self._missing(request)
        configs = self.topics[request.match_info["t"]]["configs"]
        for change in (await request.json())["data"]:
            if change.get("operation") == "DELETE":
                configs.pop(change["name"], None)
            else:
                configs[change["name"]] = change["value"]
        return web.Response(status=204)

    async def _remove(self, request: web.Request) -> web.Response:
        node_id = int(request.match_info["b"])
        broker = next((b for b in self.brokers if b["broker_id"] == node_id), None)
        if broker is None:
            message = f"Node {node_id} is not registered."
            return web.json_response({"error_code": 40407, "message": message}, status=404)
        if not broker["is_fenced"]:
            message = f"Node {node_id} is alive: stop it first, then remove it."
            kind = {"Milena-Error": "broker_in_use"}
            body = {"error_code": 40915, "message": message}
            return web.json_response(body, status=409, headers=kind)
        self.brokers.remove(broker)
        return web.Response(status=204)

    async def _records(self, request: web.Request) -> web.Response:
        start = int(request.query["timestamp"]) // 1000
        return web.Response(headers={"Milena-Start-Offset": str(start)})

    async def _delete_records(self, request: web.Request) -> web.Response:
        before = (await request.json())["before_offset"]
        partition = int(request.match_info["p"])
        start = 42 if before == "latest" else before
        return web.json_response({"partition": partition, "log_start_offset": start})

    async def _delete(self, request: web.Request) -> web.Response:
        if self.topics.pop(request.match_info["t"], None) is None:
            return self._missing(request)
        return web.Response(status=204)

    def _missing(self, request: web.Request) -> web.Response:
        message = f"Topic '{request.match_info['t']}' does not exist."
        return web.json_response({"error_code": 40403, "message": message}, status=404)
