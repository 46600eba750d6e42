"""Media types in ``Content-Type`` and ``Accept`` headers.

Clients of the v2 API name types in different ways. All of these are accepted: ``application/json``, no header, ``v1``,
and names without a version. ``Accept`` lists with q-values follow RFC 9110, but variants that old clients send are
accepted too: ``*`` for ``*/*`` and ``q=.2`` (both from Java's ``HttpURLConnection``), ``q=1.``, more than three digits,
and quotes.

Results are cached by the header's text, because a client sends the same few headers with each request.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import lru_cache
from typing import TypeVar

from milena.model.errors import (
    MalformedRequestError,
    NotAcceptableError,
    UnsupportedMediaTypeError,
)

JSON_TYPE = "application/json"
V2_TYPE = "application/vnd.kafka.v2+json"
JSON_V2_TYPE = "application/vnd.kafka.json.v2+json"
BINARY_V2_TYPE = "application/vnd.kafka.binary.v2+json"
TEXT_V2_TYPE = "application/vnd.kafka.text.v2+json"
BATCH_TYPE = "application/vnd.milena.batch"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
NDJSON_TYPE = "application/x-ndjson"
EVENTS_TYPE = "text/event-stream"
TEXT_TYPE = "text/plain"
_NDJSON_NAMES = frozenset({NDJSON_TYPE, "application/ndjson", "application/jsonl"})

_KAFKA = re.compile(
    r"application/vnd\.kafka(?:\.(?P<embedded>[a-z]+))?(?:\.v(?P<version>\d+))?\+json"
)
_SCHEMA_FORMATS = frozenset({"avro", "jsonschema", "protobuf"})
T = TypeVar("T")

_WILDCARDS = ("application/*", "*/*")
_QUALITY = re.compile(r"0?\.[0-9]+|0\.?|1(\.0*)?")
"""A number from 0 to 1. RFC 9110 requires the 0 before the point, and allows three digits after it."""
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
"""Charsets that are read as UTF-8. Every US-ASCII text is also UTF-8."""


@unique
class RecordFormat(StrEnum):
    """The format of records in a body."""

    JSON = "json"
    BINARY = "binary"
    BATCH = "batch"
    ARROW = "arrow"
    TEXT = "text"
    TEXT_LINES = "text lines"
    JSON_LINES = "json lines"


@unique
class StreamFraming(StrEnum):
    """The framing of records in a streaming response."""

    LINES = NDJSON_TYPE
    EVENTS = EVENTS_TYPE


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One member of an ``Accept`` list."""

    name: str
    quality: float
    place: int

    @property
    def rank(self) -> tuple[float, int, int]:
        """A sort key; the greatest is preferred: by quality, then types before wildcards, then by place in the list."""
        return (self.quality, 2 - self.name.count("*"), -self.place)


def parse_accept(header: str) -> list[MediaRange]:
    """Return the members of an ``Accept`` list, the preferred one first. Members with ``q=0`` ("never") come last.

    Raises:
        NotAcceptableError: a quality that is not a number from 0 to 1.
    """
    ranges = []
    for place, member in enumerate(_split(header.lower(), ",")):
        name, parameters = _parse_type(member)
        if name:
            name = "*/*" if name == "*" else name
            ranges.append(MediaRange(name, _quality(parameters), place))
    ranges.sort(key=lambda media: media.rank, reverse=True)
    return ranges


