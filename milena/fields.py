"""Typed access to the JSON of responses. A missing or wrong field raises an ``UnexpectedAnswerError`` that names it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import TypeVar, get_args

from milena.errors import UnexpectedAnswerError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value that ``json.loads`` returns."""

V = TypeVar("V")


def given(**values: V | None) -> dict[str, V]:
    """Return the fields of a request, or its parameters, without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


class AnswerFields:
    """One JSON object of a response; ``where`` names it in errors.

    Every method raises ``UnexpectedAnswerError`` if the field is missing or of another type.
    """

    __slots__ = ("_values", "_where")

    def __init__(self, values: Json, where: str) -> None:
        if not isinstance(values, dict):
            raise UnexpectedAnswerError(f"{where}: expected a JSON object, got {_kind(values)}")
        self._values = values
        self._where = where

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string field."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string field that may be null or absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string or null", value)
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer field."""
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "an integer", value)
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return an integer field that may be null or absent."""
        return None if self._values.get(name) is None else self.integer(name)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return a boolean field."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers."""
        values = self._values.get(name)
        if not isinstance(values, list):
            raise self._wrong(name, "a list of integers", values)
        found = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
        if len(found) != len(values):
            raise self._wrong(name, "a list of integers", values)
        return found

    def objects(self, name: str) -> Iterator["AnswerFields"]:
        """Yield a list of objects."""
        values = self._values.get(name)
        if not isinstance(values, list):
            raise self._wrong(name, "a list", values)
        return objects_of(values, f"{self._where}.{name}")

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self._values.get(name) is not None

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; an absent field is empty."""
        values = self._values.get(name, [])
        if not isinstance(values, list):
            raise self._wrong(name, "a list of strings", values)
        found = tuple(v for v in values if isinstance(v, str))
        if len(found) != len(values):
            raise self._wrong(name, "a list of strings", values)
        return found

    def members(self, name: str | None = None) -> Iterator[tuple[str, "AnswerFields"]]:
        """Yield names and values of a field that is an object of objects (absent: empty); None: of this object."""
        values = self._values if name is None else self._values.get(name, {})
        if not isinstance(values, dict):
            raise self._wrong(name or "", "an object", values)
        where = self._where if name is None else f"{self._where}.{name}"
        for key, value in values.items():
            yield key, AnswerFields(value, f"{where}.{key}")

    def texts(self, name: str) -> dict[str, str]:
        """Return an object of strings; an absent field is empty. Other values become strings."""
        values = self._values.get(name, {})
        if not isinstance(values, dict):
            raise self._wrong(name, "an object", values)
        return {
            key: value if isinstance(value, str) else str(value) for key, value in values.items()
        }

    def numbers(self, name: str) -> dict[str, int]:
        """Return an object of integers; an absent field is empty."""
        values = self._values.get(name, {})
        if not isinstance(values, dict):
            raise self._wrong(name, "an object", values)
        found = {key: value for key, value in values.items() if type(value) is int}
        if len(found) != len(values):
            raise self._wrong(name, "an object of integers", values)
        return found

    def read(self, kind: type[V], **known: object) -> V:
        """Return a dataclass, each of whose fields is read by its name and type. One with a default may be absent.

        ``known`` has the values of fields that the response does not have under these names.
        """
        for name, read, default in _readings_of(kind):
            if name not in known:
                known[name] = read(self, name) if default is MISSING else read(self, name, default)
        return kind(**known)

    def _wrong(self, name: str, wanted: str, value: Json) -> UnexpectedAnswerError:
        return UnexpectedAnswerError(f"{self._where}.{name}: expected {wanted}, got {_kind(value)}")


_READERS: dict[object, Callable[..., object]] = {
    str: AnswerFields.text,
    str | None: AnswerFields.optional_text,
    int: AnswerFields.integer,
    int | None: AnswerFields.optional_integer,
    bool: AnswerFields.boolean,
    tuple[int, ...]: AnswerFields.integers,
    tuple[str, ...]: AnswerFields.strings,
    dict[str, str]: AnswerFields.texts,
    Mapping[str, int]: AnswerFields.numbers,
}
"""The reader of a field by its type. A field of another type is a list of dataclasses."""
_TAKE_DEFAULTS = (AnswerFields.text, AnswerFields.integer, AnswerFields.boolean)
"""Readers to which the default of a field is passed. For others, an absent field has one value."""


def _readings(kind: type) -> list[tuple[str, Callable[..., object], object]]:
    """Return the name, the reader and the default of each field of a dataclass."""
    found = []
    for field in fields(kind):
        read = _READERS.get(field.type, partial(_rows, field.type))
        found.append((field.name, read, field.default if read in _TAKE_DEFAULTS else MISSING))
    return found


_readings_of: Callable[[type], list[tuple[str, Callable[..., object], object]]] = cache(_readings)


def _rows(kind: object, answer: AnswerFields, name: str) -> object:
    return tuple(row.read(get_args(kind)[0]) for row in answer.objects(name))


def objects_of(values: Json, where: str) -> Iterator[AnswerFields]:
    """Yield the objects of a JSON list."""
    if not isinstance(values, list):
        raise UnexpectedAnswerError(f"{where}: expected a JSON list, got {_kind(values)}")
    for index, value in enumerate(values):
        yield AnswerFields(value, f"{where}[{index}]")


def _kind(value: Json) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
