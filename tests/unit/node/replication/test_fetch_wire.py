"""What a replica fetch looks like between nodes, and what is refused of it."""

import pytest

from milena.model.errors import CorruptLogError
from node.replication.fetch_wire import FetchCode, Position, Row, parse_positions, parse_rows
from tests.support.fakes.peers import travelled


def test_rows_travel_and_come_back() -> None:
    rows = [Row(3, FetchCode.OK, 7, 2, 10), Row(4, FetchCode.DIVERGING, a=5, b=6)]
    assert parse_rows(travelled({"r": [row.pack() for row in rows]})["r"], 10) == rows


def test_positions_come_back() -> None:
    assert parse_positions([[1, "t", 2, 3, 4, 5]]) == [Position(1, "t", 2, 3, 4, 5)]


@pytest.mark.parametrize("raw", [None, {}, [[1]], [[1, 2, 3, 4, 5, 6]], [None]])
def test_positions_of_the_wrong_shape_are_refused(raw: object) -> None:
    with pytest.raises(CorruptLogError):
        parse_positions(raw)


@pytest.mark.parametrize(
    "raw",
    [None, "rows", [[1]], [[1, 0, 1, 1, -1, 0, 0]], [[1, True, 1, 1, 0, 0, 0]], [None]],
)
def test_rows_of_the_wrong_shape_are_refused(raw: object) -> None:
    with pytest.raises(CorruptLogError):
        parse_rows(raw, 0)


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(CorruptLogError):
        parse_rows(travelled({"r": [Row(0, FetchCode.OK, size=3).pack()]})["r"], 4)


def test_a_code_of_a_newer_release_is_refused_as_such() -> None:
    with pytest.raises(CorruptLogError, match="code 99"):
        parse_rows([[0, 99, 0, 0, 0, 0, 0]], 0)
