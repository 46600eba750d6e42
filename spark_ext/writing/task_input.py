"""The rows of a task to their end: whether they are all that Spark had, or what came of a task that failed.

Where what computes the rows fails Spark breaks their stream off, which looks to a writer as if it were over, and fails
the task when the writer is done. A writer that must send the same requests in each attempt has to know before: its last
one would have less rows. Spark has no call for it, but its worker has the end of the stream in hand.
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
"""What the worker calls the stream of rows."""


def whole(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the task that runs.

    Raises:
        RowsBrokenOffError: after the last one, if there would have been more.
    """
    yield from rows
    stream = _worker_stream()
    # A word of Spark follows the rows. Where the worker is built otherwise, rows that end are held to be over.
    if isinstance(stream, io.BufferedReader) and not stream.peek(1):
        raise RowsBrokenOffError("what computes the rows of this task failed before their end")


def _worker_stream() -> object:
    frame: FrameType | None = sys._getframe()
    while frame is not None and _STREAM not in frame.f_locals:
        frame = frame.f_back
    return None if frame is None else frame.f_locals[_STREAM]
