"""Errors of the Spark source and sink, each with one sentence for people.

    SparkError
    ├── OptionError       an option is missing, unknown, malformed, or contradicts another one
    ├── RowSchemaError    columns that a topic cannot be read as, or written from
    ├── OffsetError       the offsets asked for do not exist, or end before they begin
    ├── DataLossError     records of a pinned range are gone, or belong to another topic of the same name
    ├── StalledReadError  a task saw no record for longer than it may wait
    ├── RecordError       a row that cannot be written
    ├── RowsBrokenOffError  a task whose rows end because what computes them failed
    └── BatchAbortedError  a batch of which nothing counts, though its rows were written

The first three are raised on the driver, before a task starts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from milena.model.errors import MilenaError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""PySpark's own switch; its Python workers read it when they report an error."""

_WORKER_MARK = "PYTHON_WORKER_FACTORY_SECRET"
"""Set by the JVM in the Python processes that it starts, the one where data sources are made among them."""


class SparkError(MilenaError):
    """Root of the tree; only its leaves are raised."""

    code = "spark"


class OptionError(SparkError):
    """The message names the option and says what it may be."""

    code = "spark_option"


class RowSchemaError(SparkError):
    """The message names the column."""

    code = "spark_row_schema"


class OffsetError(SparkError):
    """The message names the partition."""

    code = "spark_offset"


class DataLossError(SparkError):
    """Raised under ``failOnDataLoss`` only; without it a log line takes its place.

    The message says what is lost, and ``ADVICE``.
    """

    ADVICE = "set failOnDataLoss to false to read what there is"
    code = "spark_data_loss"

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; {self.ADVICE}")


class StalledReadError(SparkError):
    """The partition has no leader for long, or the network is gone."""

    code = "spark_stalled_read"


class RecordError(SparkError):
    """The message says what the row lacks."""

    code = "spark_record"


class RowsBrokenOffError(SparkError):
    """Spark runs the task again; the error of what failed is beside this one."""

    code = "spark_rows_broken_off"


class BatchAbortedError(SparkError):
    """The message says why, and what to do: a batch that is written again is written anew."""

    code = "spark_batch_aborted"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors of Milena reach the user as their messages alone, without the traceback of Spark's worker.

    A worker process that reports an error ends, so that nobody else misses a traceback.
    """
    try:
        yield
    except MilenaError as error:
        if _WORKER_MARK in os.environ:
            os.environ[_HIDE_TRACEBACK] = "1"
        # Spark prints causes too.
        raise error from None
