"""Small value types and enums that every part of storage and its users share."""

from enum import IntEnum, StrEnum, unique
from typing import NewType

WallMs = NewType("WallMs", int)
"""Milliseconds since the Unix epoch: record timestamps and retention, never durations."""

MonotonicMs = NewType("MonotonicMs", int)
"""Milliseconds on a clock that never runs backwards: deadlines and durations, never stored."""

NO_TIMESTAMP = WallMs(-1)
NO_OFFSET = -1
NO_EPOCH = -1
NO_PRODUCER = -1
PRODUCER_EPOCH_MAX = 32_767
"""A batch has 16 signed bits for the epoch. The last epoch takes no transaction: its end would need a next one."""


@unique
class Codec(IntEnum):
    """Compression of a batch's payload; the low three bits of its attributes. The numbers are Kafka's."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COLUMN_CODECS = (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD)
"""Codecs of a payload of columns. Snappy is in batches of Kafka's clients only."""


@unique
class TimestampType(IntEnum):
    """Origin of the records' timestamps; bit 3 of the attributes."""

    CREATE = 0
    APPEND = 1


@unique
class ReplicaHealth(StrEnum):
    """Health of a replica, as recovery found it.

    ``SOUND``: every acknowledged record is there. ``SUSPECT``: recovery cut something, or the log ends
    below its checkpointed high watermark. ``DAMAGED``: a bad batch below the recovery point, or the files
    of a replica that the manifest lists are gone.
    """

    SOUND = "sound"
    SUSPECT = "suspect"
    DAMAGED = "damaged"
