"""The numbers of an idempotent producer on one partition (pure).

Each partition's records are numbered from 0 under a producer id; a batch carries the number of its first. A log takes
the next number, knows a repeated one again, and refuses any other. So numbers are given when a batch is first sent,
taken back when it is certain that it was not written, and begun anew under another id when nobody knows: a number that
may or may not be used fits neither before nor after it.
"""

from milena.model.batch.header import SEQUENCE_MASK, ProducerStamp
from milena.records import ProducerIdentity


class LaneSequence:
    """Identity and next number of one partition. ``identity`` is None until one is given, and after ``spoil``."""

    __slots__ = ("identity", "next_sequence", "spoiled")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.spoiled: ProducerIdentity | None = None
        """The identity that may not be used here again."""
        self.next_sequence = 0

    def begin(self, identity: ProducerIdentity) -> None:
        """Number from 0 under this identity, which was never used here."""
        assert identity != self.spoiled, identity
        self.identity = identity
        self.next_sequence = 0

    def take(self, record_count: int) -> ProducerStamp:
        """The stamp of the next batch."""
        assert self.identity is not None, "begin first"
        base = self.next_sequence
        self.next_sequence = (base + record_count) & SEQUENCE_MASK
        return ProducerStamp(self.identity.producer_id, self.identity.producer_epoch, base)

    def take_back(self, stamp: ProducerStamp) -> None:
        """The batch of this stamp, the last one taken, was not written: the next one gets its number."""
        if self.identity == ProducerIdentity(stamp.producer_id, stamp.producer_epoch):
            self.next_sequence = stamp.base_sequence

    def spoil(self) -> None:
        """Nobody knows what the log has: the next batch is the first of another identity."""
        self.spoiled = self.identity or self.spoiled
        self.identity = None
