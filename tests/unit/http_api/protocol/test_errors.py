"""The one table from errors to HTTP."""

from pathlib import Path

import orjson
import pytest

from http_api.protocol import errors as api_errors
from http_api.protocol.errors import ERROR_TABLE, MethodNotAllowedError, row_of
from milena.model import errors as storage_errors
from milena.model.errors import (
    ConflictError,
    FateUnknownError,
    MilenaError,
    NotFoundError,
    UnavailableError,
)

WIRE = Path(__file__).parents[3] / "data" / "wire" / "errors.json"
COUNTED = ("Milena-Error", "Retry-After", "WWW-Authenticate", "Allow")
OWN_MODULES = {storage_errors.__name__, api_errors.__name__}

SHARED_CODES = {40002}
"""Confluent's "Kafka refused the request" stands for several classes; every other code means one."""


def concrete_classes(root=MilenaError):
    children = [c for c in root.__subclasses__() if c.__module__ in OWN_MODULES]
    # A fate is unknown for many reasons, of which one has a class of its own.
    if not children or root is FateUnknownError:
        yield root
    for child in children:
        yield from concrete_classes(child)


def make(kind):
    if kind is MethodNotAllowedError:
        return kind("a sentence", allowed="GET, HEAD, OPTIONS")
    return kind("a sentence")


CLASSES = sorted(set(concrete_classes()), key=lambda kind: kind.__name__)


def test_each_concrete_class_has_exactly_one_row_and_nothing_else_has():
    assert set(ERROR_TABLE) == set(CLASSES)


@pytest.mark.parametrize(("parent", "status"), [(UnavailableError, 503), (ConflictError, 409)])
async def test_a_parent_that_the_state_machine_raises_is_no_fault_of_the_node(api, parent, status):
    """Brokers may die, and versions change, between a node's check and its command."""
    api.node.errors["topic"] = parent("None of the brokers is alive; try again later.")
    answer = await api.get("/topics/t/partitions")
    assert answer.status == status
    assert "try again later" in answer.json["message"]


def test_codes_are_unique_but_for_the_shared_one():
    codes = [row.error_code for row in ERROR_TABLE.values()]
    assert {code for code in codes if codes.count(code) > 1} == SHARED_CODES


def test_codes_are_the_status_or_begin_with_it():
    for kind, row in ERROR_TABLE.items():
        assert row.error_code == row.status or (
            10_000 <= row.error_code <= 99_999 and row.error_code // 100 == row.status
        ), kind


def test_codes_of_classes_are_unique_words():
    words = [kind.code for kind in CLASSES]
    assert len(set(words)) == len(words)


def test_retriable_errors_are_answered_with_a_status_that_says_so():
    for kind, row in ERROR_TABLE.items():
        assert kind.is_retriable == (row.status in (429, 503)), kind


def test_a_subclass_without_a_row_has_its_parents():
    class NarrowError(storage_errors.DiskFullError):
        pass

    assert row_of(NarrowError("x")) == ERROR_TABLE[storage_errors.DiskFullError]


def test_a_class_between_root_and_leaves_is_a_kafka_error():
    assert row_of(NotFoundError("x")).error_code == 50002


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
async def test_each_row_on_the_wire(api, kind):
    """What a client sees of each error, against the recorded example."""
    api.node.errors["topic"] = make(kind)
    answer = await api.get("/topics/t/partitions")
    expected = orjson.loads(WIRE.read_bytes())[kind.code]
    assert answer.status == expected["status"]
    assert answer.json == expected["body"]
    shown = {name: answer.headers.get(name) for name in COUNTED}
    assert {name: value for name, value in shown.items() if value} == expected["headers"]
    assert answer.headers["Content-Type"] == "application/json"


def test_no_example_is_left_over():
    assert set(orjson.loads(WIRE.read_bytes())) == {kind.code for kind in CLASSES}
