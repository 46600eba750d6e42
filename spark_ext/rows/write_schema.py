"""The columns that a topic is written from (pure).

The columns are those of Spark's Kafka sink: ``value`` is required; ``key``, ``headers``, ``topic`` and ``partition``
are optional. Other columns are ignored, so that rows of the source can be written.
"""

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from spark_ext.errors import RowSchemaError
from spark_ext.options.parsing import WriteOptions

_BYTES: tuple[type[DataType], ...] = (BinaryType, StringType)

_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteColumns:
    """The indexes of a record's parts in a row; None if there is no such column, or an option replaces it."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None


def write_columns(schema: StructType, options: WriteOptions) -> WriteColumns:
    """Find the columns by name, in any case.

    Raises:
        RowSchemaError: a column is missing, duplicate, or of a type that cannot be written.
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
