"""The job audit on a real Spark and real nodes: what is a difference to the archive, and what is none."""

import json
from secrets import token_hex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from milena.disk.os_files import OsFiles
from milena.sync import Client
from spark_ext.jobs import audit
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.log_source import SparkLogSource, TopicChoice
from spark_ext.jobs.archiving.manifest import Manifest, PartitionArchive
from spark_ext.jobs.archiving.plan import PartitionState
from spark_ext.jobs.archiving.run import run_archive
from spark_ext.jobs.auditing.report import (
    AuditReport,
    Difference,
    PartitionAudit,
    audit_of,
    audit_ranges,
    report_text,
)
from spark_ext.jobs.auditing.run import AuditWanted, run_audit
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import create_topic, delete_topic, end_offset, eventually
from tests.support.disk.stored_topics import fill, put
from tests.support.spark.archives import key

COUNTS = (120, 40)


@pytest.fixture(scope="module")
def session(spark):
    return prepared(spark)


@pytest.fixture
def archived(cluster, session, tmp_path):
    """``archived(topic)`` archives it, and returns where."""

    def archive(topic):
        source = SparkLogSource(
            session=lambda: session,
            cluster=JobCluster(urls=(cluster.node(2).url,)),
            topics=TopicChoice(names=(topic,)),
            compression="zstd",
            records_per_file=50,
        )
        run_archive(OsFiles(), str(tmp_path / "a"), source, run_id=token_hex(8))
        return tmp_path / "a"

    return archive


@pytest.fixture
def run(cluster, capfd):
    """``run(root, …)`` runs the command: its exit code and JSON, or the last line of what it says."""

    def command(root, *more):
        capfd.readouterr()
        words = ["--archive", str(root), "--url", cluster.node(3).url, "--json", *more]
        code = audit.run(words)
        printed = capfd.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err.splitlines()[-1]

    return command


