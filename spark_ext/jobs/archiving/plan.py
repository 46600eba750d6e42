"""Plan of a run of the archive job: ranges of offsets, and what it has to say about offsets that are gone (pure).

Inputs are what the manifest says and what the cluster says at the start of the run; from then on the ranges are fixed,
so a run is one reading of the log however many records arrive meanwhile.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from spark_ext.jobs.archiving.manifest import (
    Addition,
    ArchivedFile,
    ArchiveGap,
    GapReason,
    Manifest,
    PartitionKey,
    joined_gaps,
    whole_gap,
)
from spark_ext.jobs.running.errors import ACCEPT_LOSS, JobInputError, LostRecordsError

Runs = tuple[tuple[int, int], ...]
"""Offsets as ranges [start, end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition as the cluster has it: records [log_start_offset, high_watermark) can be read."""

    key: PartitionKey
    log_start_offset: int
    high_watermark: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets [start, end) of a partition to archive in this run.

    ``next_offset`` is where the archive goes on; it is below ``start`` where retention was quicker. ``behind``
    counts the offsets from ``end`` to the high watermark, which are left for the next run.
    """

    key: PartitionKey
    next_offset: int
    start: int
    end: int
    behind: int = 0
    is_compacted: bool = False

    @property
    def lost(self) -> int:
        """Offsets that are gone unarchived."""
        return self.start - self.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """All ranges of a run, sorted by key. Partitions with nothing new have an empty one."""

    ranges: tuple[ReadRange, ...]
    losses: tuple[str, ...]

    @property
    def to_read(self) -> tuple[ReadRange, ...]:
        """The ranges with something in them."""
        return tuple(r for r in self.ranges if r.start < r.end)

    @property
    def records_max(self) -> int:
        """Offsets in all ranges; as many records unless the topic is compacted."""
        return sum(r.end - r.start for r in self.ranges)


def make_plan(
    manifest: Manifest,
    states: Sequence[PartitionState],
    *,
    records_max: int | None = None,
    is_loss_accepted: bool = False,
) -> ArchivePlan:
    """Fix what the run reads.

    Raises:
        LostRecordsError: records are gone that were never archived, and that is not accepted.
        JobInputError: the log ends below what was archived of it.
    """
    losses = tuple(_losses(manifest, states))
    if losses and not is_loss_accepted:
        raise LostRecordsError("; ".join((*losses, ACCEPT_LOSS)))
    whole = [_whole_range(manifest, state) for state in sorted(states, key=lambda s: s.key)]
    shares = fair_shares([r.end - r.start for r in whole], records_max)
    ranges = tuple(_cut(r, share) for r, share in zip(whole, shares, strict=True))
    return ArchivePlan(ranges=ranges, losses=losses)


def _losses(manifest: Manifest, states: Sequence[PartitionState]) -> Iterable[str]:
    """A sentence for each topic that was made anew and each partition that retention has cut."""
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
    return ReadRange(
        key=whole.key,
        next_offset=whole.next_offset,
        start=whole.start,
        end=end,
        behind=whole.end - end,
        is_compacted=whole.is_compacted,
    )


def fair_shares(wanted: Sequence[int], total: int | None) -> list[int]:
    """Divide ``total`` so that nobody gets more than it wants, nor less than another that wants more.

    A large partition cannot keep a small one waiting for ever. What cannot be divided evenly goes to the first ones.
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
    """A file as it was found after writing: its entry in the manifest, and the runs [start, end) of its offsets."""

    entry: ArchivedFile
    runs: tuple[tuple[int, int], ...]


def unexplained(planned: ReadRange, written: Sequence[WrittenFile]) -> tuple[int, int] | None:
    """From the first to behind the last offset of a range that is in no file, where compaction is not why."""
    if planned.is_compacted:
        return None
    gaps = list(_gaps(planned, written))
    return (gaps[0][0], gaps[-1][1]) if gaps else None


def make_addition(planned: ReadRange, written: Sequence[WrittenFile], empty: Runs = ()) -> Addition:
    """Addition of the run to a partition, once every offset of its range is accounted for.

    ``empty``: ascending offsets of which the log itself says that they hold no record, for transactions' sake.

    Raises:
        LostRecordsError: an offset is there twice, does not belong, or is missing without a reason.
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
    return Addition(
        key=planned.key,
        start_offset=planned.next_offset,
        next_offset=planned.end,
        files=files,
        gaps=joined_gaps(tuple(gaps)),
    )


def _gaps(planned: ReadRange, written: Sequence[WrittenFile]) -> Iterable[tuple[int, int]]:
    """Ascending ranges [start, end) that no file has.

    Raises:
        LostRecordsError: an offset is there twice, or does not belong.
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
    """Whether every offset of [start, end) is in one of the runs."""
    at, index = start, bisect_right(empty, start, key=itemgetter(1))
    while at < end and index < len(empty) and empty[index][0] <= at:
        at = empty[index][1]
        index += 1
    return at >= end


def _name(planned: ReadRange) -> str:
    return f"{planned.key.topic} partition {planned.key.partition}"
