"""Which records of a log compaction keeps, and when a log is worth compacting. Pure: no files, no clock.

A compacted log keeps the last record of each key. A run reads the log in two passes:

    dirty part  (appended since the last run)         key → its last offset: ``KeyMap``
    whole log   (up to where the map reaches)         each batch is kept, rewritten or dropped: ``BatchSieve``

A run never changes offsets, the order of records, or leader epochs, and batches still follow each other without a gap.
Empty batches (*fillers*) replace removed batches. Neighbouring fillers of one leader epoch merge into one, so a log
with a million dead records costs a reader one header. A batch without remaining records keeps its header while a retry
may refer to it: the last batches of an idempotent producer, and idempotency keys in their window. So the log says the
same about its writers as before.

A record without a value (a *tombstone*) deletes its key. It stays for ``delete_retention_ms`` after the first run that
saw it. That run writes the time into its batch (the *delete horizon*), and a later run removes it. Every replica must
have the tombstone before that, or it would never learn of the deletion. ``tombstone_end`` is the offset below which
every replica has everything.

Records without a key are all kept. They are from a time when the topic was not compacted.

All transactions are decided below the end of a run, which is at most the last stable offset. Batches of an aborted
transaction are dropped. Batches of a committed one lose the mark that they belong to it, and are judged as any others.
The marker behind them then adds nothing. Like a tombstone, it is removed after every replica has it. A batch with
idempotency keys keeps its header and the mark, and its marker stays, for as long as one of the keys does.

Source: KIP-58 (minimum lag), KIP-354 (maximum lag), KIP-534 (delete horizon).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat

from milena.disk.files import Buffer
from milena.model.batch.decode import decode_columns, offsets_of
from milena.model.batch.encode import encode_filler, rewrite_batch
from milena.model.batch.header import BatchHeader, IdempotencyExtension, Marker, decode_header
from milena.model.batch.v2 import rewrite_v2
from milena.model.columns import RecordColumns
from storage.segments.index import SegmentSummary
from storage.segments.log_config import LogConfig
from storage.state.producer_state import PRODUCER_EXPIRY_MS, WriterState
from storage.state.transactions import AbortedRange, Identity, is_aborted

KEYS_MAX = 250_000
"""Keys in memory at a time: about 40 MB. A dirty part with more keys is compacted in several passes."""

_DIGEST_BYTES = 16
_LAST_OFFSET_DELTA_MAX = (1 << 31) - 1

_EMPTY = RecordColumns(None, None, None, [], None)


class KeyMap:
    """The offset of the last record of each key, from the constructor's ``start`` to before ``end``.

    Invariants:
        - it holds at most ``keys_max`` keys, plus those of the batch that filled it;
        - each key of the range is in it, except keys that only aborted batches have.
    """

    __slots__ = ("_keys_max", "_offsets", "end")

    def __init__(self, start: int, *, keys_max: int = KEYS_MAX) -> None:
        self._offsets: dict[bytes | None, int] = {}
        self._keys_max = keys_max
        self.end = start

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether no further batch should be added."""
        return len(self._offsets) >= self._keys_max

    def add(self, header: BatchHeader, columns: RecordColumns | None) -> None:
        """Count the next batch; ``columns`` is None if it has no user records."""
        # Batches are added in order, so a later record of a key replaces an earlier one.
        if columns is not None and columns.keys is not None:
            self._offsets.update(
                zip(_digests(columns.keys), offsets_of(header, columns), strict=True)
            )
            # Records without a key all share the entry None, and none of them replaces another.
            self._offsets.pop(None, None)
        self.end = header.next_offset

    def lasts(self, keys: Sequence[bytes | None]) -> Iterator[int]:
        """Return the offset of each key's last record; -1 for a key that the map does not have."""
        return map(self._offsets.get, _digests(keys), repeat(-1))


