"""Transactions in one log: which are open, which were aborted, and how far readers of committed records may read.

A transaction ends with a marker: a control batch that a leader appends to each partition of the transaction.

The state is derived from the log's batches alone, in order, so replicas with the same batches have the same state:

    first batch of a transaction   the transaction is open
    marker of the transaction      it has ended: its batches below the marker's ``end_offset`` are committed, others
                                   are aborted

The *last stable offset* is the first offset of the oldest transaction without a marker below the high watermark. If
there is none, it is the high watermark. Readers of committed records read below it. A snapshot that a leader sends to a
follower leaves this state out, because it may describe batches that the follower's log does not have yet.

Source: KIP-98 (control batches, last stable offset); an identity for each transaction as in KIP-890.
"""

from collections.abc import Mapping
from typing import NamedTuple

from milena.model.batch.header import BatchHeader, TransactionExtension
from milena.model.errors import TooManyTransactionsError

OPEN_MAX = 10_000
"""Limit of open transactions per partition."""

ABORTED_MAX = 100_000
"""Limit of aborted transactions with records in a partition: about 20 MB of memory and 3 MB in a snapshot."""

KEY_HASH_BYTES = 16

Identity = tuple[int, int]
"""(producer id, producer epoch): no two transactions have the same identity."""


class OngoingTransaction(NamedTuple):
    """A transaction without a marker in the log.

    ``end_offset`` is the end (exclusive) of its last batch so far. ``owner`` and ``owner_epoch`` are copied from the
    ``TransactionExtension`` of its first batch. Times are wall clock, in ms.
    """

    first_offset: int
    end_offset: int
    records: int
    began_ms: int
    timeout_ms: int
    owner: int
    owner_epoch: int
    key_hashes: bytes = b""
    """Hashes of the idempotency keys of the transaction's requests, 16 bytes each, without a separator."""


class AbortedRange(NamedTuple):
    """Aborted batches of one transaction: from ``first_offset`` to ``end_offset``, the offset of its marker."""

    first_offset: int
    end_offset: int


def is_aborted(header: BatchHeader, aborted: Mapping[Identity, AbortedRange]) -> bool:
    """Whether a batch belongs to an aborted transaction; the batch must lie below the last stable offset."""
    if not header.is_transactional:
        return False
    found = aborted.get((header.producer_id, header.producer_epoch))
    return found is not None and found.first_offset <= header.base_offset < found.end_offset


class _Ended(NamedTuple):
    """A transaction whose marker, at ``marker_offset``, is not below the high watermark yet, so it may still be cut.

    ``known`` is the transaction as it was before its marker; None if the state was loaded from a snapshot.
    """

    marker_offset: int
    first_offset: int
    known: OngoingTransaction | None = None


TransactionTables = tuple[
    dict[Identity, OngoingTransaction], dict[Identity, AbortedRange], dict[Identity, _Ended]
]
"""Open, aborted and ended transactions."""
TransactionRows = tuple[
    list[tuple[int, int, int, int, int, int, int, int, int, bytes]],
    list[tuple[int, int, int, int]],
    list[tuple[int, int, int, int]],
]
"""The state in a snapshot: open, aborted and ended transactions, each row with the identity first."""


