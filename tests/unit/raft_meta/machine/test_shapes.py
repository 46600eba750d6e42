"""Rows of plain values: how classes may grow from release to release."""

from dataclasses import dataclass, field

import pytest
from immutables import Map

from milena.model.errors import CorruptLogError
from raft_meta.machine import shapes


@dataclass(frozen=True, kw_only=True)
class Grown:
    name: str
    configs: Map[str, str]
    added_later: int = 7


@dataclass(frozen=True, kw_only=True)
class One:
    value: tuple[Grown, ...]


GROWN = Grown(name="n", configs=Map({"b": "2", "a": "1"}), added_later=8)


def test_a_row_holds_the_fields_in_order_and_maps_by_key() -> None:
    assert shapes.pack(GROWN) == ["n", [("a", "1"), ("b", "2")], 8]


def test_a_class_of_one_field_is_a_row_too() -> None:
    assert shapes.pack(One(value=(GROWN,))) == [[["n", [("a", "1"), ("b", "2")], 8]]]
    assert shapes.parse(One, [[["n", [["a", "1"], ["b", "2"]], 8]]]) == One(value=(GROWN,))


def test_a_row_of_an_older_release_gets_the_defaults() -> None:
    assert shapes.parse(Grown, ["n", []]) == Grown(name="n", configs=Map())


@pytest.mark.parametrize(
    "row",
    [
        ["n"],
        ["n", [], 8, "from a newer release"],
        ["n", [["b", "2"], ["a", "1"]]],
        ["n", [["a", "1"], ["a", "2"]]],
        ["n", [["a", "1", "x"]]],
        ["n", [["a", 1]]],
        ["n", {"a": "1"}],
        [None, []],
        "n",
    ],
)
def test_any_other_row_is_corrupt(row: object) -> None:
    with pytest.raises(CorruptLogError):
        shapes.parse(Grown, row)


@dataclass(frozen=True)
class Later:
    name: str
    first: int | None = field(default=None, metadata={"since": 2})
    second: str = field(default="", metadata={"since": 3})


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (Later("a"), ["a"]),
        (Later("a", 1), ["a", 1]),
        (Later("a", None, "b"), ["a", None, "b"]),
        (Later("a", 0, ""), ["a", 0]),
    ],
)
def test_later_fields_are_left_out_while_they_have_their_defaults(value: Later, row: list) -> None:
    assert shapes.pack(value) == row
    assert shapes.parse(Later, row) == value
