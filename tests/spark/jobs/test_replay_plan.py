"""Which files a replay writes, and what a name stands for."""

from dataclasses import replace

import pytest

from milena.cluster.view import TopicView
from spark_ext.jobs.archiving.manifest import ArchivedFile, Manifest, PartitionArchive, file_path
from spark_ext.jobs.replaying.plan import (
    PARTITIONS_MAX,
    ReplayFilter,
    agreed_number,
    files_below,
    find_source,
    parse_partitions,
    require_partitions,
)
from spark_ext.jobs.replaying.report import (
    PartitionReplay,
    ReplayReport,
    notes_on,
    report_json,
    report_text,
)
from spark_ext.jobs.running.errors import JobInputError
from tests.support.spark.archives import key

ALL = ReplayFilter()
DAY_MS = 86_400_000


def partition_of(number=0, *ends, topic="orders", topic_id="id-1", start=0):
    """An archived partition whose files end before these offsets."""
    of = key(number, topic, topic_id)
    starts = [start, *ends][: len(ends)]
    files = [
        ArchivedFile(
            path=file_path(of, first, end - 1),
            first_offset=first,
            last_offset=end - 1,
            records=end - first,
            size_bytes=1,
            crc32c=1,
        )
        for first, end in zip(starts, ends, strict=True)
    ]
    return PartitionArchive(
        key=of, start_offset=start, next_offset=max([start, *ends]), files=tuple(files)
    )


def manifest_of(*partitions):
    return Manifest(cluster_id="c-1", commits=1, partitions=partitions)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", (0,)), ("3,1", (1, 3)), ("0,2,5-7", (0, 2, 5, 6, 7)), ("1-2, 2-3", (1, 2, 3))],
)
def test_partitions_are_numbers_and_ranges(text, numbers):
    assert parse_partitions(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "3-2", "1-", "0-999999999", "1.5"])
def test_what_are_no_partitions_is_refused(text):
    with pytest.raises(ValueError, match="partitions"):
        parse_partitions(text)


def test_the_only_topic_needs_no_name():
    source = find_source(manifest_of(partition_of(0, 5), partition_of(1)), None, None, ALL)
    assert (source.cluster_id, source.topic, source.topic_id) == ("c-1", "orders", "id-1")
    assert [p.key.partition for p in source.partitions] == [0, 1]
    chosen = ReplayFilter(partitions=(1,))
    found = find_source(manifest_of(partition_of(0), partition_of(1)), None, None, chosen)
    assert [p.key.partition for p in found.partitions] == [1]


@pytest.mark.parametrize(
    ("manifest", "wanted", "told"),
    [
        (Manifest(), (None, None, ALL), "holds nothing yet"),
        (manifest_of(partition_of(topic="a"), partition_of()), (None, None, ALL), "a, orders"),
        (manifest_of(partition_of()), ("x", None, ALL), "nothing of topic x, but of orders"),
        (manifest_of(partition_of()), (None, "id-9", ALL), "with the id id-9, but id-1"),
        (
            manifest_of(partition_of(), partition_of(topic_id="id-2")),
            (None, None, ALL),
            "--topic-id, of id-1, id-2",
        ),
        (
            manifest_of(partition_of()),
            (None, None, ReplayFilter(partitions=(0, 4))),
            "no partition 4 of topic orders, but 0",
        ),
        (
            manifest_of(*map(partition_of, range(PARTITIONS_MAX + 1))),
            (None, None, ALL),
            "choose some with --partitions",
        ),
    ],
)
def test_a_source_that_is_not_clear_is_refused_and_what_there_is_named(manifest, wanted, told):
    with pytest.raises(JobInputError, match=told):
        find_source(manifest, *wanted)


def test_a_topic_that_was_made_again_is_found_by_its_id():
    manifest = manifest_of(partition_of(0, 5), partition_of(0, 3, topic_id="id-2"))
    source = find_source(manifest, "orders", "id-2", ALL)
    assert [p.records for p in source.partitions] == [3]


