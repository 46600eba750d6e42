"""``spark.readStream.format("milena")``: the shell around a stream's progress.

Spark keeps one reader a run, in a process of its own on the driver, which plans all batches; executors get fresh ones,
for which everything is in the tasks. It must be possible to make one whatever the options are: an error of
``__init__`` is lost behind another one of Spark's own. The first call of every run is where errors show.
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
    """One run of a stream. Connects when it is first asked for an offset."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._run: _StreamRun | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Under this trigger the first call: the stream is to end where it ends now."""
        with one_line_errors():
            self._running().pin()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the options set; the first call of every other run."""
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
        """A symbol: offsets are resolved once, in the first batch's end."""
        with one_line_errors():
            return initial_symbol(self._options().read.start)

    def latestOffset(self, start: dict[str, Json], limit: ReadLimit) -> dict[str, Json]:  # noqa: N802
        """Where the batch ends that begins at ``start``; waits up to a second when there is nothing."""
        with one_line_errors():
            return self._running().latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Json] | None:  # noqa: N802
        """Where the partitions end, for the query's progress."""
        return None if self._run is None else self._run.progress.report()

    def partitions(self, start: dict[str, Json], end: dict[str, Json]) -> list[InputPartition]:
        """The tasks of a batch, by its two offsets alone."""
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
        """The records of one task. A batch that reads nothing has one task without a value."""
        if partition.value is not None:
            with one_line_errors():
                yield from read_task(partition.value)

    def commit(self, end: dict[str, Json]) -> None:
        """Nothing: Spark's checkpoint is where offsets are kept."""

    def stop(self) -> None:
        """Close what is open."""
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
    """A stream's progress with its client, on a loop that goes on between Spark's calls."""

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
                # Spark itself wants all that there is, whatever the options say.
                return Admission()

    def fetching(self, given: Fetching, topics: Collection[str]) -> Fetching:
        """How the tasks of a batch reach the nodes. ``given``: of the driver, with the files of this moment."""
        credentials = TOKENS.credentials(
            self._client, given.credentials, given.task_token, read_grants(topics)
        )
        return replace(given, urls=self._urls(), credentials=self._thread.run(credentials))

    def _urls(self) -> tuple[str, ...]:
        try:
            return self._thread.run(self._watch.urls())
        except ClientError as error:
            # The tasks have more patience, and the nodes that were named may be back by then.
            logger.info("nodes are not known: %s", error.message)
            return self._options.read.fetching.urls

    def close(self) -> None:
        self._thread.run(self._close())
        self._thread.close()

    async def _close(self) -> None:
        self._watch.close()
        await self._client.__aexit__(None, None, None)
