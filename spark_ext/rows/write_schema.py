"""The columns that a topic is written from, and records out of them (pure).

They are those of Spark's Kafka sink: ``value`` is required, ``key``, ``headers``, ``topic`` and ``partition`` may be
there. Other columns are left alone, so that what was read can be written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import itemgetter

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from milena.model.columns import Headers
from spark_ext.errors import RowSchemaError
from spark_ext.options.parsing import WriteOptions

_BYTES: tuple[type[DataType], ...] = (BinaryType, StringType)
_US_PER_MS = 1000

_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}

RUN_BYTES_MAX = 1 << 20
"""Keys and values that are sent together: much less than a producer holds, and enough that a row costs little."""

_Row = tuple[str | None, int | None, Headers | None, int | None, bytes | None, bytes | None]
"""Topic, partition, headers, timestamp in ms, key, value."""
_place = itemgetter(0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRun:
    """Records that follow one another and go to the same place, with the same headers and time."""

    topic: str | None
    partition: int | None
    headers: Headers | None
    timestamp_ms: int | None
    keys: list[bytes | None] | None
    values: list[bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteColumns:
    """Where in a row the parts of a record are; None: there is no such column, or an option takes its place."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None


def write_columns(schema: StructType, options: WriteOptions) -> WriteColumns:
    """Find the columns by name, in any case.

    Raises:
        RowSchemaError: a column is missing, there twice, or of a type that cannot be written.
    """
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in (*_ALLOWED, "headers") or (
            name == "timestamp" and not options.include_timestamps
        ):
            continue
        if name in found:
            raise RowSchemaError(f"column {name} is there twice")
        _check_type(name, field.dataType)
        found[name] = index
    if "value" not in found:
        raise RowSchemaError("column value is missing; there must be one, string or binary")
    if options.topic is None and "topic" not in found:
        raise RowSchemaError("no topic: give the option topic, or a column topic")
    if options.include_timestamps and "timestamp" not in found:
        raise RowSchemaError("column timestamp is missing, which includeTimestamps writes")
    return WriteColumns(
        value=found["value"],
        key=found.get("key"),
        headers=found.get("headers"),
        topic=None if options.topic is not None else found.get("topic"),
        partition=found.get("partition"),
        timestamp=found.get("timestamp"),
    )


def _check_type(name: str, kind: DataType) -> None:
    if name == "headers":
        if not _is_headers(kind):
            raise RowSchemaError(
                "column headers must be array<struct<key:string,value:binary>>, "
                f"not {kind.simpleString()}"
            )
        return
    allowed = _ALLOWED[name]
    if not isinstance(kind, allowed):
        names = " or ".join(sorted(one().simpleString() for one in allowed))
        raise RowSchemaError(f"column {name} must be {names}, not {kind.simpleString()}")


def _is_headers(kind: DataType) -> bool:
    return (
        isinstance(kind, ArrayType)
        and isinstance(kind.elementType, StructType)
        and [(f.name.lower(), type(f.dataType)) for f in kind.elementType.fields]
        == [("key", StringType), ("value", BinaryType)]
    )


def runs_in(rows: pa.RecordBatch, columns: WriteColumns) -> Iterator[RowRun]:
    """The records of an Arrow batch in their order; columns become Python lists in C."""
    records: Iterator[_Row] = zip(
        _texts(rows, columns.topic),
        _integers(rows, columns.partition),
        _headers(rows, columns.headers),
        _timestamps(rows, columns.timestamp),
        _bytes(rows, columns.key),
        _bytes(rows, columns.value),
        strict=False,
    )
    for (topic, partition, headers, timestamp_ms), same in groupby(records, _place):
        for part in _pieces(same):
            yield RowRun(
                topic=topic,
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
                keys=None if columns.key is None else [row[4] for row in part],
                values=[row[5] for row in part],
            )


def _pieces(records: Iterator[_Row]) -> Iterator[list[_Row]]:
    """Cut where the bound is passed."""
    piece: list[_Row] = []
    size = 0
    for row in records:
        piece.append(row)
        size += len(row[4] or b"") + len(row[5] or b"")
        if size >= RUN_BYTES_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _texts(rows: pa.RecordBatch, index: int | None) -> Iterator[str | None]:
    return repeat(None) if index is None else iter(rows.column(index).to_pylist())


def _integers(rows: pa.RecordBatch, index: int | None) -> Iterator[int | None]:
    return repeat(None) if index is None else iter(rows.column(index).to_pylist())


def _bytes(rows: pa.RecordBatch, index: int | None) -> Iterator[bytes | None]:
    if index is None:
        return repeat(None)
    column = rows.column(index)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return iter(column.to_pylist())


def _headers(rows: pa.RecordBatch, index: int | None) -> Iterator[Headers | None]:
    if index is None:
        return repeat(None)
    return (
        None if row is None else [tuple(pair.values()) for pair in row]
        for row in rows.column(index).to_pylist()
    )


def _timestamps(rows: pa.RecordBatch, index: int | None) -> Iterator[int | None]:
    if index is None:
        return repeat(None)
    micros = rows.column(index).cast(pa.int64()).to_pylist()
    return (None if each is None else each // _US_PER_MS for each in micros)
