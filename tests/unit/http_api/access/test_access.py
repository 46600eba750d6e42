"""What callers need, endpoint by endpoint: rules, and the whole table to be read."""

from pathlib import Path

import pytest

from http_api.access.needs import IN_REQUEST, KNOWN, PUBLIC, on_topic
from http_api.routes import ROUTES
from http_api.serving.endpoint import Route, Tag
from milena.model.access import OPERATIONS_OF, Operation, ResourceType

WRITTEN = Path(__file__).parents[3] / "data" / "wire" / "access.txt"
LOOKING = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
TABLE = [f"{route.method} {route.path}: {route.access}" for route in ROUTES]


def test_the_table_is_the_one_that_was_read() -> None:
    assert "\n".join([*TABLE, ""]) == WRITTEN.read_text()


def test_what_is_public_says_nothing_about_the_cluster() -> None:
    public = {route.path for route in ROUTES if route.access.is_public}
    probes = {"/livez", "/startupz", "/readyz", "/healthy", "/ready", "/status/ready", "/_health"}
    assert public == {*probes, "/openapi.json", "/openapi", "/openapi/v3"}


@pytest.mark.parametrize("route", ROUTES, ids=TABLE)
def test_a_row_makes_sense(route: Route) -> None:
    needs = route.access.needs
    if "/topics/{topic}" in route.path:
        assert needs is not None
        assert needs.resource_type is ResourceType.TOPIC
    if "{group}" in route.path:
        assert needs is not None
        assert needs.resource_type is ResourceType.GROUP
    if needs is not None:
        assert needs.operation in OPERATIONS_OF[needs.resource_type]
        if route.method == "GET":
            assert needs.operation in LOOKING
    if route.method != "GET":
        assert not route.access.is_public
        # A change of all topics asks for each of them.
        assert not route.access.is_filtered or route.path.endswith("/topics/{topic}/configs:alter")
        assert needs is not None or route.access.has_more
        assert needs is None or needs.operation not in LOOKING - {Operation.READ}


def test_a_row_that_does_not_say_or_names_what_its_path_does_not_cannot_be_made() -> None:
    row = {
        "line": "GET /x",
        "handler": ROUTES[0].handler,
        "operation_id": "x",
        "tag": Tag.NODE,
        "summary": "x",
    }
    with pytest.raises(TypeError, match="access"):
        Route(**row)
    with pytest.raises(AssertionError):
        Route(**row, access=on_topic(Operation.READ))
    for access in (KNOWN, PUBLIC, IN_REQUEST):
        Route(**row, access=access)
