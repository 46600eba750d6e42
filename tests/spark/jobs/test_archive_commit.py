"""The archive's commit: whatever stops a run, and wherever, nothing is archived twice and nothing is left out."""

from functools import reduce
from random import Random

import pytest

from milena.model.errors import DiskFailedError, DiskFullError
from spark_ext.jobs.archiving.directory import ArchiveWriter, read_manifest, unlisted_files
from spark_ext.jobs.archiving.manifest import ArchiveGap, GapReason, Manifest, file_path, whole_gap
from spark_ext.jobs.archiving.run import joined, summary_json, summary_text
from spark_ext.jobs.archiving.verify import verdict_json, verdict_text, verify_archive
from spark_ext.jobs.running.errors import (
    ArchiveBusyError,
    DamagedArchiveError,
    JobInputError,
    LostRecordsError,
)
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError
from tests.support.spark.archives import (
    FakeLog,
    archived_offsets,
    follow_archive,
    key,
    parquet_bytes,
    run_archive,
    write_file,
)

ROOT = "archive"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def log_of(files: MemoryFiles, *ends: int) -> FakeLog:
    return FakeLog(files, {key(p): (0, end) for p, end in enumerate(ends)})


def assert_holds_exactly(files: MemoryFiles, log: FakeLog) -> None:
    """Each offset of the log once, in order, by the manifest; and the verification agrees."""
    verdict = verify_archive(files, ROOT)
    assert verdict.problems == ()
    found = archived_offsets(files, ROOT, verdict.manifest)
    assert found == {of: list(range(*ends)) for of, ends in log.partitions.items()}


def test_each_run_adds_what_is_new(files):
    log = log_of(files, 10, 3)
    first = run_archive(files, ROOT, log)
    assert (first.records, first.commit) == (13, 1)
    log.partitions[key(0)] = (0, 17)
    second = run_archive(files, ROOT, log)
    assert (second.records, second.commit) == (7, 2)
    assert_holds_exactly(files, log)


def test_a_run_without_anything_new_changes_nothing(files):
    log = log_of(files, 10)
    run_archive(files, ROOT, log)
    before = files.read_bytes(f"{ROOT}/manifest.json")
    again = run_archive(files, ROOT, log)
    assert (again.records, again.commit, log.writes) == (0, 1, 1)
    assert files.read_bytes(f"{ROOT}/manifest.json") == before


def test_an_empty_partition_is_remembered(files):
    """What it holds until the next run is then not taken for its beginning: a loss is seen."""
    log = log_of(files, 0)
    run_archive(files, ROOT, log)
    log.partitions[key(0)] = (5, 9)
    with pytest.raises(LostRecordsError, match="offsets 0 to 4 were removed"):
        run_archive(files, ROOT, log)


def test_runs_with_a_limit_archive_everything_in_turn(files):
    log = log_of(files, 20, 5)
    behind = [run_archive(files, ROOT, log, records_max=7).behind for _ in range(4)]
    assert behind == [18, 11, 4, 0]
    assert_holds_exactly(files, log)


def test_names_are_those_of_the_offsets_whatever_the_writer_called_its_files(files):
    run_archive(files, ROOT, log_of(files, 10))
    assert sorted(read_manifest(files, ROOT).paths()) == [
        file_path(key(), 0, 3),
        file_path(key(), 4, 7),
        file_path(key(), 8, 9),
    ]
    assert files.list_directory(f"{ROOT}/staging") == []


@pytest.mark.parametrize("keep", ["none", "some", "all", "killed"])
def test_a_run_may_stop_at_any_step(keep):
    """Power cuts and kills before every single operation of a second run, then a third run.

    Until the manifest is replaced readers see the first run's records, from then on both runs' records; a run after
    the interrupted one completes what is missing, and removes what the interrupted one left.
    """
    steps = operations_of_a_second_run()
    outcomes = set()
    for step in range(steps):
        files = MemoryFiles()
        log = log_of(files, 6, 2)
        run_archive(files, ROOT, log)
        log.partitions[key(0)] = (0, 11)
        files.crash_before(step)
        with pytest.raises(SimulatedCrashError):
            run_archive(files, ROOT, log)
        files.kill() if keep == "killed" else files.crash(Random(step), keep)

        verdict = verify_archive(files, ROOT)
        assert verdict.problems == ()
        seen = archived_offsets(files, ROOT, verdict.manifest)[key(0)]
        assert seen in (list(range(6)), list(range(11)))
        outcomes.add(len(seen))

        # More has come meanwhile: the files of the next run have other names than those that were left.
        log.partitions[key(0)] = (0, 13)
        summary = run_archive(files, ROOT, log)
        assert summary.records == 13 - len(seen)
        assert_holds_exactly(files, log)
        assert files.list_directory(f"{ROOT}/staging") == []
        assert unlisted_files(files, ROOT, read_manifest(files, ROOT)) == ()
        assert run_archive(files, ROOT, log).records == 0
    assert outcomes == {6, 11}, "some crashes fell before the commit, some after it"


