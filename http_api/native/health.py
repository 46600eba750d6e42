"""Probes and metrics, for orchestrators and monitoring."""

from aiohttp import web

from http_api.answers import bytes_answer, json_answer
from http_api.call import Call

_PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _probe(is_good: bool, reason: str) -> web.Response:
    return json_answer(
        {"status": "ok" if is_good else "unavailable", "reason": reason},
        status=200 if is_good else 503,
    )


async def live(call: Call) -> web.Response:
    """The event loop answers: nothing more is asked of a live process."""
    return _probe(True, "")


async def started(call: Call) -> web.Response:
    """Logs are recovered and ports bound."""
    is_started = call.ports.health.is_started()
    return _probe(is_started, "" if is_started else "the node is still starting")


async def ready(call: Call) -> web.Response:
    """The node should get traffic."""
    readiness = call.ports.health.readiness()
    return _probe(readiness.is_ready, readiness.reason)


async def metrics(call: Call) -> web.Response:
    """The node's metrics and those of this API."""
    shared = call.shared
    own = shared.request_metrics.render(
        requests_in_flight=shared.in_flight.request_count,
        bytes_in_flight=shared.in_flight.body_bytes,
    )
    return bytes_answer(call.ports.health.metrics() + own, _PROMETHEUS_TYPE)
