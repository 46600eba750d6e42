"""The access-control endpoints of a node, as the client sees them, over plain dictionaries."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

OfUser = Callable[[web.Request, str, Any], web.Response]
"""A handler of a request about an existing user: it gets the request, the name and the JSON body."""

TOKEN_SECRET = "mln_canary0f0f0f"


class FakeAccessApi:
    """Users, tokens and entries in dictionaries. ``me`` is the user of every caller; ``asked`` has the requests."""

    def __init__(self) -> None:
        self.mode = "off"
        self.version = 7
        self.me: dict[str, Any] = {
            "principal": "User:ANONYMOUS",
            "user": None,
            "token_id": None,
            "is_superuser": False,
        }
        self.passwords: dict[str, list[str]] = {}
        """The passwords of each user, the newest first."""
        self.superusers: set[str] = set()
        self.tokens: dict[str, list[dict[str, Any]]] = {}
        self.scram: dict[str, list[str]] = {}
        self.entries: list[dict[str, Any]] = []
        self.quotas: dict[tuple[str | None, str | None], dict[str, int]] = {}
        self.asked: list[tuple[str, str, Any]] = []

    def be(self, user: str, **more: object) -> None:
        """Treat every caller as this user."""
        self.me = {**self.me, "principal": f"User:{user}", "user": user, **more}

    def add_user(self, name: str, *passwords: str, is_superuser: bool = False) -> None:
        self.passwords[name] = list(passwords)
        self.tokens[name] = []
        if is_superuser:
            self.superusers.add(name)

    def add_token(self, user: str, token_id: str, **fields: object) -> None:
        self.tokens[user].append(
            {
                "token_id": token_id,
                "user": user,
                "note": "",
                "grants": [],
                "created_ms": 1_767_225_600_000,
                "expires_ms": None,
                **fields,
            }
        )

    def add_entry(self, principal: str, operation: str, name: str, **fields: object) -> None:
        self.entries.append(
            {
                "kind": "KafkaAcl",
                "resource_type": "TOPIC",
                "resource_name": name,
                "pattern_type": "LITERAL",
                "principal": principal,
                "host": "*",
                "operation": operation,
                "permission": "ALLOW",
                **fields,
            }
        )

    def routes(self) -> list[web.RouteDef]:
        acls = "/v3/clusters/{c}/acls"
        return [
            web.get("/access", self._show),
            web.put("/access", self._set),
            web.get("/users", self._users),
            web.get("/users/{u}", self._of_user(self._user)),
            web.put("/users/{u}", self._put_user),
            web.get("/quotas", self._quotas),
            web.put("/quotas", self._put_quota),
            web.delete("/quotas", self._delete_quota),
            web.delete("/users/{u}", self._of_user(self._delete_user)),
            web.get("/users/{u}/tokens", self._of_user(self._tokens)),
            web.post("/users/{u}/tokens", self._of_user(self._create_token)),
            web.delete("/users/{u}/tokens/{t}", self._of_user(self._delete_token)),
            web.get(acls, self._acls),
            web.post(f"{acls}:batch", self._add_acls),
            web.delete(acls, self._remove_acls),
        ]

    async def _note(self, request: web.Request) -> Any:
        text = await request.text()
        body = json.loads(text) if text else None
        self.asked.append((request.method, request.path, dict(request.query) or body))
        return body

    async def _show(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"mode": self.mode, "version": self.version, **self.me})

    async def _set(self, request: web.Request) -> web.Response:
        body = await self._note(request)
        if not self.superusers:
            return self._refused(409, 40929, "last_superuser", "There is no superuser. Make one.")
        self.mode = body["mode"]
        return web.json_response({"mode": self.mode, "version": self.version, **self.me})

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "is_superuser": name in self.superusers,
            "password_count": len(self.passwords[name]),
            "token_count": len(self.tokens[name]),
            "scram_mechanisms": self.scram.get(name, []),
        }

    def _of_user(self, handler: OfUser) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def found(request: web.Request) -> web.Response:
            body = await self._note(request)
            user = request.match_info["u"]
            if user not in self.passwords:
                return self._refused(404, 40413, "user_not_found", f"There is no user {user}.")
            return handler(request, user, body)

        return found

    async def _users(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"users": [self._described(name) for name in self.passwords]})

    def _user(self, request: web.Request, user: str, body: Any) -> web.Response:
        return web.json_response(self._described(user))

    async def _put_user(self, request: web.Request) -> web.Response:
        body = await self._note(request)
        name = request.match_info["u"]
        status = 200 if name in self.passwords else 201
        if status == 201:
            self.add_user(name)
        if "password" in body:
            kept = self.passwords[name][:1] if body.get("keep_previous") else []
            self.passwords[name] = [body["password"], *kept]
        if "scram" in body:
            self.scram[name] = ["SCRAM-SHA-256", "SCRAM-SHA-512"] if body["scram"] else []
        if "is_superuser" in body:
            (self.superusers.add if body["is_superuser"] else self.superusers.discard)(name)
        return web.json_response(self._described(name), status=status)

    def _delete_user(self, request: web.Request, user: str, body: Any) -> web.Response:
        if self.superusers == {user}:
            return self._refused(409, 40929, "last_superuser", "This is the last superuser.")
        del self.passwords[user]
        return web.Response(status=204)

    def _tokens(self, request: web.Request, user: str, body: Any) -> web.Response:
        return web.json_response({"tokens": self.tokens[user]})

    def _create_token(self, request: web.Request, user: str, body: Any) -> web.Response:
        lifetime_ms = body.get("lifetime_ms")
        expires_ms = None if lifetime_ms is None else 1_767_225_600_000 + lifetime_ms
        self.add_token(
            user,
            "0abc1234",
            note=body.get("note", ""),
            grants=body.get("grants", []),
            expires_ms=expires_ms,
        )
        return web.json_response({**self.tokens[user][-1], "token": TOKEN_SECRET}, status=201)

    def _delete_token(self, request: web.Request, user: str, body: Any) -> web.Response:
        there = [t for t in self.tokens[user] if t["token_id"] == request.match_info["t"]]
        if not there:
            return self._refused(404, 40414, "token_not_found", "There is no such token.")
        self.tokens[user].remove(there[0])
        return web.Response(status=204)

    @staticmethod
    def _quota(entity: tuple[str | None, str | None], limits: dict[str, int]) -> dict[str, Any]:
        return {"user": entity[0], "client_id": entity[1], "limits": limits}

    async def _quotas(self, request: web.Request) -> web.Response:
        await self._note(request)
        found = [self._quota(entity, self.quotas[entity]) for entity in self.quotas]
        return web.json_response({"quotas": found})

    async def _put_quota(self, request: web.Request) -> web.Response:
        await self._note(request)
        body = await request.json()
        entity = (body.get("user"), body.get("client_id"))
        limits = {**self.quotas.get(entity, {}), **body["limits"]}
        self.quotas[entity] = {key: amount for key, amount in limits.items() if amount is not None}
        return web.json_response(self._quota(entity, self.quotas[entity]))

    async def _delete_quota(self, request: web.Request) -> web.Response:
        await self._note(request)
        self.quotas.pop((request.query.get("user"), request.query.get("client_id")), None)
        return web.Response(status=204)

    def _matching(self, request: web.Request) -> list[dict[str, Any]]:
        return [
            entry
            for entry in self.entries
            if all(entry[name] == value for name, value in request.query.items())
        ]

    async def _acls(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"kind": "KafkaAclList", "data": self._matching(request)})

    async def _add_acls(self, request: web.Request) -> web.Response:
        body = await self._note(request)
        self.entries += body["data"]
        return web.Response(status=201)

    async def _remove_acls(self, request: web.Request) -> web.Response:
        await self._note(request)
        gone = self._matching(request)
        self.entries = [entry for entry in self.entries if entry not in gone]
        return web.json_response({"data": gone})

    @staticmethod
    def _refused(status: int, error_code: int, kind: str, message: str) -> web.Response:
        return web.json_response(
            {"error_code": error_code, "message": message},
            status=status,
            headers={"Milena-Error": kind},
        )
