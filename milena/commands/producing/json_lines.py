"""Parse lines as ``milena consume --format json`` prints them (pure). Only topic and offset of a record are ignored."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from milena.commands.producing.lines import (
    BadLineError,
    LineRecords,
    ParsedLines,
    Placing,
    excerpt,
    parse_each,
    too_long,
)

FIELDS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "key_encoding",
    "value",
    "value_encoding",
    "headers",
)
HEADER_FIELDS = ("key", "value", "value_encoding")
_ADVICE = "; mend the line, or say --on-bad-line skip"
_PARTITION = re.compile(rb'"partition"\s*:\s*([0-9]{1,20})')
"""The partition of a record. Inside a string of JSON, the quotes would have a backslash before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    key: bytes | None
    value: bytes | None
    placing: Placing


class JsonLines:
    """The rule of ``--format json`` (``LineParser``)."""

    def parse_all(self, lines: list[bytes | None], *, first: int, is_skipping: bool) -> ParsedLines:
        """Parse lines as ``LineParser`` says. Each run of records that share partition, headers and time is one."""
        found, bad, last = parse_each(_parsed, lines, first=first, is_skipping=is_skipping)
        runs = []
        for placing, group in groupby(found, key=lambda one: one[1].placing):
            records = list(group)
            run = LineRecords(
                keys=[record.key for _, record in records],
                values=[record.value for _, record in records],
                numbers=[number for number, _ in records],
                placing=placing,
            )
            runs.append(run)
        return ParsedLines(runs=runs, bad=bad, last=last)


def partitions_needed(lines: Iterable[bytes | None], least: int) -> int:
    """Return how many partitions a topic needs for the records of these lines, and at least ``least``.

    Bad lines do not count. Only a line that seems to need more is parsed: that keeps a large file quick to check.
    """
    for line in lines:
        found = None if line is None else _PARTITION.search(line)
        if found is None or int(found[1]) < least:
            continue
        try:
            named = _parsed(line).placing.partition
        except BadLineError:
            continue
        least = max(least, 0 if named is None else named + 1)
    return least


def _parsed(line: bytes | None) -> _Record:
    if line is None:
        raise too_long()
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(
            f"--format json needs JSON, but {excerpt(line)} is not JSON ({error}){_ADVICE}"
        ) from error
    try:
        return _record(found)
    except ValueError as error:
        raise BadLineError(f"{error} in {excerpt(line)}{_ADVICE}") from error


def _record(found: object) -> _Record:
    fields = _object(found, FIELDS, "a record")
    if "value" not in fields:
        raise ValueError("no field value (null is a tombstone)")
    headers = fields.get("headers") or []
    if not isinstance(headers, list):
        raise ValueError("headers is not a list")  # noqa: TRY004 - the line is bad, not the call
    placing = Placing(
        partition=_number(fields, "partition"),
        headers=tuple(_header(header) for header in headers),
        timestamp_ms=_number(fields, "timestamp"),
    )
    return _Record(key=_bytes(fields, "key"), value=_bytes(fields, "value"), placing=placing)


def _object(found: object, names: tuple[str, ...], what: str) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not a JSON object")  # noqa: TRY004 - the line is bad, not the call
    for name in found:
        if name not in names:
            raise ValueError(f"{what} has no field {name!r} (but {', '.join(names)})")
    return found


def _header(found: object) -> tuple[str, bytes | None]:
    fields = _object(found, HEADER_FIELDS, "a header")
    name = fields.get("key")
    if not isinstance(name, str):
        raise ValueError("a header's key is not text")  # noqa: TRY004 - the line is bad, not the call
    return name, _bytes(fields, "value")


def _number(fields: Mapping[str, object], name: str) -> int | None:
    number = fields.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{name} is not a whole number of 0 or more")
    return number


def _bytes(fields: Mapping[str, object], name: str) -> bytes | None:
    text, encoding = fields.get(name), fields.get(f"{name}_encoding")
    if encoding not in (None, "base64"):
        raise ValueError(f"{name}_encoding is not base64, the only one")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} is not text (JSON is given as its text, in quotes)")  # noqa: TRY004 - the line is bad
    try:
        return text.encode() if encoding is None else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{name} is not valid {encoding or 'text'}") from error
