"""What the cluster says of a partition's offsets, and what that means for who is to read there (pure)."""

from dataclasses import dataclass

from milena.records import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """Readable offsets: [log_start_offset, high_watermark)."""

    log_start_offset: int
    high_watermark: int


TimeQuery = tuple[TopicPartition, int]
"""A partition, and a time in ms."""


def clamp(offset: int, limits: PartitionEnds) -> int:
    """The nearest readable offset, or the end."""
    return min(max(offset, limits.log_start_offset), limits.high_watermark)


def loss_at(partition: TopicPartition, offset: int, limits: PartitionEnds) -> str | None:
    """What is lost for who goes on at an offset, in words; None when nothing is."""
    if offset < limits.log_start_offset:
        return (
            f"{partition}: offset {offset} is gone, the first that can be read is "
            f"{limits.log_start_offset}"
        )
    if offset > limits.high_watermark:
        return f"{partition}: offset {offset} does not exist, the end is {limits.high_watermark}"
    return None
