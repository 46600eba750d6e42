"""``spark.read.format("milena")`` and ``df.write.format("milena")``: the calls that Spark makes.

Spark makes a ``MilenaDataSource`` on the driver for each read or write, in a Python process beside the JVM. It pickles
readers and writers to the executors. Modules that need Arrow or HTTP are imported inside functions, because Spark
imports this module in every process that only looks for data sources.
"""

# ruff: noqa: PLC0415

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from spark_ext.errors import OptionError, one_line_errors
from spark_ext.options.parsing import (
    ReadOptions,
    parse_load_options,
    parse_read_options,
    parse_write_options,
    parse_write_stream_options,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.rows.read_schema import Projection
    from spark_ext.streaming.reader import MilenaStreamReader
    from spark_ext.writing.plain_sink import MilenaWriter
    from spark_ext.writing.transactional_sink import MilenaBatchWriter, MilenaStreamWriter

FORMAT = "milena"
_PYTHON_PATH = "PYTHONPATH"


def register(spark: SparkSession) -> None:
    """Make ``format("milena")`` known to a session.

    Without this call, Spark finds the format only if it can import the package ``pyspark_milena``.

    Raises:
        OptionError: the code was sent in an archive that Spark does not pass to its workers.
    """
    if is_remote():  # by Spark Connect: the server has the code, and no context is here
        spark.dataSource.register(MilenaDataSource)
        return
    _check_archive(__file__)
    environment = spark.sparkContext.environment
    before = environment.get(_PYTHON_PATH)
    # The process that plans a stream looks for sent files in a subfolder "streaming_job", which Spark never fills. So
    # the right path goes into the environment, which Spark copies when a data source is registered. Executors do not
    # have the path, and find the code in the usual way.
    if sent := _sent_with_the_job():
        environment[_PYTHON_PATH] = os.pathsep.join((*sent, *filter(None, (before,))))
    try:
        spark.dataSource.register(MilenaDataSource)
    finally:
        if before is not None:
            environment[_PYTHON_PATH] = before
        elif sent:
            del environment[_PYTHON_PATH]


def _sent_with_the_job() -> list[str]:
    """Return the driver's folder of sent files, and the archives in it that Spark puts on the path.

    The list is empty if no archive was sent.
    """
    from pyspark.core.files import SparkFiles

    root = SparkFiles.getRootDirectory()
    archives = [entry for entry in sys.path if Path(root) in Path(entry).parents]
    return [*archives, root] if archives else []


def _check_archive(module: str) -> None:
    """Refuse code in a wheel: ``spark-submit`` puts a wheel on the path of the driver only."""
    from pyspark.core.context import SparkContext

    extensions = tuple(SparkContext.PACKAGE_EXTENSIONS)
    for folder in Path(module).parents:
        if folder.is_file() and folder.suffix.lower() not in extensions:
            raise OptionError(
                f"Spark does not hand {folder.name} to its workers: "
                f"give it a name that ends in {' or '.join(extensions)}"
            )


def check_write_stream(schema: StructType, options: Mapping[str, str]) -> None:
    """Refuse now the columns and options that ``writeStream`` would refuse only at the first batch with rows.

    Raises:
        OptionError, RowSchemaError: one line that names the option or the column.
        ClientError: the cluster does not respond.
    """
    from spark_ext.rows.write_schema import write_columns
    from spark_ext.writing.preparing import check_can_write

    found = parse_write_stream_options(options, os.environ)
    write_columns(schema, found)
    check_can_write(found)


class MilenaDataSource(DataSource):
    """Topics as tables, with the options and rows of Spark's Kafka source."""

    _is_kept = False

    def __setstate__(self, state: dict[str, object]) -> None:
        # Spark makes a new data source to plan each batch of a stream. The one that it keeps as a pickle only commits.
        self.__dict__.update(state)
        self._is_kept = True

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema. Spark calls this at ``load()`` without a user's schema. Refuse missing topics here."""
        from spark_ext.reading.checking import check_can_read
        from spark_ext.rows.read_schema import row_schema

        with one_line_errors():
            options = parse_load_options(self.options, os.environ)
            check_can_read(options)
            return row_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> "MilenaReader":
        """Return the reader of a batch query, when Spark plans the query."""
        from spark_ext.rows.read_schema import project

        with one_line_errors():
            options = parse_read_options(self.options, os.environ)
            projection = project(schema, include_headers=options.include_headers)
            return MilenaReader(options, projection)

    def streamReader(self, schema: StructType) -> "MilenaStreamReader":  # noqa: N802
        """Return the reader of a stream, when the stream starts and to plan its tasks. This must not fail."""
        from spark_ext.streaming.reader import MilenaStreamReader

        return MilenaStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "MilenaWriter | MilenaBatchWriter":
        """Return the writer of a DataFrame. Spark itself refuses all modes except append and overwrite."""
        from spark_ext.rows.write_schema import write_columns
        from spark_ext.writing.plain_sink import MilenaWriter
        from spark_ext.writing.preparing import options_for_tasks
        from spark_ext.writing.transaction import begin
        from spark_ext.writing.transactional_sink import MilenaBatchWriter

        with one_line_errors():
            if overwrite:
                raise OptionError(
                    'mode overwrite is not possible: a log is only appended to; say mode("append")'
                )
            options = parse_write_options(self.options, os.environ)
            columns = write_columns(schema, options)
            if options.transactional_id is not None:
                transaction = begin(options)
                return MilenaBatchWriter(transaction.shipped(options), columns, transaction)
            return MilenaWriter(options_for_tasks(options), columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "MilenaStreamWriter":  # noqa: N802  (Spark's name)
        """Return the writer of a batch. Spark asks twice: to plan it (begins the transaction) and to end it.

        ``overwrite`` is the output mode complete: each batch appends the whole result, as Kafka's sink does.
        """
        from spark_ext.rows.write_schema import write_columns
        from spark_ext.writing.transaction import begin
        from spark_ext.writing.transactional_sink import MilenaStreamWriter

        del overwrite
        with one_line_errors():
            options = parse_write_stream_options(self.options, os.environ)
            columns = write_columns(schema, options)
            if self._is_kept:
                return MilenaStreamWriter(options, columns, None)
            transaction = begin(options, is_stream=True)
            return MilenaStreamWriter(transaction.shipped(options), columns, transaction)


class MilenaReader(DataSourceReader):
    """The reader of a batch query. It plans on the driver and reads on the executors."""

    def __init__(self, options: ReadOptions, projection: "Projection") -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> list[InputPartition]:
        """Fix the ranges and divide them among tasks; called once per query, on the driver."""
        from spark_ext.reading.pinning import pin
        from spark_ext.reading.planner import plan_tasks
        from spark_ext.reading.tasks import ReadTask

        options = self._options
        with one_line_errors():
            pinned = pin(options)
        tasks = plan_tasks(
            pinned.ranges,
            target_records=options.target_records_per_task,
            tasks_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        return [
            InputPartition(
                ReadTask(ranges=task, fetching=pinned.fetching, projection=self._projection)
            )
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the records of one task. A query that reads nothing has one task without a value."""
        from spark_ext.reading.tasks import read_task

        if partition.value is not None:
            with one_line_errors():
                yield from read_task(partition.value)