def rewrite(root, change, *, file=0):
    """Change the rows of a file behind the archive's back; ``change`` gets and returns a list of them."""
    [partition] = read_manifest(OsFiles(), str(root)).partitions
    path = root / partition.files[file].path
    table = pq.read_table(path, partitioning=None)
    rows = change(table.to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def transactional(cluster, topic, values):
    with (
        Client(cluster.node(1).url) as client,
        client.transactional_producer(topic).transaction() as transaction,
    ):
        for value in values:
            transaction.send(topic, value, key=b"k")
    ends = len(values) + 1
    eventually(lambda: end_offset(cluster.node(1), topic) >= ends)


@pytest.mark.integration
def test_an_archive_is_as_its_topic(run, archived, cluster):
    """However much was written since; a partition that came later is not archived yet, either."""
    node = cluster.node(1)
    topic = create_topic(node, "audited", partitions=2)
    fill(node, topic, COUNTS)
    headers = [None, [("h", b"1"), ("h", None)]]
    put(node, topic, 0, [b"", None], keys=[b"", None], headers=headers)
    root = archived(topic)
    code, report = run(root)
    assert code == 0
    assert (report["is_same"], report["compared"], report["examples"]) == (True, 162, [])
    put(node, topic, 1, [b"new"] * 3)
    with Client(node.url) as client:
        client.admin.add_partitions(topic, 3)
    put(node, topic, 2, [b"new"])
    code, report = run(root)
    assert code == 0
    assert report["compared"] == 162
    assert [p["behind"] for p in report["partitions"]] == [0, 3, 1]


@pytest.mark.integration
def test_every_part_of_a_record_is_compared(run, archived, cluster):
    node = cluster.node(1)
    topic = create_topic(node, "changed")
    lists = [[("a", None), ("b", None)] for _ in range(10)]
    put(node, topic, 0, [b"v"] * 10, keys=[None] * 10, headers=lists)
    transactional(cluster, topic, [b"t"])
    root = archived(topic)
    assert run(root)[0] == 0

    def change(rows):
        rows[4]["value"] = b"w"
        # Hashes of Spark pass over nulls, and do not see where a name ends.
        rows[5]["headers"] = [{"key": "a", "value": b"b"}]
        rows[6]["key"] = b""
        rows[7]["timestamp"] = rows[8]["timestamp"]
        rows[8]["value"], rows[8]["key"] = None, b"k"
        assert rows[-1]["offset"] == 10
        marker = {**rows[-1], "offset": 11}
        return [*rows[:3], *rows[4:], marker]

    rewrite(root, change)
    code, report = run(root)
    assert code == 1
    [partition] = report["partitions"]
    assert (partition["missing"], partition["extra"], partition["different"]) == (1, 1, 5)
    assert report["compared"] == 10
    assert report["examples"] == [
        "partition 0 offset 3: in the topic, and not archived",
        "partition 0 offset 4: another value",
        "partition 0 offset 5: another headers",
        "partition 0 offset 6: another key",
        "partition 0 offset 7: another timestamp",
        "partition 0 offset 8: another key, value",
        "partition 0 offset 11: archived, and not in the topic",
    ]
    assert run(root, "--examples", "1")[1]["examples"] == report["examples"][:1]
    assert audit.run(["--archive", str(root), "--url", node.url, "--examples", "2"]) == 1


@pytest.mark.integration
def test_what_retention_has_deleted_is_no_difference(run, archived, cluster):
    """Within a file of 50 records; and what is different behind it still is."""
    node = cluster.node(1)
    topic = create_topic(node, "deleted-partly")
    fill(node, topic, [120])
    root = archived(topic)
    with Client(node.url) as client:
        client.admin.delete_records(topic, 0, 70)
        eventually(lambda: run(root)[1]["partitions"][0]["deleted"] == 70)
        code, report = run(root)
        assert (code, report["compared"]) == (0, 50)
        rewrite(root, lambda rows: rows[:-1], file=1)
        code, report = run(root)
        assert (code, report["examples"]) == (
            1,
            ["partition 0 offset 99: in the topic, and not archived"],
        )
        client.admin.delete_records(topic, 0, 120)
    eventually(lambda: run(root)[1]["partitions"][0]["deleted"] == 120)
    code, report = run(root)
    assert (code, report["compared"]) == (0, 0)


@pytest.mark.integration
def test_what_is_deleted_while_it_runs_is_no_difference(archived, cluster, session):
    """Between the question where the log begins and the reading, where a session is asked for."""
    node = cluster.node(1)
    topic = create_topic(node, "overtaken-audit")
    fill(node, topic, [120])
    root = archived(topic)

    def overtaken():
        with Client(node.url) as client:
            client.admin.delete_records(topic, 0, 70)
        return session

    report = run_audit(
        OsFiles(), AuditWanted(root=str(root), cluster=JobCluster(urls=(node.url,))), overtaken
    )
    assert (report.differences, report.examples, report.compared) == (0, (), 50)
    assert report.partitions[0].deleted == 70


@pytest.mark.integration
def test_what_compaction_removed_is_no_difference(run, archived, cluster):
    """As if offset 1, a marker in truth, had been a record when it was archived."""
    topic = create_topic(cluster.node(1), "audit-compact", cleanup_policy="compact")
    transactional(cluster, topic, [b"t"])
    root = archived(topic)
    rewrite(root, lambda rows: [*rows, {**rows[0], "offset": 1}])
    code, report = run(root)
    assert (code, report["examples"]) == (0, [])
    assert [(p["missing"], p["compacted"]) for p in report["partitions"]] == [(0, 1)]


@pytest.mark.integration
def test_what_cannot_be_compared_is_refused(run, archived, cluster, tmp_path):
    node = cluster.node(1)
    topic = create_topic(node, "made-again")
    put(node, topic, 0, [b"a"])
    root = archived(topic)
    code, told = run(root, "--topic", "x")
    assert (code, "holds nothing of topic x" in told) == (4, True)
    code, told = run(tmp_path / "none")
    assert (code, "is not an archive" in told) == (4, True)
    assert audit.run(["--archive", str(root), "--url", "http://127.0.0.1:1"]) == 2
    assert audit.run(["--archive", str(root), "--examples", "-1"]) == 64
    delete_topic(node, topic)
    assert run(root)[0] == 4
    eventually(lambda: create_topic(node, topic))
    code, told = run(root)
    assert (code, "made again since it was archived" in told) == (4, True)


# -- without a cluster -----------------------------------------------------------------------------


def state(start, end, number=0):
    return PartitionState(key=key(number), log_start_offset=start, high_watermark=end)


def archive_of(start, end):
    partition = PartitionArchive(key=key(), start_offset=start, next_offset=end)
    return Manifest(cluster_id="c-1", commits=1, partitions=(partition,))


@pytest.mark.parametrize(
    ("archived_range", "log", "compared", "behind"),
    [
        ((0, 10), (0, 10), (0, 10), 0),
        ((0, 10), (0, 15), (0, 10), 5),
        ((0, 10), (4, 15), (4, 10), 5),
        ((0, 10), (12, 15), (12, 10), 3),
        # A log that lost records: the archive is read beyond its end.
        ((0, 10), (0, 7), (0, 7), 0),
    ],
)
def test_ranges_are_what_both_should_have(archived_range, log, compared, behind):
    [found] = audit_ranges(archive_of(*archived_range), [state(*log)])
    assert (found.start, found.end, found.behind) == (*compared, behind)
    assert (found.to_read is None) == (compared[0] >= compared[1])


def test_a_partition_that_was_never_archived_is_behind():
    [found] = audit_ranges(archive_of(0, 10), [state(3, 9, number=1)])
    assert (found.files, found.to_read, found.behind) == ((), None, 6)
    counts = audit_of(found, {}, 3)
    assert (counts.deleted, counts.behind) == (0, 6)


def test_what_the_log_begins_behind_is_deleted():
    [found] = audit_ranges(archive_of(2, 10), [state(4, 10)])
    counts = audit_of(found, {Difference.MISSING: 3}, 6)
    assert (counts.missing, counts.deleted) == (3, 4)
    assert audit_of(found, {}, 99).deleted == 8


def test_a_report_tells_how_many_more_there_are():
    part = PartitionAudit(
        partition=0, missing=2, extra=1, different=1, compacted=0, deleted=0, behind=0
    )
    report = AuditReport(topic="t", compared=1234, partitions=(part,), examples=("one", "two"))
    assert report_text(report).splitlines()[-4:] == [
        "one",
        "two",
        "and 2 more",
        "compared 1,234 records of topic t with the archive: 4 differences",
    ]
