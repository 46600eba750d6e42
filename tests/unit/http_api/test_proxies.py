"""Every operation of the REST proxies in use is here, or docs/coming-from.md says what to do instead."""

import re
from pathlib import Path

from http_api.protocol.errors import MethodNotAllowedError
from http_api.routes import ROUTES
from http_api.serving.routing import Router
from milena.model.errors import RouteNotFoundError

ROOT = Path(__file__).parents[3]
OPERATIONS = (ROOT / "tests/data/wire/proxies.txt").read_text(encoding="utf-8").splitlines()
"""``PROXY: METHOD PATH``: those of Confluent's ``api/v3/openapi.yaml`` and v2 resources, Karapace's, Strimzi's
``openapi.json`` and Redpanda's ``rest.json``."""
MISSING = (
    (ROOT / "docs/coming-from.md")
    .read_text(encoding="utf-8")
    .split("## What is missing\n")[1]
    .split("\n## ")[0]
)
ROUTER = Router(ROUTES)


def is_served(method: str, path: str) -> bool:
    try:
        ROUTER.find(method, re.sub(r"\{(\w+)\}", r"\1", path))
    except (RouteNotFoundError, MethodNotAllowedError):
        return False
    return True


def test_every_operation_is_served_or_the_page_says_what_to_do_instead() -> None:
    operations = {line.partition(": ")[2] for line in OPERATIONS}
    first_cells = "".join(row.split("|")[1] for row in MISSING.splitlines() if row.startswith("|"))
    listed = set(re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", first_cells))
    assert listed == {line for line in operations if not is_served(*line.split())}


def test_the_page_counts_them() -> None:
    served = [line for line in OPERATIONS if is_served(*line.partition(": ")[2].split())]
    assert f"describe {len(OPERATIONS)} operations. {len(served)} of them are here" in MISSING
