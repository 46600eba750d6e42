"""A Python data source that does nothing: it shows the cost of any Python data source in Spark.

Its reader yields one prepared Arrow batch repeatedly, and its writer drops rows. A way without Python is faster than
this source by what Spark charges for Python. This source is faster than ours by what our own code costs.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from spark_ext.rows.decode import RECORDS_PER_ARROW_BATCH
from spark_ext.rows.read_schema import Column, project, row_schema

FORMAT = "bare_python"
TASK_RECORDS = 1_000_000
"""The records of a task, as many as in a task of ours."""


class BareDataSource(DataSource):
    """Rows like a topic's. Option ``records``: their number in a table or a micro-batch; ``valueBytes``: their size."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of Milena's source."""
        return row_schema(include_headers=False)

    def reader(self, schema: StructType) -> "BareReader":
        """Return the reader of a table."""
        return BareReader(self.options, schema)

    def streamReader(self, schema: StructType) -> "BareStreamReader":  # noqa: N802  (Spark's name)
        """Return the reader of a stream that always has more records."""
        return BareStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BareWriter":
        """Return a writer that drops the rows of a table."""
        return BareWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> "BareStreamWriter":  # noqa: N802  (Spark's name)
        """Return a writer that drops the rows of a stream."""
        return BareStreamWriter()


class _BareRows:
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._records = int(options["records"])
        self._value_bytes = int(options["valueBytes"])
        self._schema = schema

    def tasks(self) -> list[InputPartition]:
        """Return about as many tasks as our source plans."""
        count = max(1, round(self._records / TASK_RECORDS))
        return [InputPartition(self._records * (n + 1) // count - self._records * n // count)
                for n in range(count)]  # fmt: skip

    def rows(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield this many rows, in equal batches."""
        batch = self._batch(min(count, RECORDS_PER_ARROW_BATCH))
        for first in range(0, count, RECORDS_PER_ARROW_BATCH):
            yield batch.slice(0, min(count - first, RECORDS_PER_ARROW_BATCH))

    def _batch(self, count: int) -> pa.RecordBatch:
        zeros = np.zeros(count, np.int32)
        times = pa.array(np.full(count, 1_700_000_000_000_000)).view(pa.timestamp("us", tz="UTC"))
        made = {
            Column.KEY: pa.nulls(count, pa.binary()),
            Column.VALUE: pa.array([b"v" * self._value_bytes] * count, pa.binary()),
            Column.TOPIC: pa.repeat("bare", count),
            Column.PARTITION: pa.array(zeros),
            Column.OFFSET: pa.array(np.arange(count)),
            Column.TIMESTAMP: times,
            Column.TIMESTAMP_TYPE: pa.array(zeros),
        }
        projection = project(self._schema, include_headers=False)
        arrays = [made[column] for column in projection.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=projection.arrow_schema())


class BareReader(DataSourceReader):
    """Plans and reads a table without any request."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._rows = _BareRows(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return a task for each million records."""
        return self._rows.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        yield from self._rows.rows(partition.value)


class BareStreamReader(DataSourceStreamReader):
    """Reads a stream that always has one more micro-batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._rows = _BareRows(options, schema)
        self._batches = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Return the offset before the first micro-batch."""
        return {"batches": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Return the offset after one more micro-batch."""
        self._batches += 1
        return {"batches": self._batches}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return a task for each million records."""
        return self._rows.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        yield from self._rows.rows(partition.value)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


class BareWriter(DataSourceArrowWriter):
    """Drops the rows of a table."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of one task."""
        return _let_go(iterator)


class BareStreamWriter(DataSourceStreamArrowWriter):
    """Drops the rows of a micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of one task."""
        return _let_go(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Do nothing."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Do nothing."""


def _let_go(rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in rows:
        pass
    return WriterCommitMessage()
