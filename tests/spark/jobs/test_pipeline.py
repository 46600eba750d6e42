"""The jobs on a real Spark and real nodes: 10,000 lines of an access log from one end of the pipeline to the other."""

import json
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as sf

from examples import site_stats
from examples.weblog.site_report import Counts
from milena.disk.os_files import OsFiles
from milena.sync import Client
from spark_ext.jobs import archive
from spark_ext.jobs.archiving.log_source import SparkLogSource, TopicChoice
from spark_ext.jobs.archiving.reader import read_archive
from spark_ext.jobs.archiving.run import run_archive
from spark_ext.jobs.archiving.verify import verify_archive
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    call,
    cluster_id,
    create_topic,
    delete_topic,
    end_offset,
    eventually,
    ok,
)
from tests.support.disk.stored_topics import fill, put
from tests.support.spark.access_lines import SAMPLE, Tally, sample_lines, tallies

pytestmark = pytest.mark.integration

TOPIC = "access"
TOP = 5


def milena(node, *words: str) -> bytes:
    """What the command prints."""
    command = (sys.executable, "-m", "milena", "--url", node.url, *words)
    return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout


@pytest.fixture(scope="module")
def session(spark):
    """As jobs have it."""
    return prepared(spark)


@pytest.fixture(scope="module")
def produced(cluster):
    """The sample in a topic of three partitions, written by the command."""
    create_topic(cluster.node(1), TOPIC, partitions=3)
    milena(cluster.node(1), "produce", TOPIC, str(SAMPLE))
    return TOPIC


@pytest.fixture(scope="module")
def run(cluster, session):
    """``run(root, "topic", …)`` archives and returns the summary."""

    def archived(root: Path, *topics: str, records_per_file=1500, **options):
        source = SparkLogSource(
            session=lambda: session,
            cluster=JobCluster(urls=(cluster.node(2).url,)),
            topics=TopicChoice(names=topics),
            compression="zstd",
            records_per_file=records_per_file,
        )
        return run_archive(OsFiles(), str(root), source, run_id=token_hex(8), **options)

    return archived


@pytest.fixture(scope="module")
def root(produced, run, tmp_path_factory):
    """The sample, archived in three runs."""
    directory = tmp_path_factory.mktemp("archive") / "a"
    counts = [run(directory, produced, records_max=4000).records for _ in range(3)]
    assert counts == [4000, 4000, 2000]
    return directory


# -- archive ---------------------------------------------------------------------------------------


def test_lines_come_back_byte_for_byte(cluster, produced):
    printed = milena(cluster.node(3), "consume", produced)
    assert sorted(printed.split(b"\n")) == sorted([*sample_lines(), b""])


def test_the_archive_holds_what_the_topic_holds(root, session, cluster, produced):
    """Each (partition, offset) once, with the columns that the source gives."""
    topic = (
        session.read.format("milena")
        .options(url=cluster.node(1).url, subscribe=produced, includeHeaders="true")
        .load()
    )
    archived = read_archive(session, str(root))
    assert archived.schema == topic.schema
    place = ["partition", "offset"]
    rows = archived.orderBy(*place).collect()
    assert len(rows) == 10_000
    assert rows == topic.orderBy(*place).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(sample_lines())


def test_files_hold_no_more_than_asked_and_the_manifest_is_sound(root, run, produced):
    verdict = verify_archive(OsFiles(), str(root))
    assert verdict.is_good
    assert verdict.unlisted == ()
    files = [file for p in verdict.manifest.partitions for file in p.files]
    assert max(file.records for file in files) <= 1500
    assert sum(file.records for file in files) == 10_000
    assert run(root, produced).records == 0
    assert sorted(path.name for path in root.iterdir()) == [
        "archive.lock",
        "data",
        "manifest.json",
        "staging",
    ]


def test_records_keep_everything_they_have(run, session, cluster, tmp_path):
    """An odd name, an empty partition, keys, headers, tombstones and the leader's timestamps."""
    node = cluster.node(1)
    odd = create_topic(node, "_odd.topic-1", partitions=3)
    stamped = create_topic(node, "stamped", message_timestamp_type="LogAppendTime")
    headers = [None, [("h", b"1"), ("h", None)]]
    put(node, odd, 2, [b"\x00\xff", None], keys=[b"k", None], headers=headers)
    put(node, stamped, 0, [b"v"])
    summary = run(tmp_path / "a", odd, stamped)
    assert [(p.key.topic, p.key.partition, p.records) for p in summary.partitions] == [
        (odd, 0, 0), (odd, 1, 0), (odd, 2, 2), (stamped, 0, 1),
    ]  # fmt: skip
    rows = read_archive(session, str(tmp_path / "a")).orderBy("topic", "offset").collect()
    first, second, third = (row.asDict() for row in rows)
    same = {"topic": odd, "partition": 2, "timestampType": 0}
    assert first.pop("timestamp").timestamp() * 1000 == BASE_TIMESTAMP_MS
    assert first == {**same, "offset": 0, "key": b"k", "value": b"\x00\xff", "headers": None}
    second.pop("timestamp")
    values = [Row(key="h", value=b"1"), Row(key="h", value=None)]
    assert second == {**same, "offset": 1, "key": None, "value": None, "headers": values}
    assert (third["topic"], third["timestampType"]) == (stamped, 1)
    one = read_archive(session, str(tmp_path / "a"), [stamped])
    assert [bytes(row.value) for row in one.collect()] == [b"v"]


