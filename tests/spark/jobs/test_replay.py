"""The job replay on a real Spark and real nodes: what comes back, what is written once, and what is refused."""

import json
from secrets import token_hex

import pytest

from milena.disk.os_files import OsFiles
from milena.sync import Client
from spark_ext.jobs import replay
from spark_ext.jobs.archiving.directory import read_manifest
from spark_ext.jobs.archiving.log_source import SparkLogSource, TopicChoice
from spark_ext.jobs.archiving.run import run_archive
from spark_ext.jobs.replaying.run import in_order
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.session import prepared
from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    call,
    create_topic,
    delete_topic,
    eventually,
    ok,
)
from tests.support.disk.stored_topics import fill, put
from tests.support.spark.committed_rows import values_in

pytestmark = pytest.mark.integration

TOPIC = "replayed"
COUNTS = (250, 100, 30)


@pytest.fixture(scope="module")
def session(spark):
    return prepared(spark)


@pytest.fixture(scope="module")
def archived(cluster, session, tmp_path_factory):
    """``archived(topic, …)`` archives to a directory of its own, or to ``root``, and returns that."""

    def archive(*topics, root=None, records_per_file=60):
        directory = tmp_path_factory.mktemp("archive") / "a" if root is None else root
        source = SparkLogSource(
            session=lambda: session,
            cluster=JobCluster(urls=(cluster.node(2).url,)),
            topics=TopicChoice(names=topics),
            compression="zstd",
            records_per_file=records_per_file,
        )
        run_archive(OsFiles(), str(directory), source, run_id=token_hex(8))
        return directory

    return archive


@pytest.fixture(scope="module")
def root(cluster, archived):
    """A topic of three partitions, archived in files of 60 records."""
    fill(cluster.node(1), create_topic(cluster.node(1), TOPIC, partitions=3), COUNTS)
    return archived(TOPIC)


@pytest.fixture
def run(cluster, capfd):
    """``run(root, to, name, …)`` runs the command: its exit code and JSON, or the last line of what it says."""

    def command(root, to, name, *more):
        words = ["--archive", str(root), "--url", cluster.node(3).url, "--to", to, "--name", name]
        capfd.readouterr()
        code = replay.run([*words, "--json", *more])
        printed = capfd.readouterr()
        if code:
            return code, printed.err.strip().splitlines()[-1]
        return code, json.loads(printed.out)

    return command


def records_in(cluster, topic, partition):
    with Client(cluster.node(1).url) as client, client.reader(topic, partition) as reader:
        return list(reader)


def wanted(partition, numbers):
    return [f"{TOPIC}-{partition}-{n} ".encode() for n in numbers]


def test_records_come_back_in_order_and_once_however_often_it_runs(run, root, cluster):
    to = create_topic(cluster.node(1), "back", partitions=3)
    for is_first in (True, False):
        code, report = run(root, to, "back")
        assert code == 0, report
        # Five, two and one.
        assert (report["files"], report["skipped"]) == ((8, 0) if is_first else (0, 8))
        assert report["records"] == (sum(COUNTS) if is_first else 0)
        assert report["bytes"] == (sum_of_bytes() if is_first else 0)
        for partition, count in enumerate(COUNTS):
            found = [r.value for r in records_in(cluster, to, partition)]
            assert found == wanted(partition, range(count))
    assert [p["next_offset"] for p in report["partitions"]] == list(COUNTS)


def sum_of_bytes():
    return sum(len(value) for p, count in enumerate(COUNTS) for value in wanted(p, range(count)))


def test_key_value_headers_and_time_are_kept(run, archived, cluster):
    node = cluster.node(1)
    topic = create_topic(node, "whole")
    headers = [None, [("h", b"1"), ("h", None)], [("", b"")]]
    put(node, topic, 0, [b"\x00\xff", None, b""], keys=[b"k", b"", None], headers=headers)
    to = create_topic(node, "whole-again")
    assert run(archived(topic), to, "whole")[0] == 0

    def parts(name):
        found = records_in(cluster, name, 0)
        return [(r.key, r.value, r.headers, r.timestamp_ms) for r in found]

    assert parts(to) == parts(topic)
    assert [r[3] for r in parts(to)] == [BASE_TIMESTAMP_MS + n for n in range(3)]


def test_what_the_archive_gets_later_is_written_by_the_next_run(run, archived, cluster):
    node = cluster.node(1)
    topic, to = (
        create_topic(node, "growing", partitions=2),
        create_topic(node, "grown", partitions=2),
    )
    put(node, topic, 0, [b"a"])
    directory = archived(topic)
    assert run(directory, to, "growing")[1]["records"] == 1
    put(node, topic, 0, [b"b"])
    put(node, topic, 1, [b"c"])
    archived(topic, root=directory)
    assert run(directory, to, "growing")[1]["records"] == 2
    assert values_in(node.url, to, 2) == [b"a", b"b", b"c"]


