"""The reader that the Arrow source is measured against: the same fetches, but a Python tuple a record."""

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
        """The name for ``format``."""
        return FORMAT

    def reader(self, schema: StructType) -> MilenaReader:
        """Plans as the Arrow source does."""
        planned = super().reader(schema)
        return TupleReader(planned)


class TupleReader(MilenaReader):
    """Yields what most Python data sources yield."""

    def __init__(self, planned: MilenaReader) -> None:
        self.__dict__.update(planned.__dict__)

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The records of one task."""
        with closing(chunks_of(partition.value)) as chunks:
            for chunk in chunks:
                for offset, timestamp_ms, key, value, _ in records_in(
                    chunk.data, chunk.start_offset, chunk.end_offset
                ):
                    when = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
                    yield key, value, chunk.topic, chunk.partition, offset, when, 0
