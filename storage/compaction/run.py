"""One compaction of one log, in slices that any thread may run while the owner continues to use the log.

The owner starts a run and looks at it after each slice (``LogCompaction.note``). A run changes files, but
only the owner changes the table of segments. So a slice that replaced segments ends there, and the next slice waits
until the table is updated. Until then readers have the old files, which stay open.

    step    read, judge, write; about ``slice_bytes`` at most
    void    end the run, because the owner is about to cut, restart or close the log

After a crash, recovery finishes or removes what a run left (``segment_swap``).
"""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from milena.disk.files import Buffer, File
from milena.model.errors import DiskFullError
from storage.compaction.mark import CompactionMark, read_mark, write_mark
from storage.compaction.policy import (
    KEYS_MAX,
    BatchSieve,
    Kept,
    KeyMap,
    SieveCounts,
    SieveRules,
    records_to_count,
)
from storage.replica.folder import ReplicaFiles
from storage.replica.segment_swap import cleaned_path, swap_in
from storage.segments.log_config import LogConfig
from storage.segments.segment import LOG_SUFFIX, Segment, read_batches
from storage.state.producer_state import WriterState
from storage.state.transactions import AbortedRange, Identity

SLICE_BYTES = 64 << 10
"""Bytes that one step reads and writes: two or three milliseconds of a thread; one batch if that is larger."""

SYNC_BYTES = 4 << 20
"""Bytes between two syncs. A large sync would delay the writers' syncs on the same disk."""

WRITE_BYTES = 256 << 10

SPARE_BYTES = 64 << 20
"""Bytes that a run leaves free on the disk: compaction should make room, not use up the last of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Bounds and rules of a run; ``policy.SieveRules`` describes the other fields.

    All transactions below ``end_offset`` are decided.
    """

    segments: tuple[Segment, ...]
    config: LogConfig
    clean_end: int
    end_offset: int
    now_ms: int
    tombstone_end: int
    aborted: Mapping[Identity, AbortedRange]
    keys_max: int = KEYS_MAX
    slice_bytes: int = SLICE_BYTES


@dataclass(frozen=True, slots=True)
class SegmentSwap:
    """A new segment that lies on the disk in the place of ``old``; the table must be updated."""

    old: tuple[Segment, ...]
    segment: Segment


