"""Examine one node from outside: which node responds at its URL, and what it reports about itself."""

import json
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from milena.cluster.http import HttpCall, HttpSession, json_of
from milena.cluster.node_metrics import MetricsView, parse_metrics
from milena.cluster.view import NodeView
from milena.errors import ClientError, NotPermittedError, UnexpectedAnswerError
from milena.fields import AnswerFields
from milena.model.clock import Clock

EXAM_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExam:
    """The responses of a node. ``failure`` is the first request without a response; no other was sent after it.

    ``is_denied``: the node responded to that request, but the caller lacks the right for it.

    ``answers_as`` is the node id that it reports. ``asked_ms`` is the time of this machine. ``clock_ahead_ms`` is how
    far the node's clock is ahead of it, to about a second, because HTTP dates have no more precision. ``not_ready`` is
    why it should get no traffic; None: it is ready.
    """

    node: NodeView
    failure: str | None = None
    is_denied: bool = False
    answers_as: int | None = None
    cluster_id: str = ""
    version: str = ""
    is_voter: bool | None = None
    """True if it votes in the metadata quorum. None: it did not say."""
    clock_ahead_ms: int | None = None
    asked_ms: int = 0
    not_ready: str | None = None
    metrics: MetricsView | None = None


async def examine(http: HttpSession, node: NodeView, clock: Clock) -> NodeExam:
    """Request everything from a node, at the URL under which the cluster knows it. Never raises a ``ClientError``."""
    found = NodeExam(node=node)
    try:
        asked_ms = clock.wall_ms()
        answer = await http.ask(node.url, _get("/"))
        halfway_ms = (asked_ms + clock.wall_ms()) // 2
        root = AnswerFields(json_of(answer, "GET /"), "GET /")
        found = replace(
            found,
            answers_as=root.integer("node_id"),
            cluster_id=root.text("cluster_id"),
            version=root.text("milena_version"),
            asked_ms=asked_ms,
            clock_ahead_ms=_ahead_ms(answer.headers.get("Date"), halfway_ms),
        )
        ready = await http.ask(node.url, _get("/readyz"))
        found = replace(found, not_ready=None if ready.status == 200 else _reason(ready.body))
        metrics = await read_metrics(http, node.url)
        return replace(found, metrics=metrics, is_voter=metrics.is_voter)
    except ClientError as error:
        is_denied = isinstance(error, NotPermittedError)
        return replace(found, failure=error.message, is_denied=is_denied)


async def read_metrics(http: HttpSession, url: str) -> MetricsView:
    """Return the counters of the node at ``url``.

    Raises:
        ClientError: no response, or not that of a node.
    """
    answer = await http.ask(url, _get("/metrics", accept="text/plain"))
    if answer.status != 200:
        json_of(answer, "GET /metrics")
        raise UnexpectedAnswerError(f"GET /metrics: HTTP {answer.status}")
    return parse_metrics(answer.body.decode("utf-8", "replace"))


def _get(path: str, *, accept: str = "application/json") -> HttpCall:
    return HttpCall(
        method="GET", path=path, accept=accept, timeout_s=EXAM_TIMEOUT_S, is_repeatable=True
    )


def _ahead_ms(date: str | None, wall_ms: int) -> int | None:
    try:
        told = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    # A date is cut to the second. Adding half a second makes the error symmetric.
    return round(told.timestamp() * 1000) + 500 - wall_ms


def _reason(body: bytes) -> str:
    try:
        return AnswerFields(json.loads(body), "GET /readyz").text("reason")
    except (ValueError, RecursionError, UnexpectedAnswerError):
        return "for no reason that it gives"
