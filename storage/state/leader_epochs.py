"""Leader epochs: the table of where each epoch of a partition starts. Replicas use it to find their common prefix.

A follower asks its leader where the follower's last epoch ends in the leader's log (``end_of``), and truncates its own
log to that offset. The table is derived from the batches, which carry the epoch of the leader that appended them. It is
also stored in a file, so that recovery need not read the whole log.

Source: KIP-101 (why truncating to the high watermark loses data), KIP-279 (why one round may not be enough).
"""

from bisect import bisect_right
from collections.abc import Iterable

from milena.model.errors import CorruptLogError
from milena.model.types import NO_EPOCH, NO_OFFSET
from storage.state.sealed import seal, unseal

_MAGIC = b"MLE1"


class LeaderEpochs:
    """Epochs in ascending order, each with the offset of the first batch that carries it.

    Invariants:
        - epochs ascend strictly, and so do their start offsets;
        - an epoch without a batch is not in the table;
        - the first epoch may start below the log start: the epoch of the last deleted record stays (``advance_start``).
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self._push(epoch, start)

    def _push(self, epoch: int, start: int) -> None:
        if epoch < 0 or start < 0:
            raise CorruptLogError(f"leader epoch {epoch} at offset {start} is negative")
        if self._epochs and (epoch <= self._epochs[-1] or start <= self._starts[-1]):
            raise CorruptLogError(
                f"leader epoch {epoch} at offset {start} does not follow "
                f"epoch {self._epochs[-1]} at offset {self._starts[-1]}"
            )
        self._epochs.append(epoch)
        self._starts.append(start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Pairs of epoch and start offset, ascending."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def last_epoch(self) -> int:
        """Epoch of the last batch, -1 without one."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, offset: int) -> None:
        """Note a batch of ``epoch`` at ``offset``.

        Raises:
            CorruptLogError: the epoch is lower than the last one of the table.
        """
        if not self._epochs or epoch != self._epochs[-1]:
            self._push(epoch, offset)

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch <= ``epoch`` and its end offset (exclusive); (-1, -1) without one."""
        if self._epochs and self._epochs[-1] == epoch:
            # The common case: the follower has the leader's last epoch.
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return NO_EPOCH, NO_OFFSET
        is_last = index + 1 == len(self._epochs)
        return self._epochs[index], log_end_offset if is_last else self._starts[index + 1]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the batch that holds ``offset``; above the log end the last epoch, below the first -1."""
        index = bisect_right(self._starts, offset) - 1
        return NO_EPOCH if index < 0 else self._epochs[index]

    def truncate_to(self, offset: int) -> bool:
        """Forget epochs that start at or above ``offset``; True if there were any."""
        size = len(self._starts)
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        return len(self._starts) != size

    def advance_start(self, offset: int) -> None:
        """Forget the epochs that end before the record at ``offset`` - 1.

        ``offset`` is the new log start. The epoch of the record before it stays, although Kafka's cache drops it. A
        follower's log may also end at ``offset``, but with another last record, of another epoch. The follower's
        producer state may then come from a record that the leader never had. The kept epoch lets the leader notice.
        """
        index = bisect_right(self._starts, offset - 1) - 1
        if index > 0:
            del self._starts[:index], self._epochs[:index]

    def clear(self) -> None:
        """Forget all epochs."""
        self._starts.clear()
        self._epochs.clear()

    def encode(self) -> bytes:
        """Return the content of the epoch file."""
        return seal(_MAGIC, [self._epochs, self._starts])

    @classmethod
    def decode(cls, content: bytes) -> "LeaderEpochs":
        """Decode the table in an epoch file.

        Raises:
            CorruptLogError: the content is damaged, or is not a table.
        """
        epochs, starts = unseal(_MAGIC, content, tuple[list[int], list[int]])
        if len(epochs) != len(starts):
            raise CorruptLogError(f"{len(epochs)} leader epochs have {len(starts)} offsets")
        return cls(zip(epochs, starts, strict=True))
