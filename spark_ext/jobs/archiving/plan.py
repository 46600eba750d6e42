"""Plan a run of the archive job: its ranges of offsets, and the losses to report (pure).

The inputs are the manifest and the cluster's state at the start of the run. After that the ranges are fixed, so records
that arrive during the run do not change it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from spark_ext.jobs.archiving.manifest import (
    ArchivedFile,
    ArchiveGap,
    GapReason,
    Manifest,
    PartitionArchive,
    PartitionKey,
    joined_gaps,
    whole_gap,
)
from spark_ext.jobs.running.errors import ACCEPT_LOSS, JobInputError, LostRecordsError

Runs = tuple[tuple[int, int], ...]
"""Ranges [start, end) of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The state of a partition in the cluster: offsets [log_start_offset, high_watermark) can be read."""

    key: PartitionKey
    log_start_offset: int
    high_watermark: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets [start, end) of a partition to archive in this run.

    ``next_offset`` is where the archive continues. It is below ``start`` if retention deleted offsets before that.
    ``behind`` counts the offsets from ``end`` to the high watermark, which are left for the next run.
    """

    key: PartitionKey
    next_offset: int
    start: int
    end: int
    behind: int = 0
    is_compacted: bool = False

    @property
    def lost(self) -> int:
        """Return the number of offsets that were deleted before they were archived."""
        return self.start - self.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """The ranges of a run, sorted by key. A partition without new records has an empty range."""

    ranges: tuple[ReadRange, ...]
    losses: tuple[str, ...]

    @property
    def to_read(self) -> tuple[ReadRange, ...]:
        """Return the ranges that are not empty."""
        return tuple(r for r in self.ranges if r.start < r.end)

    @property
    def records_max(self) -> int:
        """Return the offsets in all ranges; a compacted topic has fewer records."""
        return sum(r.end - r.start for r in self.ranges)


def make_plan(
    manifest: Manifest,
    states: Sequence[PartitionState],
    *,
    records_max: int | None = None,
    is_loss_accepted: bool = False,
) -> ArchivePlan:
    """Fix the ranges that the run reads.

    Raises:
        LostRecordsError: records were deleted before they were archived, and the run does not accept that.
        JobInputError: the log ends below the offsets that were archived from it.
    """
    losses = tuple(_losses(manifest, states))
    if losses and not is_loss_accepted:
        raise LostRecordsError("; ".join((*losses, ACCEPT_LOSS)))
    whole = [_whole_range(manifest, state) for state in sorted(states, key=lambda s: s.key)]
    shares = fair_shares([r.end - r.start for r in whole], records_max)
    ranges = tuple(_cut(r, share) for r, share in zip(whole, shares, strict=True))
    return ArchivePlan(ranges=ranges, losses=losses)


def _losses(manifest: Manifest, states: Sequence[PartitionState]) -> Iterable[str]:
    """Yield a sentence for each topic that was created again, and each partition that lost records to retention."""
    for name, topic_id in sorted({(s.key.topic, s.key.topic_id) for s in states}):
        known = manifest.topic_ids(name)
        if known and topic_id not in known:
            yield (
                f"topic {name} was deleted and made again since the last run: what was written after that run "
                "and before the deletion is gone"
            )
    for state in states:
        archived = manifest.partition(state.key)
        if archived is not None and archived.next_offset < state.log_start_offset:
            yield (
                f"{state.key.topic} partition {state.key.partition}: offsets {archived.next_offset} to "
                f"{state.log_start_offset - 1} were removed by retention before they were archived"
            )


def _whole_range(manifest: Manifest, state: PartitionState) -> ReadRange:
    archived = manifest.partition(state.key)
    next_offset = state.log_start_offset if archived is None else archived.next_offset
    if next_offset > state.high_watermark:
        raise JobInputError(
            f"{state.key.topic} partition {state.key.partition} ends at offset {state.high_watermark}, but was "
            f"archived up to {next_offset}: the log lost records; archive it to another directory"
        )
    return ReadRange(
        key=state.key,
        next_offset=next_offset,
        start=max(next_offset, state.log_start_offset),
        end=state.high_watermark,
        is_compacted=state.is_compacted,
    )


