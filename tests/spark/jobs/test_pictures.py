"""Pictures of jobs: drawn from rows that a job wrote, with everything that they should show, and nothing cut off."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import Row

from spark_ext.jobs.market.pictures import percentiles_s, price_panels
from spark_ext.jobs.running.errors import JobInputError
from spark_ext.jobs.running.picture import NAMES_MAX, save_picture, series_by_name
from spark_ext.jobs.weblog.pictures import alert_panels, hour_panels
from tests.support.pictures import cut_off, saved_figures

START = datetime(2026, 1, 31, 8, tzinfo=UTC)
PNG = b"\x89PNG\r\n"


def price(minute: int, area: str, percent: int, delay_ms: int) -> Row:
    return Row(
        area=area,
        window_start=START + timedelta(minutes=minute),
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
    return Row(site=site, path=path, window_start=start, requests=40, errors=10, rate=0.25)


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
    assert list(share.lines[0].get_ydata()) == [25.0, 0.0]
    assert list(clients.lines[0].get_ydata()) == [3, 3]


def test_alerts_show_their_sites_and_paths(drawn):
    rates, requests = drawn(alert_panels([alert(0, "a", None), alert(1, "b", "/x")])).axes
    assert sorted(texts(rates)) == ["a", "b /x"]
    assert texts(requests) == ["requests", "errors"]


@pytest.mark.parametrize("panels", [price_panels, hour_panels, alert_panels])
def test_nothing_is_a_picture_too(panels, drawn):
    assert len(drawn(panels([])).axes) == len(panels([]))


def test_of_many_names_the_greatest_are_drawn():
    points = [(f"n{n:02}", float(day), float(n)) for n in range(20) for day in (2, 1)]
    found = series_by_name(points)
    assert list(found) == [f"n{n}" for n in range(19, 19 - NAMES_MAX, -1)]
    assert found["n19"] == ([1.0, 2.0], [19.0, 19.0])


@pytest.mark.parametrize("name", ["picture.xyz", "no/such/folder/picture.png"])
def test_a_file_that_cannot_be_drawn_is_told(name, tmp_path):
    with pytest.raises(JobInputError, match="cannot be drawn"):
        save_picture(str(tmp_path / name), title="t", panels=alert_panels([]))
