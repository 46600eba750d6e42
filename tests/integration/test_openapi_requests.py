"""Requests made of the node's own description, sound ones and such as it forbids: a real node's answers keep to it.

Every operation gets the limits of each parameter and field, within and beyond, and some chance requests, the same in
every run: with names that there are, and with any. What is forbidden must be refused, and whatever is answered, status,
error code, type, headers and body, must be what is described for it.
"""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.generation.overrides import Override
from schemathesis.specs.openapi.checks import negative_data_rejection

from http_api.routes import ROUTES
from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    ok,
    running_cluster,
    write,
)
from tests.support.http.api_server import Answer
from tests.support.http.openapi import Description

pytestmark = pytest.mark.integration

FETCH_WAIT_MS_MAX = 20
"""Of the node: a read that waits for records holds nobody up."""
TIMEOUT_MS = 5000
"""Of writes, in requests that are about something else."""
REQUEST_S_MAX = 30
KNOWN_EXAMPLES, ANY_EXAMPLES = 6, 3
"""Chance requests of an operation, with names that there are and with any."""
SHOWN_MAX = 5

OPERATIONS = [route.operation_id for route in ROUTES if route.operation_id != "drain"]
"""A node that is drained leads nothing any more."""
ANSWERED_RECORD_BY_RECORD = ("v3ProduceRecords", "v3ProduceBatch")
"""The first one's status is said before a record is read, the second's is of all; each record has its own."""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running_cluster(
        tmp_path_factory.mktemp("openapi"),
        node_count=1,
        fetch_wait_ms_max=FETCH_WAIT_MS_MAX,
    ) as cluster:
        yield cluster.node(1)


@pytest.fixture(scope="module")
def names(node):
    """What there is, by the name that it has in paths."""
    return {
        "cluster": cluster_id(node),
        "topic": "orders",
        "partition": 0,
        "broker": 1,
        "group": "rest",
        "instance": "c1",
        "consumer": "c1",
        "config": "retention.ms",
    }


@pytest.fixture(scope="module")
def description(node):
    return Description(ok(call(node, "GET /openapi.json")))


@pytest.fixture(scope="module")
def api(description, names):
    """The description as requests are made of it: its examples are of what there is."""
    examples = {**names, "timeout_ms": TIMEOUT_MS}
    parameters = description.document["components"]["parameters"]
    shown = {
        name: {**parameter, "example": examples[name]} if name in examples else parameter
        for name, parameter in parameters.items()
    }
    components = {**description.document["components"], "parameters": shown}
    generation = {"deterministic": True, "database": "none"}
    return schemathesis.openapi.from_dict(
        {**description.document, "components": components},
        config=schemathesis.Config.from_dict({"generation": generation}),
    )


def set_up(node, names):
    """Make what there is anew: operations before may have deleted it."""
    call(node, f"DELETE /v3/clusters/{names['cluster']}/topics/orders")
    create_topic(node, "orders", partitions=2, replicas=1)
    write(node, "orders", "before")
    call(node, "POST /consumers/rest", {"name": "c1", "format": "json"})


def requests_of(operation, check, *, modes, examples, fixed):
    """A test that calls ``check`` with requests; ``fixed`` are names of paths."""
    settings = hypothesis.settings(
        derandomize=True,
        database=None,
        max_examples=examples,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    config = HypothesisTestConfig(
        project=operation.schema.config,
        modes=modes,
        settings=settings,
        override=Override(path_parameters=fixed),
    )
    return create_test(operation=operation, test_func=check, config=config)


def is_refused(operation_id, answer):
    """Refused in a place where status codes do not tell it."""
    if operation_id not in ANSWERED_RECORD_BY_RECORD or answer.status >= 400:
        return False
    last = Answer(answer.status, {}, answer.body.splitlines()[-1]).json
    return bool(last["failures"]) if "failures" in last else last["error_code"] != 200


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_answers_keep_to_the_description(node, names, description, api, operation_id):
    set_up(node, names)
    operation = api.find_operation_by_id(operation_id)
    faults = []

    def check(case):
        if case.method != operation.method.upper():  # other methods are other operations
            return
        response = case.call(base_url=node.url, timeout=REQUEST_S_MAX)
        headers = {name.title(): values[0] for name, values in response.headers.items()}
        answer = Answer(response.status_code, headers, response.content)
        sent = response.request.body or b""
        try:
            description.check(case.method, response.request.path_url, answer)
            assert answer.status != 500
            if not is_refused(operation_id, answer):
                case.validate_response(response, checks=[negative_data_rejection])
        except AssertionError as error:
            faults.append(f"{error}\nsent: {sent[:500]!r}")
        except FailureGroup as group:
            faults.extend(str(failure) for failure in group.exceptions)

    known = {name: value for name, value in names.items() if f"{{{name}}}" in operation.path}
    coverage, chance = [HypothesisTestMode.COVERAGE], [HypothesisTestMode.FUZZING]
    requests_of(operation, check, modes=coverage, examples=1, fixed={})()
    requests_of(operation, check, modes=chance, examples=KNOWN_EXAMPLES, fixed=known)()
    if known:
        requests_of(operation, check, modes=chance, examples=ANY_EXAMPLES, fixed={})()
    shown = "\n\n".join(faults[:SHOWN_MAX])
    assert not faults, f"{len(faults)} faults, the first of them:\n\n{shown}"
