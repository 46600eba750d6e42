"""The code shipped to executors as a user ships it, with worker processes of their own (``local-cluster``)."""

import os
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import fill

pytestmark = [pytest.mark.integration, pytest.mark.long]

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
SHIPPED = ("milena", "spark_ext", "pyspark_milena")
TIMEOUT_S = 600

JOB = """
import sys
from pyspark.sql import SparkSession
from spark_ext import register

url, topic, copy = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.read.format("milena").options(url=url, subscribe=topic, minPartitions=4).load()
rows.drop("topic").write.format("milena").options(url=url, topic=copy).mode("append").save()
written = spark.read.format("milena").options(url=url, subscribe=copy).load()
same = rows.select("partition", "value").exceptAll(written.select("partition", "value"))
where = {path for (path,) in rows.rdd.mapPartitions(lambda _: [(__import__("spark_ext").__file__,)]).collect()}
print("RESULT", rows.count(), written.count(), same.count(), rows.rdd.getNumPartitions(), sorted(where))
spark.stop()
"""


@pytest.fixture(scope="module")
def parcel(tmp_path_factory):
    """A folder with the code as a zip, an environment without the project, that environment packed, and the job."""
    folder = tmp_path_factory.mktemp("parcel")
    with zipfile.ZipFile(folder / "milena.zip", "w") as packed:
        for package in SHIPPED:
            for path in sorted((ROOT / package).rglob("*.py")):
                packed.write(path, path.relative_to(ROOT))
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("platlib")).iterdir():
        if "milena" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as packed_environment:
        packed_environment.add(environment, arcname=".")
    (folder / "job.py").write_text(JOB)
    return folder


def submit(parcel: Path, *options: str, python: str, arguments: tuple[str, ...]) -> str:
    """The job's line of result."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    run = subprocess.run(
        [
            SPARK_HOME / "bin" / "spark-submit",
            *("--master", "local-cluster[2,1,1024]"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.log.level=ERROR"),
            *("--conf", "spark.sql.shuffle.partitions=2"),
            *options,
            *("job.py", *arguments),
        ],
        cwd=parcel,
        env={
            **kept,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": "environment/bin/python",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    results = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    told = [line for line in run.stdout.splitlines() if not line.lstrip().startswith("at ")]
    assert run.returncode == 0, "\n".join(told[-30:])
    assert len(results) == 1, run.stdout[-2000:]
    return results[0]


@pytest.mark.parametrize("way", ["zip", "zip-and-archive"])
def test_a_shipped_job_reads_and_writes_every_record_once(cluster, parcel, way):
    counts = [300, 0, 1200]
    topic = create_topic(cluster.node(1), f"shipped-{way}", partitions=len(counts))
    copy = create_topic(cluster.node(1), f"copy-{way}", partitions=len(counts))
    fill(cluster.node(1), topic, counts)
    options = ["--py-files", "milena.zip"]
    if way == "zip-and-archive":
        options += ["--archives", "environment.tar.gz#environment"]
        python = "./environment/bin/python"
    else:
        python = str(parcel / "environment" / "bin" / "python")
    result = submit(parcel, *options, python=python, arguments=(cluster.node(1).url, topic, copy))
    assert result.startswith(f"RESULT {sum(counts)} {sum(counts)} 0 4 ")
    assert "milena.zip" in result
    assert str(ROOT) not in result
