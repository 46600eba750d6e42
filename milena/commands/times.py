"""Times and durations as people write them on a command line (pure)."""

import re
from datetime import UTC, datetime

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d|w)")
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w)")


def parse_moment(text: str, *, now_ms: int) -> int:
    """Return ms since 1970 for ``-90m`` (before now), ``1767225600000``, or ISO-8601 (UTC if it has no zone).

    Raises:
        ValueError: the text is none of these, or before 1970.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        found = now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    elif text.isascii() and text.isdigit():
        found = int(text)
    else:
        found = _iso_ms(text)
    if found < 0:
        raise ValueError(f"{text} is before 1970")
    return found


def parse_duration(text: str) -> int:
    """Return the ms of a duration like ``90d``: a whole number above zero with a unit.

    Raises:
        ValueError: the text is no duration.
    """
    found = _DURATION.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no duration: write 90d or 12h (ms, s, m, h, d, w)")
    return int(found[1]) * _UNIT_MS[found[2]]


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write 2026-01-31T12:00:00Z, milliseconds since 1970, or -1h "
            "(ms, s, m, h, d, w ago)"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
