"""A local Spark session for tests: one per process, because it takes seconds to start."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

LOCAL = "local[2]"


@contextmanager
def spark_session(
    directory: Path, *, master: str = LOCAL, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Return a session on loopback without a web page; its files are in ``directory``.

    A session that already runs in this process is used and left running: its starter stops it.

    Spark starts Python workers by name. They must belong to this environment, and must find the project.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    root = str(Path(__file__).parents[3])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys((root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **(config or {}),
    }
    builder: SparkSession.Builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.master(master).appName("tests").getOrCreate()
    try:
        yield session
    finally:
        session.stop()
