"""Settings of one partition's log."""

from dataclasses import dataclass

from storage.retention import UNLIMITED


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

    @property
    def is_strict(self) -> bool:
        """Whether nothing counts as stored before it was synced."""
        return self.flush_messages <= 1