def _cut(whole: ReadRange, share: int) -> ReadRange:
    end = whole.start + share
    return replace(whole, end=end, behind=whole.end - end)


def fair_shares(wanted: Sequence[int], total: int | None) -> list[int]:
    """Divide ``total`` records among partitions that have ``wanted`` records each; return each partition's share.

    A small partition gets all that it wants. The other partitions share the rest equally, and the remainder goes to the
    first of them. So a large partition cannot keep a small one out of the archive.
    """
    if total is None or total >= sum(wanted):
        return list(wanted)
    shares = [0] * len(wanted)
    hungry = sorted(range(len(wanted)), key=lambda i: wanted[i])
    left = total
    while hungry:
        smallest = hungry[0]
        if wanted[smallest] * len(hungry) > left:
            break
        shares[smallest] = wanted[smallest]
        left -= wanted[smallest]
        hungry.pop(0)
    for rank, index in enumerate(sorted(hungry)):
        shares[index] = left // len(hungry) + (rank < left % len(hungry))
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file as read back after writing: its entry in the manifest, and the runs [start, end) of its offsets."""

    entry: ArchivedFile
    runs: tuple[tuple[int, int], ...]


def unexplained(planned: ReadRange, written: Sequence[WrittenFile]) -> tuple[int, int] | None:
    """Return the range [start, end) that spans all planned offsets missing from the files; None if none is missing.

    For a compacted topic, where missing offsets are no loss, the result is always None.
    """
    if planned.is_compacted:
        return None
    gaps = list(_gaps(planned, written))
    return (gaps[0][0], gaps[-1][1]) if gaps else None


def make_addition(
    planned: ReadRange, written: Sequence[WrittenFile], empty: Runs = ()
) -> PartitionArchive:
    """Return what the run adds to a partition, after a check that each offset of the range is in a file or a gap.

    ``empty`` has the offsets, ascending, that have no record in the log because of transactions.

    Raises:
        LostRecordsError: an offset is duplicate, outside of the range, or missing without a reason.
    """
    files = tuple(sorted((w.entry for w in written), key=lambda f: f.first_offset))
    gaps: list[ArchiveGap] = []
    if planned.lost:
        gaps.append(whole_gap(planned.next_offset, planned.start, GapReason.RETENTION))
    for start, end in _gaps(planned, written):
        if planned.is_compacted:
            gaps.append(whole_gap(start, end, GapReason.COMPACTION))
        elif _covers(empty, start, end):
            gaps.append(whole_gap(start, end, GapReason.TRANSACTIONS))
        else:
            raise LostRecordsError(
                f"{_name(planned)}: the source left out offsets {start} to {end - 1}; nothing was archived"
            )
    return PartitionArchive(
        key=planned.key,
        start_offset=planned.next_offset,
        next_offset=planned.end,
        files=files,
        gaps=joined_gaps(tuple(gaps)),
    )


def _gaps(planned: ReadRange, written: Sequence[WrittenFile]) -> Iterable[tuple[int, int]]:
    """Yield the ranges [start, end) that are in no file, ascending.

    Raises:
        LostRecordsError: an offset is duplicate, or outside of the range.
    """
    at = planned.start
    runs = sorted(run for file in written for run in file.runs)
    for start, end in [*runs, (planned.end, planned.end)]:
        if start < at or end > planned.end:
            raise LostRecordsError(
                f"{_name(planned)}: the source gave offsets {start} to {end - 1} twice or unasked; nothing was archived"
            )
        if start > at:
            yield at, start
        at = end


def _covers(empty: Runs, start: int, end: int) -> bool:
    """Return whether every offset of [start, end) is in one of the runs."""
    at, index = start, bisect_right(empty, start, key=itemgetter(1))
    while at < end and index < len(empty) and empty[index][0] <= at:
        at = empty[index][1]
        index += 1
    return at >= end


def _name(planned: ReadRange) -> str:
    return f"{planned.key.topic} partition {planned.key.partition}"
