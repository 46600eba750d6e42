"""One partition's log on one node: ordered segments, appended at the end, read anywhere, cut at both ends.

The owner's thread alone calls what changes the log. ``read`` and its kin may run on other threads at the same time,
and so may ``run`` of the tickets that take the waiting for the disk off the owner.

    append            memory and page cache; durable after the next sync ticket was finished
    begin_sync        group commit: one ticket covers whatever was appended since the last
    begin_checkpoint  moves the recovery point now and then, and keeps the high watermark for the next start
    begin_compaction  removes records that a later one of the same key has replaced, slice by slice

Who may append, what the high watermark is, and what a full disk or a suspect replica means for the cluster is not
decided here. There is no clock: callers pass ``now_ms``.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from storage.append_plan import AppendPlan, AppendRun
from storage.batch import (
    STAMP_BYTES,
    BatchHeader,
    Stamp,
    decode_header,
    iterate_batches,
    stamp_batch,
)
from storage.checkpoint import Checkpoint
from storage.compaction import CompactionNeed
from storage.compaction_run import CompactionRun
from storage.errors import (
    CorruptLogError,
    DiskFailedError,
    DiskFullError,
    ReplicaDamagedError,
    RequestTooLargeError,
    StaleLeaderEpochError,
)
from storage.files import Buffer, Files
from storage.flushing import Flushing
from storage.idempotency import IdempotencyEntry
from storage.log_compaction import LogCompaction
from storage.log_config import LogConfig
from storage.log_reader import Bounds, find_by_timestamp, read_span
from storage.producer_state import (
    QueuedProducers,
    Verdict,
    WriterState,
    decode_snapshot,
    encode_snapshot,
)
from storage.recovery import RecoveredLog, RecoveryReport, recover
from storage.replica_folder import (
    ReplicaFiles,
    open_replica,
    write_snapshot,
    write_truncated_epochs,
)
from storage.replica_meta import META_NAME, Change, ChangeKind, ReplicaMeta
from storage.retention import forgettable, retained_start
from storage.rolling import SegmentAge
from storage.scrub import Damage, SegmentScrub
from storage.segment import SNAPSHOT_SUFFIX, Segment, offset_name
from storage.segment_table import SegmentTable
from storage.succession import check_succession, fit_filler, is_straddling
from storage.tail import NO_TAIL, TAIL_BYTES_MAX, Tail, tail_of
from storage.tickets import CheckpointPlan, CheckpointTicket, Generations, SyncTicket
from storage.truncation import remove_above, writers_at
from storage.types import NO_OFFSET, ReplicaHealth

__all__ = ["LogConfig", "PartitionLog", "RecoveryReport"]


class PartitionLog:
    """The log of one replica; see the module.

    Invariants:
        - ``log_start_offset <= log_end_offset`` and ``synced_end_offset <= log_end_offset``;
        - segments follow each other without a gap, and only the last one grows;
        - batches below the log end are whole and checked; epochs never fall along the log;
        - the recovery point on disk never passes the synced end, nor a truncation that has returned;
        - after a DiskFullError the log is as before the call.
    """

    def __init__(self, replica: ReplicaFiles, config: LogConfig, recovered: RecoveredLog) -> None:
        """Used by ``open``."""
        self._replica = replica
        self._config = config
        self._name = f"{replica.meta.topic_name}/{replica.meta.partition}"
        self._lock = threading.Lock()
        self._generations = Generations()
        self.recovery: RecoveryReport = recovered.report
        """What ``open`` found, or a scrub since then; the present verdict is ``health``."""
        self._epochs = recovered.epochs
        self._writers = recovered.writers
        self._has_remains = recovered.has_remains
        self._table = SegmentTable(recovered.segments, recovered.unsealed)
        self._log_start_offset = max(replica.log_start_offset, self._table.bases[0])
        self._log_end_offset = end_offset = self._active.next_offset
        self._flushing = Flushing(replica, self._table, end_offset)
        self._compaction = LogCompaction(
            replica, self._table, self._flushing, lock=self._lock, log_end_offset=end_offset
        )
        self._bytes_since_checkpoint = recovered.report.scanned_bytes
        self._age = SegmentAge()
        self._tail = NO_TAIL
        # Where the log ended when its index files and snapshot were written last; -1 when they do not fit any more.
        self._hinted_end_offset = NO_OFFSET if recovered.report.scanned_bytes else end_offset

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        *,
        config: LogConfig,
        topic_id: str,
        topic_name: str,
        partition: int,
        is_listed: bool,
        was_clean: bool,
        now_ms: int,
    ) -> "PartitionLog":
        """Open the replica in ``directory``: create it, or recover what is there.

        Create the replica here first and list it in the manifest then; on deletion the other way round. A crash in
        between leaves files that nobody counts on, not a listed replica without files.

        Args:
            files: the file system.
            directory: the replica's folder; its parents are made when they are missing.
            config: settings.
            topic_id: must match what the folder says.
            topic_name: likewise.
            partition: likewise.
            is_listed: whether the manifest says that the replica was created before: without files it is damaged.
            was_clean: whether the node stopped in order.
            now_ms: wall clock.

        Raises:
            CorruptLogError: the folder belongs to another partition.
            DiskFullError: no room for a new replica.
            DiskFailedError: stop the process.
        """
        meta = ReplicaMeta(topic_id=topic_id, topic_name=topic_name, partition=partition)
        replica = open_replica(
            files,
            directory,
            meta,
            index_interval_bytes=config.index_interval_bytes,
            is_listed=is_listed,
        )
        if not was_clean:
            replica.checkpoint = replace(replica.checkpoint, is_clean=False)
        log = cls(replica, config, recover(replica))
        log._writers.expire(now_ms)
        return log

    # What it is.

    @property
    def topic_name(self) -> str:
        """Name of the topic."""
        return self._replica.meta.topic_name

    @property
    def topic_id(self) -> str:
        """Id of the topic."""
        return self._replica.meta.topic_id

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._replica.meta.partition

    @property
    def directory(self) -> str:
        """The replica's folder."""
        return self._replica.directory

    @property
    def config(self) -> LogConfig:
        """Settings; assign others at any time."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._replica.index_interval_bytes = config.index_interval_bytes

    @property
    def clean_end_offset(self) -> int:
        """Everything below it was compacted."""
        return self._compaction.clean_end

    @property
    def health(self) -> ReplicaHealth:
        """Whether the replica can be trusted; kept across restarts until ``mark_sound``."""
        return self._replica.meta.health

    @property
    def log_start_offset(self) -> int:
        """First readable offset."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Next offset to be written."""
        return self._log_end_offset

    @property
    def synced_end_offset(self) -> int:
        """Everything below it is durable."""
        return self._flushing.synced_end

    @property
    def stored_end_offset(self) -> int:
        """What this replica may acknowledge (exclusive): the synced end when strict, the log end when relaxed."""
        return self._flushing.synced_end if self._config.is_strict else self._log_end_offset

    @property
    def high_watermark_checkpoint(self) -> int:
        """The high watermark that was checkpointed last."""
        return self._replica.checkpoint.high_watermark

    @property
    def recovery_point(self) -> int:
        """Where recovery would begin to scan."""
        return self._replica.checkpoint.recovery_point

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch, -1 without one."""
        return self._epochs.last_epoch

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._table.segments)

    @property
    def segment_count(self) -> int:
        """Segments, the active one included."""
        return len(self._table.segments)

    def mark_sound(self) -> None:
        """Trust the replica again: it was restored from the leader, or elected for want of a better one.

        Raises:
            DiskFailedError: stop the process.
        """
        with self._lock:
            self._drop_remains()
            # What was lost is lost: the next start must not find the replica suspect for it again.
            self._replica.lower_checkpoint(self._log_end_offset)
            self._replica.store_meta(replace(self._replica.meta, health=ReplicaHealth.SOUND))

    @property
    def _active(self) -> Segment:
        return self._table.active

    # Appending.

    def append_as_leader(
        self,
        batches: Sequence[bytes],
        *,
        leader_epoch: int,
        now_ms: int,
        headers: Sequence[BatchHeader] | None = None,
    ) -> tuple[int, ...]:
        """Stamp and append batches, in one write; returns the base offset of each.

        Args:
            batches: validated before; any stamp that they carry is replaced.
            leader_epoch: of this leader.
            now_ms: wall clock, the append time.
            headers: their headers, if the caller has decoded them already.

        Raises:
            StaleLeaderEpochError: the log holds batches of a later epoch.
            RequestTooLargeError: a batch is larger than ``max_message_bytes``.
            ReplicaDamagedError: the replica is damaged.
            DiskFullError: nothing was appended.
            DiskFailedError: stop the process.
        """
        self._require_leader_epoch(leader_epoch)
        if headers is None:
            headers = [decode_header(batch) for batch in batches]
        self._require_sizes(headers)
        plan = AppendPlan(self._active, self._config)
        offset = self._log_end_offset
        offsets: list[int] = []
        for batch, header in zip(batches, headers, strict=True):
            stamp = stamp_batch(
                batch, base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            stamped = header.stamped(
                base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            plan.add(stamped, stamp, memoryview(batch)[STAMP_BYTES:])
            offsets.append(offset)
            offset = stamped.next_offset
        self._append(plan)
        self._tail = tail_of(plan.runs[-1])
        return tuple(offsets)

    def next_stamp(self, *, leader_epoch: int, now_ms: int) -> Stamp:
        """What a leader's next batch would be stamped with, as long as nothing else is appended."""
        return Stamp(self._log_end_offset, leader_epoch, now_ms)

    def append_stamped(self, batch: bytes, header: BatchHeader) -> None:
        """Append one batch that this leader encoded for the log's very end (``next_stamp``, ``encode_stamped``).

        As ``append_as_leader`` without a second look at bytes that were made a moment ago.

        Raises:
            StaleLeaderEpochError, RequestTooLargeError, ReplicaDamagedError, DiskFullError: nothing was appended.
            DiskFailedError: stop the process.
        """
        assert header.base_offset == self._log_end_offset, (header, self._log_end_offset)
        self._require_leader_epoch(header.leader_epoch)
        self._require_sizes((header,))
        if self._is_next(header):
            self._append_next(header, batch)
        else:
            plan = AppendPlan(self._active, self._config)
            plan.add(header, batch)
            self._append(plan)
        if len(batch) <= TAIL_BYTES_MAX:
            self._tail = Tail(header.base_offset, header.next_offset, batch)

    def append_as_follower(self, data: Buffer) -> int:
        """Append whole batches as the leader sent them; returns the new log end.

        Raises:
            CorruptBatchError: they are damaged, do not begin at the log end, or do not follow each other.
            DiskFullError: nothing was appended.
            DiskFailedError: stop the process.
        """
        found = list(iterate_batches(data))
        if len(found) == 1 and self._is_next(found[0][1]):
            self._append_next(found[0][1], data)
            return self._log_end_offset
        data = fit_filler(data, found, self._log_end_offset)
        has_straddler = is_straddling(found, self._log_start_offset, self._log_end_offset)
        check_succession(
            found,
            offset=found[0][1].base_offset if has_straddler else self._log_end_offset,
            last_epoch=self._epochs.last_epoch,
        )
        if self._has_remains:
            with self._lock:
                self._drop_remains()
        view = memoryview(data)
        if has_straddler:
            _, first = found.pop(0)
            self._begin_with(first, view[: first.batch_bytes])
            view = view[first.batch_bytes :]
        plan = AppendPlan(self._active, self._config)
        for _, header in found:
            plan.add(header)
        for run in plan.runs:
            # They came in one piece, and go out so.
            run.chunks.append(view[: run.total_bytes])
            view = view[run.total_bytes :]
        self._append(plan)
        return self._log_end_offset

    def _is_next(self, header: BatchHeader) -> bool:
        """Whether a batch goes on where the log ends, and nothing has to be decided or made for it."""
        return (
            header.base_offset == self._log_end_offset
            and header.leader_epoch == self._epochs.last_epoch
            and self._active.size_bytes + header.batch_bytes <= self._config.segment_bytes
            and not self._has_remains
        )

    def _append_next(self, header: BatchHeader, batch: Buffer) -> None:
        """The short way, on which a lone writer waits: what an append of one such batch comes to."""
        segment, config = self._active, self._config
        self._tail = NO_TAIL
        segment.write(
            (batch,),
            header.batch_bytes,
            allocation_end=min(segment.size_bytes + config.preallocate_bytes, config.segment_bytes),
        )
        self._count_in(segment, header)
        self._bytes_since_checkpoint += header.batch_bytes
        self._log_end_offset = segment.next_offset
        self._flushing.note_append(segment, header.record_count, header.batch_bytes)

    def _begin_with(self, header: BatchHeader, batch: Buffer) -> None:
        """Let an empty log begin with a batch that begins below the log start.

        Until the checkpoint is lowered, recovery takes the new segment for one that retention left behind.
        """
        self._compaction.void()
        replica = self._replica
        segment = replica.new_segment(header.base_offset)
        try:
            segment.write([batch], header.batch_bytes, allocation_end=0)
            write_snapshot(replica, self._writers, header.base_offset)
        except DiskFullError:
            segment.remove()
            raise
        with self._lock:
            self._generations.current += 1
            replica.lower_checkpoint(header.base_offset)
        empty = self._active
        self._epochs.clear()
        self._hinted_end_offset = NO_OFFSET
        self._table.replace_all(segment)
        self._flushing.note_truncation(header.base_offset)
        self._flushing.note_name()
        empty.remove()
        replica.files.remove(replica.path(offset_name(empty.base_offset, SNAPSHOT_SUFFIX)))
        run = AppendRun(segment, total_bytes=header.batch_bytes, headers=[header])
        self._commit(run)

    def _require_leader_epoch(self, leader_epoch: int) -> None:
        """A leader of this epoch may append now."""
        self._require_undamaged()
        if leader_epoch < self._epochs.last_epoch:
            raise StaleLeaderEpochError(
                f"leader epoch {leader_epoch} is older than epoch {self._epochs.last_epoch} of the log"
            )
        self._forget_foreign_state()

    def _require_sizes(self, headers: Sequence[BatchHeader]) -> None:
        bytes_max = self._config.max_message_bytes
        for header in headers:
            if header.batch_bytes > bytes_max:
                raise RequestTooLargeError(
                    f"a batch of {header.batch_bytes} bytes is above "
                    f"max.message.bytes={bytes_max}; send fewer records at a time"
                )

    def _require_undamaged(self) -> None:
        if self.health is ReplicaHealth.DAMAGED:
            raise ReplicaDamagedError(
                f"this replica of {self._name} is damaged: {self.recovery.reason}"
            )

    def _forget_foreign_state(self) -> None:
        """Drop what an installed snapshot says of batches that this log never got, now that it goes its own way."""
        if self._writers.covers_offset > self._log_end_offset:
            self._writers.forget_from(self._log_end_offset)

    def _append(self, plan: AppendPlan) -> None:
        """Write all of an append, and let it count then."""
        self._tail = NO_TAIL
        plan.write()
        for run in plan.runs:
            self._commit(run)

    def _commit(self, run: AppendRun) -> None:
        segment = run.segment
        if run.is_new:
            self._push(segment)
        if not run.headers:
            return
        records = 0
        for header in run.headers:
            self._epochs.assign(header.leader_epoch, header.base_offset)
            self._count_in(segment, header)
            records += header.record_count
        self._bytes_since_checkpoint += run.total_bytes
        self._log_end_offset = segment.next_offset
        self._flushing.note_append(segment, records, run.total_bytes)

    def _count_in(self, segment: Segment, header: BatchHeader) -> None:
        self._writers.record(header, header.base_offset, header.append_time_ms)
        segment.add_batch(
            header.base_offset,
            header.next_offset,
            header.batch_bytes,
            header.latest_timestamp_ms,
        )

    def _push(self, segment: Segment) -> None:
        """A new segment takes over; the last one is sealed by the next checkpoint."""
        self._tail = NO_TAIL
        self._table.push(segment, self._writers.freeze(self._log_end_offset))
        self._flushing.note_name()

    def _roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty.

        Raises:
            DiskFullError: nothing has changed.
        """
        if self._active.size_bytes:
            self._push(self._replica.new_segment(self._log_end_offset))

    # Syncing.

    def needs_sync(self, now_ms: int) -> bool:
        """Whether ``begin_sync`` is due: always when strict and something is unsynced, else by count or time."""
        return self._flushing.is_due(self._config, now_ms)

    def begin_sync(self) -> SyncTicket | None:
        """A ticket for all that is unsynced; None when nothing is, or while another one is under way."""
        return self._flushing.begin(self._log_end_offset)

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Count in a ticket that has run; returns the synced end."""
        self._flushing.finish(ticket)
        return self._flushing.synced_end

    def sync(self) -> int:
        """Sync everything now, on this thread; returns the synced end.

        A ticket that is under way stays so: another thread may be in the middle of it.

        Raises:
            DiskFailedError: stop the process.
        """
        ticket = self._flushing.ticket_for_all(self._log_end_offset)
        try:
            ticket.run()
        finally:
            ticket.release()
        self._flushing.note_all_synced(self._log_end_offset)
        return self._flushing.synced_end

    # Reading.

    def read_span(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> bytes:
        """Whole batches from the one that holds ``offset``, as they lie in the file; none at the log end.

        At least one batch, and otherwise no more than ``max_bytes``; none that begins at or above ``end_offset``
        (the log end when it is None). Never reaches across a segment: read on where it ended.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        span = self._read(offset, max_bytes, end_offset, is_cached=False)
        assert span is not None, "only a read from the page cache may miss"
        return span

    def read_span_cached(
        self, offset: int, *, max_bytes: int, end_offset: int | None = None
    ) -> bytes | None:
        """The same from the page cache alone: None when the disk would have to be read.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        return self._read(offset, max_bytes, end_offset, is_cached=True)

    def _read(
        self, offset: int, max_bytes: int, end_offset: int | None, *, is_cached: bool
    ) -> bytes | None:
        self._require_undamaged()
        tail = self._tail
        if (
            is_cached
            and self._log_start_offset <= offset == tail.base_offset
            and len(tail.span) <= max_bytes
            and (end_offset is None or end_offset >= tail.next_offset)
        ):
            # What all followers ask for right after an append.
            return tail.span
        return read_span(
            self._table,
            self._bounds(),
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            is_cached=is_cached,
        )

    def _bounds(self) -> Bounds:
        return Bounds(self._log_start_offset, self._log_end_offset, self._name)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older than ``timestamp_ms``; None without one.

        Raises:
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        self._require_undamaged()
        return find_by_timestamp(self._table, self._bounds(), timestamp_ms)

    # Epochs and writers.

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest leader epoch <= ``epoch`` and the offset where it ends (exclusive); (-1, -1) without one."""
        return self._epochs.end_of(epoch, self._log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the batch that holds ``offset``; -1 below the log start."""
        return self._epochs.epoch_at(offset)

    def producer_check(self, header: BatchHeader, now_ms: int) -> Verdict:
        """Whether a batch may be appended, after all that were, synced or not.

        Raises:
            StaleProducerEpochError: a later epoch of the producer has written.
            InvalidProducerError: its sequence leaves a gap, or repeats one that is forgotten.
        """
        self._forget_foreign_state()
        return self._writers.producers.check(header, now_ms)

    def producer_queue(self, now_ms: int) -> QueuedProducers:
        """Like ``producer_check`` for batches that will be appended together, each after those before it."""
        self._forget_foreign_state()
        return QueuedProducers(
            self._writers.producers, next_offset=self._log_end_offset, now_ms=now_ms
        )

    def last_sequence(self, producer_id: int) -> int | None:
        """The last sequence that a producer has written here; None: nothing that is remembered."""
        entry = self._writers.producers.get(producer_id)
        return None if entry is None else entry.batches[-1].last_sequence

    def idempotency_lookup(self, key_hash: bytes, now_ms: int) -> IdempotencyEntry | None:
        """What was appended under an idempotency key within its window."""
        self._forget_foreign_state()
        return self._writers.idempotency.lookup(key_hash, now_ms)

    def producer_snapshot(self, high_watermark: int) -> bytes:
        """The writers' state of what is committed, for a follower that starts above offset 0.

        What lies above the high watermark may yet be cut here. The follower has no batch to cut then, and would answer
        a retry by what its new log never had.
        """
        writers = WriterState()
        writers.install(self._writers.freeze(self._log_end_offset))
        writers.forget_from(high_watermark)
        return encode_snapshot(writers.freeze(high_watermark))

    def install_producer_snapshot(self, content: bytes) -> None:
        """Take over the leader's writers' state; batches that it covers may still follow.

        Raises:
            CorruptLogError: damaged.
            DiskFullError: no space; nothing has changed.
        """
        snapshot = decode_snapshot(content)
        if self.recovery_point < self._log_end_offset:
            self._checkpoint(self.high_watermark_checkpoint, is_forced=True)
        writers = WriterState()
        writers.install(snapshot)
        with self._lock:
            write_snapshot(self._replica, writers, self._log_end_offset)
        self._writers = writers

    # Cutting the end.

    def truncate_to(self, offset: int) -> None:
        """Cut everything at and above ``offset``, durably; a batch that holds it goes as a whole.

        Raises:
            DiskFailedError: stop the process; also where what is left is damaged, which the next start finds.
        """
        try:
            self._cut(offset)
        except CorruptLogError as error:
            # Going on after half of it, the log would answer retries by records that it has no more. Recovery reads
            # what the cut has to read, from the same place on, and knows what to do with a damaged copy.
            with self._lock:
                self._generations.current += 1
                self._replica.lower_checkpoint(offset)
            raise DiskFailedError(f"cannot cut {self._name} at offset {offset}: {error}") from error

    def _cut(self, offset: int) -> None:
        if offset >= self._log_end_offset and not self._has_remains:
            return
        self._compaction.void_above(offset)
        if offset < self._log_start_offset:
            # The segments that would tell the writers' state there are gone: what is newer goes, that is all.
            self._writers.forget_from(offset)
            self._empty_at(offset, self._writers)
            return
        offset = min(offset, self._log_end_offset)
        end_offset = self._end_after_cut(offset)
        if end_offset < self._log_start_offset:
            # The log start lies in the middle of the first batch, which goes.
            writers = writers_at(self._replica, self._table, end_offset)
            self._empty_at(self._log_start_offset, writers)
            return
        with self._lock:
            self._generations.current += 1
            self._truncate(offset)

    def _end_after_cut(self, offset: int) -> int:
        """Base offset of the batch that holds ``offset``, or the log end."""
        kept, _ = self._table.split_at(offset)
        return kept[-1].locate(offset)[1]

    def _empty_at(self, offset: int, writers: WriterState) -> None:
        """Drop every batch and go on at ``offset`` with what is known of the writers."""
        self.restart_at(offset, encode_snapshot(writers.freeze(offset)))

    def _truncate(self, offset: int) -> None:
        """The steps of a truncation. When it crosses segments the meta file says so first: recovery goes on with it."""
        replica = self._replica
        kept, dropped = self._table.split_at(offset)
        end_offset = kept[-1].locate(offset)[1]
        has_steps = bool(dropped) or self._has_remains
        if has_steps:
            change = Change(ChangeKind.TRUNCATE, end_offset)
            replica.store_meta(replace(replica.meta, change=change))
        replica.lower_checkpoint(end_offset)
        if self._epochs.truncate_to(end_offset):
            write_truncated_epochs(replica, self._epochs)
        self._hinted_end_offset = NO_OFFSET
        self._tail = NO_TAIL
        self._table.drop_last(kept)
        self._log_end_offset = end_offset
        remove_above(replica, end_offset=end_offset, last_base_offset=kept[-1].base_offset)
        kept[-1].truncate_to(offset)
        self._flushing.note_truncation(end_offset)
        self._writers = writers_at(replica, self._table, end_offset)
        if has_steps:
            replica.files.sync_directory(replica.directory)
            self._has_remains = False
            replica.store_meta(replace(replica.meta, change=None))

    def _drop_remains(self) -> None:
        """Cut what lies behind the damage, now that the log grows again."""
        if self._has_remains:
            self._generations.current += 1
            try:
                self._truncate(self._log_end_offset)
            except CorruptLogError as error:
                # More has rotted, before the damage: nobody would look there again, but recovery does.
                raise DiskFailedError(f"cannot restore {self._name}: {error}") from error

    def restart_at(self, offset: int, producer_snapshot: bytes | None = None) -> None:
        """Drop everything and begin, empty, at ``offset``, where the leader's log starts.

        Args:
            offset: the new log start and log end.
            producer_snapshot: the leader's ``producer_snapshot``.

        Raises:
            CorruptLogError: the snapshot is damaged; nothing has changed.
            DiskFullError: nothing has changed, or the next start goes on with it.
            DiskFailedError: stop the process.
        """
        writers = WriterState()
        if producer_snapshot is not None:
            writers.install(decode_snapshot(producer_snapshot))
        self._compaction.void_all()
        replica = self._replica
        with self._lock:
            self._generations.current += 1
            # Always written: one of this name that was here before tells of another log.
            write_snapshot(replica, writers, offset)
            change = Change(ChangeKind.RESTART, offset)
            replica.store_meta(replace(replica.meta, change=change))
            self._table.replace_all(replica.restart_at(offset))
        self._tail = NO_TAIL
        self._epochs.clear()
        self._writers = writers
        self._has_remains = False
        self._log_start_offset = self._log_end_offset = self._hinted_end_offset = offset
        self._flushing.note_restart(offset)

    # Cutting the beginning.

    def advance_log_start(self, offset: int) -> None:
        """Make ``offset`` the first readable one, durably; segments wholly below it go.

        Raises:
            OffsetOutOfRangeError: above the log end; ``restart_at`` is for that.
            DiskFailedError: stop the process.
        """
        if offset <= self._log_start_offset:
            return
        if offset > self._log_end_offset:
            raise self._bounds().out_of_range(offset)
        if self._has_remains:
            with self._lock:
                self._drop_remains()
        if offset > self._flushing.synced_end:
            # Else a power cut could leave a log that ends below its start.
            self.sync()
        if offset == self._log_end_offset:
            # On a full disk the last segment stays for now; its records are out of reach all the same.
            with suppress(DiskFullError):
                self._roll()
        with self._lock:
            replica = self._replica
            replica.store_checkpoint(
                replace(replica.checkpoint, log_start_offset=offset, is_clean=False)
            )
        self._log_start_offset = offset
        self._epochs.advance_start(offset)
        if any(segment.next_offset <= offset for segment in self._table.unsealed):
            self._checkpoint(self.high_watermark_checkpoint, is_forced=True)
        self._drop_forgettable()

    def _drop_forgettable(self) -> None:
        """Drop segments below the log start, but none that is not sealed.

        What the writers' state took from a segment outlives it in the snapshot that is made when it is sealed.
        """
        if self._count_forgettable():
            # A run may have put other segments in their place.
            self._compaction.void()
            self._table.drop_first(self._count_forgettable())

    def _count_forgettable(self) -> int:
        summaries = []
        for segment in self._table.segments:
            summaries.append(segment.summary)
            if segment in self._table.unsealed:
                break
        return forgettable(summaries, self._log_start_offset)

    def maybe_apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Forget segments that are too old or too many, below the high watermark; returns the log start.

        Raises:
            DiskFailedError: stop the process.
        """
        self._writers.expire(now_ms)
        if not self._config.is_deleting:
            self._drop_forgettable()
            return self._log_start_offset
        start = retained_start(
            [segment.summary for segment in self._table.segments],
            now_ms=now_ms,
            retention_ms=self._config.retention_ms,
            retention_bytes=self._config.retention_bytes,
            deletable_end=min(high_watermark, self._flushing.synced_end),
        )
        self.advance_log_start(start)
        self._drop_forgettable()
        return self._log_start_offset

    # Rolling by age, and compaction.

    def maybe_roll(self, now_ms: int) -> None:
        """Begin a new segment when the active one is old enough; on a full disk some other time.

        Raises:
            DiskFailedError: stop the process.
        """
        roll_ms = self._config.roll_ms
        active = self._active
        if roll_ms is None or not active.size_bytes or self._has_remains:
            return
        if self._age.has_reached(roll_ms, active, now_ms):
            with suppress(DiskFullError):
                self._roll()

    def close_segment(self, offset: int) -> None:
        """Begin a new segment if the active one holds ``offset``; on a full disk some other time.

        Raises:
            DiskFailedError: stop the process.
        """
        if self._active.base_offset <= offset and not self._has_remains:
            with suppress(DiskFullError):
                self._roll()

    def compaction_need(
        self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0
    ) -> CompactionNeed:
        """What a compaction would do now, and whether it should be begun.

        Args:
            now_ms: wall clock.
            high_watermark: nothing at or above it is touched.
            tombstone_end: every replica has everything below it.
        """
        return self._compaction.need(
            self._bounds(),
            self._config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            tombstone_end=tombstone_end,
        )

    def begin_compaction(
        self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0
    ) -> CompactionRun | None:
        """A compaction, if one is due; ``step`` it on any thread, and call ``note_compaction`` after each step.

        Only one at a time, and none of a replica that cannot be trusted: what it lacks may be found elsewhere.
        """
        if self._has_remains:
            return None
        return self._compaction.begin(
            self._bounds(),
            self._config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            tombstone_end=tombstone_end,
        )

    def note_compaction(self, run: CompactionRun) -> None:
        """Take over what a step has done."""
        self._compaction.note(run)

    # Damage.

    def begin_scrub(self, offset: int, *, again: Damage | None = None) -> SegmentScrub | None:
        """A scrub of the first segment above ``offset`` that is sealed below the recovery point; None without one."""
        if self.health is ReplicaHealth.DAMAGED:
            return None
        limit = min(self.recovery_point, self._flushing.synced_end)
        for segment in self._table.segments[:-1]:
            if segment.next_offset > limit or segment in self._table.unsealed:
                return None
            if segment.next_offset > offset:
                # A removal or a swap may be ahead of the table.
                with suppress(FileNotFoundError):
                    return SegmentScrub(segment, again=again)
        return None

    def begin_look(self, offset: int) -> SegmentScrub | None:
        """A scrub of what is written by now of the segment that holds ``offset``, sealed or not; None at the log end.

        Where it is not sealed, damage that is found is a reason to close it, and to scrub it then: what is cut and
        written anew meanwhile may look like damage.
        """
        if self.health is ReplicaHealth.DAMAGED or offset >= self._log_end_offset:
            return None
        with suppress(FileNotFoundError):
            return SegmentScrub(self._table.find(offset))
        return None

    def is_current(self, damage: Damage) -> bool:
        """Whether the segment in which it was found is still the same part of the log."""
        segment = damage.segment
        return (
            segment in self._table.segments[:-1]
            and segment not in self._table.unsealed
            and segment.summary == damage.summary
        )

    def give_up_from(self, damage: Damage) -> None:
        """End before the damage and be damaged, as recovery would have it; nothing is cut until the log grows again.

        Raises:
            DiskFailedError: stop the process.
        """
        offset = damage.offset
        self._compaction.void_above(offset)
        with self._lock:
            self._generations.current += 1
            replica = self._replica
            replica.store_meta(replace(replica.meta, health=ReplicaHealth.DAMAGED))
            kept, _ = self._table.split_at(offset)
            last = kept[-1]
            position = damage.position if last is damage.segment else last.size_bytes
            try:
                last.end_before(position, offset)
            except CorruptLogError as error:
                # More rots at the same time: recovery sorts it out, now that it will look at every byte.
                raise DiskFailedError(f"cannot give up a part of {self._name}: {error}") from error
            self._table.drop_last(kept)
            self._epochs.truncate_to(offset)
            self._writers.forget_from(offset)
            self._flushing.note_truncation(offset)
            self._has_remains = True
        self._tail = NO_TAIL
        self._log_end_offset = offset
        self._hinted_end_offset = NO_OFFSET
        reason = (
            f"{damage.path} is damaged at offset {offset}, byte {damage.position}: {damage.reason}"
        )
        self.recovery = replace(self.recovery, health=ReplicaHealth.DAMAGED, reason=reason)

    # Checkpoints and the end.

    def checkpoint(self, high_watermark: int) -> None:
        """Store the high watermark and, when enough was appended, move the recovery point; all on this thread.

        Raises:
            DiskFailedError: stop the process.
        """
        self._checkpoint(high_watermark, is_forced=False)

    def _checkpoint(self, high_watermark: int, *, is_forced: bool, is_clean: bool = False) -> None:
        ticket = self.begin_checkpoint(high_watermark, is_forced=is_forced, is_clean=is_clean)
        if ticket is not None:
            ticket.run()
            self.finish_checkpoint(ticket)

    def begin_checkpoint(
        self, high_watermark: int, *, is_forced: bool = False, is_clean: bool = False
    ) -> CheckpointTicket | None:
        """A ticket for a checkpoint; None when it would say nothing new.

        Args:
            high_watermark: of the partition, as far as this replica knows.
            is_forced: move the recovery point to the log end, however little was appended.
            is_clean: the log is being closed.
        """
        stored = self._replica.checkpoint
        is_due = is_forced or bool(self._table.unsealed) or self._is_checkpoint_due()
        has_moved = self._log_end_offset != self._hinted_end_offset or bool(self._table.unsealed)
        plan = None
        if is_due and has_moved and not self._has_remains:
            # What an older ticket has not written by now is out of date.
            self._generations.current += 1
            plan = self._plan_checkpoint()
        checkpoint = Checkpoint(
            recovery_point=stored.recovery_point if plan is None else self._log_end_offset,
            log_start_offset=self._log_start_offset,
            # It never falls but through a truncation, which lowers it in the file.
            high_watermark=max(stored.high_watermark, min(high_watermark, self._log_end_offset)),
            is_clean=is_clean,
        )
        if plan is None and checkpoint == stored:
            return None
        return CheckpointTicket(
            self._replica, checkpoint, plan, lock=self._lock, generations=self._generations
        )

    def _is_checkpoint_due(self) -> bool:
        return self._bytes_since_checkpoint >= self._config.checkpoint_bytes

    def _plan_checkpoint(self) -> CheckpointPlan:
        self._bytes_since_checkpoint = 0
        return CheckpointPlan(
            sync=self._flushing.ticket_for_all(self._log_end_offset),
            sealed=tuple(self._table.unsealed.items()),
            indexes=self._active.encode_indexes(),
            epochs=self._epochs.encode(),
            writers=self._writers.freeze(self._log_end_offset),
        )

    def finish_checkpoint(self, ticket: CheckpointTicket) -> None:
        """Count in a checkpoint that has run."""
        sealed = ticket.sealed
        ticket.release()
        if not ticket.is_done or ticket.generation != self._generations.current:
            return
        self._hinted_end_offset = ticket.checkpoint.recovery_point
        self._flushing.note_synced(ticket.checkpoint.recovery_point)
        self._table.mark_sealed(sealed)
        with self._lock:
            self._remove_old_snapshots()

    def _remove_old_snapshots(self) -> None:
        """Keep the newest snapshot below the high watermark, which a truncation may need, and all above."""
        replica = self._replica
        limit = min(replica.checkpoint.high_watermark, replica.checkpoint.recovery_point)
        below = [offset for offset in replica.offsets_of(SNAPSHOT_SUFFIX) if offset <= limit]
        for offset in below[:-1]:
            replica.files.remove(replica.path(offset_name(offset, SNAPSHOT_SUFFIX)))

    def close(self, *, is_clean: bool) -> None:
        """Close all files. ``is_clean``: sync and checkpoint first, so that the next start need not scan.

        Raises:
            DiskFailedError: stop the process.
        """
        self._compaction.void()
        if is_clean:
            self.sync()
            if not self._has_remains:
                self._active.cut_leftovers()
            self._checkpoint(
                self.high_watermark_checkpoint, is_forced=True, is_clean=not self._has_remains
            )
        self._table.close()

    def delete(self) -> None:
        """Close and remove the replica's folder; take it off the manifest first.

        Raises:
            DiskFailedError: stop the process.
        """
        self._compaction.void()
        with self._lock:
            self._generations.current += 1
            self._table.close()
            replica = self._replica
            # Without its meta file the rest is taken for leftovers, whatever of it survives a crash.
            replica.files.remove(replica.path(META_NAME))
            replica.files.sync_directory(replica.directory)
            replica.files.remove_tree(replica.directory)
