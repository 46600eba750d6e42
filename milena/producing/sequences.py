"""The sequence numbers of an idempotent producer on one partition (pure).

Each partition's records are numbered from 0 under a producer id. A batch carries the number of its first record. A log
takes the next number, recognises a repeated one, and refuses any other. The producer therefore:

- gives numbers when a batch is first sent;
- takes them back when it is certain that the batch was not written;
- starts again under another id when the result is unknown. No next number would then be safe: the log may or may not
  have used the last one.
"""

from milena.model.batch.header import SEQUENCE_MASK, ProducerStamp
from milena.records import ProducerIdentity


class LaneSequence:
    """Identity and next number of one partition. ``identity`` is None before ``begin``, and after ``spoil``."""

    __slots__ = ("identity", "next_sequence", "spoiled")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.spoiled: ProducerIdentity | None = None
        """The identity that must not be used here again."""
        self.next_sequence = 0

    def begin(self, identity: ProducerIdentity) -> None:
        """Number from 0 under this identity, which was never used here."""
        assert identity != self.spoiled, identity
        self.identity = identity
        self.next_sequence = 0

    def take(self, record_count: int) -> ProducerStamp:
        """Return the stamp of the next batch."""
        assert self.identity is not None, "begin first"
        base = self.next_sequence
        self.next_sequence = (base + record_count) & SEQUENCE_MASK
        return ProducerStamp(self.identity.producer_id, self.identity.producer_epoch, base)

    def take_back(self, stamp: ProducerStamp) -> None:
        """Give the number of this stamp to the next batch: its batch, the last one taken, was not written."""
        if self.identity == ProducerIdentity(stamp.producer_id, stamp.producer_epoch):
            self.next_sequence = stamp.base_sequence

    def spoil(self) -> None:
        """Stop using the identity: it is unknown which numbers the log has. The next batch needs another identity."""
        self.spoiled = self.identity or self.spoiled
        self.identity = None
