"""The ranges of an archive and its topic that an audit compares, and its report (pure).

    archive        |--- start_offset ------------------ next_offset ---|
    topic                     |--- log start ------------------- high watermark ---|
                     deleted  |           compared                     |  behind

Records that retention or compaction removed, and records that are not archived yet, are no difference.
"""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from enum import StrEnum, unique

from milena.commands.output import table
from milena.fields import Json
from spark_ext.jobs.archiving.manifest import ArchivedFile, Manifest, PartitionArchive
from spark_ext.jobs.archiving.plan import PartitionState, ReadRange
from spark_ext.jobs.running.amounts import counted


@unique
class Difference(StrEnum):
    """``MISSING``: archived, and not in the topic; ``EXTRA``: in the topic, and not archived."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRange:
    """The range to compare in a partition: the archive's ``files`` from ``start``, and the topic's [start, end)."""

    state: PartitionState
    archived: PartitionArchive | None
    start: int
    end: int

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        """Return the files with records to compare; the first file may start before the range."""
        files = () if self.archived is None else self.archived.files
        return tuple(file for file in files if file.last_offset >= self.start)

    @property
    def to_read(self) -> ReadRange | None:
        """Return the range to read from the topic; None if it is empty."""
        if self.start >= self.end:
            return None
        return ReadRange(key=self.state.key, next_offset=self.start, start=self.start, end=self.end)

    @property
    def behind(self) -> int:
        """Return the number of the topic's offsets that are not archived yet."""
        archived = self.archived
        known = self.state.log_start_offset if archived is None else archived.next_offset
        return max(0, self.state.high_watermark - max(known, self.state.log_start_offset))


def audit_ranges(manifest: Manifest, states: Sequence[PartitionState]) -> tuple[AuditRange, ...]:
    """Return the range to compare in each partition of a topic, from the current state of both."""
    found = []
    for state in states:
        archived = manifest.partition(state.key)
        start = state.log_start_offset
        archived_to = start if archived is None else archived.next_offset
        found.append(
            AuditRange(
                state=state,
                archived=archived,
                start=start,
                # If the log ends below the archive, the log lost records. The audit reports them as missing.
                end=min(archived_to, state.high_watermark),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The counts of a partition: records, except ``deleted`` and ``behind``, which are offsets."""

    partition: int
    missing: int
    extra: int
    different: int
    compacted: int
    deleted: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result: ``compared`` counts records on both sides; ``examples`` are the first differences."""

    topic: str
    compared: int
    partitions: tuple[PartitionAudit, ...]
    examples: tuple[str, ...] = ()

    @property
    def differences(self) -> int:
        """Return the number of records that differ."""
        return sum(p.missing + p.extra + p.different for p in self.partitions)


def audit_of(
    found: AuditRange, counts: dict[Difference, int], log_start_offset: int
) -> PartitionAudit:
    """Return the counts of a partition, whose log started at this offset after it was read."""
    archived = found.archived
    missing = counts.get(Difference.MISSING, 0)
    is_compacted = found.state.is_compacted
    gone_to = 0 if archived is None else min(log_start_offset, archived.next_offset)
    return PartitionAudit(
        partition=found.state.key.partition,
        missing=0 if is_compacted else missing,
        extra=counts.get(Difference.EXTRA, 0),
        different=counts.get(Difference.DIFFERENT, 0),
        compacted=missing if is_compacted else 0,
        deleted=0 if archived is None else max(0, gone_to - archived.start_offset),
        behind=found.behind,
    )


def example_text(partition: int, offset: int, kind: Difference, parts: str) -> str:
    """Return one difference in words."""
    where = f"partition {partition} offset {offset}"
    match kind:
        case Difference.MISSING:
            return f"{where}: archived, and not in the topic"
        case Difference.EXTRA:
            return f"{where}: in the topic, and not archived"
        case Difference.DIFFERENT:
            return f"{where}: another {parts}"


def report_text(report: AuditReport) -> str:
    """Return a line per partition, examples, and a sentence."""
    rows = [astuple(partition) for partition in report.partitions]
    headings = ("PARTITION", "MISSING", "EXTRA", "DIFFERENT", "COMPACTED", "DELETED", "BEHIND")
    lines = [table(headings, rows), *report.examples]
    left = report.differences - len(report.examples)
    if report.examples and left:
        lines.append(f"and {left:,} more")
    end = counted(report.differences, "difference") if report.differences else "the same"
    lines.append(
        f"compared {counted(report.compared, 'record')} of topic {report.topic} with the archive: {end}"
    )
    return "\n".join(lines)


def report_json(report: AuditReport) -> Json:
    """Return the result as JSON, for programs."""
    return {
        "topic": report.topic,
        "is_same": not report.differences,
        "compared": report.compared,
        "differences": report.differences,
        "examples": list(report.examples),
        "partitions": [asdict(partition) for partition in report.partitions],
    }
