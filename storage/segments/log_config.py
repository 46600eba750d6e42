"""Settings of one partition's log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log. Sizes are in bytes.

    Attributes:
        segment_bytes: a new segment starts before this size is exceeded, unless one batch is larger.
        index_interval_bytes: bytes between two entries of the sparse index.
        flush_messages: 1 = strict: a record counts as stored once it is synced. N = relaxed: the log is synced after N
            records.
        flush_ms: relaxed logs are synced when a record has waited this long; None = never by time.
        retention_ms: age of a segment's youngest record at which the segment is removed; None = never.
        retention_bytes: the oldest segments are removed while at least this many bytes are left; None = no limit.
        max_message_bytes: size of the largest batch that the log accepts.
        preallocate_bytes: the largest step by which a segment's file grows; 0 = exactly as needed.
        checkpoint_bytes: appended bytes after which a checkpoint moves the recovery point within a segment. Recovery
            scans at most this much, plus the appends since the last checkpoint.
        segment_ms: age of a segment's first batch at which the next segment starts; None = by size alone.
        is_deleting: whether segments are removed by age and size (``cleanup.policy`` contains delete).
        is_compacted: whether only the last record of each key is kept (``cleanup.policy`` contains compact).
        min_compaction_lag_ms: age that a segment's youngest record must have before compaction touches the segment.
        max_compaction_lag_ms: age of a record at which a compaction that includes it is due; None = no limit.
        min_cleanable_dirty_ratio: compaction is due when this fraction of the log's bytes is not compacted yet.
        delete_retention_ms: time for which a tombstone is kept after the first compaction that met it.
    """

    segment_bytes: int = 100_000_000
    index_interval_bytes: int = 4096
    flush_messages: int = 1
    flush_ms: int | None = None
    retention_ms: int | None = 7 * 24 * 3_600_000
    retention_bytes: int | None = None
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
        """Age of the active segment's first batch, in ms, at which a new segment starts; None = by size alone.

        Compaction skips the active segment, so a limit on compaction lag is also a limit on this age.
        """
        lag = self.max_compaction_lag_ms if self.is_compacted else None
        bounds = [bound for bound in (self.segment_ms, lag) if bound is not None]
        return min(bounds, default=None)

    @property
    def is_strict(self) -> bool:
        """Whether records count as stored only after a sync."""
        return self.flush_messages <= 1
