"""Frozen dataclasses as rows of plain values and back, checked against their own annotations.

A row holds the fields in the order of the class. ``parse`` trusts nothing: each value must have exactly the annotated
type, numbers must fit 64 bits signed, and a row must be complete.

A class may get new fields, at its end and with a default. A row without the field, from an older release, gets the
default. A row with more fields than the class is from a newer release. It is refused, because nodes would differ if
this one dropped the values. A new field of a class in images also names, in its metadata, the feature level ``since``
which it is used. While the field has its default it is left out. So nodes of the previous release can read the row, and
write the same bytes.

Supported annotations: int (and NewTypes of it), str, bytes, bool, ``X | None``, ``tuple[X, ...]``, ``tuple[X, Y]``,
``Map[str, str]`` and dataclasses of these. Maps become pairs in order of keys, so that equal values give equal bytes.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from operator import attrgetter
from types import NoneType
from typing import NewType, TypeVar, get_args, get_origin, get_type_hints

from immutables import Map

from milena.model.errors import CorruptLogError

T = TypeVar("T")
Pack = Callable[[object], object]
Parse = Callable[[object], object]

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


class _Shape:
    """The encoding of values of one annotation. ``pack`` None: values stay unchanged."""

    __slots__ = ("pack", "parse")

    def __init__(self, pack: Pack | None, parse: Parse) -> None:
        self.pack = pack
        self.parse = parse


def pack(value: object) -> object:
    """Return a dataclass as a row of plain values."""
    packer = _shape(type(value)).pack
    return value if packer is None else packer(value)


def parse(kind: type[T], row: object) -> T:
    """Return a row as a dataclass of this kind.

    Raises:
        CorruptLogError: the row does not have the shape of the annotations.
    """
    value = _shape(kind).parse(row)
    assert isinstance(value, kind), f"{type(value)} came out of the shape of {kind}"
    return value


_SHAPES: dict[object, _Shape] = {}
"""Created once per annotation. Two threads may create an equal shape at the same time, which does no harm."""


def _shape(annotation: object) -> _Shape:
    known = _SHAPES.get(annotation)
    if known is None:
        known = _SHAPES[annotation] = _made_shape(annotation)
    return known


def _made_shape(annotation: object) -> _Shape:
    if isinstance(annotation, NewType):
        return _shape(annotation.__supertype__)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _record(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return _Shape(None, _parse_int if annotation is int else _exactly(annotation))
    if origin is Map:
        return _map(arguments)
    if origin is tuple:
        return _row_of(arguments[0]) if arguments[-1] is Ellipsis else _pair(arguments)
    return _optional(arguments)


def _refuse(value: object, wanted: str) -> CorruptLogError:
    return CorruptLogError(f"Expected {wanted}, found {type(value).__name__}.")


def _parse_int(value: object) -> object:
    if type(value) is not int or not _INT_MIN <= value <= _INT_MAX:
        raise _refuse(value, "a 64-bit integer")
    return value


def _exactly(kind: object) -> Parse:
    assert kind in {str, bytes, bool}, f"no shape for {kind}"

    def parse_exactly(value: object) -> object:
        if type(value) is not kind:
            raise _refuse(value, str(kind))
        return value

    return parse_exactly


def _optional(arguments: tuple[object, ...]) -> _Shape:
    kinds = [argument for argument in arguments if argument is not NoneType]
    assert len(kinds) == 1, f"no shape for a union of {arguments}"
    inner = _shape(kinds[0])
    inner_pack = inner.pack

    def pack_optional(value: object) -> object:
        return value if value is None or inner_pack is None else inner_pack(value)

    def parse_optional(value: object) -> object:
        return None if value is None else inner.parse(value)

    return _Shape(None if inner_pack is None else pack_optional, parse_optional)


def _items(value: object, wanted: str) -> list[object]:
    if not isinstance(value, list):
        raise _refuse(value, wanted)
    return value


def _row_of(argument: object) -> _Shape:
    inner = _shape(argument)
    inner_pack, inner_parse = inner.pack, inner.parse

    def pack_row(value: object) -> object:
        assert isinstance(value, tuple)
        assert inner_pack is not None
        return [inner_pack(item) for item in value]

    def parse_row(value: object) -> object:
        return tuple([inner_parse(item) for item in _items(value, "a list")])

    return _Shape(None if inner_pack is None else pack_row, parse_row)


def _pair(arguments: tuple[object, ...]) -> _Shape:
    inner = [_shape(argument) for argument in arguments]
    assert all(shape.pack is None for shape in inner), f"no shape for {arguments}"

    def parse_pair(value: object) -> object:
        items = _items(value, "a list")
        if len(items) != len(inner):
            raise CorruptLogError(f"Expected {len(inner)} values, found {len(items)}.")
        return tuple([shape.parse(item) for shape, item in zip(inner, items, strict=True)])

    return _Shape(None, parse_pair)


def _map(arguments: tuple[object, ...]) -> _Shape:
    assert arguments == (str, str), f"no shape for a map of {arguments}"
    parse_pairs = _row_of(tuple[str, str]).parse

    def pack_map(value: object) -> object:
        assert isinstance(value, Map)
        return sorted(value.items())

    def parse_map(value: object) -> object:
        pairs = parse_pairs(value)
        assert isinstance(pairs, tuple)
        names = [name for name, _ in pairs]
        if any(left >= right for left, right in pairwise(names)):
            raise CorruptLogError("The names of a map are not in ascending order.")
        return Map(pairs)

    return _Shape(pack_map, parse_map)


def _record(kind: type) -> _Shape:
    hints = get_type_hints(kind)
    members = fields(kind)
    names = [member.name for member in members]
    shapes = [_shape(hints[name]) for name in names]
    packed = [(at, shape.pack) for at, shape in enumerate(shapes) if shape.pack is not None]
    parsers = [(name, shape.parse) for name, shape in zip(names, shapes, strict=True)]
    has_default = [
        member.default is not MISSING or member.default_factory is not MISSING for member in members
    ]
    required = len(members) - has_default[::-1].index(False) if False in has_default else 0
    # attrgetter of one name gives the value itself instead of a tuple.
    values_of = attrgetter(*names) if len(names) > 1 else None
    later = [member.default for member in members if "since" in member.metadata]
    assert all("since" in member.metadata for member in members[len(members) - len(later) :])

    def pack_record(value: object) -> object:
        row = list(values_of(value)) if values_of else [getattr(value, name) for name in names]
        if later:
            for default in reversed(later):
                if row[-1] != default:
                    break
                row.pop()
        for at, pack_field in packed:
            if at < len(row):
                row[at] = pack_field(row[at])
        return row

    def parse_record(value: object) -> object:
        row = _items(value, f"the fields of a {kind.__name__}")
        if not required <= len(row) <= len(parsers):
            raise CorruptLogError(
                f"A {kind.__name__} has {required}..{len(parsers)} fields in this release, not {len(row)}."
            )
        found = zip(parsers, row, strict=False)
        return kind(**{name: parse_field(item) for (name, parse_field), item in found})

    return _Shape(pack_record, parse_record)
