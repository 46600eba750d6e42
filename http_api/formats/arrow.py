"""Encode records as an Arrow IPC stream with one record batch, for pandas, Polars, DuckDB and others. Pure.

It needs pyarrow, which a node does not install by default (extra ``arrow``).
"""

# ruff: noqa: PLC0415 - pyarrow is imported when it is needed, because most nodes do not have it

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

from http_api.formats.selection import Selection, Slice
from http_api.protocol.media import ARROW_TYPE
from milena.model.columns import Headers
from milena.model.errors import NotAcceptableError

if TYPE_CHECKING:
    import pyarrow as pa


def check_available() -> None:
    """Refuse the format if this node cannot write it.

    Raises:
        NotAcceptableError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise NotAcceptableError(
            f"this node does not write {ARROW_TYPE}: pyarrow is not installed there (extra 'arrow'); "
            "ask for another type"
        )


@cache
def _schema() -> "pa.Schema":
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )


def encode(selection: Selection, *, topic: str, partition: int) -> bytes:
    """Return the stream; ``topic`` and ``partition`` are in the schema's metadata. Without records, it has no batch."""
    import pyarrow as pa

    schema = _schema().with_metadata({"topic": topic, "partition": str(partition)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if selection.slices:
            columns = zip(*(_columns(piece) for piece in selection.slices), strict=True)
            arrays = [
                pa.array([item for part in column for item in part], type=field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue())


def _columns(piece: Slice) -> tuple[Any, ...]:
    nothing = [None] * len(piece.values)
    return (
        piece.offsets,
        [None if time_ms < 0 else time_ms for time_ms in piece.timestamps],
        nothing if piece.keys is None else piece.keys,
        piece.values,
        nothing if piece.headers is None else [_headers(pairs) for pairs in piece.headers],
    )


def _headers(pairs: Headers | None) -> list[dict[str, str | bytes | None]] | None:
    return [{"key": key, "value": value} for key, value in pairs] if pairs else None
