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
    """The responses of a node to several requests. None means that the node did not say.

    Attributes:
        node: the node as the cluster describes it.
        failure: why the first request failed that got no usable response. No further request was sent after it.
        is_denied: the failed request got a response, but the caller lacks the permission for it.
        answers_as: the node id that the node at this URL reports.
        asked_ms: wall clock of this machine, in ms.
        clock_ahead_ms: how far the node's clock is ahead of this machine's, to about a second (HTTP dates are rounded).
        not_ready: why the node should get no traffic; None: it is ready.
    """

    node: NodeView
    failure: str | None = None
    is_denied: bool = False
    answers_as: int | None = None
    cluster_id: str = ""
    version: str = ""
    is_voter: bool | None = None
    """True if the node votes in the metadata quorum; None if it did not say."""
    clock_ahead_ms: int | None = None
    asked_ms: int = 0
    not_ready: str | None = None
    metrics: MetricsView | None = None


async def examine(http: HttpSession, node: NodeView, clock: Clock) -> NodeExam:
    """Send the requests of an exam to a node, at its URL in the cluster's metadata. Never raises a ``ClientError``."""
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
        ClientError: there was no response, or it did not come from a node.
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
    # The date is rounded down to the second. Adding half a second makes the error symmetric.
    return round(told.timestamp() * 1000) + 500 - wall_ms


def _reason(body: bytes) -> str:
    try:
        return AnswerFields(json.loads(body), "GET /readyz").text("reason")
    except (ValueError, RecursionError, UnexpectedAnswerError):
        return "for no reason that it gives"