def test_records_deleted_unarchived_stop_the_job_until_that_is_accepted(
    run, session, cluster, tmp_path
):
    node = cluster.node(1)
    topic = create_topic(node, "gone", segment_bytes=65_536)
    fill(node, topic, [20], batch_records=20, size=1024)
    run(tmp_path / "a", topic)
    fill(node, topic, [380], batch_records=20, size=1024)
    path = f"/v3/clusters/{cluster_id(node)}/topics/{topic}/configs/retention.bytes"
    ok(call(node, f"PUT {path}", {"value": "65536"}))

    def first() -> int:
        offsets = ok(call(node, f"GET /topics/{topic}/partitions/0/offsets"))
        return int(offsets["beginning_offset"])

    eventually(lambda: first() > 20)
    words = ["--url", node.url, "--topic", topic, "--output", str(tmp_path / "a")]
    assert archive.run(words) == 1
    assert archive.run([*words, "--accept-data-loss"]) == 0
    verdict = verify_archive(OsFiles(), str(tmp_path / "a"))
    [partition] = verdict.manifest.partitions
    assert verdict.is_good
    assert [gap.start for gap in partition.gaps] == [20]
    assert partition.records + partition.missing == 400


def test_what_transactions_leave_is_no_loss(run, session, cluster, tmp_path):
    """Markers have offsets, and so has what was aborted; a run may end between them."""
    topic = create_topic(cluster.node(1), "archived-transactions")
    with Client(cluster.node(1).url) as client:
        producer = client.transactional_producer("archived")
        for number in range(6):
            with suppress(KeyError), producer.transaction() as transaction:
                for record in range(3):
                    transaction.send(topic, f"{number} {record}".encode())
                if number % 2:
                    raise KeyError
    eventually(lambda: end_offset(cluster.node(1), topic) == 24)
    for _ in range(5):
        run(tmp_path / "a", topic, records_max=5)
    rows = read_archive(session, str(tmp_path / "a")).orderBy("offset").collect()
    wanted = [f"{number} {record}".encode() for number in (0, 2, 4) for record in range(3)]
    assert [bytes(row.value) for row in rows] == wanted
    verdict = verify_archive(OsFiles(), str(tmp_path / "a"))
    assert verdict.is_good
    [partition] = verdict.manifest.partitions
    assert (partition.next_offset, partition.records, len(partition.gaps)) == (24, 9, 1)


# -- site_stats ------------------------------------------------------------------------------------


def assert_counts(found: Counts, wanted: Tally) -> None:
    assert found.requests == wanted.requests
    assert found.size_bytes == wanted.size_bytes
    assert found.clients == len(wanted.clients)
    assert found.by_class == tuple(wanted.by_class[digit] for digit in range(1, 6))
    assert found.top_paths == wanted.top(wanted.paths, TOP)
    assert found.top_error_paths == wanted.top(wanted.error_paths, TOP)


@pytest.fixture(scope="module")
def tables(root, session, tmp_path_factory):
    """What ``site_stats`` wrote of the archive."""
    directory = tmp_path_factory.mktemp("stats")
    records = read_archive(session, str(root))
    formats = site_stats.FORMATS
    report = site_stats.run_site_stats(session, records, str(directory), formats=formats, top=TOP)
    return directory, report


def test_hours_are_counted_as_plain_python_counts_them(tables):
    _, report = tables
    wanted, malformed = tallies(sample_lines())
    assert_counts(report.overall, wanted.pop(None))
    assert [c.hour for c in report.hours] == sorted(wanted)
    for counts in report.hours:
        assert_counts(counts, wanted[counts.hour])
    assert len(report.hours) == 84
    assert report.malformed_count == malformed == 1


def test_tables_hold_the_report_in_every_format(tables, session):
    directory, report = tables
    hourly = session.read.parquet(f"file://{directory}/hourly.parquet").orderBy("hour").collect()
    assert [row.requests for row in hourly] == [c.requests for c in report.hours]
    assert [row.hour for row in hourly] == sorted(row.hour for row in hourly)
    assert [tuple(path) for path in hourly[0].top_paths] == list(report.hours[0].top_paths)
    [line] = lines_of(directory / "overall.json")
    overall = json.loads(line)
    assert (overall["requests"], overall["errors"]) == (9999, 220)
    header, first, *rest = lines_of(directory / "hourly.csv")
    assert header.startswith("hour,requests,bytes,clients,status_1xx,")
    assert first.startswith(f"2015-05-17T10:00:00.000Z,{report.hours[0].requests},")
    assert len(rest) == 83


