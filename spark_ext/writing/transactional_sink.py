"""Writers whose batches count once, as a whole or not at all: of streams, and of batch queries with a transactional id.

Spark makes a writer on the driver for each batch, and sends it to the tasks. The one of a batch query commits, too. A
stream's batch is committed by another writer, made in another process, so that all that it needs comes with the tasks'
messages.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_ext.errors import one_line_errors
from spark_ext.options.parsing import WriteOptions
from spark_ext.rows.write_schema import WriteColumns
from spark_ext.writing.task_input import whole
from spark_ext.writing.task_writes import write_task
from spark_ext.writing.transaction import (
    GROUP_PREFIX,
    BatchNumber,
    BatchTransaction,
    TaskWritten,
    abort,
    commit,
    transactions_of,
)


class MilenaStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a stream. ``transaction`` None: it is there to commit or abort."""

    def __init__(
        self, options: WriteOptions, columns: WriteColumns, transaction: BatchTransaction | None
    ) -> None:
        self._options = options
        self._columns = columns
        self._transaction = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task; raises as ``write_task``."""
        assert self._transaction is not None, "Spark sends tasks the writer that it planned with"
        context = _context()
        return write_task(
            whole(iterator),
            task=context.partitionId(),
            transaction=self._transaction,
            number=number_in_stream(context),
            options=self._options,
            columns=self._columns,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """All tasks are done: raises as ``transaction.commit``."""
        del batchId
        with one_line_errors():
            commit(messages, self._options.topic)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Some task failed, or the commit. Where no task has ended the query's next transaction aborts this one."""
        del batchId
        abort(transactions_of(messages))


class MilenaBatchWriter(DataSourceArrowWriter):
    """Writes a batch query in one transaction; under a ``batchId`` once."""

    def __init__(
        self, options: WriteOptions, columns: WriteColumns, transaction: BatchTransaction
    ) -> None:
        self._options = options
        self._columns = columns
        self._transaction = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task; raises as ``write_task``."""
        number = None
        if self._options.batch_id is not None:
            number = BatchNumber(
                group=GROUP_PREFIX + self._transaction.transactional_id,
                batch_id=self._options.batch_id,
            )
        return write_task(
            whole(iterator),
            task=_context().partitionId(),
            transaction=self._transaction,
            number=number,
            options=self._options,
            columns=self._columns,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done: raises as ``transaction.commit``."""
        with one_line_errors():
            commit(messages, self._options.topic)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed, or the commit."""
        del messages
        abort([self._transaction])


def number_in_stream(context: TaskContext) -> BatchNumber:
    """The query and batch that a task belongs to, as Spark says."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    assert query is not None, "Spark names the query in the tasks of a stream"
    assert batch_id is not None, "and the batch"
    return BatchNumber(group=GROUP_PREFIX + query, batch_id=int(batch_id))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called in a task"
    return context
