"""Times, durations and amounts as people write them on a command line (pure)."""

import re
from datetime import UTC, datetime
from decimal import Decimal

_INT64_MAX = (1 << 63) - 1
"""The largest offset and the latest time."""
_DIGITS_MAX = 100
"""Digits that are read of a number, leading zeros included."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-([0-9]{1,15})(ms|s|m|h|d|w)")
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w)")
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(?:([kmgt])(i?))?b?(?:/s)?", re.IGNORECASE)


def parse_whole(text: str) -> int:
    """Return a whole number of 64 bits, as ``-5`` or ``1767225600000``.

    Raises:
        ValueError: the text is none, or does not fit into 64 bits.
    """
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError(f"{text!r} is not a whole number")
    # Python refuses to read thousands of digits.
    return _checked(int(text) if len(text) <= _DIGITS_MAX else _INT64_MAX + 1, text)


def _checked(number: int, text: str) -> int:
    if abs(number) > _INT64_MAX:
        told = text if len(text) <= _DIGITS_MAX else f"{text[:_DIGITS_MAX]}…"
        raise ValueError(f"{told} does not fit into 64 bits: the most is {_INT64_MAX}")
    return number


def parse_moment(text: str, *, now_ms: int) -> int:
    """Return ms since 1970 for ``-90m`` (before now), ``1767225600000``, or ISO-8601 (UTC if it has no zone).

    Raises:
        ValueError: the text is none of these, before 1970, or does not fit into 64 bits.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        found = now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    elif text.isascii() and text.isdigit():
        found = parse_whole(text)
    else:
        found = _iso_ms(text)
    if found < 0:
        raise ValueError(f"{text} is before 1970")
    return found


def parse_duration(text: str) -> int:
    """Return the ms of a duration like ``90d``: a whole number above zero with a unit.

    Raises:
        ValueError: the text is no duration, or does not fit into 64 bits.
    """
    found = _DURATION.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is not a duration: write 90d or 12h (ms, s, m, h, d, w)")
    return _checked(int(found[1]) * _UNIT_MS[found[2]], text)


def parse_amount(text: str) -> int:
    """Return a whole number with or without a unit: 800000, 50M (a million), 64Ki (1024), 1GB, 2MiB/s.

    Raises:
        ValueError: the text is no amount, no whole one, or does not fit into 64 bits.
    """
    found = _AMOUNT.fullmatch(text.strip())
    amount = Decimal("0.5")
    if found is not None:
        power = " kmgt".index((found[2] or " ").lower())
        amount = Decimal(found[1]) * (1024 if found[3] else 1000) ** power
    if amount != int(amount):
        raise ValueError(
            f"{text!r} is not a whole amount: write 800000, 50M (a million) or 64Ki (1024)"
        )
    return _checked(int(amount), text)


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-01-31T12:00:00Z, milliseconds since 1970, or -1h "
            "(ms, s, m, h, d, w ago)"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
