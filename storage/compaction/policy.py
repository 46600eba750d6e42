"""Which records of a log compaction keeps, and when a log is worth compacting. Pure: no files, no clock.

A compacted log keeps the last record of each key. A run looks at the log in two passes:

    dirty part  (what was appended since the last run)   key → its last offset: ``KeyMap``
    all of it   (up to where the map reaches)            each batch is kept, rewritten or dropped: ``BatchSieve``

What never changes: offsets, the order of records, leader epochs, and that batches follow each other without a gap.
The place of removed batches is taken by empty ones (*fillers*), neighbours joined into one within a leader epoch, so
that a log with a million dead records costs a reader one header. A batch whose records are all gone keeps its header
while somebody may still retry it: the last batches of an idempotent producer, and idempotency keys in their window.
What a log says of its writers is thus the same before and after.

A record without a value (a *tombstone*) says that its key is gone. It stays for ``delete_retention_ms`` after the run
that saw it first, which writes that time into its batch (the *delete horizon*), and goes in a later run. Other
replicas must have it by then, or they would never hear of the deletion: hence ``tombstone_end``, the offset below
which every replica has everything.

Records without a key, of a time when the topic was not compacted, are all kept.

Transactions are decided below where a run ends (the last stable offset). Batches of an aborted one are dropped; those
of a committed one lose what says that they belong to it, and are judged as any others. Its marker, behind them, says
nothing then that the log does not; like a tombstone it goes once every replica has it. A batch that came
under idempotency keys, and its marker, stay as they are for as long as one of the keys does.

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
from milena.model.columns import RecordColumns
from storage.segments.index import SegmentSummary
from storage.segments.log_config import LogConfig
from storage.state.producer_state import PRODUCER_EXPIRY_MS, WriterState
from storage.state.transactions import AbortedRange, Identity, is_aborted

KEYS_MAX = 250_000
"""Keys that are kept in mind at a time: about 40 MB. A dirty part with more is compacted in several passes."""

_DIGEST_BYTES = 16
_LAST_OFFSET_DELTA_MAX = (1 << 31) - 1

_EMPTY = RecordColumns(None, None, None, [], None)


class KeyMap:
    """Key → offset of its last record, within [``start``, ``end``) of the log.

    Invariants:
        - at most ``keys_max`` keys, and those of one batch more;
        - every record with a key below ``end`` and not below ``start`` was counted.
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
        """Count in the next batch; None for one without records of users."""
        if columns is not None and columns.keys is not None:
            self._offsets.update(
                zip(_digests(columns.keys), offsets_of(header, columns), strict=True)
            )
            # No key is no key of its own.
            self._offsets.pop(None, None)
        self.end = header.next_offset

    def lasts(self, keys: Sequence[bytes | None]) -> Iterator[int]:
        """The offset of each key's last record, -1 where there is none."""
        return map(self._offsets.get, _digests(keys), repeat(-1))


