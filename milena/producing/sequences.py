"""The sequence numbers of an idempotent producer on one partition (pure).

Each partition's records are numbered from 0 under a producer id. A batch carries the number of its first record. A log
accepts the next number, recognises a repeated one as a retry, and refuses any other. The producer therefore:

- assigns numbers when a batch is first sent;
- uses the numbers again if the batch is known not to be written;
- starts again from 0 under another producer id if the result is unknown, because it does not know which number the log
  expects next.
"""

from milena.model.batch.header import SEQUENCE_MASK, ProducerStamp
from milena.records import ProducerIdentity


class LaneSequence:
    """Identity and next number of one partition. ``identity`` is None before ``begin``, and after ``spoil``."""

    __slots__ = ("identity", "next_sequence", "spoiled")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.spoiled: ProducerIdentity | None = None
        """The identity that must not be used for this partition again."""
        self.next_sequence = 0

    def begin(self, identity: ProducerIdentity) -> None:
        """Number records from 0 under this identity, which must be new to the partition."""
        assert identity != self.spoiled, identity
        self.identity = identity
        self.next_sequence = 0

    def take(self, record_count: int) -> ProducerStamp:
        """Return the stamp of the next batch, and count its records."""
        assert self.identity is not None, "begin first"
        base = self.next_sequence
        self.next_sequence = (base + record_count) & SEQUENCE_MASK
        return ProducerStamp(self.identity.producer_id, self.identity.producer_epoch, base)

    def take_back(self, stamp: ProducerStamp) -> None:
        """Use the numbers of this stamp for the next batch, because its batch, the last one taken, was not written."""
        if self.identity == ProducerIdentity(stamp.producer_id, stamp.producer_epoch):
            self.next_sequence = stamp.base_sequence

    def spoil(self) -> None:
        """Stop using the identity, because it is unknown which number the log expects next; call ``begin`` again."""
        self.spoiled = self.identity or self.spoiled
        self.identity = None
