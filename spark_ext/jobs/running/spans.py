"""Spans of time on a command line."""

import re

from milena.commands.options import Parsed

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_span(text: str, *, minimum_s: int = 0) -> int:
    """Return the seconds of a span such as ``30s``, ``5m``, ``1h`` or ``1d``.

    Raises:
        ValueError: the text is no span, or the span is too short.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    seconds = -1 if found is None else int(found[1]) * _SECONDS[found[2]]
    if seconds < minimum_s:
        raise ValueError(f"{text!r} is not a span of time such as 30s, 5m, 1h or 1d")
    return seconds


SPAN = Parsed(parse_span)
