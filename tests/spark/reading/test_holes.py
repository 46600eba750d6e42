"""Topics with holes, of compaction, transactions and deletion: each way to read a part of them gives its records."""

import json
from contextlib import suppress
from secrets import token_hex

import pytest

import milena.sync
from milena.disk.os_files import OsFiles
from spark_ext.jobs import archive, audit
from spark_ext.jobs.archiving.log_source import SparkLogSource, TopicChoice
from spark_ext.jobs.archiving.reader import read_archive
from spark_ext.jobs.archiving.run import run_archive
from spark_ext.jobs.archiving.verify import verify_archive
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    end_offset,
    eventually,
    ok,
    read,
)
from tests.support.disk.stored_topics import put

pytestmark = pytest.mark.integration

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": 64 << 10,
    "segment_ms": 500,
    "min_cleanable_dirty_ratio": 0.1,
}
DEADLINE_S = 120


def fill_compacted(cluster, topic):
    """Write a dozen keys again and again, and wait until most of that is gone from every copy."""
    for number in range(100):
        put(cluster.node(1), topic, 0, [b"%d" % number] * 12, keys=[b"k%d" % n for n in range(12)])
    for node in cluster.nodes:
        eventually(lambda node=node: first_offset(node, topic) > 900)
    # A copy that is compacted further between two reads of a test has other records.
    with milena.sync.Client(cluster.node(1).url) as client:
        client.admin.alter_configs(topic, {"min.cleanable.dirty.ratio": "1"})


def first_offset(node, topic):
    """The offset of the first record that the node's own copy has."""
    return ok(read(node, topic, offset=0, count=1, replica="local"))[0]["offset"]


def write_in_transaction(node, topic, values, *, is_aborted=False):
    with (
        milena.sync.Client(node.url) as client,
        suppress(KeyError),
        client.transactional_producer(topic).transaction() as transaction,
    ):
        for value in values:
            transaction.send(topic, value, partition=0)
        if is_aborted:
            raise KeyError


def compacted(cluster):
    topic = create_topic(cluster.node(1), "holes-compacted", **COMPACTED)
    fill_compacted(cluster, topic)
    return topic


def compacted_once(cluster):
    """It is compacted no more: the holes are still there."""
    topic = create_topic(cluster.node(1), "holes-compacted-once", **COMPACTED)
    fill_compacted(cluster, topic)
    with milena.sync.Client(cluster.node(1).url) as client:
        client.admin.alter_configs(topic, {"cleanup.policy": "delete"})
    return topic


def aborted(cluster):
    """More is aborted than an answer holds, in the middle and at the end."""
    node = cluster.node(1)
    topic = create_topic(node, "holes-aborted")
    many = [b"a" * 100_000] * 50
    write_in_transaction(node, topic, [b"first"] * 20)
    write_in_transaction(node, topic, many, is_aborted=True)
    write_in_transaction(node, topic, [b"between"] * 20)
    write_in_transaction(node, topic, many, is_aborted=True)
    eventually(lambda: end_offset(node, topic) == 144)
    return topic


def deleted(cluster):
    """The log starts in a hole."""
    topic = create_topic(cluster.node(1), "holes-deleted", **COMPACTED)
    fill_compacted(cluster, topic)
    ok(
        call(
            cluster.node(1),
            f"POST /topics/{topic}/partitions/0/records:delete",
            {"before_offset": 500},
        )
    )
    return topic


@pytest.fixture(scope="module", params=[compacted, compacted_once, aborted, deleted])
def topic(request, cluster):
    return request.param(cluster)


@pytest.fixture
def load(spark, cluster, topic):
    def frame(**options):
        reader = spark.read.format("milena").options(url=cluster.node(1).url, subscribe=topic)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return frame


@pytest.fixture
def bounds(cluster, topic):
    answer = ok(call(cluster.node(1), f"GET /topics/{topic}/partitions/0/offsets"))
    return answer["beginning_offset"], answer["end_offset"]


def offsets_of(frame):
    return sorted(row.offset for row in frame.select("offset").collect())


def test_a_topic_has_its_records_however_tasks_are_cut(load, bounds):
    whole = offsets_of(load())
    start, end = bounds
    assert 0 < len(whole) < (end - start) / 2, "there are holes"
    assert offsets_of(load(minPartitions=6)) == whole
    assert offsets_of(load(maxRecordsPerPartition=100)) == whole


def test_a_range_may_lie_in_a_hole(load, topic, bounds):
    whole = offsets_of(load())
    start, end = bounds
    step = (end - start) // 4
    for first, last in ((start, start + step), (start + step, end - step), (end - step, end)):
        frame = load(
            startingOffsets=json.dumps({topic: {"0": first}}),
            endingOffsets=json.dumps({topic: {"0": last}}),
        )
        assert offsets_of(frame) == [offset for offset in whole if first <= offset < last]


def test_a_stream_goes_through_holes_and_on_after_a_restart(spark, cluster, load, topic, tmp_path):
    whole = offsets_of(load())
    seen = {}

    def take(frame, batch_id):
        seen[batch_id] = offsets_of(frame)

    def stream(most, trigger):
        reader = spark.readStream.format("milena").options(
            url=cluster.node(1).url,
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(most),
        )
        writer = reader.load().writeStream.foreachBatch(take).trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = stream(40, {"processingTime": "0 seconds"})
    try:
        eventually(lambda: query.lastProgress and query.lastProgress.batchId >= 1)
    finally:
        query.stop()
    assert stream(300, {"availableNow": True}).awaitTermination(DEADLINE_S)
    assert sorted(offset for batch in seen.values() for offset in batch) == whole


def test_an_archive_of_parts_is_whole(spark, cluster, load, topic, tmp_path, bounds, capfd):
    whole = offsets_of(load())
    start, end = bounds
    session = prepared(spark)
    source = SparkLogSource(
        session=lambda: session,
        cluster=JobCluster(urls=(cluster.node(1).url,)),
        topics=TopicChoice(names=(topic,)),
        compression="zstd",
        records_per_file=1000,
    )
    root = str(tmp_path / "a")
    for _ in range(3):
        most = -(-(end - start) // 3)
        run_archive(OsFiles(), root, source, run_id=token_hex(8), records_max=most)
    assert archive.run(["--url", cluster.node(1).url, "--topic", topic, "--output", root]) == 0
    assert "archived 0 records" in capfd.readouterr().out
    assert offsets_of(read_archive(session, root)) == whole
    verdict = verify_archive(OsFiles(), root)
    assert verdict.is_good
    [partition] = verdict.manifest.partitions
    assert partition.records + partition.missing == end - start
    assert audit.run(["--url", cluster.node(1).url, "--archive", root]) == 0


def test_the_client_reads_the_same_ranges(cluster, load, topic, bounds):
    whole = offsets_of(load())
    start, end = bounds
    step = (end - start) // 5
    with milena.sync.Client(cluster.node(1).url) as client:
        for first in range(start, end, step):
            with client.reader(topic, 0, start=first, end=first + step) as reader:
                found = [record.offset for record in reader]
            assert found == [o for o in whole if first <= o < first + step]
