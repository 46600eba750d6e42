"""Spans of time on a command line."""

import re

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class SpanType(click.ParamType[int]):
    """A span of time such as ``30s``, ``5m``, ``1h`` or ``1d``; its value is seconds."""

    name = "span"

    def __init__(self, *, minimum_s: int = 0) -> None:
        self._minimum_s = minimum_s

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the span in seconds; a malformed or too short span is a usage error."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,6})([smhd])", value)
        seconds = None if found is None else int(found[1]) * _SECONDS[found[2]]
        if seconds is None or seconds < self._minimum_s:
            self.fail(f"{value!r} is not a span of time such as 30s, 5m, 1h or 1d", param, ctx)
        return seconds


SPAN = SpanType()
"""The type of a span of 0 seconds or more."""
