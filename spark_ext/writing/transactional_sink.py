"""Writers whose batches take effect once and as a whole, for streams and for batch queries with a transactional id.

Spark makes a writer on the driver for each batch, and sends it to the tasks. The writer of a batch query also commits.
A stream's batch is committed by another writer, made in another process. So the tasks' messages carry everything that
a commit needs.
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
    """Writes one batch of a stream. A writer whose ``transaction`` is None only commits or aborts."""

    def __init__(
        self, options: WriteOptions, columns: WriteColumns, transaction: BatchTransaction | None
    ) -> None:
        self._options = options
        self._columns = columns
        self._transaction = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task; raises the errors of ``write_task``."""
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
        """Commit the batch after all tasks are done; raises the errors of ``transaction.commit``."""
        del batchId
        with one_line_errors():
            commit(messages, self._options.topic)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Abort after a failed task or commit. If no task has ended, the query's next transaction aborts this one."""
        del batchId
        abort(transactions_of(messages))


class MilenaBatchWriter(DataSourceArrowWriter):
    """Writes a batch query in one transaction; with the option ``batchId``, once for each number."""

    def __init__(
        self, options: WriteOptions, columns: WriteColumns, transaction: BatchTransaction
    ) -> None:
        self._options = options
        self._columns = columns
        self._transaction = transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task; raises the errors of ``write_task``."""
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
        """Commit the batch, after all tasks are done; raises the errors of ``transaction.commit``."""
        with one_line_errors():
            commit(messages, self._options.topic)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transaction after a failed task or commit."""
        del messages
        abort([self._transaction])


def number_in_stream(context: TaskContext) -> BatchNumber:
    """Return the query and batch that a task belongs to, from the task's local properties."""
    query = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    assert query is not None, "Spark names the query in the tasks of a stream"
    assert batch_id is not None, "and the batch"
    return BatchNumber(group=GROUP_PREFIX + query, batch_id=int(batch_id))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called in a task"
    return context
