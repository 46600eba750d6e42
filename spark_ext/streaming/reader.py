"""``spark.readStream.format("milena")``: the calls that Spark makes while a stream runs.

For each run Spark keeps one reader, in a Python process of its own on the driver. This reader plans all batches. Each
executor gets a new reader, which needs nothing but the task that it is given. The constructor accepts any options,
because Spark would hide an error of the constructor behind an error of its own. Wrong options raise in the first call
of the run.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from milena.blocking.loop_thread import ClientLoopThread
from milena.client import Client
from milena.errors import ClientError
from milena.fields import Json
from milena.model.clock import SystemClock
from spark_ext.cluster.task_tokens import TOKENS, read_grants
from spark_ext.errors import one_line_errors
from spark_ext.options.parsing import Fetching, StreamOptions, parse_stream_options
from spark_ext.reading.tasks import ReadTask, read_task
from spark_ext.rows.read_schema import project
from spark_ext.streaming.offsets import initial_symbol, parse_offset, tasks_between
from spark_ext.streaming.progress import Admission, StreamProgress
from spark_ext.streaming.watch import METADATA_AGE_MS, StreamWatch

logger = logging.getLogger(__name__)


class MilenaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A run of a stream. It connects at the first call that asks for an offset."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._run: _StreamRun | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream at its current end. Under the trigger AvailableNow this is the first call."""
        with one_line_errors():
            self._running().pin()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set. Under other triggers this is the first call."""
        with one_line_errors():
            options = self._options()
            project(self._schema, include_headers=options.read.include_headers)
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Json]:  # noqa: N802
        """Return a symbol; the start is resolved once, in the offset at the end of the first batch."""
        with one_line_errors():
            return initial_symbol(self._options().read.start)

    def latestOffset(self, start: dict[str, Json], limit: ReadLimit) -> dict[str, Json]:  # noqa: N802
        """Return the end of the batch that starts at ``start``; wait up to a second if there is nothing to read."""
        with one_line_errors():
            return self._running().latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Json] | None:  # noqa: N802
        """Return the ends of the partitions, for the query's progress."""
        return None if self._run is None else self._run.progress.report()

    def partitions(self, start: dict[str, Json], end: dict[str, Json]) -> list[InputPartition]:
        """Return the tasks of a batch; they depend only on its two offsets."""
        with one_line_errors():
            last = parse_offset(end)
            if last is None:
                return []
            tasks = tasks_between(parse_offset(start), last)
            options = self._options().read
            fetching = self._running().fetching(
                options.fetching, {each.partition.topic for task in tasks for each in task}
            )
            projection = project(self._schema, include_headers=options.include_headers)
        return [
            InputPartition(ReadTask(ranges=task, fetching=fetching, projection=projection))
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task. A batch that reads nothing has one task without a value."""
        if partition.value is not None:
            with one_line_errors():
                yield from read_task(partition.value)

    def commit(self, end: dict[str, Json]) -> None:
        """Do nothing: Spark's checkpoint stores the offsets."""

    def stop(self) -> None:
        """Close the client and its loop, if they are open."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _options(self) -> StreamOptions:
        return parse_stream_options(self._given, os.environ)

    def _running(self) -> "_StreamRun":
        if self._run is None:
            self._run = _StreamRun(self._options())
        return self._run


class _StreamRun:
    """A stream's progress and its client, on an event loop that also runs between Spark's calls."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._thread = ClientLoopThread()
        fetching = options.read.fetching
        self._client = Client(
            fetching.urls,
            credentials=fetching.credentials,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        clock = SystemClock()
        self._watch = StreamWatch(self._client, options.read, clock)
        self.progress = StreamProgress(options, self._watch, clock)
        self._thread.run(self._client.__aenter__())

    def pin(self) -> None:
        self._thread.run(self.progress.pin())

    def latest(self, start: Mapping[str, Json], limit: ReadLimit) -> dict[str, Json]:
        return self._thread.run(self.progress.latest(start, self._admission(limit)))

    def _admission(self, limit: ReadLimit) -> Admission:
        options = self._options
        match limit:
            case ReadMaxRows(max_rows):
                return Admission(
                    offsets_max=max_rows,
                    offsets_min=options.offsets_min,
                    bytes_max=options.bytes_max,
                )
            case ReadMinRows(min_rows):
                return Admission(offsets_min=min_rows, bytes_max=options.bytes_max)
            case ReadMaxBytes(max_bytes):
                return Admission(bytes_max=max_bytes)
            case _:
                # Spark itself asks for everything, so the limits of the options do not apply.
                return Admission()

    def fetching(self, given: Fetching, topics: Collection[str]) -> Fetching:
        """Return how the tasks of a batch reach the nodes. ``given`` is the driver's, with secrets read just now."""
        credentials = TOKENS.credentials(
            self._client, given.credentials, given.task_token, read_grants(topics)
        )
        return replace(given, urls=self._urls(), credentials=self._thread.run(credentials))

    def _urls(self) -> tuple[str, ...]:
        try:
            return self._thread.run(self._watch.urls())
        except ClientError as error:
            # Tasks retry for longer, and the nodes that the options name may be back when the tasks start.
            logger.info("nodes are not known: %s", error.message)
            return self._options.read.fetching.urls

    def close(self) -> None:
        self._thread.run(self._close())
        self._thread.close()

    async def _close(self) -> None:
        self._watch.close()
        await self._client.__aexit__(None, None, None)
