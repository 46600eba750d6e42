"""Native endpoints: pages of lists. The client chooses a search text, an order, and a part of the list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from http_api.describing.params import ChoiceParam, IntegerParam, Param
from http_api.shapes.blocks import text

N = TypeVar("N")
R = TypeVar("R")

ROWS_MAX = 1_000

SKIP = IntegerParam(
    name="skip", description="leave out so many from the first on", least=0, default=0
)
_LIMIT = f"at most so many; more than {ROWS_MAX} is taken as that"
LIMIT = IntegerParam(name="limit", description=_LIMIT, least=1, default=50)
LIMIT_OR_ALL = IntegerParam(
    name="limit", description=f"{_LIMIT}, and all are told without it", least=1, default=None
)
"""The parameter for lists that were complete before pages were introduced: without a limit they still are."""
LIMIT_OR_MOST = IntegerParam(name="limit", description=_LIMIT, least=1, default=ROWS_MAX)
"""The parameter for lists that existed before pages, but may be too long for one response."""
ORDER = ChoiceParam(
    name="order",
    description="the least, or the most, comes first",
    words={"asc": False, "desc": True},
    hint="asc or desc",
)
CONTAINS = Param(
    "contains", "those alone whose name has this in it, in whatever case", text(), "ord"
)
PARTITIONS = IntegerParam(
    name="partitions",
    description="of each, name at most so many partitions; all without it",
    least=0,
    default=None,
)
PARTITIONS_PARAM = PARTITIONS.param


def sort_param(words: Mapping[str, R], alike: str) -> ChoiceParam[R]:
    """Return the parameter ``sort``; the first of ``words`` is the default. ``alike`` describes the order of ties."""
    return ChoiceParam(
        name="sort",
        description=f"by what; those that are alike come by {alike}",
        words=words,
        hint=", ".join(words),
    )


# The parameter descriptions are created once and shared by all lists.
_SKIP, _ORDER, _ROWS, _ROWS_OR_ALL = SKIP.param, ORDER.param, LIMIT.param, LIMIT_OR_ALL.param


def page_params(sort: ChoiceParam[R], *, is_whole: bool = True) -> tuple[Param, ...]:
    """Return the parameters of a list with pages. ``is_whole``: without a limit, the response has the whole list."""
    return CONTAINS, *part_params(sort, is_whole=is_whole)


def part_params(sort: ChoiceParam[R], *, is_whole: bool = True) -> tuple[Param, ...]:
    """Return the parameters of a list with pages whose rows have no name to search for."""
    return sort.param, _ORDER, _SKIP, _ROWS_OR_ALL if is_whole else _ROWS


CUT_PARAMS = (_ORDER, _SKIP, _ROWS)
"""The parameters of a list with pages that has only one order."""
LONG_PARAMS = (_ORDER, _SKIP, LIMIT_OR_MOST.param)
"""The parameters of a list that existed before pages."""


def matching(names: Iterable[N], name: Callable[[N], str], query: Mapping[str, str]) -> list[N]:
    """Return the items whose name contains the query's search text, upper or lower case."""
    wanted = query.get(CONTAINS.name, "").lower()
    return [one for one in names if wanted in name(one).lower()]


@dataclass(frozen=True, slots=True)
class RowPage:
    """The requested part of a list. ``limit`` None: up to the end of the list."""

    skip: int
    limit: int | None
    is_descending: bool

    @classmethod
    def of(
        cls,
        query: Mapping[str, str],
        limit: IntegerParam[int] | IntegerParam[None] = LIMIT_OR_ALL,
    ) -> "RowPage":
        """Return the requested page.

        Raises:
            MalformedRequestError: a parameter is not valid.
        """
        rows = limit.read(query)
        return cls(
            SKIP.read(query), None if rows is None else min(rows, ROWS_MAX), ORDER.read(query)
        )

    def rows(
        self, names: Sequence[N], row: Callable[[N], R], key: Callable[[R], Any] | None
    ) -> list[R]:
        """Return the rows of this page.

        Args:
            names: the items, sorted by the default order.
            row: creates the row of an item.
            key: the sort key of rows; None: keep the default order, and create only the rows of this page.
        """
        part = slice(self.skip, None if self.limit is None else self.skip + self.limit)
        if key is None:
            return [row(name) for name in (names[::-1] if self.is_descending else names)[part]]
        return sorted(map(row, names), key=key, reverse=self.is_descending)[part]

    def cut(self, rows: Sequence[R], key: Callable[[R], Any] | None) -> list[R]:
        """Return the rows of this page from rows that are created already."""
        return self.rows(rows, _itself, key)


def _itself(row: R) -> R:
    return row