class Transactions:
    """Transactions of one log; see the module docstring.

    Attributes:
        open: transactions without a marker, by identity.
        aborted: aborted transactions with records in the log. A removal assigns a new mapping, so a reader on another
            thread may keep the mapping that it took.

    Invariants:
        - open transactions are ordered by first offset, aborted and ended ones by the offset of their marker;
        - no identity is both open and aborted.
    """

    __slots__ = ("_ended", "aborted", "open")

    def __init__(self, tables: TransactionTables | None = None) -> None:
        self.open, self.aborted, self._ended = tables or ({}, {}, {})

    def __bool__(self) -> bool:
        return bool(self.open or self.aborted or self._ended)

    def check_room(self, identity: Identity) -> None:
        """Refuse the first batch of a transaction if the partition has too many open or aborted transactions.

        Raises:
            TooManyTransactionsError: the message says which limit.
        """
        if identity in self.open:
            return
        if len(self.open) >= OPEN_MAX:
            raise TooManyTransactionsError(
                f"the partition has {OPEN_MAX} open transactions; end some of them"
            )
        if len(self.aborted) >= ABORTED_MAX:
            raise TooManyTransactionsError(
                f"the partition has records of {ABORTED_MAX} aborted transactions; retention must remove some of them"
            )

    def record(self, header: BatchHeader) -> OngoingTransaction | None:
        """Note an appended batch of a transaction, or its marker; return the transaction that a marker ended."""
        identity = (header.producer_id, header.producer_epoch)
        known = self.open.get(identity)
        marker = header.marker
        if marker is None:
            self.open[identity] = _grown(known, header)
            return None
        if known is None:
            # No batch of the transaction is in the log: the log starts above its last record.
            return None
        del self.open[identity]
        first = marker.end_offset if marker.is_commit else known.first_offset
        if first < known.end_offset:
            self.aborted[identity] = AbortedRange(first, header.base_offset)
        self._ended[identity] = _Ended(header.base_offset, known.first_offset, known)
        return known

    def stable_end(self, high_watermark: int) -> int:
        """Return the last stable offset at this high watermark; the high watermark must not fall between calls."""
        self._settle(high_watermark)
        end = high_watermark
        for first in self.open.values():
            end = min(end, first.first_offset)
            break
        for ended in self._ended.values():
            end = min(end, ended.first_offset)
        return end

    def epochs_under_way(self, producer_id: int, high_watermark: int) -> list[int]:
        """Return the epochs of a producer's transactions whose marker is missing or not below the high watermark."""
        self._settle(high_watermark)
        both = (*self.open, *self._ended)
        return [epoch for producer, epoch in both if producer == producer_id]

    def under_way(self, high_watermark: int) -> list[tuple[Identity, OngoingTransaction]]:
        """Return the transactions whose marker is missing, or not below the high watermark.

        Readers of committed records cannot read past them. If the state of an ended transaction was loaded from a
        snapshot, the transaction is left out. This is the case only for a moment after a start.
        """
        self._settle(high_watermark)
        ended = ((identity, found.known) for identity, found in self._ended.items())
        return [
            *self.open.items(),
            *((identity, known) for identity, known in ended if known is not None),
        ]

    def is_ending(self, identity: Identity, high_watermark: int) -> bool:
        """Whether the log has the transaction's marker, but not below the high watermark yet."""
        self._settle(high_watermark)
        return identity in self._ended

    def _settle(self, high_watermark: int) -> None:
        while self._ended:
            identity, ended = next(iter(self._ended.items()))
            if ended.marker_offset >= high_watermark:
                return
            del self._ended[identity]

    def forget_below(self, offset: int) -> None:
        """Forget aborted transactions whose marker lies below ``offset``, because the log has none of their records."""
        if self.aborted and next(iter(self.aborted.values())).end_offset < offset:
            self.aborted = {
                identity: found
                for identity, found in self.aborted.items()
                if found.end_offset >= offset
            }

    def forget_from(self, offset: int) -> None:
        """Forget state that comes from batches at and above ``offset``.

        A transaction whose marker is cut should become open again, but this method cannot restore it. A caller that
        continues to use the log must rebuild the state from its batches.
        """
        self.open = {
            identity: found for identity, found in self.open.items() if found.first_offset < offset
        }
        self.aborted = {
            identity: found for identity, found in self.aborted.items() if found.end_offset < offset
        }
        self._ended = {
            identity: ended
            for identity, ended in self._ended.items()
            if ended.marker_offset < offset
        }

    def copy(self) -> "Transactions":
        """Return a copy, for a snapshot that another thread writes."""
        return Transactions((self.open.copy(), self.aborted.copy(), self._ended.copy()))

    def rows(self) -> TransactionRows:
        """Return the state for a snapshot."""
        return (
            [(*identity, *found) for identity, found in self.open.items()],
            [(*identity, *found) for identity, found in self.aborted.items()],
            [(*identity, *ended[:2]) for identity, ended in self._ended.items()],
        )

    @classmethod
    def of(cls, rows: TransactionRows) -> "Transactions":
        """Return the state of a snapshot."""
        opened, aborted, ended = rows
        return cls(
            (
                {(row[0], row[1]): OngoingTransaction._make(row[2:]) for row in opened},
                {(row[0], row[1]): AbortedRange._make(row[2:]) for row in aborted},
                {(row[0], row[1]): _Ended(*row[2:]) for row in ended},
            )
        )


def _grown(known: OngoingTransaction | None, header: BatchHeader) -> OngoingTransaction:
    """Return the open transaction with one more batch; ``known`` is None for its first batch."""
    if known is not None:
        return known._replace(
            end_offset=header.next_offset, records=known.records + header.record_count
        )
    extension = header.transaction
    assert isinstance(extension, TransactionExtension), "a leader takes no other batch"
    return OngoingTransaction(
        header.base_offset,
        header.next_offset,
        header.record_count,
        header.append_time_ms,
        extension.timeout_ms,
        extension.owner,
        extension.owner_epoch,
        b"".join(key.key_hash for key in header.request_keys),
    )