def test_keys_choose_where_the_topic_has_other_partitions(run, archived, cluster):
    """Records of a key stay in order, and so do those without one of each partition."""
    node = cluster.node(1)
    topic = create_topic(node, "keyed", partitions=3)
    for partition in range(3):
        keys = [None if n % 3 == 0 else f"k{partition}-{n % 7}".encode() for n in range(150)]
        put(node, topic, partition, [b"%d %d" % (partition, n) for n in range(150)], keys=keys)
    # The last offsets of the files are even and odd: chunks without a partition would go to either.
    directory = archived(topic, records_per_file=61)
    to = create_topic(node, "keyed-2", partitions=2)
    code, sentence = run(directory, to, "keyed")
    assert code == 4
    assert "partition 2" in sentence
    assert "--by-key" in sentence
    assert values_in(node.url, to, 2) == []

    code, report = run(directory, to, "keyed", "--by-key")
    assert (code, report["records"]) == (0, 450)
    found = [r for partition in range(2) for r in records_in(cluster, to, partition)]
    assert len({r.value for r in found}) == len(found) == 450
    lines = {}
    for record in found:
        partition, number = map(int, record.value.split())
        lines.setdefault((partition, record.key), []).append((record.partition, number))
    for places in lines.values():
        assert len({place for place, _ in places}) == 1
        assert places == sorted(places)
    with Client(node.url) as client, client.producer() as producer:
        sent = {key: producer.send(to, b"", key=key).result().partition for _, key in lines if key}
    assert {key: places[0][0] for (_, key), places in lines.items() if key} == sent


def test_pieces_of_a_file_are_written_by_offset_whatever_order_they_come_in(spark):
    rows = prepared(spark).range(3000).withColumnRenamed("id", "offset").repartition(5)
    found = in_order(rows)
    assert found.rdd.getNumPartitions() == 1
    assert [row.offset for row in found.collect()] == list(range(3000))


def test_times_and_partitions_choose_records(run, root, cluster):
    """A batch of 100 records has the times base to base + 99 ms."""
    to = create_topic(cluster.node(1), "chosen", partitions=2)
    times = ["--from", str(BASE_TIMESTAMP_MS + 10), "--until", str(BASE_TIMESTAMP_MS + 20)]
    for _ in range(2):
        code, _report = run(root, to, "chosen", *times, "--partitions", "0-1")
        assert code == 0
    for partition, batches in ((0, 3), (1, 1)):
        found = [r.value for r in records_in(cluster, to, partition)]
        numbers = [100 * batch + n for batch in range(batches) for n in range(10, 20)]
        assert found == wanted(partition, numbers)


def test_another_replay_under_the_name_is_refused(run, root, archived, cluster):
    node = cluster.node(1)
    to, elsewhere = (
        create_topic(node, "agreed", partitions=3),
        create_topic(node, "other", partitions=3),
    )
    stranger = create_topic(node, "stranger")
    put(node, stranger, 0, [b"s"])
    other_archive = archived(stranger)
    since = ["--from", "1970-01-02T00:00:00Z"]
    assert run(root, to, "agreed", *since)[0] == 0
    before = values_in(node.url, to, 3)
    assert len(before) == sum(COUNTS)
    cases = [
        (root, to, []),
        (root, to, ["--from", "1970-01-03"]),
        (root, to, [*since, "--until", "2100-01-01"]),
        (root, to, [*since, "--partitions", "0,1,2"]),
        (root, to, [*since, "--by-key"]),
        (other_archive, to, since),
        (root, elsewhere, since),
    ]
    for archive, topic, more in cases:
        code, sentence = run(archive, topic, "agreed", *more)
        assert code == 4, (topic, more)
        assert "another --name" in sentence
    assert values_in(node.url, to, 3) == before
    assert values_in(node.url, elsewhere, 3) == []
    assert run(root, to, "agreed", *since)[1]["skipped"] == 8


def test_an_archive_of_the_topic_with_other_files_goes_on_where_one_ends(
    run, root, archived, cluster
):
    to = create_topic(cluster.node(1), "cuts", partitions=3)
    assert run(root, to, "cuts")[0] == 0
    assert run(archived(TOPIC, records_per_file=1000), to, "cuts")[1]["skipped"] == 3
    assert len(values_in(cluster.node(1).url, to, 3)) == sum(COUNTS)


@pytest.mark.parametrize("forgotten", ["all", "0", "everything"])
def test_a_name_whose_progress_was_forgotten_is_refused(forgotten, run, root, cluster):
    """As groups are when nobody has committed for long: what is there would be doubled."""
    name = f"forgotten-{forgotten}"
    to = create_topic(cluster.node(1), name, partitions=3)
    assert run(root, to, name)[0] == 0
    with Client(cluster.node(1).url) as client:
        for part in ("all", "0", "1", "2") if forgotten == "everything" else (forgotten,):
            client.admin.delete_group(f"spark-{name}-{part}")
    for _ in range(2):
        code, sentence = run(root, to, name)
        assert code == 4
        assert "not known any more" in sentence
    assert len(values_in(cluster.node(1).url, to, 3)) == sum(COUNTS)


