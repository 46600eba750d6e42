"""The Spark session of a job."""

import os
import sys
import warnings

from pyspark.sql import SparkSession

from spark_ext import register


def job_session(name: str) -> SparkSession:
    """A session for one job: ``spark-submit`` decides about the master, plain Python runs on this machine."""
    # Spark starts the interpreter of the data source by name; another one than this may not have ``spark_ext``.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # spark-submit prints a job's standard error where its output goes: there it would spoil ``--json``.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder: SparkSession.Builder = SparkSession.builder
    return prepared(builder.appName(name).getOrCreate())


def prepared(spark: SparkSession) -> SparkSession:
    """A session that shares the context of ``spark``, and has settings of its own: times are those of UTC."""
    own = spark.newSession()
    # Spark finds the format by itself only where it finds packages by listing folders: not in an editable install.
    register(own)
    own.conf.set("spark.sql.session.timeZone", "UTC")
    return own
