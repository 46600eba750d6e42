"""One partition's log on one node: ordered segments, appended at the end, read anywhere, cut at both ends.

Only the owner's thread calls methods that change the log. Other threads may call the ``read`` methods at the same time.
The owner hands out disk work as tickets (``tickets``). Other threads run them, so that the owner never waits for the
disk.

``PartitionLog`` implements appends and reads. An append writes to memory and page cache. It is durable once the next
sync ticket is finished. Each other operation has its own module. All of them work on one ``LogState``, and callers use
them directly:

    state           offsets, epochs, producers and segments; other packages only read it
    replica         the folder with its meta file and checkpoint
    flushing        group commit: one ticket covers everything that was appended since the last ticket
    checkpointing   when the recovery point moves, and which checkpoints count
    rolling         when a new segment starts
    cutting         how the log loses its end: truncation, a restart at another offset, damage
    start           how the log loses its beginning: retention, an explicit log start
    compaction      removes, slice by slice, records that a later record of the same key has replaced

Terms of this package:

    writers     producers, idempotency keys and transactions that the log knows, as of its end
    sealed      a closed segment whose index file, and a snapshot of the writers' state after it, are on the disk
    remains     bytes behind the end of a damaged log; they are kept until the log grows again
    filler      an empty batch that takes the place of removed records, so that offsets leave no gap

Other layers decide which node may append, what the high watermark is, and what a full disk or a suspect replica means
for the cluster. There is no clock: callers pass ``now_ms``.
"""

from collections.abc import Sequence
from dataclasses import replace

from milena.disk.files import Buffer, Files
from milena.model.batch.decode import iterate_batches
from milena.model.batch.encode import stamp_batch
from milena.model.batch.header import STAMP_BYTES, BatchHeader, decode_header
from milena.model.errors import ReplicaDamagedError, RequestTooLargeError, StaleLeaderEpochError
from milena.model.types import ReplicaHealth
from storage.log.checkpointing import Checkpointing
from storage.log.cutting import Cutting
from storage.log.flushing import Flushing
from storage.log.log_compaction import LogCompaction
from storage.log.reader import find_by_timestamp, read_span
from storage.log.rolling import Rolling
from storage.log.start import LogStart
from storage.log.state import LogState
from storage.log.succession import check_succession, fit_filler, is_straddling
from storage.replica.folder import ReplicaFiles, open_replica
from storage.replica.meta import META_NAME, ReplicaMeta
from storage.replica.recovery import RecoveredLog, RecoveryReport, recover
from storage.segments.append_plan import AppendPlan, AppendRun
from storage.segments.log_config import LogConfig
from storage.segments.scrub import Damage, SegmentScrub, is_current, scrub_above, scrub_of
from storage.segments.segment import Segment
from storage.segments.tail import NO_TAIL, TAIL_BYTES_MAX, Tail, tail_of
from storage.segments.uncommitted import UncommittedMemory
from storage.state.idempotency import IdempotencyEntry
from storage.state.producer_state import Verdict, WriterState
from storage.state.transactions import Transactions
from storage.state.writer_snapshot import encode_snapshot

_Stamped = tuple[BatchHeader, tuple[Buffer, ...]]
"""A batch that is ready to append: its header with the leader's stamp, and its bytes as several buffers."""