def _digests(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """A key itself when that is shorter than a digest: it cannot be taken for one then."""
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
    """The records of a batch that compaction judges; None when it has none that count.

    Raises:
        CorruptBatchError: the payload is not columns of records.
    """
    if not header.record_count or header.is_control or is_aborted(header, aborted):
        return None
    return decode_columns(buffer, header, position)


@dataclass(frozen=True, slots=True, kw_only=True)
class SieveRules:
    """Grounds on which a batch is judged.

    Attributes:
        keys: where each key of the dirty part was written last.
        writers: what retries may refer to, as of ``keys.end``.
        now_ms: wall clock.
        delete_retention_ms: how long tombstones stay from now on.
        tombstone_end: tombstones and markers at and above it stay: some replica may not have them yet.
        aborted: transactions of which nothing counts.
        answers: offsets of the markers that hold the first answer of an idempotency key.
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
    """Count of what was dropped, and until when the latest of the tombstones that were kept must stay."""

    records: int = 0
    horizon_ms: int | None = None


@dataclass(slots=True)
class _Hole:
    """Removed batches that follow each other, of one leader epoch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    append_time_ms: int
    timestamp_ms: int


class BatchSieve:
    """Takes the batches of a run of segments in order, and gives those that are left.

    ``take`` every batch, then ``end``. Together, what they give covers the same offsets as what was taken.
    """

    def __init__(self, rules: SieveRules, counts: SieveCounts) -> None:
        self._rules = rules
        self._counts = counts
        self._hole: _Hole | None = None
        self.is_changed = False
        """Whether anything was left out or made anew."""

    def take(self, buffer: Buffer, header: BatchHeader, position: int) -> list[Kept]:
        """The next batch; what is given is final.

        Raises:
            CorruptBatchError: its payload is not columns of records.
        """
        whole = memoryview(buffer)[position : position + header.batch_bytes]
        if header.is_filler:
            return self._widen(header)
        if header.base_offset >= self._rules.keys.end:
            # Neither its keys nor its writers are known yet.
            return self._keep(Kept(header, whole))
        if self._is_answer(header):
            return self._keep(Kept(header, whole))
        columns = records_to_count(buffer, header, position, self._rules.aborted)
        if columns is not None:
            return self._sift(header, columns, whole)
        if self._is_dispensable(header):
            return self._drop(header)
        return self._keep(Kept(header, whole))

    def _is_answer(self, header: BatchHeader) -> bool:
        """Whether it is the batch of a committed request that has its key, or the marker that tells what that wrote.

        A retry is answered from both, by every log that has them: neither goes, nor changes, without the other. Keys
        of a session's writes (``owner`` below 0) are of no use after its end.
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
        """Whether a batch of which no record counts may go."""
        if is_aborted(header, self._rules.aborted):
            # Retries of it are refused by its marker.
            return True
        if header.marker is not None and header.base_offset >= self._rules.tombstone_end:
            return False
        return not header.record_count and not self._is_remembered(header)

    def end(self) -> list[Kept]:
        """The rest, when no batch follows."""
        hole, self._hole = self._hole, None
        return [] if hole is None else [_filler(hole)]

    def _sift(self, header: BatchHeader, columns: RecordColumns, whole: Buffer) -> list[Kept]:
        kept, has_tombstone = self._judge(header, columns)
        horizon_ms = header.delete_horizon_ms
        if not has_tombstone:
            horizon_ms = None
        elif horizon_ms is None:
            horizon_ms = self._rules.now_ms + self._rules.delete_retention_ms
        self._note_horizon(horizon_ms)
        count = len(columns.values)
        is_whole = len(kept) == count and horizon_ms == header.delete_horizon_ms
        if is_whole and not header.is_transactional:
            return self._keep(Kept(header, whole))
        self.is_changed = True
        self._counts.records += count - len(kept)
        if kept:
            chosen = _choose(header, columns, kept)
            return self._keep(_encoded(rewrite_batch(header, chosen, delete_horizon_ms=horizon_ms)))
        if self._is_remembered(header):
            return self._keep(_encoded(rewrite_batch(header, _EMPTY)))
        return self._drop(header)

    def _judge(self, header: BatchHeader, columns: RecordColumns) -> tuple[list[int], bool]:
        """Positions of the records that stay, and whether a tombstone is among them."""
        if columns.keys is None:
            return list(range(len(columns.values))), False
        offsets = offsets_of(header, columns)
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
        horizon_ms = header.delete_horizon_ms
        rules = self._rules
        return (
            horizon_ms is not None and rules.now_ms >= horizon_ms and offset < rules.tombstone_end
        )

    def _note_horizon(self, horizon_ms: int | None) -> None:
        if horizon_ms is not None:
            self._counts.horizon_ms = max(horizon_ms, self._counts.horizon_ms or 0)

    def _is_remembered(self, header: BatchHeader) -> bool:
        """Whether a retry of the batch must be recognised: the header is all that tells of it."""
        return _is_producers(header, self._rules) or _is_keyed(header, self._rules)

    def _keep(self, batch: Kept) -> list[Kept]:
        return [*self.end(), batch]

    def _drop(self, header: BatchHeader) -> list[Kept]:
        self.is_changed = True
        return self._widen(header)

    def _widen(self, header: BatchHeader) -> list[Kept]:
        """Let the hole cover the batch too; the hole before it, when they may not be one."""
        hole = self._hole
        if hole is not None and _is_neighbour(hole, header):
            # Of two fillers one is left.
            self.is_changed = True
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
    entry = rules.writers.producers.get(header.producer_id)
    return (
        entry is not None
        # A marker begins the next epoch.
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
    first, last = key.span(header.base_offset, header.last_offset)
    return entry.base_offset <= first and last <= entry.last_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSurvey:
    """A log as the decision to compact sees it.

    Attributes:
        segments: those that are closed, synced and committed, oldest first: all that may be touched at all.
        clean_end: everything below it was compacted before.
        dirty_since_ms: when the first batch at or above ``clean_end`` was appended; None when it is not known.
        horizon_ms: from when on a run could drop the tombstones that the last one kept; None when it kept none.
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

    ``dirty_bytes`` lie below ``end_offset``, where it would stop; ``dirty_ratio`` is the part that they are of all
    bytes below it.
    """

    is_due: bool
    end_offset: int
    dirty_bytes: int
    dirty_ratio: float


def assess(survey: LogSurvey, config: LogConfig, now_ms: int) -> CompactionNeed:
    """Whether a log should be compacted, and how far."""
    clean = dirty = 0
    end_offset = survey.segments[0].base_offset if survey.segments else survey.clean_end
    for segment in survey.segments:
        is_clean = segment.next_offset <= survey.clean_end
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
    # Timestamps are the producers': without a lag, one from the future must not hold compaction up.
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - segment.max_timestamp_ms < lag_ms


def _is_late(dirty_since_ms: int | None, config: LogConfig, now_ms: int) -> bool:
    bound = config.max_compaction_lag_ms
    return bound is not None and dirty_since_ms is not None and now_ms - dirty_since_ms > bound


def _has_dead_tombstones(survey: LogSurvey, now_ms: int) -> bool:
    """A run for them alone, once all that the last one kept may go: there is at most one more of these a run."""
    return (
        survey.horizon_ms is not None
        and now_ms >= survey.horizon_ms
        and survey.tombstone_end >= survey.clean_end
    )
