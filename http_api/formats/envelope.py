"""The JSON envelope of produce requests, ``{"records": [{"key", "value", ...}]}``, shared by the v2 formats.

The code works on whole lists instead of single records, because loops in C are faster: it checks the set of all field
names, and the set of all types. Only headers and timestamps are read record by record, if a request has any.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeGuard

from http_api.describing.schemas import is_integer, json_kind, unknown_field
from http_api.formats import exact_json
from http_api.protocol.errors import InvalidFieldError
from milena.model.errors import (
    MalformedRequestError,
    RequestTooLargeError,
    UnsupportedSchemaError,
)
from milena.model.requests import Records
from milena.model.turns import Steps

Column = list[bytes | None]
Header = tuple[str, bytes | None]
ItemsDecoder = Callable[[list[Any], str, int], Column]
"""A function of (items, field, first) that turns JSON values into stored bytes.

``items`` are the values of ``field`` in the records from number ``first`` on, for error messages.
"""

STEP_RECORDS = 8192
"""The number of records whose keys or values are decoded in one step."""

REQUEST_FIELDS = frozenset(
    {"records", "key_schema", "key_schema_id", "value_schema", "value_schema_id"}
)
RECORD_FIELDS = frozenset({"key", "value", "partition", "timestamp", "headers"})
_HEADER_FIELDS = frozenset({"key", "name", "value"})


def decode_envelope(
    decode_items: ItemsDecoder,
    body: bytes,
    *,
    records_max: int,
) -> Steps[Records]:
    """Decode the records of a body, in steps.

    Args:
        decode_items: turns JSON values into stored bytes.
        body: the JSON.
        records_max: the largest number of records.

    Raises:
        MalformedRequestError: the body is not JSON, or a value has the wrong JSON type.
        InvalidFieldError: the body has no records, or an unknown field.
        UnsupportedSchemaError: the body names a schema.
        RequestTooLargeError: the body has more than ``records_max`` records.
    """
    envelope = exact_json.loads(body)
    if _has_one_value(envelope):
        return Records(
            keys=None,
            values=decode_items([envelope["records"][0]["value"]], "value", 0),
            headers=None,
            timestamps=None,
            partitions=None,
        )
    return (yield from decode_parsed(envelope, decode_items, records_max=records_max))


def decode_parsed(
    envelope: object,
    decode_items: ItemsDecoder,
    *,
    records_max: int,
) -> Steps[Records]:
    """Decode the records of a parsed envelope, in steps; see ``decode_envelope``."""
    records = _records_of(envelope, records_max)
    yield
    used: set[str] = set().union(*records)
    if not used <= RECORD_FIELDS:
        raise unknown_field(min(used - RECORD_FIELDS), RECORD_FIELDS)
    keys: Column | None = None
    if "key" in used:
        keys = []
        for first, items in _slices(records, "key"):
            keys += decode_items(items, "key", first)
            yield
    values: Column = []
    if "value" in used:
        for first, items in _slices(records, "value"):
            values += decode_items(items, "value", first)
            yield
    else:
        values = [None] * len(records)
    return Records(
        keys=keys,
        values=values,
        headers=_headers_column(records) if "headers" in used else None,
        timestamps=_timestamps_column(records) if "timestamp" in used else None,
        partitions=_partitions_column(records) if "partition" in used else None,
    )


def _has_one_value(envelope: object) -> TypeGuard[dict[str, list[dict[str, Any]]]]:
    """Return whether the body is one record with only a value. This common case skips the general checks."""
    if type(envelope) is not dict or len(envelope) != 1:
        return False
    records = envelope.get("records")
    if type(records) is not list or len(records) != 1:
        return False
    record = records[0]
    return type(record) is dict and len(record) == 1 and "value" in record


def _slices(records: list[dict[str, Any]], name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield, for ``STEP_RECORDS`` records at a time, the number of the first record and the values of a field."""
    for first in range(0, len(records), STEP_RECORDS):
        yield first, _column(records[first : first + STEP_RECORDS], name)


