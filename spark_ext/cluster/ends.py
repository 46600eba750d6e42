"""The readable offsets of a partition, and what they mean for a reader at an offset (pure)."""

from dataclasses import dataclass

from milena.records import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """The readable offsets of a partition: [log_start_offset, high_watermark)."""

    log_start_offset: int
    high_watermark: int


TimeQuery = tuple[TopicPartition, int]
"""A partition, and a time in ms."""


def clamp(offset: int, limits: PartitionEnds) -> int:
    """Return the nearest offset in [log_start_offset, high_watermark]."""
    return min(max(offset, limits.log_start_offset), limits.high_watermark)


def loss_at(partition: TopicPartition, offset: int, limits: PartitionEnds) -> str | None:
    """Return a sentence about the loss for a reader that continues at ``offset``; None if nothing is lost."""
    if offset < limits.log_start_offset:
        return (
            f"{partition}: offset {offset} is gone, the first that can be read is "
            f"{limits.log_start_offset}"
        )
    if offset > limits.high_watermark:
        return f"{partition}: offset {offset} does not exist, the end is {limits.high_watermark}"
    return None
