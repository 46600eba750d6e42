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


class SparkError(MilenaError, code="spark"):
    """The base class of the errors; only its subclasses are raised."""


class OptionError(SparkError, code="spark_option"):
    """An invalid option. The message names the option and its allowed values."""


class RowSchemaError(SparkError, code="spark_row_schema"):
    """An invalid column. The message names the column."""


class OffsetError(SparkError, code="spark_offset"):
    """An invalid offset. The message names the partition."""


class DataLossError(SparkError, code="spark_data_loss"):
    """A loss of records, raised only under ``failOnDataLoss``; without that option the loss is logged.

    The message names the loss and ends with ``ADVICE``.
    """

    ADVICE = "set failOnDataLoss to false to read what there is"

    def __init__(self, loss: str) -> None:
        super().__init__(f"{loss}; {self.ADVICE}")


class StalledReadError(SparkError, code="spark_stalled_read"):
    """A read without a useful response: the partition has no leader for long, or the network is down."""


class RecordError(SparkError, code="spark_record"):
    """A row that cannot be written. The message says what the row lacks."""


class RowsBrokenOffError(SparkError, code="spark_rows_broken_off"):
    """The rows of a task ended early. Spark runs the task again, and also shows the error of the computation."""


class BatchAbortedError(SparkError, code="spark_batch_aborted"):
    """An aborted batch. The message says why, and what to do. A restarted query writes the whole batch again."""


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
