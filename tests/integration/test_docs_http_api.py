"""docs/http-api.md is true: every command is run and its answer compared, and no endpoint goes without one."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from http_api.routes import ROUTES
from http_api.serving.openapi import encode_document
from http_api.serving.routing import Router
from tests.support.http.console import Place, Step, blocks, started, steps

pytestmark = pytest.mark.integration

TEXT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
WALK = steps(TEXT)
METHOD_OF_OPTION = {"-d": "POST", "--data-binary": "POST", "-I": "HEAD"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster that the document starts."""
    start, *_ = blocks(TEXT, "sh")
    with started(start, tmp_path_factory.mktemp("http-api")) as found:
        yield found


def test_every_command_prints_what_the_document_says(place: Place) -> None:
    place.check(WALK)


# -- completeness ----------------------------------------------------------------------------------

ENDPOINTS = {f"{route.method} {route.path}" for route in ROUTES}


def asked(step: Step) -> set[str]:
    """The endpoints that a command's curls reach."""
    words = shlex.split(step.command.replace("$(", " ").replace(")", " ").replace("|", " | "))
    found: set[str] = set()
    router = Router(ROUTES)
    while "curl" in words:
        words = words[words.index("curl") + 1 :]
        own = list(takewhile(lambda word: word not in ("|", "curl"), words))
        method = next((METHOD_OF_OPTION[w] for w in own if w in METHOD_OF_OPTION), "GET")
        if "-X" in own:
            method = own[own.index("-X") + 1]
        (url,) = (word for word in own if word.startswith("localhost:"))
        path = "/" + url.partition("/")[2].partition("?")[0]
        if method == "OPTIONS":
            continue
        route = router.find(method, path).route
        found.add(f"{route.method} {route.path}")
    return found


def says_something(step: Step) -> bool:
    """What it prints is more than a placeholder."""
    return bool(step.expected.replace("…", "").strip())


def test_every_endpoint_has_a_command_whose_answer_is_compared() -> None:
    checked = {endpoint for step in WALK if says_something(step) for endpoint in asked(step)}
    feeds_a_later_line = {"GET /v3/clusters"}
    assert checked | feeds_a_later_line == ENDPOINTS
    used = [step.command for step in WALK if "$C" in step.command]
    assert len(used) > 10


def test_the_document_the_routes_and_the_description_name_the_same_endpoints() -> None:
    named = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`?\s]*)`", TEXT))
    description = json.loads(encode_document(ROUTES))
    described = {
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
    }
    assert named == ENDPOINTS == described


def test_every_parameter_is_explained() -> None:
    for route in ROUTES:
        for param in route.params:
            shown = (
                f"`{param.name}" in TEXT or f"?{param.name}=" in TEXT or f"&{param.name}=" in TEXT
            )
            assert shown or f"{{{param.name}}}" in TEXT, f"{route.path}: {param.name}"
