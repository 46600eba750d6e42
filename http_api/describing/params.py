"""Parameters of requests. One definition serves to read a parameter and to describe it in the OpenAPI document.

A value that is out of range or not a number is malformed (400). The message names the parameter.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum, unique
from typing import Generic, TypeVar

from http_api.describing.schemas import integer_text
from http_api.shapes.blocks import Json, Schema, integer, text
from milena.model.errors import MalformedRequestError

T = TypeVar("T")
D = TypeVar("D", int, None)


@unique
class ParamPlace(StrEnum):
    """The place of a parameter in a request, as OpenAPI names it."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as the OpenAPI document describes it."""

    name: str
    description: str
    schema: Schema
    example: Json = None
    _: KW_ONLY
    place: ParamPlace = ParamPlace.QUERY


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerParam(Generic[D]):
    """An integer parameter of at least ``least``. ``read`` returns ``default``, which may be None, if it is absent."""

    name: str
    description: str
    least: int
    default: D

    def read(self, query: Mapping[str, str]) -> int | D:
        """Return the value, or the default if it is absent.

        Raises:
            MalformedRequestError: not an integer, or too small.
        """
        given = query.get(self.name)
        if given is None:
            return self.default
        value = integer_text(self.name, given)
        if value < self.least:
            raise MalformedRequestError(
                f"Invalid parameter '{self.name}' got '{given}': below {self.least}"
            )
        return value

    @property
    def param(self) -> Param:
        """The parameter's description."""
        schema = integer(minimum=self.least)
        if self.default is not None:
            schema = {**schema, "default": self.default}
        return Param(self.name, self.description, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParam(Generic[T]):
    """A parameter with one of several words, upper or lower case; the first word is the default.

    ``hint`` is the end of the error message for any other word.
    """

    name: str
    description: str
    words: Mapping[str, T]
    hint: str

    def read(self, query: Mapping[str, str]) -> T:
        """Return the value that the word stands for.

        Raises:
            MalformedRequestError: another word.
        """
        default, *_ = self.words
        word = query.get(self.name, default).lower()
        if word not in self.words:
            raise MalformedRequestError(
                f"Invalid parameter '{self.name}' got '{word}': use {self.hint}"
            )
        return self.words[word]

    @property
    def param(self) -> Param:
        """The parameter's description."""
        words = list(self.words)
        schema = text(enum=words, default=words[0])
        return Param(self.name, self.description, schema)
