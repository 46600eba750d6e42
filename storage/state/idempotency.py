"""Idempotency keys of HTTP requests, and the offsets of the records that were appended under each key.

A retry with the same key gets the response of the first attempt. The table is derived from the log: a batch carries its
key as a header extension, so every replica builds the same table, and a new leader can answer retries of requests that
went to the old one. Age and number of keys are limited, and the oldest keys are dropped first. If a key were dropped
while its client may still retry, the retry would write twice. So if the table is full of young keys, leaders refuse
new ones (``check_room``).
"""

from collections.abc import Iterable, Mapping
from itertools import islice, starmap
from typing import NamedTuple

from milena.model.batch.header import Extent, KeyPlace, Marker
from milena.model.errors import CorruptLogError, TooManyRequestsError

IDEMPOTENCY_WINDOW_MS = 24 * 3_600_000
"""Time after its append for which a key is remembered."""

IDEMPOTENCY_KEPT_MS = 10 * 60_000
"""Age up to which a key is not dropped to make room for another one. Clients do not retry by themselves for longer."""

IDEMPOTENCY_KEYS_MAX = 100_000
"""Keys per partition; 100,000 take 37 MB of memory and 5 MB in a snapshot.

If the keys belong to transactions over two partitions, they take 74 MB and 9 MB with 19 keys per transaction, and
127 MB and 18 MB with one key per transaction."""


class KeyedTransaction(NamedTuple):
    """The transaction that a keyed request wrote in.

    Attributes:
        producer_id: with ``producer_epoch``, the identity of the transaction.
        producer_epoch: see ``producer_id``.
        marker_offset: offset of the marker that committed the transaction; -1 while this log has no marker.
        extents: once committed, the offsets that the transaction wrote in every partition. A retry is answered with
            them. Keys of one transaction share one tuple.
        places: if several requests share the transaction, where this request's records lie in ``extents``.
    """

    producer_id: int
    producer_epoch: int
    marker_offset: int = -1
    extents: tuple[Extent, ...] = ()
    places: tuple[KeyPlace, ...] = ()


class IdempotencyEntry(NamedTuple):
    """The request that was sent with one key, as far as this partition has its records.

    Attributes:
        body_hash: distinguishes a retry from a reuse of the key with another body.
        partition_count: number of the topic's partitions when the key was first used.
        base_offset: offset of the request's first record here.
        last_offset: offset of the request's last record here, inclusive.
        append_time_ms: wall clock of the leader at the append.
        transaction: the transaction that the request wrote in; None without one. If it aborts, the key is forgotten.
    """

    body_hash: bytes
    partition_count: int
    base_offset: int
    last_offset: int
    append_time_ms: int
    transaction: KeyedTransaction | None = None


class IdempotencyTable:
    """Key hash → entry, oldest first.

    Invariants:
        - at most ``keys_max`` entries;
        - offsets ascend in the order of the table.
    """

    __slots__ = ("_entries", "_keys_max")

    def __init__(
        self,
        entries: Mapping[bytes, IdempotencyEntry] | None = None,
        *,
        keys_max: int = IDEMPOTENCY_KEYS_MAX,
    ) -> None:
        self._entries = dict(entries or {})
        self._keys_max = keys_max

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key_hash: bytes, now_ms: int) -> IdempotencyEntry | None:
        """Return the entry of a key; None if it is unknown or older than ``IDEMPOTENCY_WINDOW_MS``."""
        entry = self._entries.get(key_hash)
        if entry is None or now_ms - entry.append_time_ms > IDEMPOTENCY_WINDOW_MS:
            return None
        return entry

    def check_room(self, now_ms: int, *, coming: int) -> None:
        """Refuse one more key if its append would drop a key that its client may still retry.

        ``coming`` is the number of further keys whose appends are in flight.

        Raises:
            TooManyRequestsError: the message says when there will be room.
        """
        excess = len(self._entries) + coming - self._keys_max
        if excess < 0:
            return
        # ``entry`` is the newest key that would be dropped. It is None if more keys are in flight than the table holds:
        # then even a key in flight would be dropped.
        entry = next(islice(self._entries.values(), excess, None), None)
        # An append time in the future comes from a leader whose clock was ahead. Refusing keys until that time could
        # take days, so ``abs`` counts it as past. ``now_ms`` 0 means that the current time is not known.
        age_ms = abs(now_ms - entry.append_time_ms) if entry is not None and now_ms > 0 else 0
        if age_ms < IDEMPOTENCY_KEPT_MS:
            raise TooManyRequestsError(
                f"the partition remembers the {self._keys_max} idempotency keys of the last "
                f"{IDEMPOTENCY_KEPT_MS // 60_000} minutes; nothing was written: try again when the oldest may go, in "
                f"{-(-(IDEMPOTENCY_KEPT_MS - age_ms) // 1000)} s, or spread what is written over partitions"
            )

    def answers(self, now_ms: int) -> frozenset[int]:
        """Return the offsets of transaction markers that compaction must keep, because retries are answered from them.

        -1 may be among them, for transactions without a marker.
        """
        return frozenset(
            entry.transaction.marker_offset
            for entry in self._entries.values()
            if entry.transaction is not None
            and now_ms - entry.append_time_ms <= IDEMPOTENCY_WINDOW_MS
        )

    def record(self, key_hash: bytes, entry: IdempotencyEntry) -> None:
        """Note an append with a key.

        If it continues the same request without a gap, it extends the entry. Otherwise it replaces the entry.
        """
        known = self._entries.pop(key_hash, None)
        if known is not None:
            if known.last_offset >= entry.last_offset:
                self._entries[key_hash] = known
                return
            if (
                known.last_offset + 1 == entry.base_offset
                and known.transaction is None
                and known.body_hash == entry.body_hash
                and entry.append_time_ms - known.append_time_ms <= IDEMPOTENCY_WINDOW_MS
            ):
                entry = entry._replace(base_offset=known.base_offset)
        self._entries[key_hash] = entry
        if len(self._entries) > self._keys_max:
            del self._entries[next(iter(self._entries))]

    def end_transaction(self, key_hash: bytes, marker_offset: int, marker: Marker) -> None:
        """Note the end of a key's transaction: keep its extents if it was committed, forget the key if aborted."""
        known = self._entries.get(key_hash)
        if known is None or known.transaction is None:
            return
        if not marker.is_commit:
            del self._entries[key_hash]
            return
        self._entries[key_hash] = known._replace(
            transaction=known.transaction._replace(
                marker_offset=marker_offset, extents=marker.extents
            )
        )

    def expire(self, now_ms: int) -> None:
        """Forget keys that are older than ``IDEMPOTENCY_WINDOW_MS``."""
        expired = []
        for key_hash, entry in self._entries.items():
            if now_ms - entry.append_time_ms <= IDEMPOTENCY_WINDOW_MS:
                break
            expired.append(key_hash)
        for key_hash in expired:
            del self._entries[key_hash]

    def forget_from(self, offset: int) -> None:
        """Forget appends that end at or above ``offset``; a transaction whose marker lies there is undecided again."""
        self._entries = {
            key_hash: _undecided_from(entry, offset)
            for key_hash, entry in self._entries.items()
            if entry.last_offset < offset
        }

    def freeze(self) -> dict[bytes, IdempotencyEntry]:
        """Return a copy of the entries, for a snapshot that another thread writes."""
        return self._entries.copy()