def operations_of_a_second_run() -> int:
    files = MemoryFiles()
    log = log_of(files, 6, 2)
    run_archive(files, ROOT, log)
    log.partitions[key(0)] = (0, 11)
    before = files.operation_count
    run_archive(files, ROOT, log)
    return files.operation_count - before


def test_a_first_run_may_stop_at_any_step():
    files = MemoryFiles()
    run_archive(files, ROOT, log_of(files, 6))
    steps = files.operation_count
    for step in range(steps):
        files = MemoryFiles()
        log = log_of(files, 6)
        files.crash_before(step)
        with pytest.raises(SimulatedCrashError):
            run_archive(files, ROOT, log)
        files.crash(Random(step), "some")
        run_archive(files, ROOT, log)
        assert_holds_exactly(files, log)


def test_runs_that_are_stopped_again_and_again_come_to_an_end():
    rng = Random(7)
    files = MemoryFiles()
    log = log_of(files, 0, 0, 0)
    crashes = 0
    for _ in range(60):
        for of, (start, end) in log.partitions.items():
            log.partitions[of] = (start, end + rng.randint(0, 6))
        files.crash_before(rng.randint(0, 120))
        try:
            run_archive(files, ROOT, log, records_max=rng.choice((None, 5)))
            # As if the process had ended: the crash that was asked for is not for the next one.
            files.kill()
        except SimulatedCrashError:
            crashes += 1
            files.crash(rng, rng.choice(("none", "some", "all")))
    run_archive(files, ROOT, log)
    assert crashes > 20
    assert_holds_exactly(files, log)


def growing(log: FakeLog, *ends: int):
    """Steps that move the end of the first partition."""
    return (lambda end=end: log.partitions.update({key(0): (0, end)}) for end in ends)


def test_a_run_that_follows_commits_what_is_new_and_holds_the_lock(files):
    log = log_of(files, 6, 2)

    def steps():
        yield from growing(log, 11, 11)
        with pytest.raises(ArchiveBusyError):
            run_archive(files, ROOT, log)
        log.partitions[key(2)] = (0, 3)
        yield from growing(log, 30)

    summaries = follow_archive(files, ROOT, log, steps(), records_max=9)
    assert [s.records for s in summaries] == [8, 5, 0, 9, 9, 4]
    assert [s.commit for s in summaries] == [1, 2, 2, 3, 4, 5]
    assert_holds_exactly(files, log)
    assert files.list_directory(f"{ROOT}/staging") == []
    whole = reduce(joined, summaries)
    assert (whole.records, whole.commit, whole.behind) == (35, 5, 0)
    assert [(p.start_offset, p.next_offset) for p in whole.partitions] == [(0, 30), (0, 2), (0, 3)]


def test_a_run_that_follows_may_stop_at_any_step():
    """In its first commit, its second or between them; another run goes on, whichever kind it is of."""

    def follow(files, log):
        follow_archive(files, ROOT, log, growing(log, 11, 13))

    files = MemoryFiles()
    follow(files, log_of(files, 6, 2))
    seen = set()
    for step in range(files.operation_count):
        files = MemoryFiles()
        log = log_of(files, 6, 2)
        files.crash_before(step)
        with pytest.raises(SimulatedCrashError):
            follow(files, log)
        files.crash(Random(step), "some")
        if files.exists(f"{ROOT}/manifest.json"):
            manifest = read_manifest(files, ROOT)
            assert verify_archive(files, ROOT).problems == ()
            seen.add(manifest.commits)
        log.partitions[key(0)] = (0, 17)
        if step % 2:
            run_archive(files, ROOT, log)
        else:
            follow_archive(files, ROOT, log, iter(()))
        assert_holds_exactly(files, log)
        assert unlisted_files(files, ROOT, read_manifest(files, ROOT)) == ()
    assert seen == {0, 1, 2, 3}


def test_what_is_late_of_a_commit_is_not_taken_for_the_next_ones(files):
    """Tasks that Spark ran twice may outlive the commit that they were for."""

    class Haunting(FakeLog):
        folder = ""

        def write(self, ranges, folder):
            if self.folder:
                super().write(ranges, self.folder)
            self.folder = folder
            super().write(ranges, folder)

    log = Haunting(files, {key(): (0, 10)})
    follow_archive(files, ROOT, log, growing(log, 15, 21))
    assert_holds_exactly(files, log)


