"""The API server's HTTP side: path and body in, one call of the store, JSON out; and watches.

It listens where helm can reach it. It knows no user, no second namespace and no other content type than helm sends.
"""

import asyncio
import contextlib
import copy
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from tests.helm.podlab import discovery, protobuf
from tests.helm.podlab.admission import admit_change, admit_new
from tests.helm.podlab.controllers import Controllers
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.patches import merge
from tests.helm.podlab.resources import BY_PLACE, Resource
from tests.helm.podlab.selectors import is_subset, parse_query
from tests.helm.podlab.store import NAMESPACE, ApiError, ObjectStore

KUBERNETES_VERSION = "v1.32.0"
WATCH_POLL_S = 0.05
WATCH_S_DEFAULT = 60.0

Mutation = Callable[[Document], Document]


def unchanged(document: Document) -> Document:
    """The mutation that lets every object in as it came."""
    return document


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names: a type, and perhaps an object and a part of it."""

    resource: Resource
    name: str
    part: str


class ApiServer:
    """Serves the store. ``mutate`` is applied to every object on its way in, as a mutating webhook would be."""

    def __init__(
        self,
        store: ObjectStore,
        controllers: Controllers,
        *,
        allocate_address: Callable[[], str],
        read_log: Callable[[str, str], str],
    ) -> None:
        self.mutate: Mutation = unchanged
        self._store = store
        self._controllers = controllers
        self._allocate_address = allocate_address
        self._read_log = read_log
        self._runner: web.AppRunner | None = None
        self._is_closing = False

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        """End watches and stop listening."""
        self._is_closing = True
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            described = discovery.describe(request.path, KUBERNETES_VERSION)
            if described is not None:
                return web.json_response(described)
            return await self._serve(request, parse_target(request.path))
        except ApiError as error:
            return web.json_response(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "code": error.code,
                    "reason": error.reason,
                    "message": str(error),
                },
                status=error.code,
            )

    async def _serve(self, request: web.Request, target: Target) -> web.StreamResponse:
        match request.method, bool(target.name), target.part:
            case "GET", True, "":
                return web.json_response(self._store.get(target.resource.kind, target.name).raw)
            case "GET", True, "log":
                self._store.get("Pod", target.name)
                container = request.query.get("container", "")
                return web.Response(text=self._read_log(target.name, container))
            case "GET", False, _ if "watch" in request.query:
                return await self._watch(request, target.resource)
            case "GET", False, _:
                return web.json_response(self._list(request, target.resource))
            case "POST", False, _:
                document = read_body(await request.read())
                return web.json_response(self._create(document), status=201)
            case "POST", True, "eviction":
                self._controllers.evict(target.name)
                return web.json_response({"kind": "Status", "status": "Success"}, status=201)
            case "PUT" | "PATCH", True, "":
                return web.json_response(self._change(request, target, await request.read()))
            case "DELETE", True, "":
                self._delete(target, await request.read())
                return web.json_response({"kind": "Status", "status": "Success"})
            case _:
                raise ApiError(405, "MethodNotAllowed", f"{request.method} {request.path}")

    def _list(self, request: web.Request, resource: Resource) -> Document:
        items = [m.raw for m in self._store.all(resource.kind) if _is_wanted(request, m)]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.group_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": list(items),
        }

    def _create(self, document: Document) -> Document:
        admitted = admit_new(self.mutate(document), self._allocate_address)
        return self._store.create(admitted).raw

    def _change(self, request: web.Request, target: Target, body: bytes) -> Document:
        old = self._store.get(target.resource.kind, target.name)
        changed = read_body(body)
        if request.method == "PATCH":
            is_strategic = "strategic" in request.headers.get("Content-Type", "")
            merged = merge(copy.deepcopy(old.raw), changed, is_strategic=is_strategic)
            assert isinstance(merged, dict), "a patch of an object is an object"
            changed = merged
        return self._store.replace(admit_change(self.mutate(changed), old)).raw

    def _delete(self, target: Target, body: bytes) -> None:
        kind = target.resource.kind
        found = self._store.get(kind, target.name)
        if kind == "Pod":
            options = Manifest(json.loads(body) if body else {})
            grace = options.at("gracePeriodSeconds")
            self._controllers.delete_pod(found, grace if isinstance(grace, int) else None)
        else:
            self._store.remove(kind, target.name)

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        version = int(request.query.get("resourceVersion") or 0)
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query.get("timeoutSeconds", WATCH_S_DEFAULT))
        while loop.time() < end and not self._is_closing and request.transport is not None:
            for event in self._store.since(version, resource.kind):
                version = event.version
                if _is_wanted(request, Manifest(event.document)):
                    line = {"type": event.change.value, "object": event.document}
                    with contextlib.suppress(ConnectionResetError):
                        await response.write(json.dumps(line).encode() + b"\n")
            await asyncio.sleep(WATCH_POLL_S)
        return response


def parse_target(path: str) -> Target:
    """What a path names.

    Raises:
        ApiError: 404, nothing that is served here.
    """
    steps = path.strip("/").split("/")
    group_version, rest = (
        ("/".join(steps[1:3]), steps[3:]) if steps[0] == "apis" else ("v1", steps[2:])
    )
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        if rest[1] != NAMESPACE:
            raise ApiError(404, "NotFound", f'namespaces "{rest[1]}" not found')
        rest = rest[2:]
    resource = BY_PLACE.get((group_version, rest[0] if rest else ""))
    if resource is None or len(rest) > 3:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    return Target(resource, *[*rest[1:], "", ""][:2])


def read_body(body: bytes) -> Document:
    """An object from a request.

    Raises:
        ApiError: 400, it is neither JSON nor a Secret in protobuf.
    """
    try:
        if body.startswith(protobuf.MAGIC):
            return protobuf.decode_secret(body)
        loaded = json.loads(body)
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"unreadable body: {error}") from error
    if not isinstance(loaded, dict):
        raise ApiError(400, "BadRequest", "an object is wanted")
    return loaded


def _is_wanted(request: web.Request, manifest: Manifest) -> bool:
    labels = parse_query(request.query.get("labelSelector", ""))
    fields = parse_query(request.query.get("fieldSelector", ""))
    return is_subset(labels, manifest.labels) and all(
        manifest.scalar(path) == value for path, value in fields.items()
    )