class PartitionLog:
    """The log of one replica; see the module docstring.

    Invariants:
        - ``log_start_offset <= flushing.synced_end <= log_end_offset``;
        - segments follow each other without a gap, and only the last one grows;
        - batches below the log end are whole and checked; leader epochs never fall from one batch to the next;
        - the recovery point on disk is never above the synced end;
        - once a truncation has returned, the recovery point on disk is not above the new log end;
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
        self.replica = replica
        self.recovery: RecoveryReport = recovered.report
        """Report of ``open``, updated when a later scrub finds damage. ``health`` has the current verdict."""
        state = self.state = LogState(
            f"{replica.meta.topic_name}/{replica.meta.partition}",
            config,
            recovered,
            log_start_offset=replica.log_start_offset,
            memory=memory,
        )
        flushing = self.flushing = Flushing(replica, state)
        self.compaction = LogCompaction(replica, state, flushing)
        self.checkpointing = Checkpointing(
            replica, state, flushing, scanned_bytes=recovered.report.scanned_bytes
        )
        self.rolling = Rolling(replica, state, flushing)
        self.cutting = Cutting(replica, state, flushing, self.compaction, self.checkpointing)
        self.start = LogStart(
            replica,
            state,
            flushing,
            compaction=self.compaction,
            checkpointing=self.checkpointing,
            cutting=self.cutting,
            rolling=self.rolling,
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
        # The checkpoint of a clean stop stays on the disk until the next checkpoint replaces it. If the node crashes
        # before that, the file still says "clean", but newer appends are unsynced. Only ``was_clean`` can be trusted.
        if not was_clean:
            replica.checkpoint = replace(replica.checkpoint, is_clean=False)
        log = cls(replica, config, recover(replica), memory or UncommittedMemory())
        # Recovery has no clock, so it also restored producers and idempotency keys that have expired.
        log.state.writers.expire(now_ms)
        return log

    # Properties.

    @property
    def config(self) -> LogConfig:
        """Settings; may be replaced at any time."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.config = config
        self.replica.index_interval_bytes = config.index_interval_bytes

    @property
    def health(self) -> ReplicaHealth:
        """Verdict about the replica. It is stored, and stays after a restart until ``Cutting.mark_sound``."""
        return self.replica.meta.health

    @property
    def log_start_offset(self) -> int:
        """First readable offset."""
        return self.state.start_offset

    @property
    def log_end_offset(self) -> int:
        """Next offset to be written."""
        return self.state.end_offset

    @property
    def stored_end_offset(self) -> int:
        """End (exclusive) of what may be acknowledged: the synced end if strict, the log end if relaxed."""
        return self.flushing.synced_end if self.config.is_strict else self.state.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self.state.table.segments)

    @property
    def writers(self) -> WriterState:
        """Known producers, idempotency keys and transactions, as of the log's end; read only."""
        return self.state.writers

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
            batches: validated by the caller. Their stamp (offset, leader epoch, append time) is replaced.
            leader_epoch: the epoch in which this replica leads the partition.
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
        # The common case, one batch that needs no new segment, skips the plan. It decides the latency of one writer.
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
        offset = self.state.end_offset
        for batch, header in zip(batches, headers, strict=True):
            stamp = stamp_batch(
                batch, base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            placed = header.stamped(
                base_offset=offset, leader_epoch=leader_epoch, append_time_ms=now_ms
            )
            # Only the stamp at the front of the batch differs from what the client sent. The rest is not copied.
            stamped.append((placed, (stamp, memoryview(batch)[STAMP_BYTES:])))
            offset = placed.next_offset
        return stamped

    def _append_one(self, header: BatchHeader, chunks: tuple[Buffer, ...]) -> None:
        """Append one batch that continues the log (``_is_next``), without a plan."""
        # Followers fetch this batch at once, and a copy in memory saves their reads from the file. Joining the pieces
        # copies the batch, and is worth it only for a small one. A large batch stays in memory as pieces.
        if header.batch_bytes > TAIL_BYTES_MAX:
            self._append_next(header, chunks)
            self.state.uncommitted.keep(header, chunks)
            return
        whole = b"".join(chunks)
        self._append_next(header, (whole,))
        self.state.tail = Tail(header.base_offset, header.next_offset, whole)

    def _append_many(self, stamped: Sequence[_Stamped]) -> None:
        plan = AppendPlan(self.state.table.active, self.state.config)
        for header, chunks in stamped:
            plan.add(header, *chunks)
        self._append(plan)
        # The tail holds the batches of the last segment only. Who needs those before, too, reads the files.
        if sum(header.batch_bytes for header, _ in stamped) <= TAIL_BYTES_MAX:
            self.state.tail = tail_of(plan.runs[-1])
        else:
            for header, chunks in stamped:
                self.state.uncommitted.keep(header, chunks)

    def append_as_follower(self, data: Buffer) -> int:
        """Append whole batches as the leader sent them; return the new log end.

        Raises:
            CorruptBatchError: the batches are damaged, do not start at the log end, or do not follow each other.
            ReplicaDamagedError: this log was damaged in several places. It is empty now, and begins at 0.
            DiskFullError: nothing was appended.
            DiskFailedError: stop the process.
        """
        found = list(iterate_batches(data))
        if len(found) == 1 and self._is_next(found[0][1]):
            self._append_next(found[0][1], (data,))
            return self.state.end_offset
        # In two cases, the first batch from a leader is valid although it does not start at this log's end: see
        # ``succession``.
        data = fit_filler(data, found, self.state.end_offset)
        has_straddler = is_straddling(found, self.state.start_offset, self.state.end_offset)
        check_succession(
            found,
            offset=found[0][1].base_offset if has_straddler else self.state.end_offset,
            last_epoch=self.state.epochs.last_epoch,
        )
        # The batches are checked, so the disk may change now. Remains lie at the offsets that this append is about to
        # use, so they are cut first.
        self.cutting.make_room()
        view = memoryview(data)
        if has_straddler:
            _, first = found.pop(0)
            # ``begin_with`` has written this batch. ``_commit`` only adds it to the log's state.
            segment = self.cutting.begin_with(first, view[: first.batch_bytes])
            self._commit(AppendRun(segment, total_bytes=first.batch_bytes, headers=[first]))
            view = view[first.batch_bytes :]
        plan = AppendPlan(self.state.table.active, self.state.config)
        for _, header in found:
            plan.add(header)
        for run in plan.runs:
            # The batches arrived as one buffer. One piece per segment keeps the write free of copies.
            run.chunks.append(view[: run.total_bytes])
            view = view[run.total_bytes :]
        self._append(plan)
        return self.state.end_offset

    def _is_next(self, header: BatchHeader) -> bool:
        """Whether a batch continues the log and needs no new segment, new epoch or cut."""
        state = self.state
        return (
            header.base_offset == state.end_offset
            and header.leader_epoch == state.epochs.last_epoch
            and self.state.table.active.size_bytes + header.batch_bytes
            <= self.state.config.segment_bytes
            and not state.has_remains
        )

    def _append_next(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        """Append one batch for which ``_is_next`` holds, with less overhead than a plan.

        The result is the same as that of a plan. The epoch table needs no entry, because the batch has the last epoch.
        """
        state, segment, config = self.state, self.state.table.active, self.state.config
        state.tail = NO_TAIL
        segment.write(
            chunks,
            header.batch_bytes,
            allocation_end=min(segment.size_bytes + config.preallocate_bytes, config.segment_bytes),
        )
        self._count_in(segment, header)
        self.checkpointing.appended_bytes += header.batch_bytes
        # The end moves last. A reader on another thread takes the end as its bound, and must then find the batch in the
        # segment's index.
        state.end_offset = segment.next_offset
        self.flushing.note_append(segment, header.record_count, header.batch_bytes)

    def _require_leader_epoch(self, leader_epoch: int) -> None:
        """Refuse an append of a leader with a stale epoch, or to a damaged replica."""
        self._require_undamaged()
        if leader_epoch < self.state.epochs.last_epoch:
            raise StaleLeaderEpochError(
                f"leader epoch {leader_epoch} is older than epoch {self.state.epochs.last_epoch} of the log"
            )
        # As leader, this log assigns the next offsets to new batches. Producer state of batches that it never got would
        # answer a retry with these offsets, although other records take them.
        self._forget_foreign_state()

    def _require_sizes(self, headers: Sequence[BatchHeader]) -> None:
        bytes_max = self.state.config.max_message_bytes
        for header in headers:
            if header.message_bytes > bytes_max:
                raise RequestTooLargeError(
                    f"a batch of {header.message_bytes} bytes is above "
                    f"max.message.bytes={bytes_max}; send fewer records at a time"
                )

    def _require_undamaged(self) -> None:
        if self.health is ReplicaHealth.DAMAGED:
            raise ReplicaDamagedError(
                f"this replica of {self.state.name} is damaged: {self.recovery.reason}"
            )

    def _forget_foreign_state(self) -> None:
        """Drop producer state of batches above the log end. It came with a leader's snapshot (``restart_at``)."""
        if self.state.writers.covers_offset > self.state.end_offset:
            self.state.writers.forget_from(self.state.end_offset)

    def _append(self, plan: AppendPlan) -> None:
        """Write all batches of an append; count them only after every write succeeded."""
        # If the disk is full, ``write`` removes what it wrote and raises. The log is then as before.
        self.state.tail = NO_TAIL
        plan.write()
        for run in plan.runs:
            self._commit(run)

    def _commit(self, run: AppendRun) -> None:
        segment = run.segment
        if run.is_new:
            self.rolling.push(segment)
        if not run.headers:
            return
        records = 0
        for header in run.headers:
            self.state.epochs.assign(header.leader_epoch, header.base_offset)
            self._count_in(segment, header)
            records += header.record_count
        self.checkpointing.appended_bytes += run.total_bytes
        self.state.end_offset = segment.next_offset
        self.flushing.note_append(segment, records, run.total_bytes)

    def _count_in(self, segment: Segment, header: BatchHeader) -> None:
        self.state.writers.record(header, header.base_offset, header.append_time_ms)
        segment.add_batch(header)

    # Reading.

    def read_span(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> bytes:
        """Return whole batches as stored, from the batch that holds ``offset`` on; empty at the log end.

        The result has at most ``max_bytes``, except that the first batch is returned whatever its size. Batches that
        start at or above ``end_offset`` (None: the log end) are left out.

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
        tail = self.state.tail
        if (
            is_cached
            and self.state.start_offset <= offset == tail.base_offset
            and len(tail.span) <= max_bytes
            and (end_offset is None or end_offset >= tail.next_offset)
        ):
            # Followers that have the log up to the last append ask for exactly this span.
            return tail.span
        return read_span(
            self.state.table,
            self.state.bounds(),
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            is_cached=is_cached,
        )

    def read_uncommitted(self, offset: int, *, max_bytes: int, end_offset: int) -> list[Buffer]:
        """Return large batches that were appended as leader, from ``offset`` on, without a copy.

        Together, the buffers are whole batches in order, up to ``max_bytes`` and ``end_offset``. If the list is empty,
        the batches are no longer in memory: use ``read_span``.
        """
        state = self.state
        if not state.uncommitted or offset < state.start_offset:
            return []
        return state.uncommitted.find(offset, max_bytes=max_bytes, end_offset=end_offset)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, is_uncommitted: bool = False
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with a timestamp >= ``timestamp_ms``; None without one.

        The search may read a whole segment in vain. The highest timestamp of a segment still counts records that were
        aborted or compacted away. Safe on any thread.

        Args:
            timestamp_ms: milliseconds since 1970.
            is_uncommitted: find records of aborted transactions, too.

        Raises:
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        self._require_undamaged()
        # Safe on any thread: this mapping only grows. To forget transactions, the owner assigns a new mapping.
        aborted = {} if is_uncommitted else self.writers.transactions.aborted
        return find_by_timestamp(
            self.state.table, self.state.bounds(), timestamp_ms, aborted=aborted
        )

    def greatest_timestamp(self, *, is_uncommitted: bool = False) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record that has the greatest timestamp; None without records.

        Takes one search, as a rule. If records with the highest timestamp of a segment were aborted or compacted away,
        it takes up to 60. Safe on any thread.

        Args:
            is_uncommitted: count records of aborted transactions, too.

        Raises:
            ReplicaDamagedError: the replica is damaged.
            CorruptLogError: the bytes on the disk are not batches.
        """
        least = 0
        greatest = max(segment.max_timestamp_ms for segment in self.state.table.segments)
        sought, found = greatest, None
        while least <= greatest:
            later = self.offset_for_timestamp(sought, is_uncommitted=is_uncommitted)
            if later is None:
                greatest = sought - 1
            else:
                found = later
                least = later[1] + 1
            sought = (least + greatest) // 2
        return found

    # Writers.

    def producer_check(self, header: BatchHeader, now_ms: int) -> Verdict:
        """Judge whether a batch continues the sequence of its producer, counting all appended batches, synced or not.

        Raises:
            StaleProducerEpochError: the producer has already written with a later producer epoch.
            InvalidProducerError: the sequence leaves a gap, or repeats a batch too old to be remembered.
        """
        self._forget_foreign_state()
        return self.state.writers.producers.check(header, now_ms)

    def idempotency_lookup(self, key_hash: bytes, now_ms: int) -> IdempotencyEntry | None:
        """Return the entry of an idempotency key; None if the key is unknown or has expired."""
        self._forget_foreign_state()
        return self.state.writers.idempotency.lookup(key_hash, now_ms)

    def has_key(self, key_hash: bytes, now_ms: int) -> bool:
        """Whether an idempotency key is known, also from batches that only the leader's snapshot told this log about.

        Use this on a follower. ``idempotency_lookup`` is for the leader, because it forgets producer state of batches
        above the log end.
        """
        return self.writers.idempotency.lookup(key_hash, now_ms) is not None

    def producer_snapshot(self, high_watermark: int) -> bytes:
        """Encode the writers' state below the high watermark, for a follower that starts above offset 0.

        State above the high watermark is left out. If this log cut those batches later, the follower would keep their
        producer state, since it has no such batches to cut. It would then answer a retry with records that are lost.
        """
        writers = WriterState()
        writers.install(self.state.writers.freeze(self.state.end_offset))
        writers.forget_from(high_watermark)
        # Transactions are left out, because the follower reads them from the log: the log start never passes the first
        # record of an open transaction, and the marker that ends it comes after its records.
        writers.transactions = Transactions()
        return encode_snapshot(writers.freeze(high_watermark))

    # Damage.

    def begin_scrub(
        self, offset: int, *, again: Damage | None = None, is_near: bool = False
    ) -> SegmentScrub | None:
        """Return a scrub (a check of all checksums) of the first sealed segment above ``offset``; None without one.

        Args:
            offset: the offset from which on to look for a segment.
            again: damage that an earlier scrub found, to be confirmed by reading the same bytes again.
            is_near: check only a range around ``offset``, instead of the whole segment.
        """
        if self.health is ReplicaHealth.DAMAGED:
            return None
        # Above the recovery point, the owner may cut and overwrite bytes during the scrub. That would look like damage.
        limit = min(self.replica.checkpoint.recovery_point, self.flushing.synced_end)
        near = offset if is_near else None
        return scrub_above(self.state.table, offset, limit, again=again, near=near)

    def begin_look(self, offset: int, *, is_near: bool = False) -> SegmentScrub | None:
        """Return a scrub of the written part of the segment that holds ``offset``, sealed or not; None without one.

        ``is_near``: as for ``begin_scrub``.

        In an unsealed segment, the owner may cut and overwrite bytes during the scrub, and this looks like damage. If
        damage is found there, close the segment and scrub it again.
        """
        is_there = self.log_start_offset <= offset < self.state.end_offset
        if self.health is ReplicaHealth.DAMAGED or not is_there:
            return None
        return scrub_of(self.state.table.find(offset), near=offset if is_near else None)

    def is_current(self, damage: Damage) -> bool:
        """Whether the damaged segment still belongs to the log, and was neither removed nor replaced by compaction."""
        return is_current(self.state.table, damage)

    def give_up_from(self, damage: Damage) -> None:
        """End the log before the damage and mark the replica damaged; no bytes are cut until the log grows again.

        Raises:
            DiskFailedError: stop the process.
        """
        self.cutting.give_up_from(damage)
        reason = f"{damage.path} is damaged at offset {damage.offset}, byte {damage.position}: {damage.reason}"
        self.recovery = replace(self.recovery, health=ReplicaHealth.DAMAGED, reason=reason)

    # The end.

    def close(self, *, is_clean: bool) -> None:
        """Close all files. If ``is_clean``, sync and checkpoint first, so that the next start skips the scan.

        Raises:
            DiskFailedError: stop the process.
        """
        self.compaction.void()
        self.state.uncommitted.forget()
        if is_clean:
            self.flushing.sync_all()
            # The preallocated zeros are cut, so that the next start does not read them. Remains stay, because they may
            # be the last copy of their records. A log with remains is not marked clean: the next start must scan it to
            # find the damage again.
            has_remains = self.state.has_remains
            if not has_remains:
                self.state.table.active.cut_leftovers()
            self.checkpointing.run(
                self.replica.checkpoint.high_watermark, is_forced=True, is_clean=not has_remains
            )
        self.state.table.close()

    def delete(self) -> None:
        """Close the log and remove the replica's folder; remove it from the manifest first.

        Raises:
            DiskFailedError: stop the process.
        """
        self.compaction.void()
        self.state.uncommitted.forget()
        # The lock keeps a running checkpoint from writing into the folder after its removal.
        with self.replica.lock:
            self.checkpointing.void()
            self.state.table.close()
            replica = self.replica
            # The meta file goes first: without it, the next start removes what a crash leaves of the folder.
            replica.files.remove(replica.path(META_NAME))
            replica.files.sync_directory(replica.directory)
            replica.files.remove_tree(replica.directory)
