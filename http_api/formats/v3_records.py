"""Parse records in the form of the v3 API: one object per record, whose key and value name their types. Pure.

``{"partition_id"?, "headers"?: [{"name", "value"}], "key"?: {"type", "data"}, "value"?: {"type", "data"},
"timestamp"?}`` with the types ``BINARY`` (base64), ``JSON`` and ``STRING``. Types that need a schema are refused.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from http_api.describing.schemas import Fields
from http_api.formats import exact_json
from http_api.formats.envelope import (
    Header,
    decode_base64,
    parse_headers,
    parse_timestamp,
)
from http_api.protocol.errors import InvalidFieldError
from http_api.shapes.v3_records import DATA, RECORD
from milena.model.errors import (
    MalformedRequestError,
    PartitionNotFoundError,
    UnsupportedSchemaError,
)
from milena.model.requests import Records

_SCHEMA_TYPES = frozenset({"AVRO", "JSONSCHEMA", "PROTOBUF"})
_SCHEMA_FIELDS = ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema")
TYPES = ("BINARY", "JSON", "STRING")


class Data(NamedTuple):
    """The key or the value of a record. ``type`` is None if the record has none."""

    type: str | None = None
    stored: bytes | None = None

    def receipt(self) -> bytes:
        """Return the description of this key or value in a receipt, as JSON."""
        if self.type is None:
            return b"null"
        return b'{"type":"%b","size":%d}' % (self.type.encode(), len(self.stored or b""))


class V3Record(NamedTuple):
    """One record as it is stored."""

    partition: int | None = None
    key: Data = Data()
    value: Data = Data()
    headers: list[Header] | None = None
    timestamp_ms: int | None = None


def text_record(text: bytes) -> V3Record:
    """Return a record with a text as its value, without key and headers."""
    return V3Record(value=Data("STRING", text))


def texts_of(values: Sequence[object]) -> list[bytes] | None:
    """Return the stored values if every record has only a value that is a text; otherwise None.

    Most streams have only such records. The caller then appends them without an object per record.
    """
    texts = []
    for value in values:
        if (text := _text(value)) is None:
            return None
        texts.append(text)
    return texts


def _text(record: object) -> bytes | None:
    """Return the text if the record has only a value that is an ASCII text; None: use ``parse_record``."""
    if type(record) is not dict or len(record) != 1:
        return None
    value = record.get("value")
    if type(value) is not dict or len(value) != 2 or value.get("type") != "STRING":
        return None
    text = value.get("data")
    # Lone surrogates cannot be encoded. ASCII text has none, and ``isascii`` is fast: it reads a flag.
    return text.encode() if type(text) is str and text.isascii() else None


def parse_record(value: object) -> V3Record:
    """Parse a record.

    Raises:
        MalformedRequestError, InvalidFieldError, InvalidRecordError, UnsupportedSchemaError, PartitionNotFoundError:
            the message says why.
    """
    if (text := _text(value)) is not None:
        return text_record(text)
    fields = Fields(value, "a record", RECORD.fields)
    partition = fields.integer("partition_id", least=-(1 << 63))
    if partition is not None and partition < 0:
        raise PartitionNotFoundError(f"there is no partition {partition}")
    return V3Record(
        partition=partition,
        key=_data(fields, "key"),
        value=_data(fields, "value"),
        headers=parse_headers("headers", fields.raw("headers")),
        timestamp_ms=parse_timestamp("timestamp", fields.raw("timestamp")),
    )


def _data(fields: Fields, name: str) -> Data:
    if not fields.has(name):
        return Data()
    own = Fields(fields.raw(name), name, DATA.fields)
    kind = (own.text("type") or "").upper()
    if kind in _SCHEMA_TYPES or any(own.has(field) for field in _SCHEMA_FIELDS):
        raise UnsupportedSchemaError(
            f"'{name}' needs a schema registry, which is not part of this cluster; use {', '.join(TYPES)}"
        )
    if not kind:
        raise InvalidFieldError(
            f"'{name}': 'type' is missing; it says what 'data' is: BINARY (base64), JSON or STRING"
        )
    if kind not in TYPES:
        raise InvalidFieldError(f"'{name}': 'type' is '{kind}'; use one of {', '.join(TYPES)}")
    data = own.raw("data")
    return Data(kind, None if data is None else _stored(name, kind, data))


def _stored(name: str, kind: str, data: object) -> bytes:
    if kind == "JSON":
        return exact_json.dumps(data)
    if not isinstance(data, str):
        raise MalformedRequestError(f"'{name}': 'data' of the type {kind} must be a string")
    if kind == "BINARY":
        return decode_base64(data, f"'{name}'")
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise MalformedRequestError(f"'{name}': 'data' holds half a character") from None


def columns_of(records: Sequence[V3Record]) -> Records:
    """Return the records as columns of one request."""
    has_keys = any(record.key.stored is not None for record in records)
    has_headers = any(record.headers for record in records)
    has_times = any(record.timestamp_ms is not None for record in records)
    has_partitions = any(record.partition is not None for record in records)
    return Records(
        keys=[record.key.stored for record in records] if has_keys else None,
        values=[record.value.stored for record in records],
        headers=[record.headers for record in records] if has_headers else None,
        timestamps=[record.timestamp_ms for record in records] if has_times else None,
        partitions=[record.partition for record in records] if has_partitions else None,
    )


def iso_time(time_ms: int) -> str:
    """Return a time as ``2026-01-01T00:00:00.000Z``."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
