"""Errors of the Spark source and sink; each message is one sentence for people.

    SparkError
    ├── OptionError       an option is missing, unknown, malformed, or contradicts another one
    ├── RowSchemaError    columns that a topic does not have when read, or cannot be written from
    ├── OffsetError       the requested offsets do not exist, or end before they start
    ├── DataLossError     records of a planned range are lost, or belong to another topic of the same name
    ├── StalledReadError  a task got no record for longer than it may wait
    ├── RecordError       a row that cannot be written
    ├── RowsBrokenOffError  the rows of a task ended early because their computation failed
    └── BatchAbortedError  the batch was aborted; its rows were written, but do not count

The first three are raised on the driver, before a task starts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from milena.model.errors import MilenaError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""PySpark's variable that hides tracebacks; its Python workers read it when they report an error."""

_WORKER_MARK = "PYTHON_WORKER_FACTORY_SECRET"
"""A variable that the JVM sets in the Python processes that it starts, including those that make data sources."""


class SparkError(MilenaError):
    """The base class of the errors; only its subclasses are raised."""

    code = "spark"


class OptionError(SparkError):
    """An invalid option. The message names the option and its allowed values."""

    code = "spark_option"


class RowSchemaError(SparkError):
    """An invalid column. The message names the column."""

    code = "spark_row_schema"


class OffsetError(SparkError):
    """An invalid offset. The message names the partition."""

    code = "spark_offset"


class DataLossError(SparkError):
    """A loss of records, raised only under ``failOnDataLoss``; without that option the loss is logged.

    The message names the loss and ends with ``ADVICE``.
    """

    ADVICE = "set failOnDataLoss to false to read what there is"
    code = "spark_data_loss"

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; {self.ADVICE}")


class StalledReadError(SparkError):
    """A read without a useful response: the partition has no leader for long, or the network is down."""

    code = "spark_stalled_read"


class RecordError(SparkError):
    """A row that cannot be written. The message says what the row lacks."""

    code = "spark_record"


class RowsBrokenOffError(SparkError):
    """The rows of a task ended early. Spark runs the task again, and also shows the error of the computation."""

    code = "spark_rows_broken_off"


class BatchAbortedError(SparkError):
    """An aborted batch. The message says why, and what to do. A restarted query writes the whole batch again."""

    code = "spark_batch_aborted"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Show errors of Milena to the user as messages only, without the traceback of Spark's worker.

    A worker process ends after it reports an error, so no other error loses its traceback.
    """
    try:
        yield
    except MilenaError as error:
        if _WORKER_MARK in os.environ:
            os.environ[_HIDE_TRACEBACK] = "1"
        # Spark also prints an error's causes, hence ``from None``.
        raise error from None
