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
"""The highest producer epoch: batches have 16 signed bits for it. No transaction has it, because its end would raise
the epoch."""


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

    ``SOUND``: the replica has every record that it acknowledged. ``SUSPECT``: such records may be missing, because
    recovery cut bytes, or because the log ends below the high watermark in its checkpoint. ``DAMAGED``: a batch below
    the recovery point is damaged, or the files of a replica in the manifest are missing.
    """

    SOUND = "sound"
    SUSPECT = "suspect"
    DAMAGED = "damaged"
