"""Building blocks of JSON Schemas (draft 2020-12, which OpenAPI 3.1 uses).

A named schema is a ``Shape``. Other schemas contain the object itself, which becomes a ``$ref`` when the document is
made. This module does not depend on routes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema with its own name. ``example`` is valid under it, or None if its fields show enough."""

    name: str
    schema: "Schema"
    example: Json = None

    @property
    def fields(self) -> frozenset[str]:
        """The names of an object's fields."""
        properties = self.schema["properties"]
        assert isinstance(properties, Mapping), (self.name, properties)
        return frozenset(properties)


SchemaPart = Json | Shape | Mapping[str, "SchemaPart"] | Sequence["SchemaPart"]
Schema = Mapping[str, SchemaPart]
Part = Schema | Shape
"""A value in a place where JSON Schema expects a schema."""


def text(description: str = "", **more: SchemaPart) -> Schema:
    """A string."""
    return _described({"type": "string", **more}, description)


def integer(description: str = "", **more: SchemaPart) -> Schema:
    """A whole number of at most 64 bits."""
    return _described({"type": "integer", "format": "int64", **more}, description)


def count(description: str = "", *, least: int = 0) -> Schema:
    """A whole number with a minimum."""
    return integer(description, minimum=least)


def number(description: str = "") -> Schema:
    """A number, maybe with a fraction."""
    return _described({"type": "number"}, description)


def boolean(description: str = "") -> Schema:
    """A boolean."""
    return _described({"type": "boolean"}, description)


def anything(description: str = "") -> Schema:
    """Any JSON value."""
    return _described({}, description)


def nothing(description: str = "") -> Schema:
    """Always null: a field that other servers fill."""
    return _described({"type": "null"}, description)


def base64(description: str = "") -> Schema:
    """Bytes."""
    return text(description, contentEncoding="base64")


def raw_bytes(description: str = "") -> Schema:
    """A body that is not JSON. Draft 2020-12 has no word for it; generators of clients know this one."""
    return text(description, format="binary")


def choice(*words: str, description: str = "") -> Schema:
    """One of these words."""
    return text(description, enum=words)


def constant(word: str) -> Schema:
    """A constant word."""
    return {"type": "string", "const": word}


def nullable(part: Part) -> Schema:
    """A schema that accepts null too."""
    if isinstance(part, Shape):
        return {"anyOf": [part, {"type": "null"}]}
    kind = part["type"]
    kinds = [kind] if isinstance(kind, str) else kind
    assert isinstance(kinds, list), kinds
    words = part.get("enum")
    assert words is None or isinstance(words, list | tuple), words
    # An ``enum`` excludes every other value, even null of an allowed type.
    more: Schema = {} if words is None else {"enum": [*words, None]}
    return {**part, "type": [*kinds, "null"], **more}


def listing(items: Part, description: str = "", **more: SchemaPart) -> Schema:
    """A list."""
    return _described({"type": "array", "items": items, **more}, description)


def mapping(values: Part, description: str = "") -> Schema:
    """An object whose field names are not known in advance."""
    return _described({"type": "object", "additionalProperties": values}, description)


def fields(
    required: Mapping[str, Part],
    optional: Mapping[str, Part] | None = None,
    *,
    is_closed: bool = False,
) -> Schema:
    """An object. ``is_closed``: unknown fields are refused, as in every request. Responses may get more fields."""
    schema: dict[str, SchemaPart] = {
        "type": "object",
        "properties": {**required, **(optional or {})},
    }
    if required:
        schema["required"] = list(required)
    if is_closed:
        schema["additionalProperties"] = False
    return schema


def _described(schema: dict[str, SchemaPart], description: str) -> Schema:
    return {**schema, "description": description} if description else schema


TOTAL = count("of those that are looked for, on all pages")