def test_what_a_killed_run_goes_on_writing_is_not_taken_for_the_next_runs(files):
    """Spark may outlive the job that was killed, for a moment: with files of the very same offsets."""

    class Haunted(FakeLog):
        def write(self, ranges, folder):
            super().write(ranges, f"{ROOT}/staging/killed")
            super().write(ranges, folder)

    log = Haunted(files, {key(): (0, 10)})
    run_archive(files, ROOT, log)
    assert_holds_exactly(files, log)
    log.partitions[key()] = (0, 12)
    assert run_archive(files, ROOT, log).leftovers == ("staging/killed",)
    assert_holds_exactly(files, log)


def test_a_disk_that_fails_or_fills_up_leaves_the_archive_as_it_was(files):
    log = log_of(files, 6)
    run_archive(files, ROOT, log)
    log.partitions[key(0)] = (0, 11)
    files.fail_next_sync("part-")
    with pytest.raises(DiskFailedError):
        run_archive(files, ROOT, log)
    files.capacity = files.used_bytes() + 100
    with pytest.raises(DiskFullError):
        run_archive(files, ROOT, log)
    files.capacity = None
    assert read_manifest(files, ROOT).commits == 1
    summary = run_archive(files, ROOT, log)
    assert summary.records == 5
    assert summary.leftovers
    assert_holds_exactly(files, log)


def test_leftovers_are_named_and_files_of_others_are_left_alone(files):
    log = log_of(files, 6)
    run_archive(files, ROOT, log)
    orphan = file_path(key(), 6, 8)
    write_file(files, f"{ROOT}/{orphan}", parquet_bytes(key(), [6, 7, 8]))
    write_file(files, f"{ROOT}/{orphan.rsplit('/', 1)[0]}/notes.txt", b"mine")
    verdict = verify_archive(files, ROOT)
    assert verdict.is_good
    assert verdict.unlisted == (orphan,)
    assert "1 file that the manifest does not list" in verdict_text(verdict)
    log.partitions[key(0)] = (0, 11)
    summary = run_archive(files, ROOT, log)
    assert summary.leftovers == (orphan,)
    assert not files.exists(f"{ROOT}/{orphan}")
    assert "removed 1 leftover of" in summary_text(summary)
    assert any(path.endswith("notes.txt") for path in files.paths())
    assert_holds_exactly(files, log)


def test_two_runs_at_once_are_refused(files):
    log = log_of(files, 6)
    with (
        ArchiveWriter(files, ROOT, run_id="first"),
        pytest.raises(ArchiveBusyError, match="another run is archiving"),
    ):
        run_archive(files, ROOT, log)
    assert run_archive(files, ROOT, log).records == 6


def test_a_directory_with_something_else_in_it_is_refused(files):
    files.make_directory(ROOT)
    write_file(files, f"{ROOT}/letters.txt", b"dear")
    with pytest.raises(
        JobInputError, match=r"not an archive: it has no manifest.json, but letters.txt"
    ):
        run_archive(files, ROOT, log_of(files, 6))
    with pytest.raises(JobInputError, match="not an archive"):
        verify_archive(files, ROOT)
    with pytest.raises(JobInputError, match="not an archive"):
        verify_archive(files, "elsewhere")


def test_a_damaged_manifest_stops_everything(files):
    log = log_of(files, 6)
    run_archive(files, ROOT, log)
    files.flip_bit(f"{ROOT}/manifest.json", 40)
    with pytest.raises(DamagedArchiveError):
        run_archive(files, ROOT, log)
    with pytest.raises(DamagedArchiveError):
        verify_archive(files, ROOT)
    assert len([p for p in files.paths() if p.endswith(".parquet")]) == 2, "nothing was removed"


def test_the_archive_of_another_cluster_is_refused(files):
    run_archive(files, ROOT, log_of(files, 6))
    other = log_of(files, 9)
    other.cluster_id = "c-2"
    with pytest.raises(JobInputError, match="records of cluster c-1, not of c-2"):
        run_archive(files, ROOT, other)
    assert other.writes == 0


def test_a_source_that_leaves_out_or_repeats_a_record_archives_nothing(files):
    log = log_of(files, 10)
    log.missing = frozenset({4})
    with pytest.raises(LostRecordsError, match="left out offsets 4 to 4"):
        run_archive(files, ROOT, log)
    log.missing, log.doubled = frozenset(), (4,)
    with pytest.raises(LostRecordsError, match="twice or unasked"):
        run_archive(files, ROOT, log)
    assert read_manifest(files, ROOT) == Manifest()
    log.doubled = ()
    run_archive(files, ROOT, log)
    assert_holds_exactly(files, log)


def test_compaction_leaves_gaps_that_are_written_down(files):
    log = log_of(files, 10)
    log.is_compacted, log.missing = True, frozenset({0, 4, 5, 9})
    run_archive(files, ROOT, log)
    verdict = verify_archive(files, ROOT)
    assert verdict.is_good
    [partition] = verdict.manifest.partitions
    assert (partition.records, partition.missing) == (6, 4)
    assert [(g.start, g.end) for g in partition.gaps] == [(0, 1), (4, 6), (9, 10)]


