"""Moments as people write them."""

import pytest

from milena.commands.times import parse_duration, parse_moment

NOON = 1_767_268_800_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T12:00:00", NOON),
        ("2026-01-01 13:00:00+01:00", NOON),
        ("2026-01-01T12:00:00.250Z", NOON + 250),
        ("2026-01-01", NOON - 12 * 3_600_000),
        ("1767268800000", NOON),
        ("0", 0),
        ("-1h", NOON - 3_600_000),
        ("-90m", NOON - 5_400_000),
        ("-2d", NOON - 172_800_000),
        ("-1w", NOON - 604_800_000),
        ("-5s", NOON - 5_000),
        ("-0ms", NOON),
    ],
)
def test_a_moment_may_be_written_in_three_ways(text, expected):
    assert parse_moment(text, now_ms=NOON) == expected


@pytest.mark.parametrize(
    "text", ["", "noon", "-1", "-1y", "1h", "-h", "1969-12-31", "٣", "-99999999999w", "9999-13-01"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a time|before 1970"):
        parse_moment(text, now_ms=NOON)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90d", 7_776_000_000),
        ("12h", 43_200_000),
        ("1m", 60_000),
        ("1500ms", 1_500),
        ("2w", 1_209_600_000),
    ],
)
def test_a_duration_has_a_unit(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "90", "d", "0d", "-1d", "1.5d", "1y", "٣d", "1 d", "9" * 16 + "d"]
)
def test_any_other_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration: write 90d"):
        parse_duration(text)