def _parse_type(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the name of a media type, and its parameters without their quotes."""
    name, *parameters = _split(text, ";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return name.strip(), [(name.strip(), value.strip().strip("\"'")) for name, _, value in pairs]


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator that is not within quotes."""
    if '"' not in text:
        return text.split(separator)
    parts, begin, is_quoted = [], 0, False
    characters = iter(enumerate(text))
    for at, character in characters:
        if character == '"':
            is_quoted = not is_quoted
        elif is_quoted and character == "\\":
            next(characters, None)
        elif character == separator and not is_quoted:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _quality(parameters: list[tuple[str, str]]) -> float:
    for name, value in parameters:
        if name != "q":
            continue
        if _QUALITY.fullmatch(value) is None:
            raise NotAcceptableError(f"'q={value}' in Accept is not a quality from 0 to 1")
        return float(value)
    return 1.0


def _choose(
    accept: str, named: Callable[[str], T | None], offered: Iterable[tuple[str, T]]
) -> T | None:
    """Return the type that the client prefers among those of the server; None if the client accepts none of them.

    Args:
        accept: the header; empty means any type.
        named: returns the type for a name in the header, or None if the server does not have it.
        offered: names and types for a wildcard, the server's preferred one first. A client may exclude names (``q=0``).
    """
    ranges = parse_accept(accept if accept.strip() else "*/*")
    never = {media.name for media in ranges if media.quality == 0}
    for media in ranges:
        if media.quality == 0:
            break
        if media.name not in _WILDCARDS:
            answer = named(media.name)
            if answer is not None:
                return answer
            continue
        for name, answer in offered:
            if not never & {name, f"{name.partition('/')[0]}/*"}:
                return answer
    return None


def _is_kafka(name: str) -> re.Match[str] | None:
    match = _KAFKA.fullmatch(name)
    if match is None or match["version"] not in (None, "1", "2"):
        return None
    return match


@lru_cache(maxsize=512)
def metadata_type(accept: str) -> str:
    """Return the content type of a response without records: one of the names for JSON that the client accepts.

    Raises:
        NotAcceptableError: nothing in the list is JSON.
    """
    offered = ((V2_TYPE, V2_TYPE), (JSON_TYPE, JSON_TYPE))
    chosen = _choose(accept, _metadata_type_named, offered)
    if chosen is not None:
        return chosen
    raise NotAcceptableError(
        f"cannot answer with any of '{accept}'; ask for {V2_TYPE} or {JSON_TYPE}"
    )


def _metadata_type_named(name: str) -> str | None:
    if name == JSON_TYPE:
        return JSON_TYPE
    return None if _is_kafka(name) is None else V2_TYPE


@dataclass(frozen=True, slots=True)
class RecordsType:
    """The format of records in a response.

    ``format`` None: JSON, in which an error replaces a record that is not JSON. ``framing`` None: no stream.
    """

    format: RecordFormat | None
    content_type: str
    framing: StreamFraming | None = None
    is_any: bool = False
    """Whether the client accepts any format."""


_ANY_RECORDS = RecordsType(None, "", is_any=True)
_TYPES_OF_FORMATS = {
    RecordFormat.JSON: RecordsType(RecordFormat.JSON, JSON_V2_TYPE),
    RecordFormat.BINARY: RecordsType(RecordFormat.BINARY, BINARY_V2_TYPE),
    RecordFormat.TEXT: RecordsType(RecordFormat.TEXT, TEXT_V2_TYPE),
}
_PLAIN_TYPES_OF_FORMATS = {
    format_: RecordsType(format_, JSON_TYPE) for format_ in _TYPES_OF_FORMATS
}
_RECORDS_BY_EMBEDDED: dict[str | None, RecordsType] = {
    **{format_.value: type_ for format_, type_ in _TYPES_OF_FORMATS.items()},
    None: _ANY_RECORDS,
}
_LINES = RecordsType(None, NDJSON_TYPE, StreamFraming.LINES)
_RECORDS_BY_NAME = {
    BATCH_TYPE: RecordsType(RecordFormat.BATCH, BATCH_TYPE),
    ARROW_TYPE: RecordsType(RecordFormat.ARROW, ARROW_TYPE),
    JSON_TYPE: RecordsType(RecordFormat.JSON, JSON_TYPE),
    **dict.fromkeys(_NDJSON_NAMES, _LINES),
    EVENTS_TYPE: RecordsType(None, EVENTS_TYPE, StreamFraming.EVENTS),
}


@lru_cache(maxsize=512)
def records_type(accept: str) -> RecordsType:
    """Return the format of a response with records.

    Raises:
        NotAcceptableError: nothing in the list is a supported format.
    """
    offered = ((JSON_V2_TYPE, _ANY_RECORDS), (JSON_TYPE, _RECORDS_BY_NAME[JSON_TYPE]))
    chosen = _choose(accept, _records_type_named, offered)
    if chosen is not None:
        return chosen
    raise NotAcceptableError(
        f"cannot answer records as any of '{accept}'; "
        f"ask for {JSON_V2_TYPE}, {BINARY_V2_TYPE}, {TEXT_V2_TYPE}, "
        f"{NDJSON_TYPE}, {EVENTS_TYPE}, {BATCH_TYPE} or {ARROW_TYPE}"
    )


@lru_cache(maxsize=512)
def type_in_format(accept: str, own: RecordFormat, chosen_by: str) -> RecordsType:
    """Return the type of a response whose record format is fixed by something else than the header.

    Args:
        accept: the header; it may only choose between a stream and one body.
        own: the fixed format: JSON, binary or text.
        chosen_by: why the format is fixed, for the error message.

    Raises:
        NotAcceptableError: the client accepts neither this format nor a stream.
    """
    anyhow = replace(_TYPES_OF_FORMATS[own], is_any=True)
    offered = ((anyhow.content_type, anyhow), (JSON_TYPE, _PLAIN_TYPES_OF_FORMATS[own]))

    def named(name: str) -> RecordsType | None:
        wanted = _records_type_named(name)
        if wanted is None or wanted.framing is not None:
            return wanted
        if wanted.content_type == JSON_TYPE:
            return _PLAIN_TYPES_OF_FORMATS[own]
        return _TYPES_OF_FORMATS[own] if wanted.format in (None, own) else None

    chosen = _choose(accept, named, offered)
    if chosen is not None:
        return chosen
    raise NotAcceptableError(
        f"{chosen_by} the format '{own}', which none of '{accept}' is; "
        f"ask for {_TYPES_OF_FORMATS[own].content_type}, {NDJSON_TYPE} or {EVENTS_TYPE}"
    )


@lru_cache(maxsize=512)
def framing_type(accept: str) -> StreamFraming:
    """Return the framing of a response that is always a stream; NDJSON if the client accepts any type.

    Raises:
        NotAcceptableError: nothing in the list is a stream.
    """

    def named(name: str) -> StreamFraming | None:
        wanted = _records_type_named(name)
        return None if wanted is None else _LINES.framing if wanted.is_any else wanted.framing

    offered = ((framing.value, framing) for framing in StreamFraming)
    chosen = _choose(accept, named, offered)
    if chosen is not None:
        return chosen
    raise NotAcceptableError(
        f"records of a whole topic do not come as any of '{accept}'; ask for {NDJSON_TYPE} or {EVENTS_TYPE}"
    )


def stream_type(type_: RecordsType, is_following: bool | None) -> RecordsType:
    """Return ``type_``, or NDJSON if the client wants to follow the partition and accepts any type.

    Raises:
        MalformedRequestError: the client wants to follow, but names a type that is no stream.
    """
    if not is_following or type_.framing is not None:
        return type_
    if type_.is_any:
        return _LINES
    raise MalformedRequestError(
        f"Invalid parameter 'follow' got 'true': {type_.content_type} has an end; "
        f"ask for {NDJSON_TYPE} or {EVENTS_TYPE}"
    )


def _records_type_named(name: str) -> RecordsType | None:
    known = _RECORDS_BY_NAME.get(name)
    if known is not None:
        return known
    match = _is_kafka(name)
    return None if match is None else _RECORDS_BY_EMBEDDED.get(match["embedded"])


_PRODUCED_BY_EMBEDDED: dict[str | None, RecordFormat] = {
    **{format_.value: format_ for format_ in _TYPES_OF_FORMATS},
    None: RecordFormat.BINARY,
}


@lru_cache(maxsize=512)
def produce_format(content_type: str) -> RecordFormat:
    """Return the format of records in a request's body. Without a type it is JSON; ``vnd.kafka.v2+json`` is binary.

    Raises:
        UnsupportedMediaTypeError: any other type.
    """
    name, parameters = _parse_type(content_type.lower())
    _check_charset(parameters)
    if name in ("", JSON_TYPE):
        return RecordFormat.JSON
    if name == BATCH_TYPE:
        return RecordFormat.BATCH
    if name == TEXT_TYPE:
        return RecordFormat.TEXT_LINES
    if name in _NDJSON_NAMES:
        return RecordFormat.JSON_LINES
    match = _is_kafka(name)
    if match is not None:
        if match["embedded"] in _SCHEMA_FORMATS:
            raise UnsupportedMediaTypeError(
                f"{match['embedded']} needs a schema registry, which is not part of this cluster; "
                f"send {JSON_V2_TYPE}, {BINARY_V2_TYPE} or {TEXT_V2_TYPE}"
            )
        if match["embedded"] in _PRODUCED_BY_EMBEDDED:
            return _PRODUCED_BY_EMBEDDED[match["embedded"]]
    raise UnsupportedMediaTypeError(
        f"Content-Type '{name}' holds no records; "
        f"send {JSON_V2_TYPE}, {BINARY_V2_TYPE}, {TEXT_V2_TYPE}, {JSON_TYPE} or {BATCH_TYPE}, "
        f"or a record a line as {TEXT_TYPE} or {NDJSON_TYPE}"
    )


@lru_cache(maxsize=512)
def names_record_format(content_type: str) -> bool:
    """Return whether a type that ``produce_format`` accepts names a record format; plain JSON and no type do not."""
    return content_type.lower().partition(";")[0].strip() not in ("", JSON_TYPE)


@lru_cache(maxsize=512)
def check_json_type(content_type: str) -> None:
    """Refuse a body that may not be read as JSON.

    Raises:
        UnsupportedMediaTypeError: the type is not JSON. Forms and plain text must be refused, because a browser lets
            pages of other origins send these without a preflight.
    """
    name, parameters = _parse_type(content_type.lower())
    _check_charset(parameters)
    if name not in ("", JSON_TYPE) and _is_kafka(name) is None:
        raise UnsupportedMediaTypeError(
            f"Content-Type '{name}' is not taken here; send {JSON_TYPE}"
        )


def _check_charset(parameters: list[tuple[str, str]]) -> None:
    for name, value in parameters:
        if name == "charset" and value not in _CHARSETS:
            raise UnsupportedMediaTypeError(f"charset '{value}' is not taken; send UTF-8")
