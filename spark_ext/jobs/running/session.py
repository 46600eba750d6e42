"""The Spark session of a job."""

import os
import sys
import warnings

from pyspark.sql import SparkSession

from spark_ext import register


def job_session(name: str) -> SparkSession:
    """Return a Spark session for one job, on the master of ``spark-submit``, else on this machine."""
    # Spark starts the Python of the data source by name. The first one on the path may lack ``spark_ext``.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # spark-submit writes a job's standard error to its standard output. A warning there would break ``--json``.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder: SparkSession.Builder = SparkSession.builder
    return prepared(builder.appName(name).getOrCreate())


def prepared(spark: SparkSession) -> SparkSession:
    """Return a session with the context of ``spark`` and its own settings: the time zone is UTC."""
    own = spark.newSession()
    # Spark finds the format by listing the folders of installed packages. In an editable install it finds nothing.
    register(own)
    own.conf.set("spark.sql.session.timeZone", "UTC")
    return own
