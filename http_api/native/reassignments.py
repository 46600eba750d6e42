"""Native endpoints: moving replicas between brokers."""

from collections.abc import Callable, Mapping

from aiohttp import web

from http_api.describing.pages import RowPage, matching, sort_param
from http_api.describing.params import IntegerParam, Param
from http_api.describing.schemas import Fields, json_kind
from http_api.ports.node import (
    PlannedReassignment,
    ReassignmentRequest,
    ReplicaTarget,
    RunningReassignment,
)
from http_api.protocol.answers import json_answer
from http_api.protocol.errors import InvalidFieldError, row_of
from http_api.serving.call import Call
from http_api.shapes import native as shapes
from http_api.shapes.blocks import text
from http_api.shapes.requests import MOVED_PARTITION, MOVES_CONCURRENT_DEFAULT, REASSIGN
from milena.model.access import ResourceType
from milena.model.errors import MalformedRequestError

TARGETS_MAX = 10_000
"""The number of partitions that one request may name."""

TOPIC = Param("topic", "only partitions of this topic", text(), "orders")
PARTITION = IntegerParam(
    name="partition", description="only this one; needs `topic`", least=0, default=None
)

_KEYS: Mapping[str, Callable[[RunningReassignment], int | str] | None] = {
    "partition": None,
    "state": lambda row: row.state.value,
    "bytes_left": lambda row: sum(added.bytes_left or 0 for added in row.added),
}
SORT = sort_param(_KEYS, "topic and number")


async def reassign(call: Call) -> web.Response:
    """Start to move partitions. The moves continue in the background."""
    fields = Fields(await call.json_body(), "the body", REASSIGN.fields)
    request = _request(fields)
    rows = await call.ports.reassignments.reassign(request)
    return json_answer({"dry_run": request.is_dry_run, "partitions": [_planned(r) for r in rows]})


def _request(fields: Fields) -> ReassignmentRequest:
    targets = tuple(_target(item) for item in fields.objects("partitions", MOVED_PARTITION.fields))
    drain = fields.integer("drain", least=1)
    asked = [bool(targets), drain is not None, fields.boolean("rebalance")]
    if sum(asked) != 1:
        raise InvalidFieldError(
            "the body: give exactly one of 'partitions' (not empty), 'drain' (a node's id) and 'rebalance' (true)"
        )
    if len(targets) > TARGETS_MAX:
        raise InvalidFieldError(
            f"'partitions' names more than {TARGETS_MAX}: send several requests"
        )
    max_concurrent = fields.integer("max_concurrent", least=0)
    return ReassignmentRequest(
        partitions=targets,
        drain=drain,
        throttle_bytes_per_s=fields.integer("throttle_bytes_per_s", least=0) or 0,
        max_concurrent=MOVES_CONCURRENT_DEFAULT if max_concurrent is None else max_concurrent,
        is_dry_run=fields.boolean("dry_run"),
    )


def _target(fields: Fields) -> ReplicaTarget:
    partition = fields.integer("partition", least=0)
    if partition is None:
        raise InvalidFieldError("'partitions': 'partition' is missing")
    replicas: tuple[int, ...] | None = None
    if fields.has("replicas"):
        replicas = tuple(_broker_id(item) for item in fields.items("replicas"))
    return ReplicaTarget(
        topic=fields.required_text("topic"), partition=partition, replicas=replicas
    )


def _broker_id(item: object) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise MalformedRequestError(f"'replicas' lists ids of nodes, not {json_kind(item)}")
    return item


def _planned(row: PlannedReassignment) -> dict[str, object]:
    error = row.error
    return shapes.PLANNED_MOVE.of(
        row,
        replicas_before=row.before,
        replicas=row.after,
        error_code=None if error is None else row_of(error).error_code,
        error=None if error is None else error.message,
    )


async def list_reassignments(call: Call) -> web.Response:
    """Return partitions that are moving, and their progress."""
    query = call.query()
    key, page = SORT.read(query), RowPage.of(query)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    running = await call.ports.reassignments.running()
    rows = sorted(
        matching((row for row in running if is_seen(row.topic)), _topic_of, query),
        key=lambda row: (row.topic, row.partition),
    )
    return json_answer(
        {
            "total": len(rows),
            "reassignments": [_running(row) for row in page.cut(rows, key)],
        }
    )


def _topic_of(row: RunningReassignment) -> str:
    return row.topic


def _running(row: RunningReassignment) -> dict[str, object]:
    return shapes.RUNNING_MOVE.of(
        row,
        replicas_before=row.former,
        replicas=row.target,
        added=[shapes.ADDED_REPLICA.of(added) for added in row.added],
    )


async def cancel_reassignments(call: Call) -> web.Response:
    """Cancel moves: the partitions return to their previous replicas."""
    query = call.query()
    topic, partition = query.get(TOPIC.name), PARTITION.read(query)
    if partition is not None and topic is None:
        raise MalformedRequestError("Invalid parameter 'partition': give its 'topic', too")
    rows = await call.ports.reassignments.cancel(topic, partition)
    return json_answer({"dry_run": False, "partitions": [_planned(row) for row in rows]})
