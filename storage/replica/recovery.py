"""Recovery: how much of a partition log is left after the process ended, and whether it can be trusted.

Everything below the recovery point was synced, including the indexes. Recovery takes segments there as their indexes
describe them, unless the replica is known to be damaged. From the recovery point on, recovery checks every batch: both
checksums, the expected offset, and a leader epoch that is not below the one before. The log ends before the first batch
that fails. What follows it decides:

    zeros to the end of the file                          the end: the file was preallocated
    other bytes, or batches in a later segment            cut, and the replica is suspect: an unfinished write and
                                                          a damaged acknowledged batch look the same
    a batch that fails below the recovery point           the replica is damaged; nothing is cut, because the
                                                          bytes behind it may be the last copy of their records

Indexes, the epoch table and the snapshots of the writers' state are hints: recovery rebuilds them from the log if they
do not match it. The verdict is durable before the first byte is cut. If a crash interrupted a change of several steps,
or a swap of segments by compaction, recovery first finishes it. Recovery itself may be interrupted at any point: the
next start repeats it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from msgspec.structs import replace

from milena.disk.files import File
from milena.model.batch.header import BatchHeader
from milena.model.errors import CorruptBatchError, CorruptLogError, DiskFullError
from milena.model.types import NO_OFFSET, NO_TIMESTAMP, ReplicaHealth
from storage.replica.folder import (
    ReplicaFiles,
    load_writers,
    read_epochs,
    write_snapshot,
    write_truncated_epochs,
)
from storage.replica.meta import Change, ChangeKind, worse
from storage.replica.segment_swap import finish_swaps
from storage.segments.index import (
    INDEX_HEADER_BYTES,
    SegmentIndex,
    SegmentSummary,
    decode_index,
    decode_summary,
)
from storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    Segment,
    offset_name,
    scan_batches,
)
from storage.state.checkpoint import Checkpoint
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState
from storage.state.writer_snapshot import WriterSnapshot

_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """Report of a recovery.

    Attributes:
        health: the replica's health; it stays until the owner of the log declares the replica sound.
        reason: why the replica is not sound; empty for a sound replica.
        cut_bytes: bytes that were cut, without zeros.
        scanned_bytes: bytes whose checksums were verified.
        was_clean: the log was closed in order, so nothing had to be scanned.
    """

    health: ReplicaHealth = ReplicaHealth.SOUND
    reason: str = ""
    cut_bytes: int = 0
    scanned_bytes: int = 0
    was_clean: bool = False


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """The parts of a recovered log.

    Attributes:
        segments: in order of offsets, never empty; the last segment takes appends.
        unsealed: closed segments without index file or snapshot on the disk, oldest first, and the writers' state
            after each.
        epochs: where each leader epoch begins.
        writers: known producers, idempotency keys and transactions at the log end.
        report: what recovery found.
        has_remains: the replica is damaged, and bytes lie behind the log end; they must be cut before the log grows.
    """

    segments: list[Segment]
    unsealed: dict[Segment, WriterSnapshot]
    epochs: LeaderEpochs
    writers: WriterState
    report: RecoveryReport
    has_remains: bool


def recover(replica: ReplicaFiles) -> RecoveredLog:
    """Recover the log in the replica's folder, which must exist.

    Raises:
        DiskFailedError: stop the process.
    """
    return _Recovery(replica).run()


class _DamageError(Exception):
    """Bytes below the recovery point differ from those that were written."""


class _Recovery:
    """One run of recovery; see the module docstring."""

    def __init__(self, replica: ReplicaFiles) -> None:
        self._replica = replica
        self._files = replica.files
        self._segments: list[Segment] = []
        self._unsealed: dict[Segment, WriterSnapshot] = {}
        self._epochs = LeaderEpochs()
        self._has_epochs = False
        self._writers = WriterState()
        self._writers_offset = 0
        # Set while recovery finishes a truncation: batches that end above this offset do not count.
        self._end_max: int | None = None
        self._scanned_bytes = 0
        self._cut_bytes = 0
        self._reason = replica.reason
        self._is_damaged = False
        self._is_known_damaged = replica.meta.health is ReplicaHealth.DAMAGED

    def run(self) -> RecoveredLog:
        replica = self._replica
        was_clean = replica.checkpoint.is_clean
        # The lost checkpoint may have had a recovery point above the end that is found here. Records may be missing.
        if not replica.checkpoint.is_whole and replica.checkpoint.recovery_point == NO_OFFSET:
            self._judge(ReplicaHealth.SUSPECT, "the checkpoint is lost")
        try:
            self._recover()
        except _DamageError as damage:
            self._is_damaged = True
            self._judge(ReplicaHealth.DAMAGED, str(damage))
        if not self._segments:
            # The first segments, or all of them, are missing: no segment holds the log start.
            self._segments.append(replica.new_segment(replica.log_start_offset))
            self._files.sync_directory(replica.directory)
        self._settle(was_clean=was_clean)
        last = self._segments[-1]
        # Appends extend the index, and preallocate from the end of the file.
        last.load_index()
        last.allocated_bytes = last.file.size()
        return RecoveredLog(
            segments=self._segments,
            unsealed=self._unsealed,
            epochs=self._epochs,
            writers=self._writers,
            report=RecoveryReport(
                health=replica.meta.health,
                reason=self._reason,
                cut_bytes=self._cut_bytes,
                scanned_bytes=self._scanned_bytes,
                was_clean=was_clean and not self._scanned_bytes,
            ),
            has_remains=self._is_damaged,
        )

    # Steps, in order.

    def _recover(self) -> None:
        self._remove_leftovers()
        # Finish swaps before the segments are listed. An unfinished swap may have removed segments already, and its new
        # segment does not have its final name yet.
        finish_swaps(self._replica)
        change = self._replica.meta.change
        if change is not None and change.kind is ChangeKind.RESTART:
            self._restart_at(change.offset)
            return
        if change is not None:
            self._resume_truncation(change.offset)
        bases = self._remaining_bases()
        point = self._recovery_point(bases)
        self._load_hints(bases, point)
        first = self._trust(bases, point)
        self._scan(bases[first:], point)
        self._check_end()
        # The announcement of the truncation is removed last. After a crash before this, the next start truncates again
        # and changes nothing.
        if change is not None:
            write_truncated_epochs(self._replica, self._epochs)
            self._replica.store_meta(replace(self._replica.meta, change=None))

    def _remove_leftovers(self) -> None:
        # A file is written as .tmp and renamed when it is complete. So a file with this name is incomplete. Earlier
        # releases wrote a second index file for each segment (.timeindex), which nothing else would remove.
        for name in self._files.list_directory(self._replica.directory):
            if name.endswith((".tmp", ".timeindex")):
                self._files.remove(self._replica.path(name))

    def _restart_at(self, offset: int) -> None:
        self._segments = [self._replica.restart_at(offset)]
        self._unsealed.clear()
        self._epochs.clear()
        self._writers, _ = load_writers(self._replica, offset)

    def _resume_truncation(self, offset: int) -> None:
        """Continue a truncation to ``offset`` that a crash interrupted; some of its steps may be done already."""
        replica = self._replica
        self._end_max = offset
        replica.lower_checkpoint(offset)
        # Highest first: a crash in between leaves a log without a gap. The first segment stays, because a log always
        # has at least one.
        bases = replica.offsets_of(LOG_SUFFIX)
        for base_offset in reversed(bases[1:]):
            if base_offset >= offset:
                replica.remove_segment(base_offset)

    def _remaining_bases(self) -> list[int]:
        """Remove segments wholly below the log start; return the base offsets of the others."""
        replica = self._replica
        bases = replica.offsets_of(LOG_SUFFIX)
        if not bases:
            raise _DamageError("the files of the replica are gone")
        if not replica.checkpoint.is_whole:
            # One slot of the checkpoint is damaged, and the log start may be stale: keep every segment.
            return bases
        log_start_offset = replica.log_start_offset
        # A segment above the recovery point stays even if it lies below the log start. No snapshot holds the writers'
        # state of its batches yet, so recovery must read them.
        dispensable = min(log_start_offset, replica.checkpoint.recovery_point)
        if len(bases) > 1 and bases[1] <= dispensable:
            # After a kill, the folder may list new files of which only the page cache knows. Sync the folder first.
            # Otherwise a power cut could undo these creations but keep the removals below, and leave no segment.
            self._files.sync_directory(replica.directory)
        while len(bases) > 1 and bases[1] <= dispensable:
            replica.remove_segment(bases.pop(0))
        if bases[0] > log_start_offset:
            raise _DamageError(
                f"the log starts at offset {log_start_offset}, but its first segment at {bases[0]}"
            )
        return bases

    def _recovery_point(self, bases: list[int]) -> int:
        if not self._replica.checkpoint.is_whole:
            # The damaged slot may have held a lower recovery point, written by a truncation. Check every segment.
            return bases[0]
        return max(self._replica.checkpoint.recovery_point, bases[0])

    # Hints.

    def _load_hints(self, bases: list[int], point: int) -> None:
        """Load the epoch table and the newest snapshot of the writers' state, both as of the recovery point at most."""
        self._writers, self._writers_offset = load_writers(self._replica, point)
        log_start_offset = max(bases[0], self._replica.log_start_offset)
        epochs = read_epochs(self._replica)
        epochs.truncate_to(point)
        # A table that starts above the log start is incomplete. A follower that asks where an epoch ends would get a
        # wrong answer from it, and would truncate its log at the wrong offset.
        self._has_epochs = point <= log_start_offset or epochs.epoch_at(log_start_offset) >= 0
        self._epochs = epochs if self._has_epochs else LeaderEpochs()

    def _replay(self, segment: Segment) -> None:
        """Read a segment's batches into the epoch table and the writers' state, if the files lack them."""
        if self._has_epochs and self._writers_offset >= segment.next_offset:
            return
        try:
            start = 0
            if self._has_epochs:
                # The epoch table is complete, so only the batches behind the snapshot are missing in the writers'
                # state.
                start, _ = segment.locate(max(self._writers_offset, segment.base_offset))
            for _, header in segment.headers_from(start):
                self._scanned_bytes += header.batch_bytes
                self._note(header)
        except CorruptLogError as error:
            self._keep_prefix(segment, str(error))

    # Below the recovery point.

    def _trust(self, bases: list[int], point: int) -> int:
        """Take the segments that end at or below the recovery point; return their number."""
        count = 0
        for base_offset, next_offset in pairwise(bases):
            if next_offset > point:
                break
            segment = self._trusted(base_offset, next_offset)
            # A node may have thousands of these segments. Do not keep their indexes in memory or their files open.
            self._replay(segment)
            segment.drop_index()
            segment.let_go()
            count += 1
        return count

    def _trusted(self, base_offset: int, next_offset: int) -> Segment:
        """Return a segment below the recovery point, as its index describes it."""
        segment = self._replica.segment(base_offset)
        self._segments.append(segment)
        summary = self._read_summary(base_offset)
        wanted = (base_offset, next_offset)
        if summary is None or (summary.base_offset, summary.next_offset) != wanted:
            self._rebuild(segment, next_offset)
        elif self._is_known_damaged:
            # A scrub found the damage while the node ran, and its offset was not stored. Check every batch to find it.
            self._rebuild(segment, next_offset)
        elif segment.file.size() < summary.size_bytes:
            self._keep_prefix(segment, f"{summary.size_bytes} bytes were expected")
        else:
            segment.adopt(summary, None)
        return segment

    def _read_summary(self, base_offset: int) -> SegmentSummary | None:
        try:
            file = self._files.open(self._replica.path(offset_name(base_offset, INDEX_SUFFIX)))
        except FileNotFoundError:
            return None
        try:
            return decode_summary(file.pread(INDEX_HEADER_BYTES, 0))
        except CorruptLogError:
            return None
        finally:
            file.close()

    def _rebuild(self, segment: Segment, next_offset: int) -> None:
        """Rebuild the index of a segment from its log file, up to ``next_offset``, where the segment must end."""
        file = segment.file
        try:
            for header in self._checked(file, 0, file.size(), segment.base_offset):
                if header.base_offset >= next_offset:
                    break
                self._scanned_bytes += header.batch_bytes
                segment.add_batch(header)
            reason = "the log file ends there"
        except CorruptLogError as error:
            reason = str(error)
        if segment.next_offset != next_offset:
            self._keep_prefix(segment, reason)
        # A full disk must not keep the node from starting. The next start rebuilds the index again.
        with suppress(DiskFullError):
            self._files.write_atomically(*segment.encode_index())

    def _keep_prefix(self, segment: Segment, reason: str) -> NoReturn:
        """End the log before the damage in ``segment``, and raise ``_DamageError``; change no bytes of the file."""
        segment.adopt(
            SegmentSummary(segment.base_offset, segment.base_offset, 0, NO_TIMESTAMP),
            SegmentIndex(),
        )
        file = segment.file
        # The index may be wrong too. Check the batches from the start of the file, and count only sound ones.
        with suppress(CorruptLogError):
            for header in self._checked(file, 0, file.size(), segment.base_offset):
                segment.add_batch(header)
        raise _DamageError(f"{file.path} is damaged at offset {segment.next_offset}: {reason}")

    # From the recovery point on.

    def _scan(self, bases: list[int], point: int) -> None:
        """Check all batches from the recovery point on.

        Args:
            bases: base offsets of the segments to check; the first segment holds ``point``, or starts there.
            point: the recovery point.
        """
        for number, base_offset in enumerate(bases):
            if number:
                rolled = self._segments[-1]
                # The next checkpoint writes this state as a snapshot. Retention removes the segment only after that.
                self._unsealed[rolled] = self._writers.freeze(rolled.next_offset)
            is_next = not self._segments or base_offset == self._segments[-1].next_offset
            if not is_next or not self._scan_segment(base_offset, point):
                # If ``is_next``, this segment was scanned and is the last to be kept. Otherwise it is the first to be
                # cut.
                self._cut_segments(bases[number + is_next :])
                break
        self._unsealed.pop(self._segments[-1], None)

    def _scan_segment(self, base_offset: int, point: int) -> bool:
        """Add the sound batches of one segment to the log; return False if the segments behind it must be cut."""
        segment = self._replica.segment(base_offset)
        self._segments.append(segment)
        self._adopt_index(segment, point)
        file = segment.file
        size = file.size()
        if size < segment.size_bytes:
            self._keep_prefix(segment, f"{segment.size_bytes} bytes were expected")
        self._replay(segment)
        try:
            for header in self._checked(file, segment.size_bytes, size, segment.next_offset):
                # Recovery is finishing a truncation, and this is its offset. The batches from here on are sound, but
                # the truncation must cut them.
                if self._end_max is not None and header.next_offset > self._end_max:
                    segment.cut_leftovers()
                    return False
                self._note(header)
                segment.add_batch(header)
                self._scanned_bytes += header.batch_bytes
        except CorruptLogError as error:
            return self._end_segment(segment, size, error)
        return True

    def _adopt_index(self, segment: Segment, point: int) -> None:
        """Take the batches below the recovery point from the index file, if it is valid, instead of reading them."""
        if segment.base_offset >= point or self._is_known_damaged:
            return
        try:
            summary, index = decode_index(self._files.read_bytes(segment.path(INDEX_SUFFIX)))
        except (FileNotFoundError, CorruptLogError):
            return
        if summary.base_offset != segment.base_offset or not len(index):
            return
        if summary.next_offset == point:
            segment.adopt(summary, index)
        elif summary.next_offset > point:
            # The index reaches above the recovery point, so the log was cut after the index was written. Batches above
            # the point may be new ones. Entries below the point are still right, because a cut never goes below it.
            entry = index.floor(point - 1)
            offset = index.offsets[entry]
            segment.adopt(
                SegmentSummary(
                    segment.base_offset, offset, index.positions[entry], index.timestamps[entry]
                ),
                index.truncated_to(offset),
            )

    def _end_segment(self, segment: Segment, size: int, error: CorruptLogError) -> bool:
        """Judge the first bytes of a segment that are not a batch; cut them unless they are zeros to the end.

        Return True for zeros, which are the normal end of a preallocated file, and False after a cut.
        """
        if segment.next_offset < self._replica.checkpoint.recovery_point:
            # These bytes were synced, so this is not an unfinished write but damage. Keep all bytes (``_DamageError``).
            self._keep_prefix(segment, str(error))
        cut = size - segment.size_bytes - _leading_zeros(segment.file, segment.size_bytes, size)
        if not cut:
            return True
        # This is an unfinished write, which was never acknowledged, or a damaged batch, which may have been. The bytes
        # do not show which of the two.
        self._judge(
            ReplicaHealth.SUSPECT, f"cut at offset {segment.next_offset}: {error}", cut_bytes=cut
        )
        segment.cut_leftovers()
        return False

    def _cut_segments(self, bases: list[int]) -> None:
        """Remove segments that do not continue the sound part of the log; ``bases`` are their base offsets."""
        # If the sound part ends below the recovery point, the replica is damaged, and no segment may be removed.
        self._check_end()
        end_offset = self._segments[-1].next_offset
        cut = sum(map(self._content_bytes, bases))
        # While recovery finishes a truncation, it is expected to cut batches. Otherwise acknowledged records may be
        # lost.
        if cut and self._end_max is None:
            reason = self._reason or f"no segment begins at offset {end_offset}"
            self._judge(ReplicaHealth.SUSPECT, reason, cut_bytes=cut)
        # Highest first: a crash in between leaves a log without a gap.
        for base_offset in reversed(bases):
            self._replica.remove_segment(base_offset)

    def _content_bytes(self, base_offset: int) -> int:
        file = self._files.open(self._replica.path(offset_name(base_offset, LOG_SUFFIX)))
        try:
            size = file.size()
            return size - _leading_zeros(file, 0, size)
        finally:
            file.close()

    def _check_end(self) -> None:
        end_offset = self._segments[-1].next_offset
        recovery_point = self._replica.checkpoint.recovery_point
        if end_offset < recovery_point:
            raise _DamageError(
                f"the log ends at offset {end_offset}, below its recovery point {recovery_point}"
            )

    # At the end.

    def _settle(self, *, was_clean: bool) -> None:
        """Judge the end of the log, and sync everything that readers are about to see."""
        replica = self._replica
        self._judge_end()
        end_offset = self._segments[-1].next_offset
        if not was_clean:
            # After a kill, the page cache may hold bytes that are not on the disk. Cuts that recovery made are unsynced
            # as well.
            for segment in self._segments:
                if segment.next_offset >= replica.checkpoint.recovery_point:
                    segment.file.sync()
            self._files.sync_directory(replica.directory)
        first_offset = self._segments[0].base_offset
        if not replica.checkpoint.is_whole:
            self._renew_checkpoint(first_offset)
        self._epochs.advance_start(max(replica.log_start_offset, first_offset))
        if self._is_damaged:
            # No file is changed. Only the state in memory must match the shorter log.
            self._epochs.truncate_to(end_offset)
            self._writers.forget_from(end_offset)
        else:
            self._remove_snapshots_above(end_offset)

    def _renew_checkpoint(self, first_offset: int) -> None:
        """Replace a checkpoint that may be stale, because one of its slots is damaged.

        The new recovery point is the first offset, so that the next start checks the whole log.
        """
        stored = self._replica.checkpoint
        self._replica.store_checkpoint(
            Checkpoint(
                recovery_point=stored.recovery_point if self._is_damaged else first_offset,
                log_start_offset=max(stored.log_start_offset, first_offset),
                high_watermark=stored.high_watermark,
            )
        )

    def _judge_end(self) -> None:
        replica = self._replica
        end_offset = self._segments[-1].next_offset
        high_watermark = replica.checkpoint.high_watermark
        if self._is_damaged:
            return
        if end_offset < high_watermark:
            # Committed records are missing, even if the scan found no bad byte.
            self._judge(
                ReplicaHealth.SUSPECT,
                f"the log ends at offset {end_offset}, below its high watermark {high_watermark}",
            )
        elif not self._reason and replica.meta.health is not ReplicaHealth.SOUND:
            self._reason = "not restored since an earlier start found it so"
        if end_offset < replica.log_start_offset:
            # The log start lies in the middle of the first batch, and a crash lost this batch before it was synced
            # (``Cutting.begin_with``). Restart the empty log at the log start. The restart removes every snapshot
            # except the one at this offset, so write that one first.
            with suppress(DiskFullError):
                write_snapshot(replica, self._writers, replica.log_start_offset)
            restart = Change(ChangeKind.RESTART, replica.log_start_offset)
            replica.store_meta(replace(replica.meta, change=restart))
            self._restart_at(replica.log_start_offset)

    def _remove_snapshots_above(self, end_offset: int) -> None:
        """Remove snapshots above the recovery point, because their checkpoint did not finish."""
        replica = self._replica
        point = max(replica.checkpoint.recovery_point, self._segments[0].base_offset)
        for offset in replica.offsets_of(SNAPSHOT_SUFFIX):
            if offset > min(end_offset, point):
                self._files.remove(replica.path(offset_name(offset, SNAPSHOT_SUFFIX)))

    def _judge(self, health: ReplicaHealth, reason: str, *, cut_bytes: int = 0) -> None:
        """Store a verdict, durably, before recovery acts on it."""
        self._reason = reason
        self._cut_bytes += cut_bytes
        meta = self._replica.meta
        self._replica.store_meta(replace(meta, health=worse(meta.health, health)))

    # Batches.

    def _checked(
        self, file: File, position: int, end: int, next_offset: int
    ) -> Iterator[BatchHeader]:
        """Yield the headers of sound batches; the first one must start at ``next_offset``, each other where one ends.

        Raises:
            CorruptLogError: a batch is damaged, has another base offset, or a lower leader epoch than the one before.
        """
        epoch = max(self._epochs.epoch_at(next_offset - 1), 0)
        for _, header in scan_batches(file, position, end):
            if header.base_offset != next_offset:
                raise CorruptBatchError(f"offset {header.base_offset} where {next_offset} follows")
            if header.leader_epoch < epoch:
                raise CorruptBatchError(f"leader epoch {header.leader_epoch} after {epoch}")
            yield header
            next_offset, epoch = header.next_offset, header.leader_epoch

    def _note(self, header: BatchHeader) -> None:
        # A batch that is read only for the writers' state may have an epoch that is in the table already.
        if self._epochs.last_epoch < header.leader_epoch:
            self._epochs.assign(header.leader_epoch, header.base_offset)
        if header.base_offset >= self._writers_offset:
            self._writers.record(header, header.base_offset, header.append_time_ms)


def _leading_zeros(file: File, position: int, end: int) -> int:
    """Return the number of zero bytes in a row from ``position`` on."""
    start = position
    while position < end:
        chunk = file.pread(min(len(_ZEROS), end - position), position)
        if not chunk:
            break
        if chunk != _ZEROS[: len(chunk)]:
            return position - start + len(chunk) - len(chunk.lstrip(b"\0"))
        position += len(chunk)
    return position - start
