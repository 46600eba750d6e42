"""The consumer-group endpoints of a node as the client sees them, over a ``FakeGroup`` and plain dictionaries."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from milena.consuming.membership import Beat
from milena.consuming.options import Subscription
from milena.errors import AnswerError, MemberUnknownError, StaleMemberError
from milena.records import TopicPartition
from tests.support.fakes.groups import FakeGroup

KINDS = {MemberUnknownError: "member_not_found", StaleMemberError: "stale_member_epoch"}


class FakeGroupApi:
    """``described`` has the description of each group. Heartbeats and commits of every group go to ``group``."""

    def __init__(self, **topics: int) -> None:
        self.group = FakeGroup(**topics)
        self.described: dict[str, dict[str, Any]] = {}
        self.ends = {"t": 42}
        """The end offset of each partition, by topic."""
        self.bodies: list[tuple[str, Any]] = []

    def describe(
        self,
        group_id: str,
        *,
        members: Iterable[dict[str, Any]] = (),
        offsets: Mapping[str, Mapping[int, int]] | None = None,
        state: str = "EMPTY",
        kind: str = "server",
    ) -> None:
        """Add a group; ``offsets`` is {topic: {partition: offset}}."""
        self.described[group_id] = {
            "group_id": group_id,
            "kind": kind,
            "state": state,
            "generation": 3,
            "assignor": "sticky",
            "coordinator": 2,
            "members": list(members),
            "offsets": {
                topic: {
                    str(partition): {"offset": offset, "leader_epoch": -1, "metadata": ""}
                    for partition, offset in partitions.items()
                }
                for topic, partitions in (offsets or {}).items()
            },
        }

    @staticmethod
    def member(
        member_id: str, *, assignment: Iterable[tuple[str, Iterable[int]]] = (), **fields: object
    ) -> dict[str, Any]:
        return {
            "member_id": member_id,
            "instance_id": None,
            "client_id": "app",
            "host": "10.0.0.1",
            "is_rest": False,
            "topics": ["t"],
            "pattern": None,
            "member_epoch": 3,
            "assignment": [{"topic": topic, "partitions": list(ps)} for topic, ps in assignment],
            "revoking": [],
            "pending": [],
            **fields,
        }

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/groups", self._list),
            web.get("/groups/{g}", self._describe),
            web.get("/groups/{g}/lags", self._lags),
            web.delete("/groups/{g}", self._delete),
            web.post("/groups/{g}/heartbeat", self._heartbeat),
            web.post("/groups/{g}/offsets", self._commit),
            web.get("/groups/{g}/offsets", self._committed),
            web.post("/groups/{g}/offsets:reset", self._reset),
            web.get("/groups/{g}/offsets:reset", self._preview),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        groups = [
            {
                **{k: v for k, v in group.items() if k not in {"members", "offsets"}},
                "member_count": len(group["members"]),
            }
            for group in self.described.values()
        ]
        return web.json_response({"groups": groups})

    async def _describe(self, request: web.Request) -> web.Response:
        found = self.described.get(request.match_info["g"])
        return self._missing(request) if found is None else web.json_response(found)

    async def _lags(self, request: web.Request) -> web.Response:
        found = self.described.get(request.match_info["g"])
        if found is None:
            return self._missing(request)
        rows = [
            {
                "topic": topic,
                "partition": int(partition),
                "offset": committed["offset"],
                "end_offset": self.ends[topic],
                "lag": self.ends[topic] - committed["offset"],
                "member_id": None,
            }
            for topic, partitions in found["offsets"].items()
            if topic in self.ends
            for partition, committed in partitions.items()
        ]
        skip, limit = int(request.query["skip"]), int(request.query["limit"])
        return web.json_response({"total": len(rows), "lags": rows[skip : skip + limit]})

    async def _delete(self, request: web.Request) -> web.Response:
        found = self.described.get(request.match_info["g"])
        if found is None:
            return self._missing(request)
        if found["members"]:
            return self._not_empty(request)
        del self.described[request.match_info["g"]]
        return web.Response(status=204)

    async def _heartbeat(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        subscription = None
        if "topics" in body or "pattern" in body:
            subscription = Subscription(
                topics=tuple(body.get("topics", ())), pattern=body.get("pattern")
            )
        beat = Beat(
            member_id=body["member_id"],
            member_epoch=body["member_epoch"],
            owned=frozenset(
                TopicPartition(entry["topic"], partition)
                for entry in body.get("owned", ())
                for partition in entry["partitions"]
            ),
            subscription=subscription,
            instance_id=body.get("instance_id"),
            session_timeout_ms=body.get("session_timeout_ms"),
            rebalance_timeout_ms=body.get("rebalance_timeout_ms"),
            wait_ms=int(request.query["timeout_ms"]),
        )
        try:
            answer = await self.group.heartbeat("g", beat, session_ms=0)
        except AnswerError as error:
            return self._refused(error)
        assignment: dict[str, list[int]] = {}
        for where in sorted(answer.assignment):
            assignment.setdefault(where.topic, []).append(where.partition)
        return web.json_response(
            {
                "member_id": answer.member_id,
                "member_epoch": answer.member_epoch,
                "generation": answer.generation,
                "heartbeat_interval_ms": answer.heartbeat_interval_ms,
                "assignment": [{"topic": t, "partitions": p} for t, p in assignment.items()],
                "pending": [],
            }
        )

    async def _commit(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        offsets = {TopicPartition(o["topic"], o["partition"]): o["offset"] for o in body["offsets"]}
        try:
            await self.group.commit(
                "g",
                offsets,
                member_id=body.get("member_id"),
                member_epoch=body.get("member_epoch"),
                topic_tags={
                    TopicPartition(o["topic"], o["partition"]): o["topic_id"]
                    for o in body["offsets"]
                    if "topic_id" in o
                },
            )
        except AnswerError as error:
            return self._refused(error)
        return web.Response(status=204)

    async def _committed(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic")
        if not self.group.offsets:
            return self._missing(request)
        found: dict[str, dict[str, dict[str, int]]] = {}
        for where, offset in self.group.offsets.items():
            if topic in (None, where.topic):
                found.setdefault(where.topic, {})[str(where.partition)] = {"offset": offset}
        return web.json_response({"offsets": found})

    async def _reset(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        name = request.match_info["g"]
        if name not in self.described:
            self.describe(name)
        if self.described[name]["members"]:
            return self._not_empty(request)
        offset = body["to"] if isinstance(body["to"], int) else 7
        done = {str(p): {"offset": offset} for p in body.get("partitions", (0, 1))}
        return web.json_response({"offsets": {body["topic"]: done}})

    async def _preview(self, request: web.Request) -> web.Response:
        to, topic = request.query["to"], request.query["topic"]
        ends = {"earliest": 2, "latest": self.ends[topic]}
        group = self.described.get(request.match_info["g"], {"offsets": {}})
        now = group["offsets"].get(topic, {})
        rows = [
            {
                "partition": p,
                "now": now.get(str(p), {}).get("offset"),
                "then": int(to) if to.isdigit() else ends.get(to, 7),
            }
            for p in (0, 1)
        ]
        return web.json_response({"total": len(rows), "partitions": rows})

    async def _body(self, request: web.Request) -> Any:
        body = json.loads(await request.text())
        self.bodies.append((request.path, body))
        return body

    @staticmethod
    def _missing(request: web.Request) -> web.Response:
        message = f"group '{request.match_info['g']}' does not exist"
        return web.json_response({"error_code": 40405, "message": message}, status=404)

    @staticmethod
    def _not_empty(request: web.Request) -> web.Response:
        message = f"group '{request.match_info['g']}' has members: stop them first"
        kind = {"Milena-Error": "group_not_empty"}
        return web.json_response(
            {"error_code": 40918, "message": message}, status=409, headers=kind
        )

    @staticmethod
    def _refused(error: AnswerError) -> web.Response:
        body = {"error_code": error.error_code, "message": error.message}
        kind = KINDS.get(type(error), "not_coordinator")
        return web.json_response(body, status=error.status, headers={"Milena-Error": kind})
