"""A streaming query in a process of its own, so that it can be killed: ``python -m tests.support.spark.stream_query``.

Files of rows, one a batch, go to a topic; the values end in something that is another one each time a row is computed,
so that a row that is written twice is not written alike.
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
    """File ``n`` has ``counts[n]`` rows."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(counts):
        columns = {
            "file": pa.array([number] * count, pa.int32()),
            "row": pa.array(range(count), pa.int32()),
            "filler": [FILLER] * count,
        }
        path = directory / f"{number:04}.parquet"
        pq.write_table(pa.table(columns), path)
        # A stream takes files by the milliseconds of their times, and of two within one any first.
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
    """Run the query to the end of its files."""
    parser = argparse.ArgumentParser()
    for name in ("url", "topic", "directory"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--fails-once", action="store_true")
    given = parser.parse_args()
    directory = Path(given.directory)
    # Four attempts a task, as in a cluster; without the number a local Spark gives up at once.
    with spark_session(directory / "spark", master="local[2,4]") as spark:
        register(spark)
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(directory / "input"))
        if given.fails_once:
            # A task that is run again must have its rows in the same order, which no shuffle promises.
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