def _undecided_from(entry: IdempotencyEntry, offset: int) -> IdempotencyEntry:
    transaction = entry.transaction
    if transaction is None or transaction.marker_offset < offset:
        return entry
    return entry._replace(transaction=transaction._replace(marker_offset=-1, extents=()))


KeyColumns = tuple[list[bytes], list[bytes], list[int], list[int], list[int], list[int]]
"""The keys of a snapshot, and the fields of their entries without the transactions."""
KeyedRow = tuple[bytes, int, int, int, tuple[Extent, ...]]
"""A key, and the fields of its transaction, which belongs to one request."""
SharedRow = tuple[int, int, int, tuple[Extent, ...], list[tuple[bytes, tuple[KeyPlace, ...]]]]
"""The fields of a transaction that several requests share, and the key and the places of each of them."""


def encode_idempotency(
    entries: Mapping[bytes, IdempotencyEntry],
) -> tuple[list[object], list[KeyedRow], list[SharedRow]]:
    """Return columns and rows for a snapshot."""
    keyed: list[KeyedRow] = []
    shared: dict[KeyedTransaction, list[tuple[bytes, tuple[KeyPlace, ...]]]] = {}
    for key_hash, entry in entries.items():
        found = entry.transaction
        if found is not None and found.places:
            shared.setdefault(found._replace(places=()), []).append((key_hash, found.places))
        elif found is not None:
            keyed.append((key_hash, *found[:4]))
    fields = list(zip(*(entry[:-1] for entry in entries.values()), strict=True)) or [()] * 5
    return [list(entries), *fields], keyed, [(*found[:4], keys) for found, keys in shared.items()]


def decode_idempotency(
    columns: KeyColumns, keyed: Iterable[KeyedRow], shared: Iterable[SharedRow]
) -> dict[bytes, IdempotencyEntry]:
    """Return the entries of a snapshot.

    Raises:
        CorruptLogError: the columns have different lengths, or a transaction has no key.
    """
    keys, *fields = columns
    try:
        rows = starmap(IdempotencyEntry, zip(*fields, strict=True))
        entries = dict(zip(keys, rows, strict=True))
        for key_hash, *identity in keyed:
            _put(entries, key_hash, KeyedTransaction._make((*identity, ())))
        for *identity, sharers in shared:
            for key_hash, places in sharers:
                _put(entries, key_hash, KeyedTransaction._make((*identity, places)))
    except (ValueError, KeyError) as error:
        raise CorruptLogError(f"the idempotency keys do not belong together: {error!r}") from error
    return entries


def _put(
    entries: dict[bytes, IdempotencyEntry], key_hash: bytes, transaction: KeyedTransaction
) -> None:
    entries[key_hash] = entries[key_hash]._replace(transaction=transaction)
