"""Pictures of jobs: drawn from rows that a job wrote, with everything that they should show, and nothing cut off."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import isnan

import pytest
from pyspark.sql import Row

from examples.market.pictures import percentiles_s, price_panels
from examples.picture import (
    COLOURS,
    NAMES_MAX,
    Window,
    day_number,
    labels_of,
    save_picture,
    series_by_name,
    shortened,
)
from examples.weblog.pictures import alert_panels, hour_panels
from spark_ext.jobs.running.errors import JobInputError
from tests.support.pictures import cut_off, saved_figures

START = datetime(2026, 1, 31, 8, tzinfo=UTC)
PNG = b"\x89PNG\r\n"


def price(minute: int, area: str, percent: int, delay_ms: int) -> Row:
    return Row(
        area=area,
        window_start=START + timedelta(minutes=minute),
        window_end=START + timedelta(minutes=minute + 1),
        demand=7 * minute + 3,
        supply=5,
        surcharge_percent=percent,
        delay_ms=delay_ms,
    )


def hour(number: int, requests: int, errors: int) -> Row:
    counts = {f"status_{digit}xx": 0 for digit in (1, 3, 5)}
    return Row(
        hour=START + timedelta(hours=number),
        requests=requests,
        clients=3,
        status_2xx=requests - errors,
        status_4xx=errors,
        errors=errors,
        **counts,
    )


def alert(number: int, site: str, path: str | None) -> Row:
    start = START + timedelta(minutes=5 * number)
    return Row(
        site=site,
        path=path,
        window_start=start,
        window_end=start + timedelta(minutes=5),
        requests=40,
        errors=10,
        rate=0.25,
    )


def alerts_drawn(rows):
    return alert_panels(rows, rate_min=0.2)


def texts(axis) -> list[str]:
    return axis.get_legend_handles_labels()[1]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """``drawn(panels)``: the figure, once it is a file."""
    figures = saved_figures(monkeypatch)

    def draw(panels):
        path = tmp_path / "picture.png"
        save_picture(str(path), title="a job of a topic", panels=panels)
        assert path.read_bytes().startswith(PNG)
        assert cut_off(figures[-1]) == []
        return figures[-1]

    return draw


def test_prices_show_each_area_and_how_long_prices_took(drawn):
    rows = [
        price(minute, area, percent=10 * minute, delay_ms=1000 * (minute + 1))
        for minute in range(10)
        for area in ("north", "harbour")
    ]
    surcharge, market, delay = drawn(price_panels(rows)).axes
    assert sorted(texts(surcharge)) == ["harbour", "north"]
    assert texts(market) == ["demand", "supply"]
    # Both areas' demand in the last window.
    assert market.lines[0].get_ydata()[-1] == 2 * (7 * 9 + 3)
    assert texts(delay) == ["p50: 5.5 s", "p99: 10.0 s"]


def test_percentiles_are_of_all_delays():
    assert percentiles_s([float(n) for n in range(101)]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles_s([1.0]) == {}


def test_hours_show_answers_by_class_and_the_share_of_errors(drawn):
    answers, share, clients = drawn(hour_panels([hour(1, 50, 0), hour(0, 40, 10)])).axes
    assert texts(answers) == ["2xx", "4xx"]
    assert list(share.lines[0].get_ydata()) == [25.0, 25.0, 0.0, 0.0]
    assert list(clients.lines[0].get_ydata()) == [3, 3, 3, 3]


def test_alerts_show_their_sites_and_paths(drawn):
    rates, requests = drawn(alerts_drawn([alert(0, "a", None), alert(1, "b", "/x")])).axes
    assert sorted(texts(rates)) == ["a", "alert from 20 % on", "b /x"]
    assert texts(requests) == ["requests", "errors"]


WAYS = {
    "prices": (price_panels, lambda n, name: price(n, name, percent=10 + n, delay_ms=500)),
    "hours": (hour_panels, lambda n, _: hour(n, 40, 10)),
    "alerts": (alerts_drawn, lambda n, name: alert(n, name, "/" + name)),
}
"""Of each picture its panels, and how a row is made of a number of windows and a name."""


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_a_picture_too(way, drawn):
    panels, _ = WAYS[way]
    axes = drawn(panels([])).axes
    assert len(axes) == len(panels([]))
    assert {text.get_text() for axis in axes for text in axis.texts} == {"nothing was found"}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_drawn_where_there_is_no_window(way, drawn):
    """Windows 0 and 1, and 40 and 41: no line lies between them."""
    panels, row = WAYS[way]
    axes = drawn(panels([row(n, "a") for n in (0, 1, 40, 41)])).axes
    first, last = (day_number(row(n, "a")[window_at(row)]) for n in (2, 40))
    for axis in axes:
        for line in curves_of(axis):
            inner = [
                pair
                for pair in pairwise(zip(*line, strict=True))
                if pair[0][0] < last - 1e-6 and pair[1][0] > first + 1e-6
            ]
            assert all(isnan(a[1]) or isnan(b[1]) for a, b in inner), (way, inner)


UNITS_WITH_FRACTIONS = {"%", "% of requests", "% of requests failed", "seconds"}


def window_at(row):
    return "hour" if "hour" in row(0, "a") else "window_start"


def curves_of(axis):
    """Times and values of each curve; marks and lines across the whole width are none."""
    return [
        (line.get_xdata(), line.get_ydata())
        for line in axis.lines
        if line.get_linestyle() != "None" and line.get_transform() == axis.transData
    ]


@pytest.mark.parametrize("count", [1, 2, 50])
@pytest.mark.parametrize("way", WAYS)
def test_the_axis_of_time_has_what_was_found_and_little_more(way, count, drawn):
    panels, row = WAYS[way]
    rows = [row(n, "a") for n in range(count)]
    axes = drawn(panels(rows)).axes
    starts = [day_number(each[window_at(row)]) for each in rows]
    hour_days = 1 / 24
    first, last = axes[-1].get_xlim()
    assert first < starts[0] <= starts[-1] < last
    assert last - first <= max(1.1 * hour_days, 1.2 * (starts[-1] - starts[0] + hour_days))


@pytest.mark.parametrize("way", WAYS)
def test_the_last_window_is_as_wide_as_the_others(way, drawn):
    panels, row = WAYS[way]
    rows = [row(n, "a") for n in range(3)]
    starts = [day_number(each[window_at(row)]) for each in rows]
    end = 2 * starts[2] - starts[1]
    for axis in drawn(panels(rows)).axes:
        for times, _ in curves_of(axis):
            assert times[-1] == pytest.approx(end)
        for bar in axis.patches:
            assert bar.get_width() == pytest.approx(starts[1] - starts[0])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_touches_the_frame(way, drawn):
    panels, row = WAYS[way]
    for axis in drawn(panels([row(n, "a") for n in range(4)])).axes:
        assert axis.dataLim.y1 < 0.99 * axis.get_ylim()[1]
        assert axis.get_xlim()[0] < axis.dataLim.x0 < axis.dataLim.x1 < axis.get_xlim()[1]


@pytest.mark.parametrize("way", WAYS)
def test_counts_have_no_fractions(way, drawn):
    panels, row = WAYS[way]
    counts = ("requests", "errors", "clients", "demand", "supply", "status_2xx", "status_4xx")
    one = row(0, "a").asDict()
    few = Row(**{name: 2 if name in counts else value for name, value in one.items()})
    found = [
        axis for axis in drawn(panels([few])).axes if not UNITS_WITH_FRACTIONS & {axis.get_ylabel()}
    ]
    assert found
    for axis in found:
        assert all(tick == int(tick) for tick in axis.get_yticks()), (way, axis.get_ylabel())


@pytest.mark.parametrize("minutes", [1, 60, 3000, 100_000])
def test_times_are_named_so_that_hours_and_days_are_told_apart(minutes, drawn):
    rows = [price(n, "a", percent=1, delay_ms=1) for n in (0, minutes)]
    figure = drawn(price_panels(rows))
    names = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert names
    assert all(re.fullmatch(r"\d\d-\d\d \d\d:\d\d|\d{4}-\d\d(-\d\d)?", name) for name in names), (
        names
    )


@pytest.mark.parametrize("way", WAYS)
def test_long_names_leave_the_plots_their_width(way, drawn):
    panels, row = WAYS[way]
    names = [f"a/{'long/' * 60}name-{n}" for n in range(10)]
    figure = drawn(panels([row(n, name) for n, name in enumerate(names)]))
    for axis in figure.axes:
        assert axis.get_position().width > 0.65
        labels = texts(axis)
        assert len(set(labels)) == len(labels)


def test_names_that_look_the_same_get_a_number():
    long = "x" * 100
    assert labels_of(["a", f"{long}1{long}", f"{long}2{long}"]) == {
        "a": "a",
        f"{long}1{long}": "x" * 9 + "…" + "x" * 18,
        f"{long}2{long}": "x" * 9 + "…" + "x" * 18 + " (2)",
    }


def test_names_are_shown_as_they_are(drawn):
    panels, row = WAYS["prices"]
    names = ["_access", "/price/$10/and/$20", "/$%7Bx%7D/$y", ""]
    figure = drawn(panels([row(n, name) for n, name in enumerate(names)]))
    legend = figure.axes[0].get_legend().get_texts()
    assert sorted(text.get_text().strip() for text in legend) == sorted([*names[:3], "(empty)"])
    assert not any(text.get_parse_math() for text in legend)


def test_a_long_title_is_shortened():
    assert len(shortened("t" * 500, 100)) == 100
    assert shortened("alerts of access", 100) == "alerts of access"


def test_of_many_names_the_greatest_are_drawn():
    windows = [(f"n{n:02}", Window(day, day + 1, n)) for n in range(20) for day in (2, 1)]
    found = series_by_name(windows)
    assert list(found) == [f"n{n}" for n in range(19, 19 - NAMES_MAX, -1)]
    assert found["n19"] == [Window(1, 2, 19), Window(2, 3, 19)]
    assert len(COLOURS) == NAMES_MAX


@pytest.mark.parametrize("name", ["picture.xyz", "no/such/folder/picture.png"])
def test_a_file_that_cannot_be_drawn_is_told(name, tmp_path):
    with pytest.raises(JobInputError, match="cannot be drawn"):
        save_picture(str(tmp_path / name), title="t", panels=alerts_drawn([]))
