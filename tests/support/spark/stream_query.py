"""A streaming query in its own process, so that a test can kill it: ``python -m tests.support.spark.stream_query``.

Files of rows, one per batch, go to a topic. Each value ends with a random part, which differs each time that the row is
computed. So a test can see whether a row was written twice.
"""

import argparse
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from spark_ext import register
from tests.support.spark.spark_session import spark_session

SCHEMA = "file int, row int, filler string"
FILLER = "." * 100


def write_files(directory: Path, counts: list[int]) -> None:
    """Write files; file ``n`` has ``counts[n]`` rows."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(counts):
        columns = {
            "file": pa.array([number] * count, pa.int32()),
            "row": pa.array(range(count), pa.int32()),
            "filler": [FILLER] * count,
        }
        path = directory / f"{number:04}.parquet"
        pq.write_table(pa.table(columns), path)
        # A stream reads files by modification time, in ms. Without distinct times their order would be undefined.
        os.utime(path, (number, number))


def failing_once(rows: DataFrame) -> DataFrame:
    """Return the rows unchanged, from tasks whose first attempt fails at the end."""

    def passing(batches):  # type: ignore[no-untyped-def]  # Spark looks at hints
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    return rows.mapInArrow(passing, rows.schema)


def main() -> None:
    """Run the query until all files are read."""
    parser = argparse.ArgumentParser()
    for name in ("url", "topic", "directory"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--fails-once", action="store_true")
    given = parser.parse_args()
    directory = Path(given.directory)
    # Allow four attempts per task, as in a cluster; a local Spark's default is one.
    with spark_session(directory / "spark", master="local[2,4]") as spark:
        register(spark)
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(directory / "input"))
        if given.fails_once:
            # A repeated task must get its rows in the same order, which a shuffle does not guarantee.
            rows = failing_once(rows)
            value = "concat_ws(' ', file, row, filler) as value"
        else:
            rows = rows.repartition(2)
            value = "concat_ws(' ', file, row, uuid()) as value"
        writer = rows.selectExpr(value).writeStream.format("milena")
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = writer.options(url=given.url, topic=given.topic).trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    main()