def test_a_run_that_ended_before_it_had_agreed_is_as_none(run, root, cluster):
    """It has taken the transactional id and no more."""
    node = cluster.node(1)
    to = create_topic(node, "unagreed", partitions=3)
    ok(
        call(
            node, "POST /transactions:begin", {"transactional_id": "unagreed-all", "timeout_ms": 9}
        )
    )
    assert run(root, to, "unagreed")[1]["records"] == sum(COUNTS)


def test_a_name_whose_groups_are_those_of_another_program_is_refused(run, root, cluster):
    node = cluster.node(1)
    to = create_topic(node, "taken", partitions=3)
    row = {"topic": to, "partition": 0, "offset": 7}
    ok(call(node, "POST /groups/spark-taken-1/offsets", {"offsets": [row]}))
    code, sentence = run(root, to, "taken")
    assert code == 4
    assert "partition 1" in sentence
    found = ok(call(node, "GET /groups/spark-taken-1/offsets"))
    assert found["offsets"][to]["0"]["offset"] == 7


def test_what_cannot_be_is_refused_before_anything_is_written(run, root, cluster, tmp_path):
    to = create_topic(cluster.node(1), "untouched", partitions=3)
    cases = [
        (root, "nope", "n", [], 4, "nope"),
        (root, TOPIC, "n", [], 4, "is what was archived"),
        (root, to, "n", ["--topic", "x"], 4, "holds nothing of topic x, but of replayed"),
        (root, to, "n", ["--topic-id", "x"], 4, "with the id x"),
        (
            root,
            to,
            "n",
            ["--partitions", "1,3"],
            4,
            "no partition 3 of topic replayed, but 0, 1, 2",
        ),
        (tmp_path, to, "n", [], 4, "is not an archive"),
        (root, to, "a b", [], 64, "not a name"),
        (root, to, "n", ["--from", "-1h"], 64, "another time for each run"),
        (root, to, "n", ["--from", "soon"], 64, "is not a time"),
        (root, to, "n", ["--from", "2026-01-02", "--until", "2026-01-02"], 64, "before --until"),
        (root, to, "n", ["--partitions", "2-1"], 64, "write 0,2,5-7"),
    ]
    for archive, topic, name, more, code, told in cases:
        found = run(archive, topic, name, *more)
        assert found[0] == code, (more, found)
        assert told in found[1]
    assert values_in(cluster.node(1).url, to, 3) == []


def test_a_damaged_file_stops_it(run, archived, cluster):
    node = cluster.node(1)
    topic, to = create_topic(node, "spoilt"), create_topic(node, "spoilt-to")
    fill(node, topic, [100])
    directory = archived(topic)
    [partition] = read_manifest(OsFiles(), str(directory)).partitions
    last = directory / partition.files[-1].path
    whole = last.read_bytes()
    last.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    code, sentence = run(directory, to, "spoilt")
    assert code == 1
    assert "another checksum" in sentence
    assert len(values_in(node.url, to)) == 60
    # Offset 60 is within a file of the other one.
    code, sentence = run(archived(topic, records_per_file=1000), to, "spoilt")
    assert code == 4
    assert "up to offset 60" in sentence
    last.write_bytes(whole)
    assert run(directory, to, "spoilt")[1]["skipped"] == 1
    assert len(values_in(node.url, to)) == 100


def test_a_topic_that_was_made_again_is_chosen_by_its_id(run, archived, cluster):
    node = cluster.node(1)
    topic = create_topic(node, "twice")
    put(node, topic, 0, [b"old"])
    directory = archived(topic)
    delete_topic(node, topic)
    eventually(lambda: create_topic(node, topic))
    put(node, topic, 0, [b"new"])
    source = read_manifest(OsFiles(), str(directory)).topic_ids(topic)
    assert len(source) == 1
    # It has another id than what was archived: records may come back to the name that they had.
    assert run(directory, topic, "twice")[1]["records"] == 1
    assert values_in(node.url, topic) == [b"new", b"old"]


def test_notes_tell_what_the_topic_makes_of_times(run, archived, cluster):
    node = cluster.node(1)
    topic = create_topic(node, "timed")
    put(node, topic, 0, [b"a"])
    directory = archived(topic)
    short = create_topic(node, "short", retention_ms=1_800_000)
    stamped = create_topic(node, "stamping", message_timestamp_type="LogAppendTime")
    assert "retention.ms" in run(directory, short, "short")[1]["notes"][0]
    assert "LogAppendTime" in run(directory, stamped, "stamping")[1]["notes"][0]
