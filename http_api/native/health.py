"""Probes and metrics, for orchestrators and monitoring."""

from aiohttp import web

from http_api.describing.params import ChoiceParam
from http_api.describing.schemas import Fields
from http_api.protocol.answers import bytes_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.call import Call
from http_api.shapes.requests import DRAIN, DRAIN_MS_DEFAULT, DRAIN_MS_MAX

_PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PARTITIONS = ChoiceParam(
    name="partitions",
    description="`false`: without what is told of each replica, a few kilobytes whatever the node holds",
    words={"true": True, "false": False},
    hint="true or false",
)


def _probe(is_good: bool, reason: str) -> web.Response:
    return json_answer(
        {"status": "ok" if is_good else "unavailable", "reason": reason},
        status=200 if is_good else 503,
    )


async def live(call: Call) -> web.Response:
    """Report that the process is alive. A response shows that the event loop runs, which is enough."""
    return _probe(True, "")


async def started(call: Call) -> web.Response:
    """Report whether logs are recovered and ports bound."""
    is_started = call.ports.health.is_started()
    return _probe(is_started, "" if is_started else "the node is still starting")


async def ready(call: Call) -> web.Response:
    """Report whether the node should get traffic."""
    readiness = call.ports.health.readiness()
    return _probe(readiness.is_ready, readiness.reason)


async def drain(call: Call) -> web.Response:
    """Move leadership to other nodes. The node stays draining until its process ends; a repeated request waits again.

    Streams end at once, so that their clients connect to another node before this node stops.
    """
    fields = Fields(await call.optional_json_body(), "the body", DRAIN.fields)
    timeout_ms = fields.integer("timeout_ms", least=1)
    if timeout_ms is not None and timeout_ms > DRAIN_MS_MAX:
        raise InvalidFieldError(f"'timeout_ms' must be at most {DRAIN_MS_MAX}")
    call.shared.streams.end_all()
    is_drained = await call.ports.health.drain(timeout_ms=timeout_ms or DRAIN_MS_DEFAULT)
    return json_answer({"node_id": call.ports.metadata.node_id, "is_drained": is_drained})


async def metrics(call: Call) -> web.Response:
    """Return the node's metrics and those of this API."""
    has_partitions = PARTITIONS.read(call.query())
    shared = call.shared
    own = shared.request_metrics.render(
        requests_in_flight=shared.in_flight.request_count,
        bytes_in_flight=shared.in_flight.body_bytes,
        streams_open=len(shared.streams),
    )
    return bytes_answer(
        call.ports.health.metrics(has_partitions=has_partitions) + own, _PROMETHEUS_TYPE
    )
