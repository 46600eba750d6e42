"""The code sent to Spark in each way of ``docs/spark.md``, section *Ship*, to processes that do not have it."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pyspark
import pytest

from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import fill

pytestmark = [pytest.mark.integration, pytest.mark.long]

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
SECTION = TEXT.split("\n## Ship\n")[1].split("\n## ")[0]
ZIP, WHEEL, *_ = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
WAYS = re.findall(r"^\| `(spark[^`]*)` \|", SECTION, re.MULTILINE)
SUBMIT, *_ = WAYS
LOCAL = "local[2]"
PROCESSES = "local-cluster[2,1,1024]"
TIMEOUT_S = 600
RECORDS = [300, 0, 200]
JOB = """
import json, sys
from pyspark.sql import SparkSession

url, topic, copy, streamed, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
{sending}
import spark_ext

spark_ext.register(spark)


def read(name):
    return spark.read.format("milena").options(url=url, subscribe=name).load()


rows = read(topic)
rows.drop("topic").write.format("milena").options(url=url, topic=copy).mode("append").save()
stream = spark.readStream.format("milena").options(url=url, subscribe=topic, startingOffsets="earliest").load()
sink = stream.drop("topic").writeStream.format("milena").options(url=url, topic=streamed)
sink = sink.option("checkpointLocation", folder + "/sink").trigger(availableNow=True)
sink.start().awaitTermination()
spark.sql("CREATE TABLE kept USING milena OPTIONS (url '{{0}}', subscribe '{{1}}')".format(url, topic))
table = spark.sql(f"SELECT * FROM kept WITH ('url' = '{{url}}', 'subscribe' = '{{topic}}')")
found = {{}}
for name, frame in {{"batch": rows, "write": read(copy), "stream": read(streamed), "table": table}}.items():
    found[name] = sorted((row.partition, bytes(row.value).decode()) for row in frame.collect())
where = {{path for (path,) in rows.rdd.mapPartitions(lambda _: [(__import__("spark_ext").__file__,)]).collect()}}
print("RESULT", json.dumps([found, sorted(where)]))
spark.stop()
"""


@pytest.fixture(scope="module")
def parcel(tmp_path_factory):
    """A folder with the code, an environment without the project, and that environment packed."""
    folder = tmp_path_factory.mktemp("parcel")
    for name in ("milena", "spark_ext", "pyspark_milena", "pyproject.toml", "README.md", "LICENSE"):
        (folder / name).symlink_to(ROOT / name)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for installed in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for entry in installed.iterdir():
            # A .pth puts the project on the path of an editable install.
            is_project = "milena" in entry.name or entry.suffix == ".pth"
            if not is_project and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    for package in ("milena", "spark_ext", "pyspark_milena"):
        tried = [str(environment / "bin" / "python"), "-c", f"import {package}"]
        found = subprocess.run(tried, cwd="/", capture_output=True, text=True, check=False)
        assert "No module named" in found.stderr
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as packed_environment:
        packed_environment.add(environment, arcname=".")
    # The settings that a test needs, so that the commands stay as they are printed.
    conf = folder / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.driver.host 127.0.0.1\n"
        "spark.driver.bindAddress 127.0.0.1\n"
        "spark.ui.enabled false\n"
        "spark.log.level ERROR\n"
        "spark.sql.shuffle.partitions 2\n"
        # A Python process of a busy machine takes longer than Spark's 15 s to come up.
        "spark.python.authenticate.socketTimeout 120s\n"
    )
    return folder


def run(command: str, parcel: Path, folder: Path, **environment: str) -> str:
    """The output of a command in ``folder``, told of nothing but the parcel's environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    bins = (str(parcel / "environment" / "bin"), str(SPARK_HOME / "bin"), kept["PATH"])
    told = {
        **kept,
        "PATH": os.pathsep.join(bins),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(parcel / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **environment,
    }
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=told,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if not line.lstrip().startswith("at ")
    ]
    assert done.returncode == 0, "\n".join(lines[-60:])
    return done.stdout


