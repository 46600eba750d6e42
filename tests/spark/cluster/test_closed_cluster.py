"""Spark and a cluster that asks who calls: tokens that may little, none, and one that is taken away meanwhile."""

import base64
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

from milena import Credentials, Secret
from spark_ext.cluster.task_tokens import NOTE
from spark_ext.jobs import archive, replay
from spark_ext.source import MilenaDataSource
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    ok,
    running_cluster,
)

pytestmark = pytest.mark.integration

PASSWORD = "a password of tests"
ROOT = {"Authorization": "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()}
ADMIN = Credentials(user="admin", password=Secret(PASSWORD))
COUNT = 40
VALUE = StructType([StructField("value", StringType())])
REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("closed")
    (directory / "password").write_text(f"{PASSWORD}\n")
    with running_cluster(
        directory, node_count=1, credentials=ADMIN, admin_password_file=directory / "password"
    ) as nodes:
        yield nodes.node(1)


def make_topic(node, name, count=COUNT):
    topic = {"topic_name": name, "partitions_count": 2, "replication_factor": 1}
    ok(call(node, "POST /admin/topics", topic, headers=ROOT))
    for partition in range(2):
        records = {"records": [{"value": n} for n in range(count // 2)]}
        if count:
            ok(call(node, f"POST /topics/{name}/partitions/{partition}", records, headers=ROOT))
    return name


def allow(node, user, operation, kind, name, pattern="LITERAL"):
    cluster_id = ok(call(node, "GET /metadata", headers=ROOT))["cluster_id"]
    entry = {
        "resource_type": kind,
        "resource_name": name,
        "pattern_type": pattern,
        "principal": f"User:{user}",
        "host": "*",
        "operation": operation,
        "permission": "ALLOW",
    }
    assert call(node, f"POST /v3/clusters/{cluster_id}/acls", entry, headers=ROOT).status == 201


def user(node, name, *entries):
    """A user with a password who may do this; its token, and the id of that."""
    ok(call(node, f"PUT /users/{name}", {"password": PASSWORD}, headers=ROOT))
    for entry in entries:
        allow(node, name, *entry)
    made = ok(call(node, f"POST /users/{name}/tokens", {}, headers=ROOT))
    return made["token"], made["token_id"]


def end_offsets(node, topic):
    path = f"GET /topics/{topic}/partitions"
    ends = [ok(call(node, f"{path}/{p}/offsets", headers=ROOT))["end_offset"] for p in range(2)]
    return sum(ends)


def read(spark, node, topic, **options):
    reader = spark.read.format("milena").options(url=node.url, subscribe=topic)
    return reader.options(**{f"milena.{name}": text for name, text in options.items()}).load()


def written(rows, node, topic, **options):
    writer = rows.write.format("milena").options(url=node.url, topic=topic)
    options = {name.replace("_", "."): text for name, text in options.items()}
    writer.options(**options).mode("append").save()


def refused(work):
    with pytest.raises(PySparkException) as caught:
        work()
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_a_token_that_may_read_one_topic_reads_it_and_no_other(closed, spark, tmp_path):
    mine, other = make_topic(closed, "mine"), make_topic(closed, "other")
    token, _ = user(closed, "reader", ("READ", "TOPIC", mine))
    (tmp_path / "token").write_text(f"{token}\n")
    assert read(spark, closed, mine, token=token).count() == COUNT
    assert read(spark, closed, mine, tokenFile=str(tmp_path / "token")).count() == COUNT
    assert read(spark, closed, mine, user="reader", password=PASSWORD).count() == COUNT
    told = refused(lambda: read(spark, closed, other, token=token).count())
    assert "User:reader may not" in told
    rows = spark.range(3).selectExpr("string(id) as value")
    told = refused(lambda: written(rows, closed, mine, milena_token=token))
    assert "User:reader may not WRITE TOPIC" in told
    assert f"nothing was written to {mine}" in told
    assert token not in told


def test_without_credentials_the_first_sentence_says_what_to_do(closed, spark, tmp_path):
    topic = make_topic(closed, "unasked", 2)
    told = refused(lambda: read(spark, closed, topic).count())
    assert "this cluster asks for credentials" in told
    assert "give it token_file, or user and password_file" in told
    told = refused(lambda: read(spark, closed, topic, user="reader", password="wrong").count())
    assert "asked by user 'reader'" in told
    told = refused(lambda: read(spark, closed, topic, tokenFile=str(tmp_path / "none")).count())
    assert "token_file: cannot use" in told


def test_a_token_that_may_write_one_topic_writes_it(closed, spark):
    topic = make_topic(closed, "written", 0)
    token, _ = user(closed, "writer", ("WRITE", "TOPIC", topic))
    rows = spark.range(0, COUNT, numPartitions=3).selectExpr("string(id) as value")
    written(rows, closed, topic, milena_token=token)
    assert end_offsets(closed, topic) == COUNT
    told = refused(lambda: written(rows, closed, topic, milena_token=token, transactionalId="tx"))
    assert "User:writer may not WRITE TRANSACTIONAL_ID" in told
    told = refused(lambda: read(spark, closed, topic, token=token).count())
    assert "User:writer may not READ" in told


def test_a_kafka_users_login_writes_in_a_transaction(closed, spark):
    topic = make_topic(closed, "logged-in", 0)
    entries = ("WRITE", "TOPIC", topic), ("WRITE", "TRANSACTIONAL_ID", "nightly")
    user(closed, "kafka", *entries, ("READ", "GROUP", "spark-nightly"), ("READ", "TOPIC", topic))
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    options = {
        "kafka.sasl.jaas.config": f'{login} username="kafka" password="{PASSWORD}";',
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "transactionalId": "nightly",
        "batchId": "1",
    }
    rows = spark.range(COUNT).selectExpr("string(id) as value")
    for _ in range(2):
        written(rows, closed, topic, **options)
    reader = spark.read.format("milena").options(url=closed.url, subscribe=topic)
    del options["transactionalId"], options["batchId"]
    assert reader.options(**options).load().count() == COUNT


def test_a_stream_from_topic_to_topic_with_tokens_that_may_no_more(closed, spark, tmp_path):
    source, sink = make_topic(closed, "from"), make_topic(closed, "to", 0)
    may_read, _ = user(closed, "stream-reader", ("READ", "TOPIC", source))
    may_write, _ = user(
        closed,
        "stream-writer",
        ("WRITE", "TOPIC", sink),
        ("READ", "TOPIC", sink),
        ("WRITE", "TRANSACTIONAL_ID", "copy"),
        ("READ", "GROUP", "spark-", "PREFIXED"),
    )
    (tmp_path / "token").write_text(may_write)
    stream = spark.readStream.format("milena").options(url=closed.url, subscribe=source)
    stream = stream.option("startingOffsets", "earliest").option("milena.token", may_read).load()
    writer = stream.select("value").writeStream.format("milena")
    writer = writer.options(url=closed.url, topic=sink, transactionalId="copy")
    writer = writer.option("milena.tokenFile", str(tmp_path / "token"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(TIMEOUT_S)
        assert query.exception() is None
    assert read(spark, closed, sink, user="stream-writer", password=PASSWORD).count() == COUNT


def tokens_of(node, user):
    rows = ok(call(node, f"GET /users/{user}/tokens", headers=ROOT))["tokens"]
    return [
        {(g["resource_type"], g["name"], *g["operations"]) for g in row["grants"]}
        for row in rows
        if row["note"] == NOTE
    ]


class Planned:
    """What Spark sends to tasks of reads and writes, by the options of a driver."""

    def __init__(self, node, topic, **credentials):
        self._options = {"url": node.url}
        self._options |= {f"milena.{name}": text for name, text in credentials.items()}
        self._topic = topic

    def reads(self):
        source = MilenaDataSource(self._options | {"subscribe": self._topic})
        return source.reader(source.schema()).partitions()

    def reads_of_a_stream(self):
        wanted = {"subscribe": self._topic, "startingOffsets": "earliest"}
        source = MilenaDataSource(self._options | wanted)
        reader = source.streamReader(source.schema())
        limit = reader.getDefaultReadLimit()
        try:
            start = reader.initialOffset()
            return reader.partitions(start, reader.latestOffset(start, limit))
        finally:
            reader.stop()

    def writes(self, **options):
        source = MilenaDataSource(self._options | {"topic": self._topic} | options)
        return source.writer(VALUE, overwrite=False)

    def writes_of_a_stream(self):
        options = self._options | {"topic": self._topic, "transactionalId": "mine"}
        return MilenaDataSource(options).streamWriter(VALUE, overwrite=False)

    def all(self):
        return [
            self.reads(),
            self.reads_of_a_stream(),
            self.writes(),
            self.writes(transactionalId="mine", batchId="1"),
            self.writes_of_a_stream(),
        ]


def test_tasks_get_a_token_of_their_own_and_nothing_of_the_drivers(closed):
    """Whatever Spark sends is pickled: the driver's token and password are in none of it."""
    topic = make_topic(closed, "planned")
    rights = (
        ("READ", "TOPIC", topic),
        ("WRITE", "TOPIC", topic),
        ("WRITE", "TRANSACTIONAL_ID", "mine"),
    )
    token, _ = user(closed, "planner", *rights)
    for secret, given in (
        (token, {"token": token}),
        (PASSWORD, {"user": "planner", "password": PASSWORD}),
    ):
        for sent in Planned(closed, topic, **given).all():
            pickled = pickle.dumps(sent)
            assert token.split("_")[0].encode() + b"_" in pickled
            assert secret.encode() not in pickled
    group = ("GROUP", "spark-mine", "READ"), ("GROUP", "spark-", "READ")
    read, write = ("TOPIC", topic, "READ"), ("TOPIC", topic, "WRITE")
    transaction = ("TRANSACTIONAL_ID", "mine", "WRITE")
    wanted = [
        {read},
        {write},
        {read, write, transaction, group[0]},
        {read, write, transaction, group[1]},
    ]
    # One for each way that tasks go; those of a stream live for as long as a stream's do.
    for grants in wanted:
        assert grants in tokens_of(closed, "planner")
    as_it_is = Planned(closed, topic, token=token, taskToken="never")
    assert all(token.encode() in pickle.dumps(sent) for sent in as_it_is.all())


def test_tasks_do_with_their_token_what_a_query_needs(closed, spark, tmp_path):
    """Under ``always`` a query without one would not begin; they come from a token that may no more than that."""
    source, sink = make_topic(closed, "minted-from"), make_topic(closed, "minted-to", 0)
    rights = [("READ", "TOPIC", source), ("READ", "TOPIC", sink), ("WRITE", "TOPIC", sink)]
    rights += [("WRITE", "TRANSACTIONAL_ID", "minted"), ("READ", "GROUP", "spark-", "PREFIXED")]
    token, _ = user(closed, "minter", *rights)
    options = {"url": closed.url, "milena.token": token, "milena.taskToken": "always"}
    rows = spark.read.format("milena").options(subscribe=source, **options).load()
    assert rows.count() == COUNT
    values = rows.select("value")
    values.write.format("milena").options(topic=sink, **options).mode("append").save()
    writer = values.write.format("milena").options(topic=sink, **options)
    writer.options(transactionalId="minted", batchId="7").mode("append").save()
    stream = spark.readStream.format("milena").options(subscribe=source, **options)
    stream = stream.option("startingOffsets", "earliest").load().select("value")
    query = stream.writeStream.format("milena").options(topic=sink, **options)
    query = query.option("checkpointLocation", str(tmp_path / "c")).option(
        "transactionalId", "minted"
    )
    query.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    copied = spark.read.format("milena").options(subscribe=sink, **options).load()
    assert copied.count() == 3 * COUNT


def test_a_token_with_grants_makes_no_token_and_is_what_tasks_ask_with(closed, spark):
    mine, other = make_topic(closed, "granted"), make_topic(closed, "not-granted")
    user(closed, "granter", ("READ", "TOPIC", mine), ("READ", "TOPIC", other))
    grant = {"resource_type": "TOPIC", "name": mine, "operations": ["READ"]}
    made = ok(call(closed, "POST /users/granter/tokens", {"grants": [grant]}, headers=ROOT))
    assert read(spark, closed, mine, token=made["token"]).count() == COUNT
    assert tokens_of(closed, "granter") == []
    told = refused(
        lambda: read(spark, closed, mine, token=made["token"], taskToken="always").count()
    )
    assert "makes no tokens" in told


def test_a_cluster_that_asks_nobody_is_read_as_before(cluster, spark):
    """With credentials too; a token that must be has nobody to be of."""
    topic = create_topic(cluster.node(1), "asked-by-all")
    given = {"user": "nobody-in-particular", "password": PASSWORD}
    assert read(spark, cluster.node(1), topic, **given).count() == 0
    told = refused(lambda: read(spark, cluster.node(1), topic, **given, taskToken="always").count())
    assert (
        "milena.taskToken: tasks can have no token of their own: the cluster asks no caller" in told
    )


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_token_that_is_taken_away_ends_the_stream_with_a_sentence(
    closed, spark, tmp_path, is_busy
):
    name = f"revoked-{is_busy}".lower()
    topic = make_topic(closed, name)
    token, token_id = user(closed, name, ("READ", "TOPIC", topic))
    stream = spark.readStream.format("milena").options(url=closed.url, subscribe=topic)
    stream = stream.option("startingOffsets", "earliest").option("milena.token", token).load()
    writer = stream.writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        eventually(lambda: query.lastProgress is not None, deadline_s=TIMEOUT_S)
        ok(call(closed, f"DELETE /users/{name}/tokens/{token_id}", headers=ROOT))
        if is_busy:
            records = {"records": [{"value": 1}]}
            ok(call(closed, f"POST /topics/{topic}", records, headers=ROOT))
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    told = str(caught.value)
    assert "a token is unknown: it is expired, revoked or of another cluster" in told
    assert "CredentialsRefusedError" in told
    assert "Traceback" not in told
    assert token not in told


def test_a_stream_whose_token_expires_ends_with_a_sentence_and_goes_on_with_another(
    closed, spark, tmp_path
):
    """Once a batch is done the file gets one whose time is over within a moment, and the first one is good no more."""
    topic = make_topic(closed, "expiring")
    token, token_id = user(closed, "expiring", ("READ", "TOPIC", topic))
    file, rows = tmp_path / "token", str(tmp_path / "rows")
    file.write_text(token)
    stream = spark.readStream.format("milena").options(url=closed.url, subscribe=topic)
    stream = stream.options(**{"startingOffsets": "earliest", "milena.tokenFile": str(file)}).load()
    writer = stream.writeStream.format("parquet").option("path", rows)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    def made(**how):
        return ok(call(closed, "POST /users/expiring/tokens", how, headers=ROOT))["token"]

    query = writer.start()
    try:
        eventually(lambda: query.lastProgress is not None, deadline_s=TIMEOUT_S)
        file.write_text(made(lifetime_ms=1))
        ok(call(closed, f"DELETE /users/expiring/tokens/{token_id}", headers=ROOT))
        ok(call(closed, f"POST /topics/{topic}", {"records": [{"value": 1}]}, headers=ROOT))
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    assert "has expired; make another one" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert spark.read.parquet(rows).count() == COUNT
    file.write_text(made())
    writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    assert spark.read.parquet(rows).count() == COUNT + 1


def test_a_file_whose_token_is_replaced_is_read_again(closed, spark, tmp_path):
    """By the driver, which asks for offsets, and for the tasks of the next batch."""
    topic = make_topic(closed, "rotated")
    old, old_id = user(closed, "rotating", ("READ", "TOPIC", topic))
    file = tmp_path / "token"
    file.write_text(old)
    stream = spark.readStream.format("milena").options(url=closed.url, subscribe=topic)
    stream = stream.option("startingOffsets", "earliest").option("milena.tokenFile", str(file))
    writer = stream.load().select("offset").writeStream.format("memory").queryName("rotated")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def has(count):
        assert query.exception() is None
        return spark.table("rotated").count() == count

    try:
        eventually(lambda: has(COUNT), deadline_s=TIMEOUT_S)
        file.write_text(ok(call(closed, "POST /users/rotating/tokens", {}, headers=ROOT))["token"])
        ok(call(closed, f"DELETE /users/rotating/tokens/{old_id}", headers=ROOT))
        ok(call(closed, f"POST /topics/{topic}", {"records": [{"value": 1}]}, headers=ROOT))
        eventually(lambda: has(COUNT + 1), deadline_s=TIMEOUT_S)
    finally:
        query.stop()


def test_jobs_with_a_token_file(closed, spark, tmp_path, capsys, monkeypatch):
    topic, again = make_topic(closed, "archived"), make_topic(closed, "again", 0)
    may_read, _ = user(closed, "archivist", ("READ", "TOPIC", topic))
    entries = [(right, "TOPIC", again) for right in ("READ", "WRITE")]
    entries += [("WRITE", "TRANSACTIONAL_ID", "name-", "PREFIXED")]
    entries += [("READ", "GROUP", "spark-name-", "PREFIXED")]
    may_write, _ = user(closed, "replayer", *entries)
    (tmp_path / "read").write_text(may_read)
    words = ["--url", closed.url, "--topic", topic, "--output", str(tmp_path / "archive"), "--json"]
    assert archive.run(words) == 2
    assert "this cluster asks for credentials" in capsys.readouterr().err
    assert archive.run([*words, "--token-file", str(tmp_path / "none")]) == 64
    assert "token_file: cannot use" in capsys.readouterr().err
    assert archive.run([*words, "--user", "archivist"]) == 64
    assert "credentials: user: give password_file or password" in capsys.readouterr().err
    assert archive.run([*words, "--token-file", str(tmp_path / "read")]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == COUNT
    words = ["--url", closed.url, "--archive", str(tmp_path / "archive"), "--name", "name"]
    monkeypatch.setenv("MILENA_TOKEN", may_write)
    assert replay.run([*words, "--to", again]) == 0
    assert end_offsets(closed, again) >= COUNT
    assert archive.run([*words[:2], "--topic", again, "--output", str(tmp_path / "two")]) == 0


PROGRAM = """
import contextlib, sys
from pyspark.sql import SparkSession
from spark_ext import check_write_stream, register
from tests.support.spark.spark_session import spark_session
from pathlib import Path

url, topic, folder, token = sys.argv[1], sys.argv[2], sys.argv[3], sys.stdin.read()
login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=nobody password=%s;" % token
config = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{folder}/events",
    "spark.eventLog.logStageExecutorMetrics": "true",
}
Path(folder, "events").mkdir(parents=True)
with spark_session(Path(folder), config=config) as spark:
    spark.sparkContext.setLogLevel("INFO")
    register(spark)
    # As the environment says.
    rows = spark.read.format("milena").options(url=url, subscribe=topic).load()
    print("COUNT", rows.count())
    said = {"url": url, "milena.token": token}
    for options in (said, {"url": url, "kafka.sasl.jaas.config": login}):
        try:
            spark.read.format("milena").options(subscribe=topic, **options).load()
        except Exception as error:
            print(error)
        # With a schema nobody is asked yet.
        reader = spark.read.format("milena").schema("value binary")
        read = reader.options(subscribe=topic, **options).load()
        read.explain("extended")
        read.explain("cost")
        print(read, options.keys())
        with contextlib.suppress(Exception):
            print(read.count())
        for misspelt in ("milena.tokne", "kafka.sasl.jaas.conf"):
            try:
                spark.read.format("milena").options(subscribe=topic, **options, **{misspelt: token}).load()
            except Exception as error:
                print(error)
        try:
            rows.select("value").write.format("milena").options(topic=topic, **options).mode("append").save()
        except Exception as error:
            print(error)
        reader = spark.readStream.format("milena").schema("value binary")
        stream = reader.options(subscribe=topic, **options).load()
        stream.explain("extended")
        writer = stream.select("value").writeStream.format("milena").options(topic=topic, **options)
        writer = writer.option("transactionalId", "x")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        with contextlib.suppress(Exception):
            query.awaitTermination()
        query.explain(True)
        print(query.exception(), query.lastProgress, query.status)
    print("DONE")
"""


def test_nothing_that_spark_writes_has_a_secret(closed, tmp_path):
    """Plans, exceptions, the log at INFO, the log of events, checkpoints: read back, byte for byte."""
    topic = make_topic(closed, "canary")
    token, _ = user(closed, "canary", ("READ", "TOPIC", topic), ("WRITE", "TOPIC", topic))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK")}
    (tmp_path / "told").write_text(token)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, closed.url, topic, str(tmp_path / "out")],
        input=token,
        cwd=REPOSITORY,
        env={**inherited, "MILENA_TOKEN_FILE": str(tmp_path / "told")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    assert "DONE" in done.stdout, output[-3000:].replace(token, "TOKEN")
    assert f"COUNT {COUNT}" in done.stdout
    # What is looked at is what there is to see.
    assert "milena.token=*********(redacted)" in output
    assert " INFO " in output
    where = [line.replace(token, "TOKEN") for line in output.splitlines() if token in line]
    assert not where
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files)
    assert [path for path in files if token.encode() in path.read_bytes()] == []
