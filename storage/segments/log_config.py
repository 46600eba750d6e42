"""Settings of one partition's log."""

from dataclasses import dataclass

from storage.segments.retention import UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log. Sizes are in bytes.

    Attributes:
        segment_bytes: a segment is rolled before it would grow beyond this (unless by a single batch).
        index_interval_bytes: bytes between two entries of the sparse index.
        flush_messages: 1 = strict: stored means synced. N = relaxed: synced after N records.
        flush_ms: relaxed: synced when something has waited that long; None = never by time.
        retention_ms: age of a segment's youngest record after which it goes; -1 = for ever.
        retention_bytes: what is kept at least; -1 = no bound.
        max_message_bytes: the largest batch.
        preallocate_bytes: the largest step in which a segment's file grows; 0 = exactly as needed.
        checkpoint_bytes: appended bytes after which a checkpoint moves the recovery point within a segment: what
            recovery has to scan at most, besides what was appended since the last checkpoint.
        segment_ms: age of a segment's first batch after which the next is begun; None = by size alone.
        is_deleting: whether segments go by age and size (``cleanup.policy`` has delete).
        is_compacted: whether the last record of each key is kept, and earlier ones go (it has compact).
        min_compaction_lag_ms: how old a segment's youngest record must be before compaction touches it.
        max_compaction_lag_ms: how old a record may get before compaction must look at it; None = no bound.
        min_cleanable_dirty_ratio: the part of the log, in bytes, that must be new before it is compacted.
        delete_retention_ms: how long a tombstone stays after compaction saw it first.
    """

    segment_bytes: int = 100_000_000
    index_interval_bytes: int = 4096
    flush_messages: int = 1
    flush_ms: int | None = None
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = UNLIMITED
    max_message_bytes: int = 8 << 20
    preallocate_bytes: int = 4 << 20
    checkpoint_bytes: int = 16 << 20
    segment_ms: int | None = None
    is_deleting: bool = True
    is_compacted: bool = False
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 24 * 3_600_000

    @property
    def roll_ms(self) -> int | None:
        """Age of the active segment's first batch after which the next is begun: it is never compacted itself."""
        lag = self.max_compaction_lag_ms if self.is_compacted else None
        bounds = [bound for bound in (self.segment_ms, lag) if bound is not None]
        return min(bounds, default=None)

    @property
    def is_strict(self) -> bool:
        """Whether nothing counts as stored before it was synced."""
        return self.flush_messages <= 1
