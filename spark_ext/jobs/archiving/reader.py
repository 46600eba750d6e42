"""Read an archive as a table: exactly the files that its manifest lists."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from milena.disk.os_files import OsFiles
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.manifest import ArchivedFile
from spark_ext.jobs.running.errors import JobInputError

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


def read_archive(spark: SparkSession, root: str, topics: Sequence[str] = ()) -> DataFrame:
    """Return the archived records of these topics, or of all topics, as of the call.

    Files that the manifest does not list are not read. The table does not change while other runs add to the archive.

    Raises:
        JobInputError: this is not an archive, or it does not have the topic.
        DamagedArchiveError: the manifest cannot be trusted.
    """
    manifest = read_manifest(OsFiles(), root)
    unknown = set(topics) - set(manifest.topics())
    if unknown:
        raise JobInputError(f"{root} holds nothing of topic {', '.join(sorted(unknown))}")
    found = [
        file
        for partition in manifest.partitions
        if not topics or partition.key.topic in topics
        for file in partition.files
    ]
    return read_files(spark, root, found)


def read_files(spark: SparkSession, root: str, files: Sequence[ArchivedFile]) -> DataFrame:
    """Return the records of these files of an archive."""
    if not files:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(*(f"file://{root}/{file.path}" for file in files))