def result_of(
    way: str, parcel: Path, folder: Path, cluster, *, master: str, sent: str, **environment: str
):
    """Check that each use gives every record once; return where the executors found the code."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower())
    topics = [
        create_topic(cluster.node(1), f"{kind}-{name}", partitions=len(RECORDS))
        for kind in ("shipped", "copy", "streamed")
    ]
    rows = fill(cluster.node(1), topics[0], RECORDS)
    way = way.replace("milena.zip", sent)
    is_command = way.startswith("spark-submit")
    job = folder / "job.py"
    job.write_text(JOB.format(sending="" if is_command else way))
    command = way if is_command else "spark-submit job.py"
    arguments = " ".join((cluster.node(1).url, *topics, str(folder)))
    command = command.replace("job.py", f"--master '{master}' {job} {arguments}")
    printed = run(command, parcel, folder, **environment)
    (line,) = [line for line in printed.splitlines() if line.startswith("RESULT ")]
    found, where = json.loads(line.removeprefix("RESULT "))
    sent_rows = sorted([partition, value.decode()] for partition, _, value in rows)
    assert found == dict.fromkeys(("batch", "write", "stream", "table"), sent_rows)
    return where


def test_the_ways_are_found():
    assert len(WAYS) >= 4


@pytest.mark.parametrize("way", WAYS)
def test_code_that_is_sent_reads_and_writes_every_record_once(cluster, parcel, tmp_path, way):
    """Beside the archive; the first way with executors in processes of their own."""
    python = str(parcel / "environment" / "bin" / "python")
    for name in ("milena", "spark_ext", "pyspark_milena"):
        (tmp_path / name).symlink_to(ROOT / name)
    run(ZIP, parcel, tmp_path)
    master = PROCESSES if way == SUBMIT else LOCAL
    for name in ("milena", "spark_ext", "pyspark_milena"):
        (tmp_path / name).unlink()
    where = result_of(
        way, parcel, tmp_path, cluster, master=master, sent="milena.zip", PYSPARK_PYTHON=python
    )
    assert all(path.endswith("milena.zip/spark_ext/__init__.py") for path in where)


@pytest.mark.parametrize(("made", "master"), [(ZIP, LOCAL), (WHEEL, PROCESSES)])
def test_the_archive_may_lie_elsewhere_and_may_be_a_wheel(cluster, parcel, tmp_path, made, master):
    run(made, parcel, parcel)
    folder = tmp_path / f"job-{master.partition('[')[0]}"
    folder.mkdir()
    python = str(parcel / "environment" / "bin" / "python")
    sent = str(parcel / "milena.zip")
    where = result_of(
        SUBMIT, parcel, folder, cluster, master=master, sent=sent, PYSPARK_PYTHON=python
    )
    assert all(path.endswith("milena.zip/spark_ext/__init__.py") for path in where)


def test_a_wheel_that_is_not_called_a_zip_is_refused_with_what_to_do(parcel, tmp_path):
    run(ZIP, parcel, parcel)
    wheel = tmp_path / "milena-0.1.0-py3-none-any.whl"
    (parcel / "milena.zip").rename(wheel)
    job = tmp_path / "job.py"
    job.write_text(JOB.format(sending=""))
    command = SUBMIT.replace("milena.zip", str(wheel)).replace("job.py", f"{job} 1 2 3 4 5")
    python = str(parcel / "environment" / "bin" / "python")
    with pytest.raises(
        AssertionError, match=rf"does not hand {wheel.name} to its workers: give it a name .*\.zip"
    ):
        run(command, parcel, tmp_path, PYSPARK_PYTHON=python)


def test_the_environment_may_be_sent_too(cluster, parcel, tmp_path):
    """The driver runs beside an environment of its own, as the document has it."""
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "environment").symlink_to(parcel / "environment")
    run(ZIP, parcel, parcel)
    archives = f"--archives {parcel}/environment.tar.gz#environment job.py"
    way = SUBMIT.replace("job.py", archives)
    python = "./environment/bin/python"
    sent = str(parcel / "milena.zip")
    where = result_of(
        way, parcel, folder, cluster, master=PROCESSES, sent=sent, PYSPARK_PYTHON=python
    )
    assert all(path.endswith("milena.zip/spark_ext/__init__.py") for path in where)