class CompactionRun:
    """One run; see the module docstring.

    Invariants:
        - between two steps, nothing is half done except one ``.cleaned`` file;
        - segments are swapped from the oldest on, so a tombstone is never removed before the records that it deletes.
    """

    def __init__(self, replica: ReplicaFiles, plan: RunPlan) -> None:
        self._replica = replica
        self._plan = plan
        self._lock = threading.Lock()
        self._segments = plan.segments
        self._clean_end = plan.clean_end
        self._work = self._run()
        self.swap: SegmentSwap | None = None
        """Set after a swap; the owner takes it over before the next step."""
        self.mark: CompactionMark | None = None
        """The latest mark on the disk."""
        self.counts = SieveCounts()
        self.bytes_before = 0
        self.bytes_after = 0
        """Bytes of the segments that were replaced (``bytes_before``), and of the new ones."""
        self.is_done = False
        self.is_void = False
        """Whether the run was ended before it was complete."""

    @property
    def tombstone_end(self) -> int:
        """Offset from which tombstones and markers stay."""
        return self._plan.tombstone_end

    def step(self) -> int:
        """Run a slice; return the bytes that it read and wrote.

        Raises:
            CorruptLogError: the log is damaged; the run has ended.
            DiskFullError: there is no room; the run has ended.
            DiskFailedError: stop the process.
        """
        with self._lock:
            if self.is_void:
                self.is_done = True
            if self.is_done:
                return 0
            assert self.swap is None, "the owner has not taken over the last swap"
            worked = 0
            try:
                for bytes_ in self._work:
                    worked += bytes_
                    if worked >= self._plan.slice_bytes or self.swap is not None:
                        return worked
            # A generator that raised cannot continue. The next run starts again from the mark.
            except BaseException:
                self.is_done = True
                raise
            self.is_done = True
            return worked

    def void(self) -> None:
        """End the run. Wait for a step in progress; a swap that it finished must still be taken over."""
        # Set without the lock: a step that has not started yet does nothing, so the wait is for one slice at most.
        self.is_void = True
        with self._lock:
            self.is_done = True
            self._work.close()

    # The work, as a generator of the bytes read and written.

    def _run(self) -> Generator[int]:
        mark, writers = read_mark(self._replica)
        if mark.clean_end != self._clean_end:
            # The stored writers' state belongs to another offset. Without it, the whole log is read again.
            self._clean_end, writers = 0, WriterState()
        # One pass for each ``keys_max`` keys. A pass rewrites only up to where its map reaches, because a record above
        # that offset may replace any of those below.
        while True:
            keys = KeyMap(
                max(self._clean_end, self._segments[0].base_offset), keys_max=self._plan.keys_max
            )
            yield from self._collect(keys, writers)
            # Each pass reads all tombstones below its end, so the last pass has the horizon of all.
            self.counts.horizon_ms = None
            rules = SieveRules(
                keys=keys,
                writers=writers,
                now_ms=self._plan.now_ms,
                delete_retention_ms=self._plan.config.delete_retention_ms,
                tombstone_end=self._plan.tombstone_end,
                aborted=self._plan.aborted,
                answers=writers.idempotency.answers(self._plan.now_ms),
            )
            for group in self._groups(keys.end):
                yield from self._rewrite(group, rules)
            self._clean_end = keys.end
            self._store_mark(writers)
            if self._clean_end >= self._plan.end_offset:
                return

    def _collect(self, keys: KeyMap, writers: WriterState) -> Iterator[int]:
        """Collect the last offset of each key and the state of each writer in the dirty part, until the map is full."""
        start = keys.end
        for segment in self._segments:
            if segment.next_offset <= start:
                continue
            with closing(self._open(segment)) as file:
                # The first batch may start below ``start``. Its writer is in the mark's state already.
                position = 0 if start <= segment.base_offset else segment.locate(start)[0]
                for chunk, header, at in read_batches(file, position, segment.size_bytes):
                    keys.add(header, records_to_count(chunk, header, at, self._plan.aborted))
                    if header.base_offset >= start:
                        writers.record(header, header.base_offset, header.append_time_ms)
                    yield header.batch_bytes
                    if keys.is_full:
                        return

    def _groups(self, end_offset: int) -> Sequence[tuple[Segment, ...]]:
        """Return neighbouring segments in groups; each group fits into one segment."""
        groups: list[tuple[Segment, ...]] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= end_offset:
                break
            if groups and size + segment.size_bytes <= self._plan.config.segment_bytes:
                groups[-1] = (*groups[-1], segment)
            else:
                groups.append((segment,))
                size = 0
            size += segment.size_bytes
        return groups

    def _rewrite(self, group: tuple[Segment, ...], rules: SieveRules) -> Iterator[int]:
        bytes_before = sum(segment.size_bytes for segment in group)
        self._require_room(bytes_before)
        with closing(_CleanedSegment(self._replica, group[0], self._plan.config)) as cleaned:
            sieve = BatchSieve(rules, self.counts)
            for segment in group:
                with closing(self._open(segment)) as file:
                    for chunk, header, at in read_batches(file, 0, segment.size_bytes):
                        worked = cleaned.write(sieve.take(chunk, header, at))
                        yield worked + header.batch_bytes
            yield cleaned.write(sieve.end())
            # Nothing changed. The unused ``.cleaned`` file is removed by ``close``.
            if not sieve.is_changed and len(group) == 1:
                return
            yield cleaned.finish()
            # Until the owner updates the table, readers find the old segments there. They cannot open them any more,
            # because the names belong to the new segment, so the pins keep the files open.
            with _AllPinned(group):
                self._swap(group, cleaned.segment)
                # The owner takes over the swap while the old segments are pinned. They are never opened by name again.
                yield 0
        self.bytes_before += bytes_before
        self.bytes_after += cleaned.segment.size_bytes

    def _open(self, segment: Segment) -> File:
        """Open a separate descriptor: the log's own descriptors are few, and readers need them."""
        return self._replica.files.open(segment.path(LOG_SUFFIX))

    def _require_room(self, size: int) -> None:
        free = self._replica.files.free_bytes(self._replica.directory)
        if free < size + SPARE_BYTES:
            raise DiskFullError(
                f"compaction of {self._replica.directory} needs {size + SPARE_BYTES} free bytes, {free} are left"
            )

    def _swap(self, group: tuple[Segment, ...], segment: Segment) -> None:
        index = segment.encode_index()
        # Before the swap: from here on nothing opens a file under an old name for one of these segments.
        for old in group:
            old.give_up_names()
        # The owner and its checkpoints change files of the same folder under this lock.
        with self._replica.lock:
            swap_in(self._replica, segment.base_offset, segment.next_offset, index)
        segment.drop_index()
        self.swap = SegmentSwap(group, segment)
        first = self._segments.index(group[0])
        self._segments = (
            *self._segments[:first],
            segment,
            *self._segments[first + len(group) :],
        )

    def _store_mark(self, writers: WriterState) -> None:
        # No batch of these transactions remains.
        writers.transactions.forget_below(self._clean_end)
        mark = CompactionMark(self._clean_end, self.counts.horizon_ms)
        with self._replica.lock:
            write_mark(self._replica, mark, writers)
        self.mark = mark


class _AllPinned:
    """Several segments that stay open for the length of a block."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def __enter__(self) -> None:
        for segment in self._segments:
            segment.pin()

    def __exit__(self, *_: object) -> None:
        for segment in self._segments:
            segment.unpin()


class _CleanedSegment:
    """A new segment that is written under a ``.cleaned`` name, which recovery removes."""

    def __init__(self, replica: ReplicaFiles, first: Segment, config: LogConfig) -> None:
        self._files = replica.files
        self._path = cleaned_path(replica, first.base_offset)
        self._file: File | None = None
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._position = 0
        self._unsynced_bytes = 0
        self.segment = first.successor(
            first.base_offset, index_interval_bytes=config.index_interval_bytes
        )

    def write(self, batches: Sequence[Kept]) -> int:
        """Add batches; return their bytes.

        Raises:
            DiskFullError: no space.
        """
        total = 0
        for batch in batches:
            self.segment.add_batch(batch.header)
            # Copy the batch: a reference would keep the whole chunk that it was read with alive.
            self._pending.append(bytes(batch.content))
            total += batch.header.batch_bytes
        self._pending_bytes += total
        if self._pending_bytes >= WRITE_BYTES:
            self._flush()
        return total

    def _flush(self) -> None:
        file = self._open()
        self._position += file.pwritev(self._pending, self._position)
        self._unsynced_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._unsynced_bytes >= SYNC_BYTES:
            file.sync()
            self._unsynced_bytes = 0

    def _open(self) -> File:
        if self._file is None:
            # Content left by a failed run would count as part of this one.
            self._files.remove(self._path)
            self._file = self._files.open(self._path, create=True)
        return self._file

    def finish(self) -> int:
        """Make all of the segment durable."""
        self._flush()
        self._open().sync()
        return 0

    def close(self) -> None:
        """Close the file, and remove it unless it was renamed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._files.remove(self._path)
