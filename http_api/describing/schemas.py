"""Readers of JSON bodies and query parameters. The message of every error names the field.

A wrong JSON type, or text that is no number in place of a number, is malformed (400). A missing, unknown or
out-of-range field is invalid (422). Numbers and booleans may also be sent as text, because clients of Confluent's API
do that.
"""

from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from types import MappingProxyType
from typing import TypeGuard, TypeVar
from urllib.parse import parse_qsl

import orjson

from http_api.protocol.errors import InvalidFieldError
from milena.model.errors import MalformedRequestError
from milena.model.plain_text import has_control

T = TypeVar("T")

_QUERY_FIELDS_MAX = 64
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_DIGITS_MAX = 19
_TRUE = frozenset({"true", "1", "yes", ""})
_FALSE = frozenset({"false", "0", "no"})


def parse_json(body: bytes) -> object:
    """Return the body's JSON.

    Raises:
        MalformedRequestError: the body is empty or not JSON; the message says where it stops being JSON.
    """
    if not body:
        raise MalformedRequestError("the body is empty; JSON is expected")
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequestError(f"the body is not JSON: {json_fault(body, error)}") from None
    return value


def json_fault(text: bytes, error: orjson.JSONDecodeError) -> str:
    """Return a description of where a text stops being JSON.

    If the bytes are not UTF-8, the parser's error does not have the position. So this function finds it.
    """
    try:
        text.decode()
    except UnicodeDecodeError as found:
        return f"byte {found.start} (0x{text[found.start]:02x}) is not UTF-8"
    return str(error)


@lru_cache(maxsize=1024)
def parse_query(raw: str) -> Mapping[str, str]:
    """Return the parameters of a query string; if one is repeated, its last value counts.

    The result is cached, because each request reads its query several times, and clients repeat queries.

    Raises:
        MalformedRequestError: more parameters than any endpoint has, or bytes that are not UTF-8.
    """
    try:
        pairs = parse_qsl(
            raw, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX
        )
    except UnicodeDecodeError:
        raise MalformedRequestError("the query string is not UTF-8, percent-encoded") from None
    except ValueError:
        raise MalformedRequestError(
            f"the query string has more than {_QUERY_FIELDS_MAX} parameters"
        ) from None
    return MappingProxyType(dict(pairs))


