"""The options of a producer: one frozen value, checked as a whole."""

from dataclasses import dataclass
from typing import TypedDict

from milena.model.types import Codec
from milena.producing.partitioner import Partitioner
from milena.producing.serializers import Serializer, plain_bytes
from milena.records import Acks, check_range

COMPRESSIONS = {"none": Codec.NONE, "gzip": Codec.GZIP, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

MESSAGE_BYTES_MAX = 8 << 20
"""The largest batch that a topic takes by default, in bytes."""

REQUEST_BYTES_MAX = 32 << 20
"""The largest request that a node takes, in bytes, even if a topic allows more."""


class ProducerKeywords(TypedDict, total=False):
    """The fields of ``ProducerOptions`` as keywords."""

    acks: Acks
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    max_block_ms: float
    compression: str
    idempotent: bool
    delivery_timeout_ms: float
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    partitioner: Partitioner | None
    key_serializer: Serializer
    value_serializer: Serializer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer.

    The defaults suit a program that wants every record written once and in order, at a few hundred thousand a second.
    """

    acks: Acks = "all"
    """The replicas that must have a record before it counts as written: all in sync, the leader (1), or none (0)."""

    linger_ms: float = 5.0
    """How long a batch waits for further records, in ms; 0 and above. A full batch does not wait."""

    batch_bytes: int = 256 << 10
    """The largest batch before compression, in bytes: 1 KiB to 32 MiB. A larger record gets a batch for itself."""

    buffer_bytes: int = 32 << 20
    """Limit for the bytes of records that are neither written nor failed; at least ``batch_bytes``.

    When the buffer is full, ``send`` waits.
    """

    max_block_ms: float = 60_000
    """How long ``send`` waits for room before it raises ``BufferFullError``, in ms; 0 does not wait."""

    compression: str = "none"
    """The compression of whole batches: none, gzip, lz4 or zstd."""

    idempotent: bool = True
    """Number the batches, so that a log recognises a retry. With ``acks=0`` this has no effect."""

    delivery_timeout_ms: float = 120_000
    """The time from ``send`` to the outcome in ms, retries included; more than ``linger_ms``."""

    request_timeout_ms: float = 30_000
    """The timeout of one attempt, in ms."""

    retry_backoff_ms: float = 50
    """The wait after the first failure, in ms. It doubles with each further failure."""

    retry_backoff_max_ms: float = 1_000
    """The longest wait between two attempts, in ms."""

    partitioner: Partitioner | None = None
    """A function that chooses the partition. None: by the key's hash; records without a key in turn, batch by batch."""

    key_serializer: Serializer = plain_bytes
    value_serializer: Serializer = plain_bytes

    def __post_init__(self) -> None:
        if self.acks not in ("all", 1, 0):
            raise ValueError(f"acks={self.acks!r}: use 'all', 1 or 0")
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"compression={self.compression!r}: use {', '.join(COMPRESSIONS)}")
        check_range("linger_ms", self.linger_ms, 0, 3_600_000)
        check_range("batch_bytes", self.batch_bytes, 1 << 10, REQUEST_BYTES_MAX)
        check_range("buffer_bytes", self.buffer_bytes, self.batch_bytes, 1 << 40)
        check_range("max_block_ms", self.max_block_ms, 0, 86_400_000)
        check_range("delivery_timeout_ms", self.delivery_timeout_ms, 1, 86_400_000)
        check_range("request_timeout_ms", self.request_timeout_ms, 1, 3_600_000)
        check_range("retry_backoff_ms", self.retry_backoff_ms, 1, self.retry_backoff_max_ms)
        check_range("retry_backoff_max_ms", self.retry_backoff_max_ms, 1, 3_600_000)
        if self.delivery_timeout_ms <= self.linger_ms:
            raise ValueError(
                f"delivery_timeout_ms={self.delivery_timeout_ms:g} must be more than "
                f"linger_ms={self.linger_ms:g}: a record would be late before it is sent"
            )

    @property
    def codec(self) -> Codec:
        """The codec that compresses batches."""
        return COMPRESSIONS[self.compression]

    @property
    def is_sequenced(self) -> bool:
        """True if batches carry a producer id. With ``acks=0`` they do not: a batch is never sent again."""
        return self.idempotent and self.acks != 0
