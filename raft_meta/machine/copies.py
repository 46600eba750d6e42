"""A frozen dataclass with some fields set anew: what ``dataclasses.replace`` does, at less than half the price.

Every command that is applied makes a few of these, on every node, one after the other; the image has many fields.
``dataclasses.replace`` looks at the definition of each field and has the new object check its keywords again. Here the
slots of a class are looked up once, and copied by what they are made of. Fields need slots, and a class must not do
anything of its own when an object is made: ``__post_init__`` is not called.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The same signature, which type checkers hold against the fields of the class.
    from dataclasses import replace
else:

    def replace(value, /, **changes):  # noqa: ANN001, ANN003, ANN201  # as above
        """A copy of ``value`` with these fields changed."""
        kind = type(value)
        values_of, setters, setter_of = _slots_of(kind)
        copy = object.__new__(kind)
        for set_slot, slot in zip(setters, values_of(value), strict=True):
            set_slot(copy, slot)
        for name, slot in changes.items():
            setter_of[name](copy, slot)
        return copy


__all__ = ["replace"]

_Setter = Callable[[object, object], None]


@cache
def _slots_of(
    kind: type[Any],
) -> tuple[Callable[[object], tuple[object, ...]], tuple[_Setter, ...], dict[str, _Setter]]:
    """How to read all fields of an object at once, and how to set each."""
    assert not hasattr(kind, "__post_init__"), f"{kind} does something when it is made"
    names = tuple(field.name for field in fields(kind))
    assert len(names) > 1, f"{kind} has too few fields for attrgetter to give a tuple"
    setter_of: dict[str, _Setter] = {name: getattr(kind, name).__set__ for name in names}
    return attrgetter(*names), tuple(setter_of.values()), setter_of