def test_what_transactions_leave_is_written_down(files):
    log = log_of(files, 10)
    log.empty = log.missing = frozenset({1, 5, 6, 9})
    run_archive(files, ROOT, log)
    verdict = verify_archive(files, ROOT)
    assert verdict.is_good
    [partition] = verdict.manifest.partitions
    gap = ArchiveGap(start=1, end=10, reason=GapReason.TRANSACTIONS, missing=4)
    assert partition.gaps == (gap,)
    assert partition.records == 6


def test_an_accepted_loss_is_written_down(files):
    log = log_of(files, 10)
    run_archive(files, ROOT, log)
    log.partitions[key(0)] = (12, 15)
    with pytest.raises(LostRecordsError):
        run_archive(files, ROOT, log)
    summary = run_archive(files, ROOT, log, is_loss_accepted=True)
    assert summary.records == 3
    assert "accepted: orders partition 0: offsets 10 to 11" in summary_text(summary)
    [partition] = read_manifest(files, ROOT).partitions
    assert partition.gaps == (whole_gap(10, 12, GapReason.RETENTION),)


def test_a_topic_made_again_has_an_entry_of_its_own(files):
    log = log_of(files, 10)
    run_archive(files, ROOT, log)
    again = key(topic_id="id-2")
    log.partitions = {again: (0, 4)}
    with pytest.raises(LostRecordsError, match="deleted and made again"):
        run_archive(files, ROOT, log)
    run_archive(files, ROOT, log, is_loss_accepted=True)
    found = archived_offsets(files, ROOT, read_manifest(files, ROOT))
    assert found == {key(): list(range(10)), again: list(range(4))}
    assert run_archive(files, ROOT, log).records == 0, "the second of the two is known from now on"


def test_a_topic_that_vanishes_while_it_is_read_archives_nothing(files):
    log = log_of(files, 10)

    class Vanishing(FakeLog):
        def write(self, ranges, folder):
            super().write(ranges, folder)
            self.partitions = {key(topic_id="id-2"): (0, 10)}

    with pytest.raises(LostRecordsError, match="deleted while it was read"):
        run_archive(files, ROOT, Vanishing(files, log.partitions))
    assert read_manifest(files, ROOT) == Manifest()


def test_verify_finds_what_happened_to_files(files):
    run_archive(files, ROOT, log_of(files, 12, 3))
    first, second, third = (
        f"{ROOT}/{path}" for path in sorted(read_manifest(files, ROOT).paths())[:3]
    )
    files.flip_bit(first, 100)
    files.remove(second)
    file = files.open(third)
    file.truncate(file.size() - 1)
    verdict = verify_archive(files, ROOT)
    assert not verdict.is_good
    assert [problem.split(" ", 1)[1].rstrip("0123456789") for problem in verdict.problems] == [
        "has another checksum than when it was written",
        "is missing",
        f"has {file.size()} bytes, not ",
    ]
    assert "3 problems" in verdict_text(verdict)
    assert verdict_json(verdict)["is_sound"] is False


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (parquet_bytes(key(1), [0, 1]), "records of another partition than 0"),
        (parquet_bytes(key(0, "other"), [0, 1]), "records of another topic than orders"),
        (parquet_bytes(key(), [1, 0]), "offset 0 comes after 1"),
        (parquet_bytes(key(), [0, 0]), "offset 0 comes after 0"),
        (parquet_bytes(key(), [0, 1, 2, 2, 3]), "offset 2 comes after 2"),
        (b"PAR1 is not all that it takes", "not readable as Parquet"),
        (b"", "not readable as Parquet"),
    ],
)
def test_a_staged_file_is_not_believed(files, content, sentence):
    class Lying(FakeLog):
        def write(self, ranges, folder):
            super().write(ranges, folder)
            target = f"{folder}/archive_topic=orders/archive_partition=0/part-x.parquet"
            write_file(self.files, target, content)

    with pytest.raises(DamagedArchiveError, match=sentence):
        run_archive(files, ROOT, Lying(files, {key(): (0, 4)}))
    assert read_manifest(files, ROOT) == Manifest()


def test_summaries_tell_programs_the_same(files):
    summary = run_archive(files, ROOT, log_of(files, 10, 3), records_max=8)
    found = summary_json(summary)
    assert isinstance(found, dict)
    assert (found["records"], found["behind"], found["commit"]) == (8, 5, 1)
    text = summary_text(summary)
    assert "archived 8 records in 3 files; 5 left for the next run" in text
    verdict = verdict_json(verify_archive(files, ROOT))
    assert isinstance(verdict, dict)
    assert (verdict["records"], verdict["files"], verdict["is_sound"]) == (8, 3, True)
