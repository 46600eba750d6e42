"""One partition's log on one node: ordered segments, appended at the end, read anywhere, cut at both ends.

Only the owner's thread calls methods that change the log. Other threads may call the ``read`` methods at the same time.
They may also call ``run`` of the tickets, so that the owner does not wait for the disk.

    append            writes to memory and page cache; durable once the next sync ticket is finished
    begin_sync        group commit: one ticket covers everything that was appended since the last ticket
    begin_checkpoint  moves the recovery point now and then, and keeps the high watermark for the next start
    begin_compaction  removes, slice by slice, records that a later record of the same key has replaced

This class is the only interface of a log. It implements appends and reads. Each other operation has its own module, and
all of them work on one ``LogState``:

    flushing        the part that is not durable yet
    checkpointing   when the recovery point moves, and which checkpoints count
    rolling         when a new segment starts
    cutting         how the log loses its end: truncation, a restart at another offset, damage
    start           how the log loses its beginning: retention, an explicit log start
    log_compaction  compaction of the closed segments

Other layers decide who may append, what the high watermark is, and what a full disk or a suspect replica means for the
cluster. There is no clock: callers pass ``now_ms``.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace

from milena.disk.files import Buffer, Files
from milena.model.batch.decode import iterate_batches
from milena.model.batch.encode import stamp_batch
from milena.model.batch.header import STAMP_BYTES, BatchHeader, decode_header
from milena.model.errors import ReplicaDamagedError, RequestTooLargeError, StaleLeaderEpochError
from milena.model.types import ReplicaHealth
from storage.compaction.policy import CompactionNeed
from storage.compaction.run import CompactionRun
from storage.log.checkpointing import Checkpointing
from storage.log.cutting import Cutting
from storage.log.flushing import Flushing
from storage.log.log_compaction import LogCompaction
from storage.log.reader import find_by_timestamp, read_span
from storage.log.rolling import Rolling
from storage.log.start import LogStart
from storage.log.state import LogState
from storage.log.succession import check_succession, fit_filler, is_straddling
from storage.log.tickets import CheckpointTicket, SyncTicket
from storage.replica.folder import ReplicaFiles, open_replica
from storage.replica.meta import META_NAME, ReplicaMeta
from storage.replica.recovery import RecoveredLog, RecoveryReport, recover
from storage.segments.append_plan import AppendPlan, AppendRun
from storage.segments.log_config import LogConfig
from storage.segments.scrub import Damage, SegmentScrub, is_current, scrub_above, scrub_of
from storage.segments.segment import Segment
from storage.segments.table import SegmentTable
from storage.segments.tail import NO_TAIL, TAIL_BYTES_MAX, Tail, tail_of
from storage.segments.uncommitted import UncommittedMemory
from storage.state.idempotency import IdempotencyEntry
from storage.state.producer_state import (
    NO_SEQUENCE,
    Verdict,
    WriterState,
    encode_snapshot,
)
from storage.state.transactions import Transactions

__all__ = ["LogConfig", "PartitionLog", "RecoveryReport"]

_Stamped = tuple[BatchHeader, tuple[Buffer, ...]]
"""A batch with the header that its leader gave it, and its bytes in pieces."""


class PartitionLog:
    """The log of one replica; see the module docstring.

    Invariants:
        - ``log_start_offset <= synced_end_offset <= log_end_offset``;
        - segments follow each other without a gap, and only the last one grows;
        - batches below the log end are whole and checked; epochs never fall along the log;
        - the recovery point on disk never passes the synced end, nor a truncation that has returned;
        - after a DiskFullError the log is as before the call.
    """

    def __init__(
        self,
        replica: ReplicaFiles,
        config: LogConfig,
        recovered: RecoveredLog,
        memory: UncommittedMemory,
    ) -> None:
        """Take the parts that ``open`` has prepared; call ``open`` instead."""
        self._replica = replica
        self._config = config
        self.recovery: RecoveryReport = recovered.report
        """Findings of ``open``, or of a later scrub; ``health`` is the current verdict."""
        # One lock for all modules: checkpoints, compaction and cuts change the same files of the folder, and the first
        # two may run on other threads.
        lock = self._lock = threading.Lock()
        table = self._table = SegmentTable(recovered.segments, recovered.unsealed)
        state = self._state = LogState(
            f"{replica.meta.topic_name}/{replica.meta.partition}",
            table,
            recovered.epochs,
            recovered.writers,
            log_start_offset=replica.log_start_offset,
            has_remains=recovered.has_remains,
            memory=memory,
        )
        flushing = self._flushing = Flushing(replica, table, state.end_offset)
        self._compaction = LogCompaction(
            replica, table, flushing, lock=lock, log_end_offset=state.end_offset
        )
        self._checkpointing = Checkpointing(
            replica, state, flushing, lock=lock, scanned_bytes=recovered.report.scanned_bytes
        )
        self._rolling = Rolling(replica, state, flushing)
        self._cutting = Cutting(
            replica, state, flushing, self._compaction, self._checkpointing, lock=lock
        )
        self._log_start = LogStart(
            replica,
            state,
            flushing,
            compaction=self._compaction,
            checkpointing=self._checkpointing,
            rolling=self._rolling,
            lock=lock,
        )

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
        memory: UncommittedMemory | None = None,
    ) -> "PartitionLog":
        """Open the replica in ``directory``: create it, or recover the existing one.

        Create the replica here first, then list it in the manifest. Delete in the opposite order. A crash in between
        then leaves files that the manifest does not list, never a listed replica without files.

        Args:
            files: the file system.
            directory: the replica's folder; missing parents are created.
            config: settings.
            topic_id: must match the folder's meta file.
            topic_name: must match the folder's meta file.
            partition: must match the folder's meta file.
            is_listed: whether the manifest lists the replica. A listed replica without files is damaged.
            was_clean: whether the node stopped in order.
            now_ms: wall clock.
            memory: memory for large uncommitted batches, shared with other logs; None: this log gets its own.

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
        # A clean checkpoint stays on the disk after this start, until the next checkpoint replaces it. After a crash it
        # would vouch for bytes that nothing has synced. Only the node's own mark says how the node stopped.
        if not was_clean:
            replica.checkpoint = replace(replica.checkpoint, is_clean=False)
        log = cls(replica, config, recover(replica), memory or UncommittedMemory())
        # Recovery has no clock: it also restored producers and keys that are past their time.
        log._state.writers.expire(now_ms)
        return log

    # Properties.

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
        """Settings; may be replaced at any time."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._replica.index_interval_bytes = config.index_interval_bytes

    @property
    def clean_end_offset(self) -> int:
        """Offset below which the log is compacted."""
        return self._compaction.clean_end

    @property
    def health(self) -> ReplicaHealth:
        """Verdict about the replica; it survives restarts until ``mark_sound``."""
        return self._replica.meta.health

    @property
    def log_start_offset(self) -> int:
        """First readable offset."""
        return self._state.start_offset

    @property
    def log_end_offset(self) -> int:
        """Next offset to be written."""
        return self._state.end_offset

    @property
    def synced_end_offset(self) -> int:
        """Offset below which everything is durable."""
        return self._flushing.synced_end

    @property
    def stored_end_offset(self) -> int:
        """End (exclusive) of what may be acknowledged: the synced end if strict, the log end if relaxed."""
        return self._flushing.synced_end if self._config.is_strict else self._state.end_offset

    @property
    def high_watermark_checkpoint(self) -> int:
        """High watermark of the last checkpoint."""
        return self._replica.checkpoint.high_watermark

    @property
    def recovery_point(self) -> int:
        """Offset from which recovery would scan."""
        return self._replica.checkpoint.recovery_point

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch; -1 in an empty log."""
        return self._state.epochs.last_epoch

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._table.segments)

    @property
    def segment_count(self) -> int:
        """Number of segments, including the active one."""
        return len(self._table.segments)

    def mark_sound(self) -> None:
        """Trust the replica again: it was restored from the leader, or elected for want of a better one.

        Raises:
            DiskFailedError: stop the process.
        """
        self._cutting.mark_sound()

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
        """Stamp and append batches in one write; return the base offset of each.

        Args:
            batches: validated by the caller; any stamp that they carry is replaced.
            leader_epoch: of this leader.
            now_ms: wall clock; becomes the append time.
            headers: the decoded headers of the batches, if the caller has them.

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
        stamped = self._stamped(batches, headers, leader_epoch=leader_epoch, now_ms=now_ms)
        # The common case, one batch that needs no new segment, skips the plan: a single writer waits for this path.
        if len(stamped) == 1 and self._is_next(stamped[0][0]):
            self._append_one(*stamped[0])
        else:
            self._append_many(stamped)
        return tuple(header.base_offset for header, _ in stamped)

    def _stamped(
        self,
        batches: Sequence[bytes],
        headers: Sequence[BatchHeader],
        *,
        leader_epoch: int,
        now_ms: int,
    ) -> list[_Stamped]:
        """Return the batches as they will lie at the log's end, one after the other."""
        stamped: list[_Stamped] = []
        offset = self._state.end_offset
        for batch, header in zip(batches, headers, strict=True):
            stamp = stamp_batch(
                batch, base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            placed = header.stamped(
                base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            # The producer's part is not copied: only the stamp in front of it differs from what the client sent.
            stamped.append((placed, (stamp, memoryview(batch)[STAMP_BYTES:])))
            offset = placed.next_offset
        return stamped

    def _append_one(self, header: BatchHeader, chunks: tuple[Buffer, ...]) -> None:
        """Append one batch that continues the log (``_is_next``), without a plan."""
        # Joining copies the batch. A small copy is cheaper than the read that each follower would make right after this
        # append; a large one is not, so its pieces stay in memory as they are until the batch is committed.
        if header.batch_bytes > TAIL_BYTES_MAX:
            self._append_next(header, chunks)
            self._state.uncommitted.keep(header, chunks)
            return
        whole = b"".join(chunks)
        self._append_next(header, (whole,))
        self._state.tail = Tail(header.base_offset, header.next_offset, whole)

    def _append_many(self, stamped: Sequence[_Stamped]) -> None:
        plan = AppendPlan(self._active, self._config)
        for header, chunks in stamped:
            plan.add(header, *chunks)
        self._append(plan)
        # A span never crosses the end of a segment, so the tail holds the last segment's part only.
        if sum(header.batch_bytes for header, _ in stamped) <= TAIL_BYTES_MAX:
            self._state.tail = tail_of(plan.runs[-1])
        else:
            for header, chunks in stamped:
                self._state.uncommitted.keep(header, chunks)

    def append_as_follower(self, data: Buffer) -> int:
        """Append whole batches as the leader sent them; return the new log end.

        Raises:
            CorruptBatchError: they are damaged, do not start at the log end, or do not follow each other.
            DiskFullError: nothing was appended.
            DiskFailedError: stop the process.
        """
        found = list(iterate_batches(data))
        if len(found) == 1 and self._is_next(found[0][1]):
            self._append_next(found[0][1], (data,))
            return self._state.end_offset
        # Two batches from a leader do not start at this log's end and are still right: see ``succession``.
        data = fit_filler(data, found, self._state.end_offset)
        has_straddler = is_straddling(found, self._state.start_offset, self._state.end_offset)
        check_succession(
            found,
            offset=found[0][1].base_offset if has_straddler else self._state.end_offset,
            last_epoch=self._state.epochs.last_epoch,
        )
        # Only now, when the batches are known to be good, may an append change the disk.
        if self._state.has_remains:
            self._cutting.drop_remains()
        # Remains lie at the offsets that this append is about to use, so they are cut first.
        view = memoryview(data)
        if has_straddler:
            _, first = found.pop(0)
            # ``begin_with`` writes this batch, so it is only counted here.
            segment = self._cutting.begin_with(first, view[: first.batch_bytes])
            self._commit(AppendRun(segment, total_bytes=first.batch_bytes, headers=[first]))
            view = view[first.batch_bytes :]
        plan = AppendPlan(self._active, self._config)
        for _, header in found:
            plan.add(header)
        for run in plan.runs:
            # The batches arrived as one buffer. One piece per segment keeps the write free of copies.
            run.chunks.append(view[: run.total_bytes])
            view = view[run.total_bytes :]
        self._append(plan)
        return self._state.end_offset

    def _is_next(self, header: BatchHeader) -> bool:
        """Whether a batch continues the log and needs no new segment, new epoch or cut."""
        state = self._state
        return (
            header.base_offset == state.end_offset
            and header.leader_epoch == state.epochs.last_epoch
            and self._active.size_bytes + header.batch_bytes <= self._config.segment_bytes
            and not state.has_remains
        )

    def _append_next(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        """Append one batch for which ``_is_next`` holds; a single writer waits for this path.

        It does what a plan with this batch would do. The epoch table needs no entry: the batch has the last epoch.
        """
        state, segment, config = self._state, self._active, self._config
        state.tail = NO_TAIL
        segment.write(
            chunks,
            header.batch_bytes,
            allocation_end=min(segment.size_bytes + config.preallocate_bytes, config.segment_bytes),
        )
        self._count_in(segment, header)
        self._checkpointing.appended_bytes += header.batch_bytes
        # The end moves last. A reader on another thread takes the end as its bound, and must then find the batch in the
        # segment's index.
        state.end_offset = segment.next_offset
        self._flushing.note_append(segment, header.record_count, header.batch_bytes)

    def _require_leader_epoch(self, leader_epoch: int) -> None:
        """Refuse an append of a leader with a stale epoch, or to a damaged replica."""
        self._require_undamaged()
        if leader_epoch < self._state.epochs.last_epoch:
            raise StaleLeaderEpochError(
                f"leader epoch {leader_epoch} is older than epoch {self._state.epochs.last_epoch} of the log"
            )
        # This log now assigns offsets itself. State of batches that it never got would answer retries for offsets that
        # other batches take.
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
                f"this replica of {self._state.name} is damaged: {self.recovery.reason}"
            )

    def _forget_foreign_state(self) -> None:
        """Drop producer state of batches that this log never got; it came with a leader's snapshot (``restart_at``)."""
        if self._state.writers.covers_offset > self._state.end_offset:
            self._state.writers.forget_from(self._state.end_offset)

    def _append(self, plan: AppendPlan) -> None:
        """Write all batches of an append; count them only after every write succeeded."""
        # A full disk raises in ``write``, which takes back what it wrote. The log is then as before.
        self._state.tail = NO_TAIL
        plan.write()
        for run in plan.runs:
            self._commit(run)

    def _commit(self, run: AppendRun) -> None:
        segment = run.segment
        if run.is_new:
            self._rolling.push(segment)
        if not run.headers:
            return
        records = 0
        for header in run.headers:
            self._state.epochs.assign(header.leader_epoch, header.base_offset)
            self._count_in(segment, header)
            records += header.record_count
        self._checkpointing.appended_bytes += run.total_bytes
        self._state.end_offset = segment.next_offset
        self._flushing.note_append(segment, records, run.total_bytes)

    def _count_in(self, segment: Segment, header: BatchHeader) -> None:
        self._state.writers.record(header, header.base_offset, header.append_time_ms)
        segment.add_batch(
            header.base_offset,
            header.next_offset,
            header.batch_bytes,
            header.latest_timestamp_ms,
        )

    # Syncing.

    def needs_sync(self, now_ms: int) -> bool:
        """Whether ``begin_sync`` is due: a strict log whenever something is unsynced, others by count or time."""
        return self._flushing.is_due(self._config, now_ms)

    def begin_sync(self) -> SyncTicket | None:
        """Return a ticket for everything unsynced; None if all is synced or another ticket is in flight."""
        return self._flushing.begin(self._state.end_offset)

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Count a ticket that has run; return the synced end."""
        self._flushing.finish(ticket)
        return self._flushing.synced_end

    def sync(self) -> int:
        """Sync everything now, on this thread; return the synced end.

        A ticket in flight stays valid, because another thread may be running it.

        Raises:
            DiskFailedError: stop the process.
        """
        self._flushing.sync_all(self._state.end_offset)
        return self._flushing.synced_end

    # Reading.

    def read_span(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> bytes:
        """Return whole batches from the one that holds ``offset``, as they lie in the file; none at the log end.

        The result has at least one batch, and otherwise at most ``max_bytes``. It has no batch that starts at or above
        ``end_offset`` (None: the log end). It never crosses the end of a segment: continue reading at its end.

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
        """Read as ``read_span`` does, but from the page cache only; None if the disk would have to be read.

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
        tail = self._state.tail
        if (
            is_cached
            and self._state.start_offset <= offset == tail.base_offset
            and len(tail.span) <= max_bytes
            and (end_offset is None or end_offset >= tail.next_offset)
        ):
            # All followers ask for exactly this, right after an append.
            return tail.span
        return read_span(
            self._table,
            self._state.bounds(),
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            is_cached=is_cached,
        )

    def read_uncommitted(self, offset: int, *, max_bytes: int, end_offset: int) -> list[Buffer]:
        """Return batches that were appended as leader, from ``offset`` on, without a copy.

        The chunks are whole batches in order, up to ``max_bytes`` and ``end_offset``. If the list is empty, use
        ``read_span``.
        """
        state = self._state
        if not state.uncommitted or offset < state.start_offset:
            return []
        return state.uncommitted.find(offset, max_bytes=max_bytes, end_offset=end_offset)

    def forget_uncommitted(self, below: int | None = None) -> None:
        """Drop appends below ``below`` from memory, because they are committed; None: drop all, no reader is left."""
        uncommitted = self._state.uncommitted
        if not uncommitted:
            return
        if below is None:
            uncommitted.forget()
        else:
            uncommitted.forget_below(below)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, is_uncommitted: bool = False
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with a timestamp >= ``timestamp_ms``; None without one.

        The search may read a whole segment: a late record that was aborted or compacted away still raises the segment's
        highest timestamp. Safe on any thread.

        Args:
            timestamp_ms: milliseconds since 1970.
            is_uncommitted: find records of aborted transactions, too.

        Raises:
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        self._require_undamaged()
        # Safe on any thread: transactions are only added to this mapping. Forgetting some puts a new one in its place.
        aborted = {} if is_uncommitted else self.transactions.aborted
        return find_by_timestamp(self._table, self._state.bounds(), timestamp_ms, aborted=aborted)

    # Epochs and writers.

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch <= ``epoch`` and its end (exclusive); (-1, -1) without one."""
        return self._state.epochs.end_of(epoch, self._state.end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the batch that holds ``offset``; -1 below the log start."""
        return self._state.epochs.epoch_at(offset)

    def producer_check(self, header: BatchHeader, now_ms: int) -> Verdict:
        """Judge whether a batch may be appended after all batches so far, synced or not.

        Raises:
            StaleProducerEpochError: a later epoch of the producer has written.
            InvalidProducerError: its sequence leaves a gap, or repeats one that is forgotten.
        """
        self._forget_foreign_state()
        return self._state.writers.producers.check(header, now_ms)

    def last_sequence(self, producer_id: int) -> int | None:
        """Return the last sequence that a producer wrote here; None if none is remembered."""
        entry = self._state.writers.producers.get(producer_id)
        if entry is None or entry.batches[-1].last_sequence == NO_SEQUENCE:
            return None
        return entry.batches[-1].last_sequence

    def producer_epoch(self, producer_id: int) -> int:
        """Return the lowest epoch under which a producer may write here; -1 if none is remembered."""
        entry = self._state.writers.producers.get(producer_id)
        return -1 if entry is None else entry.producer_epoch

    @property
    def transactions(self) -> Transactions:
        """Transactions with batches in the log, as of its end; read only."""
        return self._state.writers.transactions

    def idempotency_lookup(self, key_hash: bytes, now_ms: int) -> IdempotencyEntry | None:
        """Return the entry of an idempotency key within its window."""
        self._forget_foreign_state()
        return self._state.writers.idempotency.lookup(key_hash, now_ms)

    def has_key(self, key_hash: bytes, now_ms: int) -> bool:
        """Whether an idempotency key is known, even if only from a leader's batches that this log does not have yet.

        Use this on a follower. ``idempotency_lookup`` is for the leader, because it forgets state of batches that the
        log does not have.
        """
        return self._state.writers.idempotency.lookup(key_hash, now_ms) is not None

    def check_key_room(self, now_ms: int, *, coming: int) -> None:
        """Refuse one more idempotency key if the memory for keys is full.

        Args:
            now_ms: wall clock.
            coming: keys that are already accepted but not appended yet.

        Raises:
            TooManyRequestsError: all remembered keys are only a few minutes old.
        """
        self._state.writers.idempotency.check_room(now_ms, coming=coming)

    def producer_snapshot(self, high_watermark: int) -> bytes:
        """Encode the writers' state below the high watermark, for a follower that starts above offset 0.

        Batches above the high watermark may still be cut here. The follower would not have these batches to cut, and
        would answer a retry with a batch that its log never had.
        """
        writers = WriterState()
        writers.install(self._state.writers.freeze(self._state.end_offset))
        writers.forget_from(high_watermark)
        # The follower learns of transactions from its log: each marker lies behind its records, and the log start never
        # passes an open transaction.
        writers.transactions = Transactions()
        return encode_snapshot(writers.freeze(high_watermark))

    # Cutting the end.

    def truncate_to(self, offset: int) -> None:
        """Cut everything at and above ``offset``, durably; a batch that holds ``offset`` is cut as a whole.

        Raises:
            DiskFailedError: stop the process. Also raised if the kept part is damaged; the next start finds the damage.
        """
        self._cutting.truncate_to(offset)

    def restart_at(self, offset: int, producer_snapshot: bytes | None = None) -> None:
        """Drop all batches and restart the empty log at ``offset``, where the leader's log starts.

        Args:
            offset: the new log start and log end.
            producer_snapshot: result of the leader's ``producer_snapshot``.

        Raises:
            CorruptLogError: the snapshot is damaged; nothing has changed.
            DiskFullError: nothing has changed, or the next start finishes the restart.
            DiskFailedError: stop the process.
        """
        self._cutting.restart_at(offset, producer_snapshot)

    # Cutting the beginning.

    def advance_log_start(self, offset: int) -> None:
        """Make ``offset`` the first readable one, durably, and remove segments wholly below it.

        Raises:
            OffsetOutOfRangeError: above the log end; use ``restart_at`` for that.
            DiskFailedError: stop the process.
        """
        if offset <= self._state.start_offset:
            return
        if offset > self._state.end_offset:
            raise self._state.bounds().out_of_range(offset)
        # ``advance`` may start a new segment at the log end, where the remains lie.
        if self._state.has_remains:
            self._cutting.drop_remains()
        self._log_start.advance(offset)

    def maybe_apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Remove segments below the high watermark that are too old or exceed the size limit; return the log start.

        Raises:
            DiskFailedError: stop the process.
        """
        # Writers expire by time and not with segments (KIP-360), so this happens in topics without retention, too.
        self._state.writers.expire(now_ms)
        if self._config.is_deleting:
            start = self._log_start.retained(
                self._config, now_ms=now_ms, high_watermark=high_watermark
            )
            self.advance_log_start(start)
        # Segments below the log start wait until a checkpoint has sealed them. These were sealed since the last call.
        self._log_start.drop_forgettable()
        return self._state.start_offset

    # Rolling by age, and compaction.

    def maybe_roll(self, now_ms: int) -> None:
        """Start a new segment if the active one is old enough; on a full disk, leave it for a later call.

        Raises:
            DiskFailedError: stop the process.
        """
        self._rolling.roll_by_age(self._config.roll_ms, now_ms)

    def close_segment(self, offset: int) -> None:
        """Start a new segment if the active one holds ``offset``; on a full disk, leave it for a later call.

        Raises:
            DiskFailedError: stop the process.
        """
        self._rolling.close_segment(offset)

    def compaction_need(
        self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0
    ) -> CompactionNeed:
        """Estimate what a compaction would do now, and whether it is due.

        Args:
            now_ms: wall clock.
            high_watermark: nothing at or above it is touched; with transactions, pass the last stable offset.
            tombstone_end: every replica has everything below it.
        """
        return self._compaction.need(
            self._state.bounds(),
            self._config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            tombstone_end=tombstone_end,
        )

    def begin_compaction(
        self, now_ms: int, high_watermark: int, *, tombstone_end: int = 0
    ) -> CompactionRun | None:
        """Start a compaction if one is due. Call ``step`` on any thread, and ``note_compaction`` after each step.

        At most one run is in progress. A replica that is not sound gets none, because other replicas may have what it
        lacks.
        """
        if self._state.has_remains:
            return None
        return self._compaction.begin(
            self._state.bounds(),
            self._config,
            now_ms=now_ms,
            high_watermark=high_watermark,
            tombstone_end=tombstone_end,
            aborted=self._state.writers.transactions.aborted,
        )

    def end_dropping(self) -> None:
        """End a run that may drop tombstones or markers, because a replica may soon copy the records before them."""
        self._compaction.void_dropping()

    def note_compaction(self, run: CompactionRun) -> None:
        """Take over the result of a step."""
        self._compaction.note(run)
        # The run has removed the batches of transactions that were aborted below this offset.
        self._state.writers.transactions.forget_below(self._compaction.clean_end)

    # Damage.

    def begin_scrub(
        self, offset: int, *, again: Damage | None = None, is_near: bool = False
    ) -> SegmentScrub | None:
        """Return a scrub of the first segment above ``offset`` that is sealed below the recovery point, or None.

        ``is_near``: check only from a little before ``offset`` to some way behind it.
        """
        if self.health is ReplicaHealth.DAMAGED:
            return None
        # Above the recovery point, a cut and a new write would look like damage.
        limit = min(self.recovery_point, self._flushing.synced_end)
        near = offset if is_near else None
        return scrub_above(self._table, offset, limit, again=again, near=near)

    def begin_look(self, offset: int, *, is_near: bool = False) -> SegmentScrub | None:
        """Return a scrub of the written part of the segment that holds ``offset``, sealed or not; None without one.

        ``is_near``: as for ``begin_scrub``.

        If the segment is not sealed, close it when damage is found, and scrub it again. A cut and a new write in the
        meantime may look like damage.
        """
        is_there = self.log_start_offset <= offset < self._state.end_offset
        if self.health is ReplicaHealth.DAMAGED or not is_there:
            return None
        return scrub_of(self._table.find(offset), near=offset if is_near else None)

    def is_current(self, damage: Damage) -> bool:
        """Whether the segment with this damage is still the same part of the log."""
        return is_current(self._table, damage)

    def give_up_from(self, damage: Damage) -> None:
        """End the log before the damage and mark it damaged, as recovery would; cut nothing until the log grows again.

        Raises:
            DiskFailedError: stop the process.
        """
        self._cutting.give_up_from(damage)
        reason = f"{damage.path} is damaged at offset {damage.offset}, byte {damage.position}: {damage.reason}"
        self.recovery = replace(self.recovery, health=ReplicaHealth.DAMAGED, reason=reason)

    # Checkpoints and the end.

    def checkpoint(self, high_watermark: int, *, is_forced: bool = False) -> None:
        """Store the high watermark and, if enough was appended, move the recovery point; all on this thread.

        Args:
            high_watermark: the partition's, as far as this replica knows.
            is_forced: move the recovery point to the log end, even if little was appended.

        Raises:
            DiskFailedError: stop the process.
        """
        self._checkpointing.run(high_watermark, due_bytes=self._due_bytes(is_forced=is_forced))

    def begin_checkpoint(
        self, high_watermark: int, *, is_forced: bool = False
    ) -> CheckpointTicket | None:
        """Return a checkpoint as a ticket, for any thread; None if it would change nothing."""
        return self._checkpointing.begin(
            high_watermark, due_bytes=self._due_bytes(is_forced=is_forced)
        )

    def _due_bytes(self, *, is_forced: bool) -> int:
        return 0 if is_forced else self._config.checkpoint_bytes

    def finish_checkpoint(self, ticket: CheckpointTicket) -> None:
        """Count a checkpoint that has run."""
        self._checkpointing.finish(ticket)

    def close(self, *, is_clean: bool) -> None:
        """Close all files. ``is_clean``: sync and checkpoint first, so that the next start need not scan.

        Raises:
            DiskFailedError: stop the process.
        """
        self._compaction.void()
        self._state.uncommitted.forget()
        if is_clean:
            self.sync()
            # The preallocated zeros are cut, so that the next start need not read them. Remains stay, because they may
            # be all that is left of their records. A log with remains is not clean: only a scan finds the damage again.
            has_remains = self._state.has_remains
            if not has_remains:
                self._active.cut_leftovers()
            self._checkpointing.run(self.high_watermark_checkpoint, is_clean=not has_remains)
        self._table.close()

    def delete(self) -> None:
        """Close the log and remove the replica's folder; remove it from the manifest first.

        Raises:
            DiskFailedError: stop the process.
        """
        self._compaction.void()
        self._state.uncommitted.forget()
        # With the lock: a checkpoint in flight must not write into the folder after its removal.
        with self._lock:
            self._checkpointing.void()
            self._table.close()
            replica = self._replica
            # A crash may leave some of these files. Without the meta file, the next start treats them as leftovers.
            replica.files.remove(replica.path(META_NAME))
            replica.files.sync_directory(replica.directory)
            replica.files.remove_tree(replica.directory)