def _records_of(envelope: object, records_max: int) -> list[dict[str, Any]]:
    if not isinstance(envelope, dict):
        raise MalformedRequestError(
            f'the body must be a JSON object {{"records": [...]}}, not {json_kind(envelope)}'
        )
    for name in envelope:
        if name not in REQUEST_FIELDS:
            raise unknown_field(name, REQUEST_FIELDS)
    records = envelope.get("records")
    if records is not None and not isinstance(records, list):
        raise MalformedRequestError(f"records must be a list, not {json_kind(records)}")
    if not records:
        raise InvalidFieldError("records may not be empty")
    if set(map(type, records)) != {dict}:
        index, wrong = next((i, r) for i, r in enumerate(records) if type(r) is not dict)
        raise MalformedRequestError(f"records[{index}] must be an object, not {json_kind(wrong)}")
    _check_envelope(envelope, len(records), records_max)
    return records


def _check_envelope(envelope: dict[str, Any], count: int, records_max: int) -> None:
    if count > records_max:
        raise RequestTooLargeError(
            f"{count} records; at most {records_max} are taken in one request"
        )
    if len(envelope) == 1:
        return
    for name in REQUEST_FIELDS:
        if name != "records" and envelope.get(name) is not None:
            raise UnsupportedSchemaError(
                f"'{name}' needs a schema registry, which is not part of this cluster; leave it out"
            )


def _column(records: list[dict[str, Any]], name: str) -> list[Any]:
    return [record.get(name) for record in records]


def _partitions_column(records: list[dict[str, Any]]) -> list[int | None]:
    column = _column(records, "partition")
    if set(map(type, column)) <= {int, type(None)}:
        return column
    for index, value in enumerate(column):
        if value is not None and not is_integer(value):
            raise MalformedRequestError(
                f"records[{index}].partition must be an integer, not {json_kind(value)}"
            )
    return [None if value is None else int(value) for value in column]


def _timestamps_column(records: list[dict[str, Any]]) -> list[int | None]:
    column = _column(records, "timestamp")
    if not set(map(type, column)) <= {int, type(None)}:
        column = [
            parse_timestamp(f"records[{index}].timestamp", value)
            for index, value in enumerate(column)
        ]
    return column


def parse_timestamp(where: str, value: object) -> int | None:
    """Return a record's timestamp in ms; None if it has none.

    Raises:
        MalformedRequestError: the value is not a time.
    """
    if value is None:
        return None
    if is_integer(value):
        return int(value)
    if isinstance(value, str):
        return parse_time(value, where)
    raise MalformedRequestError(
        f"{where} must be ms since 1970 or an ISO-8601 time, not {json_kind(value)}"
    )


def parse_time(text: str, what: str) -> int:
    """Return an ISO-8601 time as ms since 1970; UTC if it names no zone.

    Raises:
        MalformedRequestError: the text is not a time.
    """
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        since = time - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise MalformedRequestError(f"{what} is '{text}', not an ISO-8601 time") from None
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _headers_column(records: list[dict[str, Any]]) -> list[list[Header] | None]:
    return [
        parse_headers(f"records[{index}].headers", record.get("headers"))
        for index, record in enumerate(records)
    ]


def parse_headers(where: str, items: object) -> list[Header] | None:
    """Return a record's headers; None if it has none.

    Raises:
        MalformedRequestError, InvalidFieldError: the value is not a list of headers.
    """
    if items is None or items == []:
        return None
    if not isinstance(items, list):
        raise MalformedRequestError(f"{where} must be a list, not {json_kind(items)}")
    return [_header(where, item) for item in items]


def _header(where: str, item: object) -> Header:
    if not isinstance(item, dict):
        raise MalformedRequestError(f"{where} must hold objects, not {json_kind(item)}")
    for field in item:
        if field not in _HEADER_FIELDS:
            raise unknown_field(field, _HEADER_FIELDS)
    if "key" in item and "name" in item:
        raise InvalidFieldError(f"{where}: give 'key' or 'name', not both")
    name = item.get("key", item.get("name"))
    if not isinstance(name, str):
        raise MalformedRequestError(
            f"{where}: each header needs a 'key' (or 'name') that is a string"
        )
    value = item.get("value")
    return name, None if value is None else decode_base64(value, where)


def decode_base64(value: object, where: str) -> bytes:
    """Return the bytes of a base64 string.

    Raises:
        MalformedRequestError: not a string, or not base64.
    """
    if not isinstance(value, str):
        raise MalformedRequestError(f"{where}: base64 must be a string, not {json_kind(value)}")
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError):
        raise MalformedRequestError(
            f"{where}: data={_shortened(value)} is not a valid base64 string."
        ) from None


def _shortened(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:61]}..."
