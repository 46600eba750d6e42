"""Errors of the Spark source and sink, each with one sentence for people.

    SparkError
    ├── OptionError       an option is missing, unknown, malformed, or contradicts another one
    ├── RowSchemaError    columns that a topic cannot be read as, or written from
    ├── OffsetError       the offsets asked for do not exist, or end before they begin
    ├── DataLossError     records of a pinned range are gone, or belong to another topic of the same name
    ├── StalledReadError  a task saw no record for longer than it may wait
    └── RecordError       a row that cannot be written

The first three are raised on the driver, before a task starts.
"""

from milena.model.errors import MilenaError


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
    """Raised under ``failOnDataLoss`` only; without it a log line takes its place."""

    code = "spark_data_loss"


class StalledReadError(SparkError):
    """The partition has no leader for long, or the network is gone."""

    code = "spark_stalled_read"


class RecordError(SparkError):
    """The message says what the row lacks."""

    code = "spark_record"
