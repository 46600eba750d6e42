"""Building blocks of JSON Schemas (draft 2020-12, which OpenAPI 3.1 uses).

A schema with a name is a ``Shape``. Other schemas contain the ``Shape`` object itself, which becomes a ``$ref`` when
the OpenAPI document is generated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema with a name. ``example`` is a valid value, or None if the fields need no example."""

    name: str
    schema: "Schema"
    example: Json = None

    @property
    def fields(self) -> frozenset[str]:
        """The names of an object's fields."""
        return frozenset(self._properties)

    @property
    def _properties(self) -> Mapping[str, "SchemaPart"]:
        properties = self.schema["properties"]
        assert isinstance(properties, Mapping), (self.name, properties)
        return properties

    def of(self, source: object, **others: object) -> dict[str, object]:
        """Return an object of this shape. Fields that are not in ``others`` are attributes of ``source``.

        A field that may be left out is only present if it is in ``others``.
        """
        required = self.schema["required"]
        assert isinstance(required, list), (self.name, required)
        return {
            name: others[name] if name in others else getattr(source, name)
            for name in self._properties
            if name in others or name in required
        }


SchemaPart = Json | Shape | Mapping[str, "SchemaPart"] | Sequence["SchemaPart"]
Schema = Mapping[str, SchemaPart]
Part = Schema | Shape
"""A schema with or without a name."""


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
    """Return the schema of a field that is always null here, but has values in other servers with this API."""
    return _described({"type": "null"}, description)


def base64(description: str = "") -> Schema:
    """Bytes."""
    return text(description, contentEncoding="base64")


def raw_bytes(description: str = "") -> Schema:
    """A body that is not JSON. The format ``binary`` is not in draft 2020-12, but generators of clients know it."""
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
    # An ``enum`` must list null too, even if ``type`` allows null.
    more: Schema = {} if words is None else {"enum": [*words, None]}
    return {**part, "type": [*kinds, "null"], **more}


def listing(items: Part, description: str = "", **more: SchemaPart) -> Schema:
    """A list."""
    return _described({"type": "array", "items": items, **more}, description)


def mapping(values: Part, description: str = "") -> Schema:
    """An object whose field names are not known in advance."""
    return _described({"type": "object", "additionalProperties": values}, description)


@dataclass(frozen=True, slots=True)
class Optional:
    """A field of an object that may be left out."""

    part: Part


def maybe(part: Part) -> Optional:
    """A field that may be left out, or be null."""
    return Optional(nullable(part))


def optionals(parts: Mapping[str, Part]) -> dict[str, Optional]:
    """Fields of which each may be left out."""
    return {name: Optional(part) for name, part in parts.items()}


def fields(**parts: Part | Optional) -> Schema:
    """An object with these fields."""
    properties = {n: p.part if isinstance(p, Optional) else p for n, p in parts.items()}
    schema: dict[str, SchemaPart] = {"type": "object", "properties": properties}
    required = [name for name, part in parts.items() if not isinstance(part, Optional)]
    return {**schema, "required": required} if required else schema


def closed_fields(**parts: Part | Optional) -> Schema:
    """An object with these fields, and no others."""
    return {**fields(**parts), "additionalProperties": False}


def answer(name: str, example: Json = None, /, **parts: Part | Optional) -> Shape:
    """A response with these fields. It stays open: a later release may add some."""
    return Shape(name, fields(**parts), example)


def request(name: str, example: Json = None, /, **parts: Part | Optional) -> Shape:
    """A request with these fields. Others are refused."""
    return Shape(name, closed_fields(**parts), example)


def _described(schema: dict[str, SchemaPart], description: str) -> Schema:
    return {**schema, "description": description} if description else schema


TOPIC_ID = text(
    "the id of the topic that was read, or the first 12 digits, as in an `ETag`: nothing is committed to a later topic "
    "of the name (404)",
    pattern="^[0-9a-f]{12,32}$",
)

TOTAL = count("of those that are looked for, on all pages")
