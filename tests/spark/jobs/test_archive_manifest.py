"""The archive's manifest: what it promises, and that nothing else is taken for one."""

import json

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.jobs.archiving.manifest import (
    ArchivedFile,
    ArchiveGap,
    GapReason,
    Manifest,
    PartitionArchive,
    decode_manifest,
    encode_manifest,
    file_path,
    whole_gap,
)
from spark_ext.jobs.running.errors import DamagedArchiveError, JobInputError
from tests.support.spark.archives import key


def entry(first: int, last: int, *, of=None, records: int | None = None) -> ArchivedFile:
    return ArchivedFile(
        path=file_path(of or key(), first, last),
        first_offset=first,
        last_offset=last,
        records=last - first + 1 if records is None else records,
        size_bytes=100,
        crc32c=7,
    )


def addition(
    start: int, end: int, *, of=None, gaps: tuple[ArchiveGap, ...] = ()
) -> PartitionArchive:
    of = of or key()
    missing = sum(g.end - g.start for g in gaps)
    first = gaps[0].end if gaps and gaps[0].start == start else start
    files = (entry(first, end - 1, of=of, records=end - start - missing),)
    return PartitionArchive(key=of, start_offset=start, next_offset=end, files=files, gaps=gaps)


def compaction(start: int, end: int) -> ArchiveGap:
    return whole_gap(start, end, GapReason.COMPACTION)


def test_runs_follow_one_another():
    manifest = Manifest().with_additions("c", (addition(5, 9),))
    manifest = manifest.with_additions("c", (addition(9, 12), addition(0, 3, of=key(1))))
    assert manifest.commits == 2
    first = manifest.partition(key())
    assert first is not None
    assert (first.start_offset, first.next_offset, first.records) == (5, 12, 7)
    assert [f.path for f in first.files] == [file_path(key(), 5, 8), file_path(key(), 9, 11)]
    assert manifest.topics() == ("orders",)
    assert len(manifest.paths()) == 3


def test_a_run_that_does_not_begin_where_the_last_one_ended_is_a_fault():
    manifest = Manifest().with_additions("c", (addition(0, 9),))
    with pytest.raises(AssertionError):
        manifest.with_additions("c", (addition(8, 12),))


def test_an_archive_holds_records_of_one_cluster():
    manifest = Manifest().with_additions("c", (addition(0, 9),))
    with pytest.raises(JobInputError, match="holds records of cluster c, not of d"):
        manifest.with_additions("d", (addition(9, 12),))


def test_gaps_that_touch_become_one():
    manifest = Manifest(cluster_id="c")
    for start in range(0, 50, 10):
        gap = compaction(start, start + 10)
        nothing = PartitionArchive(
            key=key(), start_offset=start, next_offset=start + 10, files=(), gaps=(gap,)
        )
        manifest = manifest.with_additions("c", (nothing,))
    archived = manifest.partition(key())
    assert archived is not None
    assert archived.gaps == (compaction(0, 50),)


def test_gaps_of_transactions_become_one_whatever_is_between():
    """Each transaction makes one, and the manifest is written anew with each run."""
    manifest = Manifest(cluster_id="c")
    for start in range(0, 50, 10):
        gap = whole_gap(start, start + 1, GapReason.TRANSACTIONS)
        manifest = manifest.with_additions("c", (addition(start, start + 10, gaps=(gap,)),))
    archived = manifest.partition(key())
    assert archived is not None
    reason = GapReason.TRANSACTIONS
    assert archived.gaps == (ArchiveGap(start=0, end=41, reason=reason, missing=5),)
    assert (archived.records, archived.missing) == (45, 5)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_names_tell_offsets_and_sort_as_they_do():
    path = file_path(key(3, "_odd.name", "id-9"), 40, 1999)
    assert path == (
        "data/topic-_odd.name/id-9/partition-3/00000000000000000040-00000000000000001999.parquet"
    )
    assert file_path(key(), 9, 9) < file_path(key(), 10, 10)


spans = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=5)


@given(st.dictionaries(st.integers(0, 3), spans, max_size=3), st.integers(0, 100))
def test_what_was_encoded_is_decoded(partitions, start):
    manifest = Manifest(cluster_id="c")
    for partition, lengths in partitions.items():
        at = start
        for records, missing in lengths:
            gaps = (compaction(at, at + missing),) if missing else ()
            end = at + missing + records
            part = addition(at, end, of=key(partition), gaps=gaps)
            manifest = manifest.with_additions("c", (part,))
            at = end
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_an_empty_archive_has_a_manifest_too():
    assert decode_manifest(encode_manifest(Manifest())) == Manifest()


@given(st.data())
def test_a_changed_manifest_is_found_out(data):
    raw = bytearray(encode_manifest(Manifest().with_additions("c", (addition(0, 9),))))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode_manifest(bytes(raw))
    except (DamagedArchiveError, JobInputError):
        return
    # Blanks and the case of escapes may change: what it says may not.
    assert changed == Manifest().with_additions("c", (addition(0, 9),))


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_manifest_is_refused(raw):
    with pytest.raises(DamagedArchiveError):
        decode_manifest(raw)


def test_a_later_format_is_refused():
    with pytest.raises(JobInputError, match="format 2"):
        decode_manifest(json.dumps({"format": 2}).encode())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"records": 8}, "8 records and 0 explained gaps for 9 offsets"),
        ({"first_offset": 3, "last_offset": 2}, "an empty range"),
        ({"first_offset": -1}, "outside of what was archived"),
        ({"last_offset": 9}, "outside of what was archived"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change, sentence):
    content = json.loads(encode_manifest(Manifest().with_additions("c", (addition(0, 9),))))
    content["topics"][0]["partitions"][0]["files"][0].update(change)
    with pytest.raises(DamagedArchiveError, match=sentence):
        decode_manifest(resealed(content))


def test_files_that_overlap_are_refused():
    manifest = Manifest().with_additions("c", (addition(0, 9),))
    manifest = manifest.with_additions("c", (addition(9, 12),))
    content = json.loads(encode_manifest(manifest))
    content["topics"][0]["partitions"][0]["files"].reverse()
    with pytest.raises(DamagedArchiveError, match="overlap or are out of order"):
        decode_manifest(resealed(content))


def resealed(content: dict) -> bytes:
    """With a checksum that is right."""
    del content["crc32c"]
    canonical = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return json.dumps({**content, "crc32c": crc32c(canonical)}).encode()
