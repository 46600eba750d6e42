"""Write the rows of a task through the client's producer, on the executor.

Within one attempt of a task every record is written once, even if requests are retried: the producer is idempotent.
The attempt succeeds only when every in-sync replica has every record. Spark may run a task again, after a failure or
speculatively. The records of the previous attempt stay, so the write as a whole is at least once.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from milena import sync
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS_MAX
from spark_ext.errors import RecordError
from spark_ext.options.parsing import WriteOptions
from spark_ext.rows.blocks import block_of, runs_in
from spark_ext.rows.write_schema import WriteColumns

BATCHES_UNSETTLED = 2
"""How many Arrow batches may wait for their outcome to be checked; Spark's batches have 10,000 rows."""

FEW_ROWS = 6
"""From this many rows on, a run is sent as one list. Rows that each have their own time make runs of one row."""

logger = logging.getLogger(__name__)


_Sent = sync.Delivery | sync.Deliveries


@dataclass
class Written(WriterCommitMessage):
    """The number of records that one task wrote."""

    record_count: int


class MilenaWriter(DataSourceArrowWriter):
    """Appends the rows of a DataFrame to topics."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; return when all are committed.

        Raises:
            RecordError: a row that cannot be a record.
            ClientError: a record was not written, or its fate is unknown.
        """
        count = 0
        unsettled: deque[list[_Sent]] = deque()
        with (
            sync.Client(
                self._options.urls,
                credentials=self._options.credentials,
                connect_timeout_ms=CONNECT_TIMEOUT_MS_MAX,
            ) as client,
            client.producer(compression=self._options.compression) as producer,
        ):
            for rows in iterator:
                unsettled.append(self._send(producer, rows))
                count += rows.num_rows
                if len(unsettled) > BATCHES_UNSETTLED:
                    _check(unsettled.popleft())
            producer.flush()
            for deliveries in unsettled:
                _check(deliveries)
        return Written(record_count=count)

    def _send(self, producer: sync.Producer, rows: pa.RecordBatch) -> list[_Sent]:
        sent: list[_Sent] = []
        for run in runs_in(block_of(rows, self._columns)):
            topic = self._options.topic if run.topic is None else run.topic
            if topic is None:
                raise RecordError(
                    "a row without a topic; give the option topic, or fill the column"
                )
            headers = run.headers or ()
            if len(run.values) >= FEW_ROWS:
                sent.append(
                    producer.send_many(
                        topic,
                        run.values,
                        keys=run.keys,
                        partition=run.partition,
                        headers=headers,
                        timestamp_ms=run.timestamp_ms,
                    )
                )
                continue
            for key, value in zip(run.keys or repeat(None), run.values, strict=False):
                sent.append(
                    producer.send(
                        topic,
                        value,
                        key=key,
                        partition=run.partition,
                        headers=headers,
                        timestamp_ms=run.timestamp_ms,
                    )
                )
        return sent

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the number of records; all tasks are done."""
        count = sum(message.record_count for message in messages if isinstance(message, Written))
        logger.info("%d records written", count)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log how many records stay in the log: a plain write cannot be undone."""
        count = sum(message.record_count for message in messages if isinstance(message, Written))
        logger.warning("the write failed; at least %d records of it are in the log", count)


def _check(sent: Sequence[_Sent]) -> None:
    """Wait for the outcomes; raise the first error."""
    for deliveries in sent:
        deliveries.result()