def test_a_name_stands_for_all_that_is_asked_for():
    """And neither for where the archive is nor for how much is in it."""
    source = find_source(manifest_of(partition_of(0, 5)), None, None, ALL)
    grown = find_source(manifest_of(partition_of(0, 5, 9), partition_of(1)), None, None, ALL)
    number = agreed_number(source, ALL, "to", is_by_key=False)
    assert agreed_number(grown, ALL, "to", is_by_key=False) == number
    others = [
        (replace(source, cluster_id="c-2"), ALL, "to", False),
        (replace(source, topic="other"), ALL, "to", False),
        (replace(source, topic_id="id-2"), ALL, "to", False),
        (source, ReplayFilter(from_ms=0), "to", False),
        (source, ReplayFilter(until_ms=0), "to", False),
        (source, ReplayFilter(partitions=(0,)), "to", False),
        (source, ALL, "two", False),
        (source, ALL, "to", True),
    ]
    numbers = [agreed_number(s, c, to, is_by_key=by_key) for s, c, to, by_key in others]
    assert len({number, *numbers}) == len(others) + 1
    assert all(0 <= n < 1 << 63 for n in [number, *numbers])


def test_a_topic_with_too_few_partitions_is_refused_with_the_number_that_is_needed():
    source = find_source(manifest_of(partition_of(0, 5), partition_of(3, 5)), None, None, ALL)
    require_partitions(source, "to", 4)
    with pytest.raises(JobInputError, match=r"alter to --partitions 4\), or .* --by-key"):
        require_partitions(source, "to", 3)
    empty = find_source(manifest_of(partition_of(0, 5), partition_of(3)), None, None, ALL)
    require_partitions(empty, "to", 1)


def test_files_are_skipped_up_to_where_one_ends():
    partition = partition_of(0, 10, 20, 30)
    assert [files_below(partition, at) for at in (0, 10, 20, 30)] == [0, 1, 2, 3]
    for within in (1, 15, 31):
        with pytest.raises(JobInputError, match=f"up to offset {within} under this name"):
            files_below(partition, within)
    with pytest.raises(JobInputError, match="another archive"):
        files_below(partition_of(0, 30, start=20), 10)


def test_a_report_sums_up_partitions():
    parts = (
        PartitionReplay(partition=0, next_offset=9, records=9, size_bytes=90, files=2, skipped=1),
        PartitionReplay(partition=1, next_offset=5, skipped=3),
    )
    report = ReplayReport(name="n", topic="to", partitions=parts, notes=("a note",))
    text = report_text(report).splitlines()
    assert text[-2:] == [
        "a note",
        "replayed 9 records of 2 files to topic to; 4 files were written before",
    ]
    found = report_json(report)
    assert (found["records"], found["bytes"], found["files"], found["skipped"]) == (9, 90, 2, 4)
    assert [p["next_offset"] for p in found["partitions"]] == [9, 5]


@pytest.mark.parametrize(
    ("configs", "first_ms", "told"),
    [
        ({"retention.ms": str(7 * DAY_MS)}, 2 * DAY_MS, "for 7 days"),
        ({"retention.ms": str(7 * DAY_MS)}, 4 * DAY_MS, None),
        ({"retention.ms": str(7 * DAY_MS)}, None, None),
        ({"retention.ms": "-1"}, 0, None),
        ({"retention.ms": "1", "cleanup.policy": "compact"}, 0, None),
        ({"message.timestamp.type": "LogAppendTime", "retention.ms": "1"}, 0, "LogAppendTime"),
        ({}, 0, None),
    ],
)
def test_what_the_topic_makes_of_times_is_told(configs, first_ms, told):
    notes = notes_on(TopicView(name="to", partitions=(), configs=configs), first_ms, 10 * DAY_MS)
    assert (told in notes[0]) if told else notes == ()
