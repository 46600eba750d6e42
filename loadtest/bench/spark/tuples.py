"""A reader with the same fetches that yields one Python tuple per record; the Arrow source is compared with it."""

import datetime as dt
from collections.abc import Iterator
from contextlib import closing

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from milena.model.batch.decode import records_in
from spark_ext.reading.tasks import chunks_of
from spark_ext.source import MilenaDataSource, MilenaReader

FORMAT = "milena_tuples"

Row = tuple[bytes | None, bytes | None, str, int, int, dt.datetime, int]


class TupleDataSource(MilenaDataSource):
    """A data source with the options and rows of ours that passes rows as tuples, record by record."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    def reader(self, schema: StructType) -> MilenaReader:
        """Return a reader that plans like the Arrow source."""
        planned = super().reader(schema)
        return TupleReader(planned)


class TupleReader(MilenaReader):
    """Yields tuples, like most Python data sources."""

    def __init__(self, planned: MilenaReader) -> None:
        self.__dict__.update(planned.__dict__)

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the records of one task."""
        with closing(chunks_of(partition.value)) as chunks:
            for chunk in chunks:
                for offset, timestamp_ms, key, value, _ in records_in(
                    chunk.data, chunk.start_offset, chunk.end_offset
                ):
                    when = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
                    yield key, value, chunk.topic, chunk.partition, offset, when, 0
