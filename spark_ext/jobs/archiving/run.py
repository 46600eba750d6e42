"""Run the archive job once or repeatedly (ask, plan, write, check, commit), and report the result.

The manifest is also the checkpoint. One replacement of the manifest commits both the records and the position, so no
other state can disagree with it after a crash.

This module has only the order of the steps. Their work goes through two interfaces: ``LogSource``, for the cluster and
Spark, and ``milena.disk.files``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from milena.commands.output import table
from milena.disk.files import Files
from milena.fields import Json
from spark_ext.jobs.archiving.directory import ArchiveWriter
from spark_ext.jobs.archiving.manifest import Manifest, PartitionKey
from spark_ext.jobs.archiving.plan import ArchivePlan, PartitionState, ReadRange, Runs, make_plan
from spark_ext.jobs.running.amounts import counted, json_fields
from spark_ext.jobs.running.errors import JobInputError, LostRecordsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartitions:
    """The state of the requested partitions in the cluster at one moment."""

    cluster_id: str
    partitions: tuple[PartitionState, ...]


class LogSource(Protocol):
    """The source of records."""

    def state(self) -> ClusterPartitions:
        """Ask the cluster for topics, ids and readable offsets."""

    def write(self, ranges: Sequence[ReadRange], folder: str) -> None:
        """Write the records of these ranges as Parquet below a folder that does not exist yet.

        Each file holds records of one partition with ascending offsets, in the folder
        ``archive_topic=T/archive_partition=P``.
        """

    def empty_in(self, key: PartitionKey, start: int, end: int) -> Runs:
        """Return the offsets in [start, end) that have no record in the partition's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """The summary of a run for a partition; ``behind`` offsets are left for the next run."""

    key: PartitionKey
    start_offset: int
    next_offset: int
    records: int
    files: int
    size_bytes: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The summary of a run. ``leftovers`` of an interrupted run were removed; ``losses`` were accepted."""

    commit: int
    partitions: tuple[PartitionSummary, ...]
    losses: tuple[str, ...]
    leftovers: tuple[str, ...]

    @property
    def records(self) -> int:
        """Return the number of records archived by this run."""
        return sum(p.records for p in self.partitions)

    @property
    def behind(self) -> int:
        """Return the number of offsets left for the next run."""
        return sum(p.behind for p in self.partitions)


def joined(earlier: RunSummary, later: RunSummary) -> RunSummary:
    """Return the summary of two commits of one run as one summary."""
    known = {p.key: p for p in earlier.partitions}
    added = tuple(
        replace(
            p,
            start_offset=known[p.key].start_offset,
            records=known[p.key].records + p.records,
            files=known[p.key].files + p.files,
            size_bytes=known[p.key].size_bytes + p.size_bytes,
        )
        if p.key in known
        else p
        for p in later.partitions
    )
    gone = known.keys() - {p.key for p in added}
    return RunSummary(
        commit=later.commit,
        partitions=tuple(sorted((*added, *(known[key] for key in gone)), key=lambda p: p.key)),
        losses=tuple(dict.fromkeys((*earlier.losses, *later.losses))),
        leftovers=earlier.leftovers,
    )


def run_archive(
    files: Files,
    root: str,
    source: LogSource,
    *,
    run_id: str,
    records_max: int | None = None,
    is_loss_accepted: bool = False,
) -> RunSummary:
    """Archive the new records once. ``run_id`` must be new.

    Raises:
        ArchiveBusyError: another run is working on the archive.
        LostRecordsError: records were deleted, and the run does not accept that; or the source did not give the
            planned records.
        JobInputError, DamagedArchiveError: the archive, or the request, does not allow the run.
    """
    with ArchiveWriter(files, root, run_id=run_id) as writer:
        return _commit_new(
            writer, source, records_max=records_max, is_loss_accepted=is_loss_accepted
        )


def follow_archive(
    files: Files,
    root: str,
    source: LogSource,
    *,
    run_id: str,
    is_over: Callable[[], bool],
    on_commit: Callable[[RunSummary], None],
    records_max: int | None = None,
    is_loss_accepted: bool = False,
) -> None:
    """Archive new records repeatedly under one lock, until ``is_over`` returns true.

    ``is_over`` is called between commits, and itself waits for the interval.

    ``records_max`` limits a commit; the next commit takes the rest without a wait. ``on_commit`` gets the summary of
    each commit, even if there was nothing new.

    Raises:
        ArchiveBusyError, LostRecordsError, JobInputError, DamagedArchiveError: as for ``run_archive``; earlier
            commits stay.
    """
    with ArchiveWriter(files, root, run_id=run_id) as writer:
        while True:
            summary = _commit_new(
                writer, source, records_max=records_max, is_loss_accepted=is_loss_accepted
            )
            on_commit(summary)
            if not summary.behind and is_over():
                return


def _commit_new(
    writer: ArchiveWriter, source: LogSource, *, records_max: int | None, is_loss_accepted: bool
) -> RunSummary:
    before = writer.manifest
    state = source.state()
    if before.cluster_id not in {None, state.cluster_id}:
        raise JobInputError(
            f"{writer.root} holds records of cluster {before.cluster_id}, not of {state.cluster_id}: "
            "name another directory"
        )
    plan = make_plan(
        before, state.partitions, records_max=records_max, is_loss_accepted=is_loss_accepted
    )
    if plan.to_read:
        source.write(plan.to_read, writer.staging)
        _require_same_topics(plan, source.state())
    after = writer.commit(state.cluster_id, plan, source.empty_in)
    return _summary(plan, before, after, writer.leftovers)


def _require_same_topics(plan: ArchivePlan, state: ClusterPartitions) -> None:
    """Check that the records, which were read by name, came from the planned topics."""
    present = {p.key for p in state.partitions}
    for planned in plan.to_read:
        if planned.key not in present:
            raise LostRecordsError(
                f"topic {planned.key.topic} was deleted while it was read; nothing was archived"
            )


def _summary(
    plan: ArchivePlan, before: Manifest, after: Manifest, leftovers: tuple[str, ...]
) -> RunSummary:
    known = before.paths()
    partitions = []
    for planned in plan.ranges:
        archived = after.partition(planned.key)
        new = [f for f in archived.files if f.path not in known] if archived is not None else []
        partitions.append(
            PartitionSummary(
                key=planned.key,
                start_offset=planned.start,
                next_offset=planned.end,
                records=sum(f.records for f in new),
                files=len(new),
                size_bytes=sum(f.size_bytes for f in new),
                behind=planned.behind,
            )
        )
    return RunSummary(
        commit=after.commits,
        partitions=tuple(partitions),
        losses=plan.losses,
        leftovers=leftovers,
    )


def summary_text(summary: RunSummary) -> str:
    """Return a line per partition, and a sentence."""
    rows = [
        (p.key.topic, p.key.partition, p.start_offset, p.next_offset, p.records, p.files, p.size_bytes, p.behind)
        for p in summary.partitions
    ]  # fmt: skip
    headings = ("TOPIC", "PARTITION", "FROM", "NEXT", "RECORDS", "FILES", "BYTES", "BEHIND")
    lines = [table(headings, rows)]
    lines += [f"accepted: {loss}" for loss in summary.losses]
    if summary.leftovers:
        lines.append(f"removed {counted(len(summary.leftovers), 'leftover')} of an interrupted run")
    files = sum(p.files for p in summary.partitions)
    end = f"; {summary.behind:,} left for the next run" if summary.behind else ""
    lines.append(f"archived {counted(summary.records, 'record')} in {counted(files, 'file')}{end}")
    return "\n".join(lines)


def summary_json(summary: RunSummary) -> Json:
    """Return the result as JSON, for programs."""
    return {
        "commit": summary.commit,
        "records": summary.records,
        "files": sum(p.files for p in summary.partitions),
        "bytes": sum(p.size_bytes for p in summary.partitions),
        "behind": summary.behind,
        "losses": list(summary.losses),
        "leftovers": list(summary.leftovers),
        "partitions": [
            {**fields.pop("key"), **fields} for fields in map(json_fields, summary.partitions)
        ],
    }
