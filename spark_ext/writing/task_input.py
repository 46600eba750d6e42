"""Tell whether the rows of a task ended, or broke off because the computation of the rows failed.

If the computation fails, Spark breaks the stream of rows off. To a writer this looks like the end of the rows; Spark
fails the task only when the writer returns. A writer that must send the same requests in each attempt has to know
earlier, because its last request would have fewer rows. Spark has no call for this, but its worker has the stream.
"""

import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_ext.errors import RowsBrokenOffError

if TYPE_CHECKING:
    from types import FrameType

_STREAM = "input_data_stream"
"""The name of the local variable that holds the stream of rows in Spark's worker."""


def whole(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the running task.

    Raises:
        RowsBrokenOffError: after the last row, if the rows broke off.
    """
    yield from rows
    stream = _worker_stream()
    # After the rows, Spark sends a control word; a stream that broke off has no more bytes. If a worker of another
    # Spark release has no stream of this name, an end of the rows counts as their regular end.
    if isinstance(stream, io.BufferedReader) and not stream.peek(1):
        raise RowsBrokenOffError("what computes the rows of this task failed before their end")


def _worker_stream() -> object:
    frame: FrameType | None = sys._getframe()
    while frame is not None and _STREAM not in frame.f_locals:
        frame = frame.f_back
    return None if frame is None else frame.f_locals[_STREAM]
