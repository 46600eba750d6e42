"""Shared parts of all steps: the model, the connections to nodes, and the checks for every response."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from tests.judge.client import Lost, Quirks, Request, Response, Transport, draw_quirks
from tests.judge.cluster import PASSWORD
from tests.judge.paths.write import error_code

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.judge.checks import Checker
    from tests.judge.model import Model, Topic
    from tests.judge.paths.kafka import KafkaPath
    from tests.judge.rules import Verdicts

UNSURE = frozenset({50311, 50401})  # codes that leave a write's fate open
_CODES_503 = frozenset(range(50302, 50313))


@dataclass(frozen=True)
class Caller:
    """A user of the cluster, by its `Authorization` header; empty without credentials."""

    name: str
    authorization: str = ""


def basic(user: str, password: str) -> str:
    """Return an `Authorization` header for a name and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ADMIN = Caller("admin", basic("admin", PASSWORD))
NOBODY = Caller("nobody")


@dataclass
class World:
    """The cluster, as the steps of an episode use it."""

    transport: Transport
    nodes: Sequence[int]
    model: Model
    verdicts: Verdicts
    checker: Checker
    cluster_id: str = ""
    kafka: KafkaPath | None = None
    """None if the cluster has no listener for Kafka clients."""
    prefix: str = "t"
    is_closed: bool = False
    callers: dict[str, Caller] = field(default_factory=dict)
    is_stormy: bool = False
    is_apart: Callable[[int], bool] = lambda _: False  # whether a node is cut off from the others
    sleep: Callable[[float], None] = time.sleep
    statuses: dict[str, int] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    notes: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> float:
        """Return the time of the judge's clock."""
        return self.model.now()

    def check(self, rule: str, is_kept: bool, path: str, expected: object, got: object) -> bool:
        """Count a check of a rule; add a finding if the rule is broken."""
        return self.verdicts.check(rule, is_kept, path, expected, got)

    def count(self, status: str) -> None:
        """Count a response."""
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def ask(
        self,
        rng: random.Random,
        request: Request,
        *,
        node: int | None = None,
        caller: Caller | None = None,
        is_plain: bool = False,
    ) -> Response | Lost:
        """Send a request to a random node with random quirks; check what holds for every response."""
        if request.body is not None and request.quirks == Quirks() and not is_plain:
            request = request.with_quirks(draw_quirks(rng, len(request.body)))
        return self.ask_all(rng, [request], node=node, caller=caller)[0]

    def ask_all(
        self,
        rng: random.Random,
        requests: Sequence[Request],
        *,
        node: int | None = None,
        caller: Caller | None = None,
    ) -> list[Response | Lost]:
        """Send several requests on one connection before the first response is read."""
        node = rng.choice(self.nodes) if node is None else node
        caller = ADMIN if caller is None and self.is_closed else caller
        marked = []
        for request in requests:
            mark = f"{self.prefix}-{next(self.numbers)}"
            more = [("X-Request-Id", mark)]
            if caller is not None and caller.authorization:
                more.append(("Authorization", caller.authorization))
            marked.append((mark, request.with_headers(*more)))
        answers = self.transport.exchange(node, [request for _, request in marked])
        for (mark, request), answer in zip(marked, answers, strict=True):
            self._judge(mark, request, answer, node)
        return answers

    def _judge(self, mark: str, request: Request, answer: Response | Lost, node: int) -> None:
        where = f"{request.method} {request.target} ({request.quirks}) at {node}"
        status = "lost" if isinstance(answer, Lost) else str(answer.status)
        self.count(status)
        if isinstance(answer, Lost):
            return
        check = self.verdicts.check
        if answer.status != 400:  # a request that is not HTTP has no id to echo
            echoed = answer.headers.get("x-request-id")
            check(
                "J-own-answer",
                echoed == mark,
                where,
                f"X-Request-Id {mark}",
                f"{answer.status} with {echoed}",
            )
        if answer.status < 400 or request.method == "HEAD":
            return
        code = error_code(answer)
        is_documented = bool(code) and (
            answer.status < 500
            or (answer.status == 503 and code in _CODES_503)
            or (answer.status, code) == (504, 50401)
        )
        is_probe = answer.status == 503 and request.target == "/readyz"
        check(
            "J-status",
            is_documented or is_probe,
            where,
            "a documented error",
            f"{answer.status} {answer.body[:300]!r}",
        )

    def until_answered(
        self,
        rng: random.Random,
        request: Request,
        *,
        seconds: float = 30.0,
        caller: Caller | None = None,
    ) -> Response | Lost:
        """Send a request that may be repeated, to any node, until the response is neither lost, 429 nor 5xx."""
        until = self.now + seconds
        while True:
            answer = self.ask(rng, request, caller=caller)
            is_final = isinstance(answer, Response) and answer.status != 429 and answer.status < 500
            if is_final or self.now > until:
                return answer
            self.sleep(0.2)

    def json(self, method: str, target: str, body: object = None) -> Request:
        """Return a request with a JSON body."""
        if body is None:
            return Request(method, target)
        return Request(
            method, target, (("Content-Type", "application/json"),), json.dumps(body).encode()
        )

    def topic(self, rng: random.Random) -> Topic:
        """Choose an existing topic; the driver runs no step without one."""
        with self.model.lock:
            return rng.choice(list(self.model.topics.values()))

    def worker(self) -> str:
        """Return the name of the worker that runs the step."""
        return str(getattr(self.verdicts.local, "worker", "0"))


def code_of(answer: Response | Lost) -> int:
    """Return the error code or the status of a response; 0 if there is none."""
    if isinstance(answer, Lost):
        return 0
    return error_code(answer) or answer.status


def is_told(answer: Response | Lost | None) -> TypeGuard[Response]:
    """Return whether a response arrived and does not request a repetition."""
    return isinstance(answer, Response) and answer.status not in (429, 503)


def is_unsure(answer: Response | Lost) -> bool:
    """Return whether a response leaves open whether the request had an effect."""
    return isinstance(answer, Lost) or answer.status == 504 or error_code(answer) in UNSURE


def body_of(answer: Response) -> Any:
    """Return the JSON of a response."""
    return json.loads(answer.body)
