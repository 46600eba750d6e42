"""The document of the API tells the truth about what there is."""

from pathlib import Path

import pytest

from http_api.errors import ERROR_TABLE
from http_api.routes import ROUTES

TEXT = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_endpoint_is_described(route):
    example = route.path.replace("{topic}", "orders").replace("{partition}", "0")
    assert f"`{route.method} {route.path}`" in TEXT or f"localhost:8082{example}" in TEXT


def test_every_status_of_an_error_is_listed():
    for row in ERROR_TABLE.values():
        assert f"| {row.status} | " in TEXT, row
