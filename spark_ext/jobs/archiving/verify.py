"""``archive --verify``: compare the files of an archive with its manifest.

Decoding the manifest already checks that it accounts for every offset exactly once. This module checks that each file
exists with the size, the checksum and the offsets of its entry. It needs no lock, because listed files never change.
"""

import posixpath
from collections.abc import Callable
from dataclasses import asdict, dataclass

from milena.commands.output import table
from milena.disk.files import Files
from milena.fields import Json
from milena.model.errors import MilenaError
from spark_ext.jobs.archiving.directory import read_manifest, unlisted_files
from spark_ext.jobs.archiving.manifest import ArchivedFile, Manifest, PartitionArchive, PartitionKey
from spark_ext.jobs.archiving.parquet_check import checksum, offset_runs
from spark_ext.jobs.archiving.plan import Runs
from spark_ext.jobs.running.amounts import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveVerdict:
    """The findings of ``verify_archive``; ``problems`` are sentences, ``unlisted`` files are no fault."""

    manifest: Manifest
    problems: tuple[str, ...]
    unlisted: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Return whether every listed file exists with the content of its entry."""
        return not self.problems


def verify_archive(
    files: Files, root: str, *, on_file: Callable[[ArchivedFile], None] = lambda _: None
) -> ArchiveVerdict:
    """Read every file of the archive; ``on_file`` is called after each.

    Raises:
        JobInputError: this is not an archive.
        DamagedArchiveError: the manifest is damaged, so that nothing can be compared with it.
    """
    manifest = read_manifest(files, root)
    problems: list[str] = []
    for partition in manifest.partitions:
        found: list[tuple[int, int]] = []
        for entry in partition.files:
            problem, runs = verify_file(files, root, partition.key, entry)
            problems += [] if problem is None else [problem]
            found += runs
            on_file(entry)
        problems += _filled_gaps(partition, tuple(found))
    unlisted = unlisted_files(files, root, manifest)
    return ArchiveVerdict(manifest=manifest, problems=tuple(problems), unlisted=unlisted)


def _filled_gaps(partition: PartitionArchive, runs: Runs) -> list[str]:
    """Return a sentence for each gap whose number of missing offsets differs from its entry.

    If a file has a record inside a gap, and another record is lost, the totals still agree. This check finds that.
    """
    name = f"{partition.key.topic} partition {partition.key.partition}"
    return [
        f"{name}: of offsets {gap.start} to {gap.end - 1} {gap.missing} are explained as missing, not {missing}"
        for gap in partition.gaps
        if (missing := gap.end - gap.start - _count_within(runs, gap.start, gap.end)) != gap.missing
    ]


def _count_within(runs: Runs, start: int, end: int) -> int:
    return sum(max(0, min(last, end) - max(first, start)) for first, last in runs)


def verify_file(
    files: Files, root: str, key: PartitionKey, entry: ArchivedFile
) -> tuple[str | None, Runs]:
    """Return the problem of a file as a sentence, or None, and the offsets in the file."""
    try:
        file = files.open(posixpath.join(root, entry.path))
    except FileNotFoundError:
        return f"{entry.path} is missing", ()
    try:
        if file.size() != entry.size_bytes:
            return f"{entry.path} has {file.size()} bytes, not {entry.size_bytes}", ()
        if checksum(file) != entry.crc32c:
            return f"{entry.path} has another checksum than when it was written", ()
        runs = offset_runs(file, topic=key.topic, partition=key.partition)
    except MilenaError as error:
        return error.message, ()
    finally:
        file.close()
    return _content_problem(entry, runs), runs


def _content_problem(entry: ArchivedFile, runs: Runs) -> str | None:
    if not runs or (runs[0][0], runs[-1][1] - 1) != (entry.first_offset, entry.last_offset):
        return f"{entry.path} holds other offsets than the manifest says"
    records = sum(end - start for start, end in runs)
    if records != entry.records:
        return f"{entry.path} holds {counted(records, 'record')}, not {entry.records:,}"
    return None


def verdict_text(verdict: ArchiveVerdict) -> str:
    """Return a line per partition, the problems, and a sentence."""
    rows = [
        (p.key.topic, p.key.partition, p.start_offset, p.next_offset, p.records, len(p.files), p.missing)
        for p in verdict.manifest.partitions
    ]  # fmt: skip
    lines = [table(("TOPIC", "PARTITION", "FROM", "NEXT", "RECORDS", "FILES", "GAPS"), rows)]
    lines += verdict.problems
    if verdict.unlisted:
        lines.append(
            f"{counted(len(verdict.unlisted), 'file')} that the manifest does not list: "
            "a run is under way, or was interrupted"
        )
    records = sum(p.records for p in verdict.manifest.partitions)
    end = "sound" if verdict.is_good else counted(len(verdict.problems), "problem")
    lines.append(
        f"{counted(records, 'record')} in {counted(len(verdict.manifest.paths()), 'file')}: {end}"
    )
    return "\n".join(lines)


def verdict_json(verdict: ArchiveVerdict) -> Json:
    """Return the result as JSON, for programs."""
    return {
        "is_sound": verdict.is_good,
        "problems": list(verdict.problems),
        "unlisted": list(verdict.unlisted),
        "commit": verdict.manifest.commits,
        "records": sum(p.records for p in verdict.manifest.partitions),
        "files": len(verdict.manifest.paths()),
        "partitions": [
            {
                **asdict(p.key),
                "start_offset": p.start_offset,
                "next_offset": p.next_offset,
                "records": p.records,
                "files": len(p.files),
                "gaps": [asdict(gap) for gap in p.gaps],
            }
            for p in verdict.manifest.partitions
        ],
    }
