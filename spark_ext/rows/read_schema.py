"""The columns of the rows that a topic is read as.

The columns are those of Spark's Kafka source. A user's schema may select some of them, in any order. Other columns are
not decoded. Only the schema can say so: Spark does not tell a Python data source which columns a query needs.
"""

from dataclasses import dataclass
from enum import Enum, unique

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_ext.errors import RowSchemaError

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ARROW_HEADERS_ITEM = pa.field(
    "element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)


@unique
class Column(Enum):
    """A column of the rows; the value is its name."""

    KEY = "key"
    VALUE = "value"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    TIMESTAMP_TYPE = "timestampType"
    HEADERS = "headers"


_SPARK_TYPES: dict[Column, DataType] = {
    Column.KEY: BinaryType(),
    Column.VALUE: BinaryType(),
    Column.TOPIC: StringType(),
    Column.PARTITION: IntegerType(),
    Column.OFFSET: LongType(),
    Column.TIMESTAMP: TimestampType(),
    Column.TIMESTAMP_TYPE: IntegerType(),
    Column.HEADERS: HEADERS_TYPE,
}

_MAY_BE_NULL = (Column.KEY, Column.VALUE, Column.HEADERS)
"""If such a column is declared NOT NULL, Spark does not look for nulls, and a query returns wrong rows or fails."""

_ARROW_TYPES: dict[Column, pa.DataType] = {
    Column.KEY: pa.binary(),
    Column.VALUE: pa.binary(),
    Column.TOPIC: pa.string(),
    Column.PARTITION: pa.int32(),
    Column.OFFSET: pa.int64(),
    Column.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Column.TIMESTAMP_TYPE: pa.int32(),
    Column.HEADERS: pa.list_(ARROW_HEADERS_ITEM),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns to make, in order, each with the name and nullability that the user gave it."""

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    nullable: tuple[bool, ...]

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema; it must equal the schema that Spark expects exactly."""
        return pa.schema(
            [
                pa.field(name, _ARROW_TYPES[column], nullable=is_nullable)
                for column, name, is_nullable in zip(
                    self.columns, self.names, self.nullable, strict=True
                )
            ]
        )


def row_schema(*, include_headers: bool) -> StructType:
    """Return all columns."""
    return StructType(
        [
            StructField(column.value, spark_type)
            for column, spark_type in _SPARK_TYPES.items()
            if include_headers or column is not Column.HEADERS
        ]
    )


def project(schema: StructType, *, include_headers: bool) -> Projection:
    """Return the columns that a schema selects; names may be in any case.

    Raises:
        RowSchemaError: an unknown column, one of another type or named twice, one that is NOT NULL and may be null, or
            headers without the option for them.
    """
    known = {column.value.lower(): column for column in Column}
    columns: list[Column] = []
    for field in schema.fields:
        column = known.get(field.name.lower())
        if column is None:
            raise RowSchemaError(
                f"schema: there is no column {field.name}; there are "
                f"{', '.join(c.value for c in Column)}"
            )
        if field.dataType != _SPARK_TYPES[column]:
            raise RowSchemaError(
                f"schema: column {column.value} is {_SPARK_TYPES[column].simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it in the query"
            )
        if column is Column.HEADERS and not include_headers:
            raise RowSchemaError("schema: column headers needs the option includeHeaders=true")
        if column in _MAY_BE_NULL and not field.nullable:
            raise RowSchemaError(f"schema: column {column.value} may be null; leave NOT NULL out")
        if column in columns:
            raise RowSchemaError(f"schema: column {column.value} is there twice")
        columns.append(column)
    return Projection(
        columns=tuple(columns),
        names=tuple(schema.fieldNames()),
        nullable=tuple(field.nullable for field in schema.fields),
    )