def lines_of(directory: Path) -> list[str]:
    [part] = directory.glob("part-*")
    return part.read_text(encoding="utf-8").splitlines()


def test_lines_that_cannot_be_read_are_kept_with_their_place(tables, session, root):
    directory, _ = tables
    [row] = session.read.parquet(f"file://{directory}/quarantine.parquet").collect()
    assert row.reason == "not in the combined or common log format"
    at = read_archive(session, str(root)).where(
        (sf.col("partition") == row.partition) & (sf.col("offset") == row.offset)
    )
    [original] = at.collect()
    assert (bytes(row.value), row.topic, row.timestamp) == (
        bytes(original.value), TOPIC, original.timestamp,
    )  # fmt: skip
    assert bytes(row.value) in sample_lines()


def test_a_topic_gives_the_same_counts_as_its_archive(tables, cluster, produced, capfd):
    _, report = tables
    words = ["--url", cluster.node(3).url, "--topic", produced, "--top", str(TOP), "--json"]
    assert site_stats.run(words) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(json.dumps(site_stats.report_json(report)))
    assert printed["hours"][0]["hour"] == "2015-05-17T10:00:00Z"


def test_late_lines_and_other_zones_count_in_the_hour_of_their_event(session, tmp_path):
    lines = [
        b'a - - [01/Jan/2024:10:10:00 +0000] "GET / HTTP/1.1" 200 1',
        b'a - - [01/Jan/2024:12:59:59 +0000] "GET / HTTP/1.1" 200 2',
        b'b - - [01/Jan/2024:15:40:00 +0530] "GET / HTTP/1.1" 200 4',
        b'a - - [01/Jan/2024:05:10:00 -0500] "GET / HTTP/1.1" 200 8',
    ]
    rows = [
        (None, bytearray(line), "t", 0, i, datetime.now(UTC), 0, None)
        for i, line in enumerate(lines)
    ]
    records = session.createDataFrame(rows, site_stats.SCHEMA)
    report = site_stats.run_site_stats(session, records, None)
    assert [(f"{c.hour:%d %H}", c.requests, c.size_bytes, c.clients) for c in report.hours] == [
        ("01 10", 3, 13, 2), ("01 12", 1, 2, 1),
    ]  # fmt: skip


def test_nothing_is_counted_as_nothing(session, cluster, capfd):
    topic = create_topic(cluster.node(1), "silent")
    assert site_stats.run(["--url", cluster.node(1).url, "--topic", topic]) == 0
    assert "0 requests in 0 hours, 0 lines that could not be read" in capfd.readouterr().out


# -- the command lines -----------------------------------------------------------------------------


def test_archive_tells_what_it_did(run, cluster, tmp_path, capfd):
    node = cluster.node(1)
    for name in ("pat-1", "pat-2"):
        put(node, create_topic(node, name), 0, [b"a", b"b"])
    words = ["--url", node.url, "--topic-pattern", "pat-.", "--output", str(tmp_path / "a")]
    assert archive.run([*words, "--max-records", "3", "--compression", "snappy"]) == 0
    assert "archived 3 records in 2 files; 1 left for the next run" in capfd.readouterr().out
    assert archive.run([*words, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 1
    assert archive.run(["--output", str(tmp_path / "a"), "--verify"]) == 0
    assert "4 records in 3 files: sound" in capfd.readouterr().out
    delete_topic(node, "pat-2")
    assert archive.run([*words, "--json"]) == 0, "what is archived of a topic outlives it"


def test_refusals_are_one_line_and_an_exit_code(cluster, tmp_path, capfd):
    """Before Spark starts, so that they are quick."""
    node = cluster.node(1)
    new = ["--url", node.url, "--output", str(tmp_path / "a")]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    cases = [
        (archive.run, [*new, "--topic", "nope"], 4, "nope"),
        (archive.run, [*new, "--topic-pattern", "nope.*"], 4, "no topic matches nope.*"),
        (archive.run, new, 64, "--topic or --topic-pattern"),
        (archive.run, [*new, "--topic-pattern", "("], 64, "missing )"),
        (archive.run, ["--verify", "--output", str(tmp_path / "none")], 4, "is not an archive"),
        (
            archive.run,
            ["--topic", "t", "--output", str(tmp_path / "other")],
            4,
            "is not an archive",
        ),
        (archive.run, ["--url", "127.0.0.1:1", "--topic", "t", *new[2:]], 2, "cannot reach"),
        (site_stats.run, ["--archive", str(tmp_path / "none")], 4, "is not an archive"),
        (site_stats.run, [], 64, "--topic, or --archive"),
    ]
    for run_job, words, code, sentence in cases:
        assert run_job(words) == code, words
        errors = capfd.readouterr().err.strip().splitlines()
        assert sentence in errors[-1], errors
