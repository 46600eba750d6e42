"""The document of the API tells the truth about errors; its examples are run by an integration test."""

from pathlib import Path

from http_api.protocol.errors import ERROR_TABLE

TEXT = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text(encoding="utf-8")


def test_every_status_of_an_error_is_listed():
    for row in ERROR_TABLE.values():
        assert f"| {row.status} | " in TEXT, row
