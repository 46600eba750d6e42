"""Counts and durations of requests by route, in Prometheus' text format.

The counts are in plain dictionaries that one event loop uses, because an update must cost less than a microsecond.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class _RouteTimes:
    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RequestMetrics:
    """Requests of the server by endpoint and status, and how long they took."""

    by_status: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Requests by (method, path of the route, status)."""
    by_route: dict[tuple[str, str], _RouteTimes] = field(default_factory=dict)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count one request. ``path`` is that of the route, such as ``/topics/{topic}``."""
        key = (method, path, status)
        self.by_status[key] = self.by_status.get(key, 0) + 1
        times = self.by_route.get((method, path))
        if times is None:
            times = self.by_route[method, path] = _RouteTimes()
        times.count += 1
        times.seconds += seconds

    def render(self, *, requests_in_flight: int, bytes_in_flight: int, streams_open: int) -> bytes:
        """Return all counts as text."""
        lines = [
            "# HELP milena_http_requests_total Requests answered.",
            "# TYPE milena_http_requests_total counter",
            *(
                f'milena_http_requests_total{{method="{method}",path="{path}",status="{status}"}} {count}'
                for (method, path, status), count in sorted(self.by_status.items())
            ),
            "# HELP milena_http_request_seconds Time from the request's headers to its answer.",
            "# TYPE milena_http_request_seconds summary",
        ]
        for (method, path), times in sorted(self.by_route.items()):
            labels = f'{{method="{method}",path="{path}"}}'
            lines.append(f"milena_http_request_seconds_count{labels} {times.count}")
            lines.append(f"milena_http_request_seconds_sum{labels} {times.seconds:.6f}")
        lines += [
            "# HELP milena_http_requests_in_flight Requests under way.",
            "# TYPE milena_http_requests_in_flight gauge",
            f"milena_http_requests_in_flight {requests_in_flight}",
            "# HELP milena_http_body_bytes_in_flight Bytes of the bodies of requests under way.",
            "# TYPE milena_http_body_bytes_in_flight gauge",
            f"milena_http_body_bytes_in_flight {bytes_in_flight}",
            "# HELP milena_http_streams_open Answers under way that follow a log.",
            "# TYPE milena_http_streams_open gauge",
            f"milena_http_streams_open {streams_open}",
        ]
        return "\n".join(lines).encode() + b"\n"