def integer_text(name: str, text: str) -> int:
    """Return the integer in a parameter.

    Raises:
        MalformedRequestError: it is not an integer, or has more than 64 bits.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise MalformedRequestError(f"Invalid parameter '{name}' got '{text}': not an integer")
    # ``int`` would raise for thousands of digits, so check the length first.
    if len(digits) > _DIGITS_MAX or not _INT64_MIN <= int(text) <= _INT64_MAX:
        is_negative = digits != text
        bound = f"small: at least {_INT64_MIN}" if is_negative else f"large: at most {_INT64_MAX}"
        raise MalformedRequestError(
            f"Invalid parameter '{name}' got '{text}': too {bound} is possible"
        )
    return int(text)


def _boolean(name: str, text: str) -> bool:
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise MalformedRequestError(f"'{name}' is '{text}'; expected true or false")


class Fields:
    """A JSON object whose fields are read by name and type. ``known`` lists the allowed fields; None: any are."""

    def __init__(self, value: object, where: str, known: frozenset[str] | None) -> None:
        if not isinstance(value, dict):
            raise MalformedRequestError(f"{where} must be a JSON object, not {json_kind(value)}")
        self._values: dict[str, object] = value
        self._where = where
        if known is None:
            return
        for name in value:
            if name not in known:
                raise unknown_field(name, known)

    def names(self) -> Set[str]:
        """Return the names of all present fields."""
        return self._values.keys()

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        """Return the field's value unchanged; None if absent."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Return a string, or None if absent or null."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def label(self, name: str) -> str | None:
        """Return a name or a note that other users see; None if absent or null.

        Raises:
            InvalidFieldError: the text has a control character.
        """
        value = self.text(name)
        if value is not None and has_control(value):
            raise InvalidFieldError(
                f"{self._where}: '{name}' is {value!a}, which has a control character: use printable characters"
            )
        return value

    def required_text(self, name: str) -> str:
        """Return a required string.

        Raises:
            InvalidFieldError: the field is absent, null or empty.
        """
        value = self.text(name)
        if not value:
            raise InvalidFieldError(f"{self._where}: '{name}' may not be empty")
        return value

    def setting(self, name: str) -> str | None:
        """Return a string; convert numbers and booleans to their JSON text. None if absent or null."""
        value = self._values.get(name)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        return self.text(name)

    def settings(self, name: str, known: frozenset[str]) -> dict[str, str]:
        """Return settings by name, from a list of ``{"name", "value"}``; empty if absent or null.

        Raises:
            InvalidFieldError: a setting comes twice or has no value.
        """
        found: dict[str, str] = {}
        for item in self.objects(name, known):
            setting, value = item.required_text("name"), item.setting("value")
            if setting in found:
                raise InvalidFieldError(
                    f"{self._where}: '{name}' has '{setting}' twice: give it once"
                )
            if value is None:
                raise InvalidFieldError(
                    f"{self._where}: '{setting}' in '{name}' has no 'value': give one, or leave "
                    f"'{setting}' out to keep its default"
                )
            found[setting] = value
        return found

    def integer(self, name: str, *, least: int) -> int | None:
        """Return an integer of at least ``least`` (also from text), or None if absent or null.

        Raises:
            InvalidFieldError: the integer is smaller, or has more than 64 bits.
        """
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            value = integer_text(name, value)
        self._check_range(name, "is", value, least)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer", value)
        return value

    def required_integer(self, name: str, *, least: int) -> int:
        """Return a required integer of at least ``least`` (also from text).

        Raises:
            InvalidFieldError: the field is absent or null, or the integer is smaller.
        """
        value = self.integer(name, least=least)
        if value is None:
            raise InvalidFieldError(f"{self._where}: '{name}' is missing")
        return value

    def boolean(self, name: str) -> bool:
        """Return a boolean (also from text); false if absent or null."""
        value = self._values.get(name)
        if value is None:
            return False
        if isinstance(value, str):
            return _boolean(name, value)
        if not isinstance(value, bool):
            raise self._wrong(name, "a boolean", value)
        return value

    def items(self, name: str) -> list[object]:
        """Return a list; empty if absent or null."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return value

    def required_items(self, name: str) -> list[object]:
        """Return a required list, which may be empty.

        Raises:
            InvalidFieldError: the field is absent or null.
        """
        if not self.has(name):
            raise InvalidFieldError(f"{self._where}: '{name}', a list, is missing")
        return self.items(name)

    def strings(self, name: str) -> list[str]:
        """Return a list of strings; empty if absent or null."""
        return [self._checked(name, str, "strings", item) for item in self.items(name)]

    def integers(self, name: str, *, least: int) -> list[int]:
        """Return a list of integers of at least ``least``; empty if absent or null.

        Raises:
            InvalidFieldError: an integer is smaller, or has more than 64 bits.
        """
        found: list[int] = []
        for item in self.items(name):
            self._check_range(name, "holds", item, least)
            found.append(self._checked(name, int, "integers", item))
        return found

    def _check_range(self, name: str, verb: str, value: object, least: int) -> None:
        """Refuse an integer that is too small or too large. Ignore values of other types."""
        if not is_integer(value):
            return
        if value < least:
            raise InvalidFieldError(
                f"{self._where}: '{name}' {verb} {value}; at least {least} is needed"
            )
        if value > _INT64_MAX:
            raise InvalidFieldError(
                f"{self._where}: '{name}' {verb} {value}; at most {_INT64_MAX} is possible"
            )

    def _checked(self, name: str, kind: type[T], kinds: str, item: object) -> T:
        if isinstance(item, bool) or not isinstance(item, kind):
            raise MalformedRequestError(
                f"{self._where}: '{name}' must be a list of {kinds}; it holds {json_kind(item)}"
            )
        return item

    def objects(self, name: str, known: frozenset[str]) -> Iterator["Fields"]:
        """Yield the objects of a list."""
        for index, item in enumerate(self.items(name)):
            yield Fields(item, f"{name}[{index}]", known)

    def _wrong(self, name: str, expected: str, value: object) -> MalformedRequestError:
        return MalformedRequestError(
            f"{self._where}: '{name}' must be {expected}, not {json_kind(value)}"
        )


def is_integer(value: object) -> TypeGuard[int | float]:
    """Return whether a number was sent as an integer.

    The parser reads an integer of more than 64 bits as a float, so a float of that size counts as an integer too.
    """
    if isinstance(value, float):
        return abs(value) > _INT64_MAX
    return isinstance(value, int) and not isinstance(value, bool)


def unknown_field(name: str, known: frozenset[str]) -> InvalidFieldError:
    """Return the error for an unknown field."""
    return InvalidFieldError(f"Unrecognized field: {name} (known: {', '.join(sorted(known))})")


ITEMS_MAX = 10_000
"""The number of partitions or offsets that one request may name."""


def check_count(count: int, what: str) -> None:
    """Refuse more items than one request may have.

    Raises:
        InvalidFieldError: the message says what to do.
    """
    if count > ITEMS_MAX:
        raise InvalidFieldError(f"{count} {what} are too many: send at most {ITEMS_MAX}")


def json_kind(value: object) -> str:
    """Return JSON's name for the kind of a value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | orjson.Fragment():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
