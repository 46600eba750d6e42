"""Transactions in one log: which are open, which were aborted, and how far readers of committed records may read.

Derived from the batches of the log alone, in their order, so that replicas that have the same batches say the same:

    a batch of a transaction   it is open, from its first batch on
    its marker                 it is over: committed below the marker's ``end_offset``, aborted otherwise

The *last stable offset* is the first offset of a transaction that is open at the high watermark: one without a marker
below it. What a leader's snapshot says of writers reaches beyond a follower's log; nothing here does.

Source: KIP-98 (control batches, last stable offset); an identity for each transaction as in KIP-890.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from milena.model.batch.header import BatchHeader, TransactionExtension
from milena.model.errors import CorruptLogError, TooManyTransactionsError
from storage.state.sealed import columns, integers

OPEN_MAX = 10_000
"""Open transactions a partition."""

ABORTED_MAX = 100_000
"""Aborted ones that a partition still has records of: about 20 MB of memory and 3 MB in a snapshot."""

KEY_HASH_BYTES = 16

Identity = tuple[int, int]
"""(producer id, producer epoch): no two transactions have the same."""


class OngoingTransaction(NamedTuple):
    """A transaction without a marker in the log: where it begins and its last batch ends, and what it says of itself.

    ``owner`` and ``owner_epoch`` as in ``TransactionExtension``; times are wall ms.
    """

    first_offset: int
    end_offset: int
    records: int
    began_ms: int
    timeout_ms: int
    owner: int
    owner_epoch: int
    key_hashes: bytes = b""
    """Of the idempotency keys whose requests it is, 16 bytes each."""


class AbortedRange(NamedTuple):
    """Batches of one transaction from ``first_offset`` to its marker, at ``end_offset``, count for nobody."""

    first_offset: int
    end_offset: int


def is_aborted(header: BatchHeader, aborted: Mapping[Identity, AbortedRange]) -> bool:
    """Whether a batch below the last stable offset is of one of these transactions, and counts for nobody."""
    if not header.is_transactional:
        return False
    found = aborted.get((header.producer_id, header.producer_epoch))
    return found is not None and found.first_offset <= header.base_offset < found.end_offset


class _Ended(NamedTuple):
    """A transaction whose marker lies at ``marker_offset``, above the high watermark that was told last."""

    marker_offset: int
    first_offset: int


class Transactions:
    """See the module.

    Attributes:
        open: those without a marker, by identity.
        aborted: those of whose records the log still has some. What is forgotten goes from a copy: who reads the log on
            another thread, or waits for one, goes on with what he has taken.

    Invariants:
        - open transactions are in the order of their first offsets, aborted and ended ones in that of their markers;
        - no identity is both open and aborted.
    """

    __slots__ = ("_ended", "aborted", "open")

    def __init__(self) -> None:
        self.open: dict[Identity, OngoingTransaction] = {}
        self.aborted: dict[Identity, AbortedRange] = {}
        self._ended: dict[Identity, _Ended] = {}

    def __bool__(self) -> bool:
        return bool(self.open or self.aborted or self._ended)

    def check_room(self, identity: Identity) -> None:
        """Refuse the first batch of one transaction too many.

        Raises:
            TooManyTransactionsError: the message says of which kind.
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
        """Take note of an appended batch, of a transaction or the marker of one; returns what a marker ended."""
        identity = (header.producer_id, header.producer_epoch)
        known = self.open.get(identity)
        marker = header.marker
        if marker is None:
            self.open[identity] = _grown(known, header)
            return None
        if known is None:
            # The log begins behind its last record.
            return None
        del self.open[identity]
        first = marker.end_offset if marker.is_commit else known.first_offset
        if first < known.end_offset:
            self.aborted[identity] = AbortedRange(first, header.base_offset)
        self._ended[identity] = _Ended(header.base_offset, known.first_offset)
        return known

    def stable_end(self, high_watermark: int) -> int:
        """The last stable offset at this high watermark, which never falls."""
        self._settle(high_watermark)
        end = high_watermark
        for first in self.open.values():
            end = min(end, first.first_offset)
            break
        for ended in self._ended.values():
            end = min(end, ended.first_offset)
        return end

    def is_ending(self, identity: Identity, high_watermark: int) -> bool:
        """Whether a transaction's marker is in the log, and not below the high watermark."""
        self._settle(high_watermark)
        return identity in self._ended

    def _settle(self, high_watermark: int) -> None:
        while self._ended:
            identity, ended = next(iter(self._ended.items()))
            if ended.marker_offset >= high_watermark:
                return
            del self._ended[identity]

    def forget_below(self, offset: int) -> None:
        """The log has nothing any more of what was aborted below ``offset``."""
        if self.aborted and next(iter(self.aborted.values())).end_offset < offset:
            self.aborted = {
                identity: found
                for identity, found in self.aborted.items()
                if found.end_offset >= offset
            }

    def forget_from(self, offset: int) -> None:
        """Forget what stems from batches at and above ``offset``.

        A transaction whose marker goes is open again, which only the log's batches tell: whoever goes on with the log
        replays them.
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
        """The same, for a snapshot that another thread writes."""
        copied = Transactions()
        copied.open = self.open.copy()
        copied.aborted = self.aborted.copy()
        copied._ended = self._ended.copy()
        return copied

    def encode(self) -> list[object]:
        """Columns for a snapshot."""
        return [
            [[*identity, *found] for identity, found in self.open.items()],
            [[*identity, *found] for identity, found in self.aborted.items()],
            [[*identity, *ended] for identity, ended in self._ended.items()],
        ]


def decode_transactions(value: object) -> Transactions:
    """The transactions of a snapshot.

    Raises:
        CorruptLogError: the columns are not those of ``encode``.
    """
    opened, aborted, ended = (_rows(column) for column in columns(value, 3))
    found = Transactions()
    for row in opened:
        *fields, key_hashes = columns(row, 2 + len(OngoingTransaction._fields))
        numbers = integers(fields)
        if not isinstance(key_hashes, bytes) or len(key_hashes) % KEY_HASH_BYTES:
            raise CorruptLogError("expected hashes of keys")
        found.open[numbers[0], numbers[1]] = OngoingTransaction._make([*numbers[2:], key_hashes])
    for row in aborted:
        numbers = integers(row, 2 + len(AbortedRange._fields))
        found.aborted[numbers[0], numbers[1]] = AbortedRange._make(numbers[2:])
    for row in ended:
        numbers = integers(row, 2 + len(_Ended._fields))
        found._ended[numbers[0], numbers[1]] = _Ended._make(numbers[2:])
    return found


def _rows(column: object) -> Iterable[object]:
    if not isinstance(column, list):
        raise CorruptLogError("expected a list of transactions")
    return column


def _grown(known: OngoingTransaction | None, header: BatchHeader) -> OngoingTransaction:
    """An open transaction with one more batch."""
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
