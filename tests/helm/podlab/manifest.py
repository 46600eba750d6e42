"""A typed view of a Kubernetes object: JSON in, typed fields out. Knows nothing of any kind's meaning."""

import math
import re
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import yaml

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Document: TypeAlias = dict[str, Json]

T = TypeVar("T")

_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Reads a document by dotted paths. A missing field and an explicit null are the same.

    A getter refuses a field of another type with ``TypeError``: a chart that renders one is broken.
    """

    raw: Document

    def at(self, path: str) -> Json:
        """The field at a dotted path; None when there is none."""
        here: Json = self.raw
        for name in path.split("."):
            if not isinstance(here, dict):
                return None
            here = here.get(name)
        return here

    def has(self, path: str) -> bool:
        """Whether the field is there and not null."""
        return self.at(path) is not None

    def text(self, path: str, default: str = "") -> str:
        """A string."""
        return _typed(self.at(path), str, path, default)

    def number(self, path: str, default: int = 0) -> int:
        """A whole number."""
        return _typed(self.at(path), int, path, default)

    def flag(self, path: str, *, default: bool = False) -> bool:
        """A boolean."""
        return _typed(self.at(path), bool, path, default)

    def scalar(self, path: str, default: str = "") -> str:
        """A number or a string, as text: ports and percentages may be either."""
        value = self.at(path)
        return default if value is None else str(value)

    def part(self, path: str) -> "Manifest":
        """A mapping, empty when missing."""
        empty: Document = {}
        return Manifest(_typed(self.at(path), dict, path, empty))

    def parts(self, path: str) -> "list[Manifest]":
        """A list of mappings, empty when missing."""
        empty: list[Json] = []
        found = _typed(self.at(path), list, path, empty)
        return [Manifest(_typed(item, dict, path, {})) for item in found]

    def texts(self, path: str) -> list[str]:
        """A list of strings, empty when missing."""
        empty: list[Json] = []
        return [_typed(item, str, path, "") for item in _typed(self.at(path), list, path, empty)]

    def numbers(self, path: str) -> list[int]:
        """A list of whole numbers, empty when missing."""
        empty: list[Json] = []
        return [_typed(item, int, path, 0) for item in _typed(self.at(path), list, path, empty)]

    def pairs(self, path: str) -> dict[str, str]:
        """A mapping from string to string, empty when missing."""
        return {name: str(value) for name, value in self.part(path).raw.items()}

    @property
    def kind(self) -> str:
        return self.text("kind")

    @property
    def name(self) -> str:
        return self.text("metadata.name")

    @property
    def uid(self) -> str:
        return self.text("metadata.uid")

    @property
    def labels(self) -> dict[str, str]:
        return self.pairs("metadata.labels")

    @property
    def annotations(self) -> dict[str, str]:
        return self.pairs("metadata.annotations")

    @property
    def is_terminating(self) -> bool:
        return self.has("metadata.deletionTimestamp")

    @property
    def owner_uids(self) -> list[str]:
        """Uids of the objects that this one goes away with."""
        return [owner.text("uid") for owner in self.parts("metadata.ownerReferences")]


def _typed(value: Json, wanted: type[T], path: str, default: T) -> T:
    if value is None:
        return default
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError(f"{path} is {value!r}, not of type {wanted.__name__}")
    return value


def parse_quantity(text: str) -> float:
    """A resource quantity as a plain number: ``500m`` is 0.5, ``1Ki`` is 1024."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity")
    return float(match[1]) * _UNITS[match[2]]


def whole_units(quantity: str, divisor: str) -> int:
    """How often the divisor fits, rounded up: what a ``resourceFieldRef`` shows."""
    return math.ceil(parse_quantity(quantity) / (parse_quantity(divisor) or 1.0))


def read_documents(text: str) -> list[Manifest]:
    """The objects of a YAML stream, empty documents left out."""
    loaded: list[Document | None] = list(yaml.safe_load_all(text))
    return [Manifest(document) for document in loaded if document]