def _digests(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """Return a digest of each long key, and each short key itself.

    The map's memory then does not depend on the length of keys. A short key cannot equal a digest: it is shorter.
    """
    # If all keys are short, the column needs no copy. This check runs in C for the whole batch.
    if max(map(len, filter(None, keys)), default=0) < _DIGEST_BYTES:
        return keys
    return [
        key
        if key is None or len(key) < _DIGEST_BYTES
        else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        for key in keys
    ]


def records_to_count(
    buffer: Buffer, header: BatchHeader, position: int, aborted: Mapping[Identity, AbortedRange]
) -> RecordColumns | None:
    """Return the records that compaction judges; None if the batch has none.

    Raises:
        CorruptBatchError: the payload is not columns of records.
    """
    if not header.record_count or header.is_control or is_aborted(header, aborted):
        return None
    return decode_columns(buffer, header, position)


@dataclass(frozen=True, slots=True, kw_only=True)
class SieveRules:
    """Rules by which a batch is judged.

    Attributes:
        keys: last offset of each key in the dirty part.
        writers: state of the writers as of ``keys.end``; retries may refer to its batches.
        now_ms: wall clock.
        delete_retention_ms: how long a tombstone stays after this run first saw it.
        tombstone_end: tombstones and markers at and above it stay, because some replica may not have them yet.
        aborted: transactions whose batches do not count.
        answers: offsets of the markers that hold the first response for an idempotency key.
    """

    keys: KeyMap
    writers: WriterState
    aborted: Mapping[Identity, AbortedRange]
    answers: Collection[int]
    now_ms: int
    delete_retention_ms: int
    tombstone_end: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch that goes into the compacted log."""

    header: BatchHeader
    content: Buffer


@dataclass(slots=True)
class SieveCounts:
    """Count of dropped records, and the latest delete horizon of the tombstones that were kept."""

    records: int = 0
    horizon_ms: int | None = None


@dataclass(slots=True)
class _Hole:
    """Removed batches of one leader epoch that follow each other."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    append_time_ms: int
    timestamp_ms: int


class BatchSieve:
    """A filter that takes the batches of some segments in order and returns those that remain.

    Call ``take`` for every batch, then ``end``. The returned batches cover the same offsets as the batches taken.
    """

    def __init__(self, rules: SieveRules, counts: SieveCounts) -> None:
        self._rules = rules
        self._counts = counts
        self._hole: _Hole | None = None
        self.is_changed = False
        """Whether any batch was left out or rewritten."""

    def take(self, buffer: Buffer, header: BatchHeader, position: int) -> list[Kept]:
        """Take the next batch; return batches that are final.

        Raises:
            CorruptBatchError: its payload is not columns of records.
        """
        whole = memoryview(buffer)[position : position + header.batch_bytes]
        # An old filler joins the hole around it. Otherwise each run would add fillers next to those of the last run.
        if header.is_filler:
            return self._widen(header)
        if header.base_offset >= self._rules.keys.end:
            # The map does not have its keys, and the writers' state does not have its batch.
            return self._keep(Kept(header, whole))
        is_answer = self._is_answer(header)
        columns = records_to_count(buffer, header, position, self._rules.aborted)
        if columns is not None:
            return self._sift(header, columns, whole, is_answer=is_answer)
        if is_answer:
            return self._keep(Kept(header, whole))
        if self._is_dispensable(header):
            return self._drop(header)
        return self._keep(Kept(header, whole))

    def _is_answer(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to a committed request with an idempotency key, or is the marker of that request.

        Every log that has both answers a retry from both: from the marker and the header of the batch. So neither is
        removed without the other, and the batch keeps its mark. Its records are judged like any others: a later run
        would not find that they were replaced. Keys of a session's writes (``owner`` below 0) have no use after the
        session's end.
        """
        found = header.transaction
        if isinstance(found, Marker):
            return header.base_offset in self._rules.answers
        return (
            found is not None
            and found.owner >= 0
            and not is_aborted(header, self._rules.aborted)
            and _is_keyed(header, self._rules)
        )

    def _is_dispensable(self, header: BatchHeader) -> bool:
        """Whether a batch without records that count may be removed."""
        if is_aborted(header, self._rules.aborted):
            # The marker of the transaction refuses retries of this batch.
            return True
        # A replica that has the records but not the marker would keep the transaction open for ever.
        if header.marker is not None and header.base_offset >= self._rules.tombstone_end:
            return False
        return not header.record_count and not self._is_remembered(header)

    def end(self) -> list[Kept]:
        """Return the last filler, if there is one; no batch may follow."""
        hole, self._hole = self._hole, None
        return [] if hole is None else [_filler(hole)]

    def _sift(
        self, header: BatchHeader, columns: RecordColumns, whole: Buffer, *, is_answer: bool
    ) -> list[Kept]:
        kept, has_tombstone = self._judge(header, columns)
        # A tombstone keeps its horizon from the run that saw it first (KIP-534). A new horizon on each run would keep
        # it for ever in a log that is compacted often.
        horizon_ms = header.delete_horizon_ms
        if not has_tombstone:
            horizon_ms = None
        elif horizon_ms is None:
            horizon_ms = self._rules.now_ms + self._rules.delete_retention_ms
        self._note_horizon(horizon_ms)
        count = len(columns.values)
        is_whole = len(kept) == count and horizon_ms == header.delete_horizon_ms
        # A batch of a committed transaction is rewritten even if it keeps all records. It loses the mark of the
        # transaction, so that its marker may be removed later.
        if is_whole and (is_answer or not header.is_transactional):
            return self._keep(Kept(header, whole))
        self.is_changed = True
        self._counts.records += count - len(kept)
        if is_answer:
            rest = _choose(header, columns, kept)
            return self._keep(
                _encoded(
                    rewrite_batch(
                        header, rest, delete_horizon_ms=horizon_ms, keeps_transaction=True
                    )
                )
            )
        if kept:
            return self._keep(_encoded(_rewritten(header, columns, whole, kept, horizon_ms)))
        # A retry of this batch must be recognised, and only the header tells the log about it.
        if self._is_remembered(header):
            return self._keep(_encoded(rewrite_batch(header, _EMPTY)))
        return self._drop(header)

    def _judge(self, header: BatchHeader, columns: RecordColumns) -> tuple[list[int], bool]:
        """Return the positions of the records that stay, and whether a tombstone is among them."""
        if columns.keys is None:
            return list(range(len(columns.values))), False
        offsets = offsets_of(header, columns)
        # A key outside of the dirty part has -1 and stays: the last run already kept only its last record.
        lasts = self._rules.keys.lasts(columns.keys)
        kept = [
            place
            for place, (offset, last) in enumerate(zip(offsets, lasts, strict=True))
            if last <= offset
        ]
        if None not in columns.values:
            return kept, False
        return self._judge_tombstones(header, columns, kept)

    def _judge_tombstones(
        self, header: BatchHeader, columns: RecordColumns, places: Sequence[int]
    ) -> tuple[list[int], bool]:
        assert columns.keys is not None, "a tombstone has a key"
        offsets = offsets_of(header, columns)
        kept: list[int] = []
        has_tombstone = False
        for place in places:
            if columns.values[place] is None and columns.keys[place] is not None:
                if self._may_forget(header, offsets[place]):
                    continue
                has_tombstone = True
            kept.append(place)
        return kept, has_tombstone

    def _may_forget(self, header: BatchHeader, offset: int) -> bool:
        # Three conditions: the horizon was set by an earlier run, it has passed, and every replica has the tombstone.
        horizon_ms = header.delete_horizon_ms
        rules = self._rules
        return (
            horizon_ms is not None and rules.now_ms >= horizon_ms and offset < rules.tombstone_end
        )

    def _note_horizon(self, horizon_ms: int | None) -> None:
        if horizon_ms is not None:
            self._counts.horizon_ms = max(horizon_ms, self._counts.horizon_ms or 0)

    def _is_remembered(self, header: BatchHeader) -> bool:
        """Whether a retry of the batch must be recognised; its header is the only trace of it."""
        return _is_producers(header, self._rules) or _is_keyed(header, self._rules)

    def _keep(self, batch: Kept) -> list[Kept]:
        return [*self.end(), batch]

    def _drop(self, header: BatchHeader) -> list[Kept]:
        self.is_changed = True
        return self._widen(header)

    def _widen(self, header: BatchHeader) -> list[Kept]:
        """Extend the hole by a batch; if they may not merge, return the earlier hole and start a new one."""
        hole = self._hole
        if hole is not None and _is_neighbour(hole, header):
            # Two fillers become one.
            self.is_changed = True
            # The filler keeps the latest times, so that the segment's age and its index by time do not change.
            hole.last_offset = header.last_offset
            hole.append_time_ms = max(hole.append_time_ms, header.append_time_ms)
            hole.timestamp_ms = max(hole.timestamp_ms, header.latest_timestamp_ms)
            return []
        ended = self.end()
        self._hole = _Hole(
            header.base_offset,
            header.last_offset,
            header.leader_epoch,
            header.append_time_ms,
            header.latest_timestamp_ms,
        )
        return ended


def _is_neighbour(hole: _Hole, header: BatchHeader) -> bool:
    # The epoch table is derived from the batches, so a filler must not hide the start of an epoch. The delta to the
    # last offset has 32 bits in the header.
    return (
        hole.leader_epoch == header.leader_epoch
        and header.last_offset - hole.base_offset <= _LAST_OFFSET_DELTA_MAX
    )


def _filler(hole: _Hole) -> Kept:
    return _encoded(
        encode_filler(
            base_offset=hole.base_offset,
            last_offset=hole.last_offset,
            leader_epoch=hole.leader_epoch,
            append_time_ms=hole.append_time_ms,
            timestamp_ms=hole.timestamp_ms,
        )
    )


def _encoded(batch: bytes) -> Kept:
    return Kept(decode_header(batch), batch)


def _rewritten(
    header: BatchHeader,
    columns: RecordColumns,
    whole: Buffer,
    kept: Sequence[int],
    horizon_ms: int | None,
) -> bytes:
    """Return the batch with only the records at the places ``kept``."""
    chosen = _choose(header, columns, kept)
    if not header.is_v2:
        return rewrite_batch(header, chosen, delete_horizon_ms=horizon_ms)
    latest_ms = header.base_timestamp_ms + max(chosen.timestamp_deltas or (0,))
    return rewrite_v2(
        whole, header, kept, latest_timestamp_ms=latest_ms, delete_horizon_ms=horizon_ms
    )


def _choose(header: BatchHeader, columns: RecordColumns, kept: Sequence[int]) -> RecordColumns:
    base = header.base_offset
    offsets = offsets_of(header, columns)
    deltas = columns.timestamp_deltas
    return RecordColumns(
        [offsets[place] - base for place in kept],
        None if deltas is None else [deltas[place] for place in kept],
        None if columns.keys is None else [columns.keys[place] for place in kept],
        [columns.values[place] for place in kept],
        None if columns.headers is None else [columns.headers[place] for place in kept],
    )


def _is_producers(header: BatchHeader, rules: SieveRules) -> bool:
    header = header.numbered()
    entry = rules.writers.producers.get(header.producer_id)
    # These conditions are those of ``ProducerStates``: an entry that it forgets needs no header in the log.
    return (
        entry is not None
        # A marker starts the next epoch of its producer (KIP-890).
        and entry.producer_epoch == header.producer_epoch + (header.marker is not None)
        and rules.now_ms - entry.append_time_ms <= 2 * PRODUCER_EXPIRY_MS
        and any(batch.base_offset == header.base_offset for batch in entry.batches)
    )


def _is_keyed(header: BatchHeader, rules: SieveRules) -> bool:
    return any(_has_entry(key, header, rules) for key in header.request_keys)


def _has_entry(key: IdempotencyExtension, header: BatchHeader, rules: SieveRules) -> bool:
    entry = rules.writers.idempotency.lookup(key.key_hash, rules.now_ms)
    if entry is None or entry.body_hash != key.body_hash:
        return False
    # A request may have written several batches, and its entry spans all of them.
    first, last = key.span(header.base_offset, header.last_offset)
    return entry.base_offset <= first and last <= entry.last_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSurvey:
    """The facts about a log that decide whether it is compacted.

    Attributes:
        segments: the closed, synced and committed segments, oldest first; compaction touches no others.
        clean_end: everything below it is compacted.
        dirty_since_ms: append time of the first batch at or above ``clean_end``; None if not known.
        horizon_ms: time from which a run can drop the tombstones that the last run kept; None if it kept none.
        tombstone_end: every replica has everything below it.
    """

    segments: Sequence[SegmentSummary]
    clean_end: int
    dirty_since_ms: int | None
    horizon_ms: int | None
    tombstone_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionNeed:
    """Estimate of a run.

    ``dirty_bytes`` lie below ``end_offset``, where the run would stop. ``dirty_ratio`` is their share of all bytes
    below ``end_offset``.
    """

    is_due: bool
    end_offset: int
    dirty_bytes: int
    dirty_ratio: float


def assess(survey: LogSurvey, config: LogConfig, now_ms: int) -> CompactionNeed:
    """Decide whether a log should be compacted, and how far."""
    clean = dirty = 0
    end_offset = survey.segments[0].base_offset if survey.segments else survey.clean_end
    for segment in survey.segments:
        is_clean = segment.next_offset <= survey.clean_end
        # The first segment that is too young ends the run: a run covers a prefix of the log, without gaps.
        if not is_clean and _is_too_young(segment, config, now_ms):
            break
        if is_clean:
            clean += segment.size_bytes
        else:
            dirty += segment.size_bytes
        end_offset = segment.next_offset
    ratio = dirty / max(clean + dirty, 1)
    has_work = dirty > 0 and (
        ratio >= config.min_cleanable_dirty_ratio or _is_late(survey.dirty_since_ms, config, now_ms)
    )
    has_dead = clean > 0 and _has_dead_tombstones(survey, now_ms)
    return CompactionNeed(
        is_due=config.is_compacted and (has_work or has_dead),
        end_offset=end_offset,
        dirty_bytes=dirty,
        dirty_ratio=ratio,
    )


def _is_too_young(segment: SegmentSummary, config: LogConfig, now_ms: int) -> bool:
    # Timestamps come from producers. Without a minimum lag, one from the future must not stop compaction.
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - segment.max_timestamp_ms < lag_ms


def _is_late(dirty_since_ms: int | None, config: LogConfig, now_ms: int) -> bool:
    bound = config.max_compaction_lag_ms
    return bound is not None and dirty_since_ms is not None and now_ms - dirty_since_ms > bound


def _has_dead_tombstones(survey: LogSurvey, now_ms: int) -> bool:
    """Whether all tombstones that the last run kept may be removed.

    A run for tombstones alone waits for the last of them, so each run causes at most one of these.
    """
    return (
        survey.horizon_ms is not None
        and now_ms >= survey.horizon_ms
        and survey.tombstone_end >= survey.clean_end
    )
