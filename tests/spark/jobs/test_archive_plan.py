"""What a run of the archive job reads, and what it says about records that are gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.jobs.archiving.manifest import (
    ArchivedFile,
    ArchiveGap,
    GapReason,
    Manifest,
    PartitionArchive,
    PartitionKey,
    whole_gap,
)
from spark_ext.jobs.archiving.plan import (
    PartitionState,
    ReadRange,
    WrittenFile,
    fair_shares,
    make_addition,
    make_plan,
    unexplained,
)
from spark_ext.jobs.running.errors import JobInputError, LostRecordsError
from tests.support.spark.archives import key


def state(start: int, end: int, of: PartitionKey | None = None) -> PartitionState:
    return PartitionState(key=of or key(), log_start_offset=start, high_watermark=end)


def archived_to(next_offset: int, of: PartitionKey | None = None) -> Manifest:
    gap = whole_gap(0, next_offset, GapReason.COMPACTION)
    addition = PartitionArchive(
        key=of or key(), start_offset=0, next_offset=next_offset, files=(), gaps=(gap,)
    )
    return Manifest().with_additions("c-1", (addition,))


def bounds(ranges: tuple[ReadRange, ...]) -> list[tuple[int, int]]:
    return [(r.start, r.end) for r in ranges]


def test_a_first_run_begins_at_the_log_start():
    plan = make_plan(Manifest(), [state(7, 20)])
    assert bounds(plan.to_read) == [(7, 20)]
    assert plan.losses == ()


def test_a_later_run_goes_on_where_the_manifest_ends():
    plan = make_plan(archived_to(12), [state(7, 20)])
    assert bounds(plan.to_read) == [(12, 20)]


def test_nothing_new_is_nothing_to_read():
    plan = make_plan(archived_to(20), [state(7, 20)])
    assert plan.to_read == ()
    assert bounds(plan.ranges) == [(20, 20)]


def test_a_new_partition_begins_at_its_log_start():
    plan = make_plan(archived_to(12), [state(0, 20), state(0, 5, key(1))])
    assert bounds(plan.to_read) == [(12, 20), (0, 5)]


def test_records_that_retention_took_fail_the_run_unless_that_is_accepted():
    with pytest.raises(
        LostRecordsError, match=r"orders partition 0: offsets 12 to 14.*--accept-data-loss"
    ):
        make_plan(archived_to(12), [state(15, 20)])
    plan = make_plan(archived_to(12), [state(15, 20)], is_loss_accepted=True)
    [planned] = plan.to_read
    assert (planned.next_offset, planned.start, planned.end, planned.lost) == (12, 15, 20, 3)
    assert len(plan.losses) == 1


def test_a_topic_that_was_made_again_fails_the_run_unless_that_is_accepted():
    """Its first offsets are other records than those of the same offsets in the archive."""
    again = key(topic_id="id-2")
    with pytest.raises(LostRecordsError, match="topic orders was deleted and made again"):
        make_plan(archived_to(12), [state(0, 3, again)])
    plan = make_plan(archived_to(12), [state(0, 3, again)], is_loss_accepted=True)
    assert bounds(plan.to_read) == [(0, 3)]
    assert plan.to_read[0].key == again


def test_a_log_that_ends_below_the_archive_is_refused_even_when_losses_are_accepted():
    with pytest.raises(JobInputError, match="ends at offset 5, but was archived up to 12"):
        make_plan(archived_to(12), [state(0, 5)], is_loss_accepted=True)


def test_a_limit_is_shared_and_what_is_left_is_told():
    plan = make_plan(Manifest(), [state(0, 100), state(0, 10, key(1))], records_max=50)
    assert bounds(plan.to_read) == [(0, 40), (0, 10)]
    assert [r.behind for r in plan.ranges] == [60, 0]
    assert plan.records_max == 50


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_fair(wanted, total):
    """All is given out, nobody gets more than it wants, and who was cut got as much as anybody, but for one."""
    shares = fair_shares(wanted, total)
    assert sum(shares) == min(total, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert not cut or max(shares) <= min(cut) + 1


def test_without_a_limit_everyone_gets_all():
    assert fair_shares([3, 0, 9], None) == [3, 0, 9]


def planned(start=10, end=20, *, next_offset=None, is_compacted=False) -> ReadRange:
    return ReadRange(
        key=key(),
        next_offset=start if next_offset is None else next_offset,
        start=start,
        end=end,
        is_compacted=is_compacted,
    )


def written(*runs: tuple[int, int]) -> WrittenFile:
    entry = ArchivedFile(
        path=f"data/{runs[0][0]}",
        first_offset=runs[0][0],
        last_offset=runs[-1][1] - 1,
        records=sum(end - start for start, end in runs),
        size_bytes=1,
        crc32c=0,
    )
    return WrittenFile(entry=entry, runs=runs)


def test_files_that_hold_the_whole_range_are_added_in_order():
    addition = make_addition(planned(), [written((15, 20)), written((10, 15))])
    assert [f.first_offset for f in addition.files] == [10, 15]
    assert (addition.start_offset, addition.next_offset, addition.gaps) == (10, 20, ())


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([], "left out offsets 10 to 19"),
        ([written((10, 19))], "left out offsets 19 to 19"),
        ([written((11, 20))], "left out offsets 10 to 10"),
        ([written((10, 14), (15, 20))], "left out offsets 14 to 14"),
        ([written((10, 15)), written((14, 20))], "offsets 14 to 19 twice or unasked"),
        ([written((10, 20)), written((10, 20))], "offsets 10 to 19 twice or unasked"),
        ([written((9, 20))], "offsets 9 to 19 twice or unasked"),
        ([written((10, 21))], "offsets 10 to 20 twice or unasked"),
    ],
)
def test_what_is_not_exactly_the_range_is_refused(files, sentence):
    with pytest.raises(LostRecordsError, match=sentence):
        make_addition(planned(), files)


def test_holes_of_a_compacted_topic_are_explained():
    addition = make_addition(planned(is_compacted=True), [written((11, 14), (15, 18))])
    assert [(g.start, g.end) for g in addition.gaps] == [(10, 11), (14, 15), (18, 20)]
    assert {g.reason for g in addition.gaps} == {GapReason.COMPACTION}


HOLES = [written((11, 14), (15, 18))]


def test_what_the_log_says_to_be_empty_is_explained():
    assert unexplained(planned(), HOLES) == (10, 20)
    addition = make_addition(planned(), HOLES, ((8, 11), (14, 15), (18, 19), (19, 30)))
    gap = ArchiveGap(start=10, end=20, reason=GapReason.TRANSACTIONS, missing=4)
    assert addition.gaps == (gap,)


@pytest.mark.parametrize(
    ("empty", "sentence"),
    [
        ((), "left out offsets 10 to 10"),
        (((10, 11), (18, 20)), "left out offsets 14 to 14"),
        (((10, 11), (14, 15), (18, 19)), "left out offsets 18 to 19"),
        (((10, 11), (14, 15), (19, 20)), "left out offsets 18 to 19"),
        (((11, 14), (15, 18)), "left out offsets 10 to 10"),
    ],
)
def test_what_the_log_does_not_say_to_be_empty_is_missing(empty, sentence):
    with pytest.raises(LostRecordsError, match=sentence):
        make_addition(planned(), HOLES, empty)


def test_only_holes_that_want_a_reason_are_asked_about():
    assert unexplained(planned(), [written((10, 20))]) is None
    assert unexplained(planned(is_compacted=True), HOLES) is None
    assert unexplained(planned(), [written((10, 12), (13, 20))]) == (12, 13)


def test_an_accepted_loss_is_a_gap_in_front():
    addition = make_addition(planned(next_offset=4), [written((10, 20))])
    assert addition.gaps == (whole_gap(4, 10, GapReason.RETENTION),)
    assert addition.start_offset == 4
