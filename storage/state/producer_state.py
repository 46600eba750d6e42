"""Producers' state: whether an idempotent producer's next batch is accepted, a duplicate, out of order, or fenced.

A producer numbers its records per partition. A batch carries the producer id, the epoch, and the sequence of its first
record. The state is derived from the batches of the log, so every replica has the same state. A new leader
continues where the old one stopped. A retry of one of the last ``REMEMBERED_BATCHES`` batches is recognised by its
sequences and gets the offsets of the first attempt. So a producer may have that many requests in flight.

State expires by time, and not when the segments that it came from are removed: a producer that pauses for longer than
retention must not count as a new one. Expired state is kept for one more expiry time. A producer that returns in that
time may continue with any sequence: expired state no longer shows whether there is a gap.

A Kafka client numbers its records over many transactions, and each transaction has an identity of its own in the log.
So a batch of such a transaction counts twice here: its identity is fenced by the marker, and the client's numbers tell
whether the batch is a retry.

An unknown producer of a Kafka client starts with any sequence, as in Kafka: it goes on after its topic was deleted and
created again. Producers of other clients start at 0.

Source: KIP-98 (idempotent producers), KIP-360 (unknown producers).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from milena.model.batch.header import (
    CONTROL_BIT,
    SEQUENCE_MASK,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from milena.model.errors import InvalidProducerError, StaleProducerEpochError
from milena.model.types import NO_PRODUCER
from storage.state.idempotency import IdempotencyEntry, IdempotencyTable, KeyedTransaction
from storage.state.transactions import KEY_HASH_BYTES, Transactions
from storage.state.writer_snapshot import (
    NO_TRANSACTIONS,
    REMEMBERED_BATCHES,
    ProducerEntry,
    SequencedBatch,
    WriterSnapshot,
)

PRODUCER_EXPIRY_MS = 24 * 3_600_000
"""Time after a producer's last append during which its sequences are checked."""

PRODUCERS_MAX = 100_000
"""Producers per partition. Above it, the producer whose last append is the oldest is dropped."""

NO_SEQUENCE = -1
"""Sequence of transaction markers, and of transactional batches whose writer does not number its records."""


@dataclass(frozen=True, slots=True)
class Accept:
    """The batch is its producer's next batch, or has no producer."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was appended before, at these offsets (both inclusive)."""

    base_offset: int
    last_offset: int


Verdict = Accept | Duplicate

ACCEPT = Accept()


class ProducerStates:
    """Producer id → state, ordered by last use, least recent first.

    Invariants:
        - at most ``producers_max`` entries;
        - the batches of an entry ascend in offset and belong to one producer epoch.
    """

    __slots__ = ("_entries", "_producers_max")

    def __init__(
        self,
        entries: Mapping[int, ProducerEntry] | None = None,
        *,
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        self._entries = dict(entries or {})
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, expired or not."""
        return self._entries.get(producer_id)

    def epoch_of(self, producer_id: int) -> int:
        """Return the lowest epoch under which a producer may write here; -1 if none is remembered."""
        entry = self.get(producer_id)
        return -1 if entry is None else entry.producer_epoch

    def last_sequence(self, producer_id: int) -> int | None:
        """Return the last sequence that a producer wrote here; None if none is remembered."""
        entry = self.get(producer_id)
        if entry is None or entry.batches[-1].last_sequence == NO_SEQUENCE:
            return None
        return entry.batches[-1].last_sequence

    def check(self, header: BatchHeader, now_ms: int) -> Verdict:
        """Judge whether a producer's batch may be appended.

        Raises:
            StaleProducerEpochError: the producer has already written with a later producer epoch.
            InvalidProducerError: the sequence leaves a gap, or repeats a batch too old to be remembered.
        """
        if header.producer_id == NO_PRODUCER:
            return ACCEPT
        verdict = check_sequence(self._entries.get(header.producer_id), header, now_ms)
        if header.client is None:
            return verdict
        # The header names the transaction, whose epoch was checked above. The client's numbers show a retry.
        return check_sequence(
            self._entries.get(header.client.producer_id), header.numbered(), now_ms
        )

    def record(self, header: BatchHeader, base_offset: int, append_time_ms: int) -> None:
        """Note an appended batch; ignore a batch that is already in the state."""
        if header.client is not None:
            self.record(header.numbered(), base_offset, append_time_ms)
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        known = self._entries.get(producer_id)
        entry = next_entry(known, header, base_offset, append_time_ms)
        if entry is known:
            return
        # Remove and insert again, so that the table stays in the order of last use.
        self._entries.pop(producer_id, None)
        self._entries[producer_id] = entry
        if len(self._entries) > self._producers_max:
            del self._entries[next(iter(self._entries))]

    def expire(self, now_ms: int) -> None:
        """Forget producers whose state expired more than one expiry time ago."""
        forgotten = []
        for producer_id, entry in self._entries.items():
            if now_ms - entry.append_time_ms <= 2 * PRODUCER_EXPIRY_MS:
                break
            forgotten.append(producer_id)
        for producer_id in forgotten:
            del self._entries[producer_id]

    def forget_from(self, offset: int) -> None:
        """Forget batches that end at or above ``offset``, and producers without any other batch."""
        entries: dict[int, ProducerEntry] = {}
        for producer_id, entry in self._entries.items():
            kept = tuple(batch for batch in entry.batches if batch.last_offset < offset)
            if kept:
                entries[producer_id] = entry._replace(batches=kept)
        self._entries = entries

    def freeze(self) -> dict[int, ProducerEntry]:
        """Return a copy of the entries, for a snapshot that another thread writes."""
        return self._entries.copy()


def check_sequence(entry: ProducerEntry | None, header: BatchHeader, now_ms: int) -> Verdict:
    """Judge whether the batch of ``header`` may be appended.

    Args:
        entry: state of the header's producer; None if nothing is known of it.
        header: of the batch; it must have a producer id.
        now_ms: wall clock.

    Raises:
        StaleProducerEpochError: the producer has already written with a later producer epoch.
        InvalidProducerError: the sequence leaves a gap, or repeats a batch too old to be remembered.
    """
    if entry is not None and header.producer_epoch < entry.producer_epoch:
        raise StaleProducerEpochError(
            f"producer {header.producer_id} writes with epoch {header.producer_epoch}, "
            f"but epoch {entry.producer_epoch} has taken over"
        )
    if header.base_sequence == NO_SEQUENCE:
        return ACCEPT
    if entry is None:
        return _check_unknown(header)
    if header.producer_epoch > entry.producer_epoch:
        return _expect(header, 0, f"epoch {header.producer_epoch} is new")
    base_sequence, last_sequence = header.base_sequence, header.last_sequence
    for batch in entry.batches:
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            return Duplicate(batch.base_offset, batch.last_offset)
    if now_ms - entry.append_time_ms > PRODUCER_EXPIRY_MS:
        return ACCEPT
    last = entry.batches[-1].last_sequence
    # If fewer batches are remembered than could be, the producer has written none before the first of them. A client
    # takes a repetition for success, so a batch that was never written must not be called one.
    has_forgotten = len(entry.batches) == REMEMBERED_BATCHES
    is_passed = has_forgotten or not _is_before(base_sequence, entry.batches[0].base_sequence)
    reason = f"its last was {last}"
    return _expect(header, (last + 1) & SEQUENCE_MASK, reason, is_passed=is_passed)


def _check_unknown(header: BatchHeader) -> Accept:
    """Judge the first batch of a producer."""
    if header.is_v2 and not header.is_transactional:
        # A Kafka client does not notice that its topic was created again, and cannot start at 0 again by itself.
        return ACCEPT
    return _expect(header, 0, "this partition knows nothing of the producer", is_unknown=True)


def _is_before(sequence: int, other: int) -> bool:
    # Sequences start again at 0, so the distance tells which of two comes first.
    return (sequence - other) & SEQUENCE_MASK > SEQUENCE_MASK // 2


def _expect(
    header: BatchHeader,
    sequence: int,
    reason: str,
    *,
    is_unknown: bool = False,
    is_passed: bool = False,
) -> Accept:
    """Accept exactly ``sequence``. ``is_passed``: whether the producer has written a sequence that is before it."""
    if header.base_sequence == sequence:
        return ACCEPT
    raise InvalidProducerError(
        f"producer {header.producer_id} epoch {header.producer_epoch}: expected sequence {sequence}, "
        f"got {header.base_sequence} ({reason})",
        is_unknown=is_unknown,
        is_repeated=is_passed and _is_before(header.base_sequence, sequence),
    )


def next_entry(
    entry: ProducerEntry | None, header: BatchHeader, base_offset: int, append_time_ms: int
) -> ProducerEntry:
    """Return the state after an append at ``base_offset``; return ``entry`` itself if it has the batch already."""
    last_offset = base_offset + header.last_offset_delta
    if header.base_sequence == NO_SEQUENCE:
        return _without_sequence(entry, header, base_offset, last_offset, append_time_ms)
    batch = SequencedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset)
    if entry is None or header.producer_epoch > entry.producer_epoch:
        return ProducerEntry(header.producer_epoch, append_time_ms, (batch,))
    if header.producer_epoch < entry.producer_epoch or last_offset <= entry.batches[-1].last_offset:
        return entry
    batches = (*entry.batches[1 - REMEMBERED_BATCHES :], batch)
    # The clock of the new leader may be behind that of the old one. The later time keeps a producer that just wrote
    # from expiring early.
    return ProducerEntry(entry.producer_epoch, max(entry.append_time_ms, append_time_ms), batches)


def _without_sequence(
    entry: ProducerEntry | None,
    header: BatchHeader,
    base_offset: int,
    last_offset: int,
    append_time_ms: int,
) -> ProducerEntry:
    """Return the state after a marker, or after a transactional batch without a sequence.

    A marker raises the producer epoch, and the next batch of the producer starts at sequence 0. So a batch of the ended
    transaction that arrives late has a stale epoch and is refused.
    """
    epoch = header.producer_epoch + (1 if header.attributes & CONTROL_BIT else 0)
    if entry is None or epoch > entry.producer_epoch:
        batch = SequencedBatch(NO_SEQUENCE, NO_SEQUENCE, base_offset, last_offset)
        return ProducerEntry(epoch, append_time_ms, (batch,))
    if epoch < entry.producer_epoch:
        return entry
    return entry._replace(append_time_ms=max(entry.append_time_ms, append_time_ms))


class WriterState:
    """A partition's memory of its writers: producers by sequence, requests by idempotency key, transactions.

    Invariants:
        - producers and keys are derived from the log's batches and, after ``install``, from those of the leader's log;
          transactions are derived from the log's batches alone.
    """

    __slots__ = ("covers_offset", "idempotency", "producers", "transactions")

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.idempotency = IdempotencyTable()
        self.transactions = Transactions()
        self.covers_offset = 0
        """End of the batches that the state is derived from. After ``install``, this log may not have all of them."""

    def record(self, header: BatchHeader, base_offset: int, append_time_ms: int) -> None:
        """Note an appended batch."""
        self.producers.record(header, base_offset, append_time_ms)
        if header.attributes & TRANSACTIONAL_BIT:
            self._record_transaction(header)
        for key in header.request_keys:
            first, last = key.span(base_offset, base_offset + header.last_offset_delta)
            entry = IdempotencyEntry(
                key.body_hash,
                key.partition_count,
                first,
                last,
                append_time_ms,
                KeyedTransaction(header.producer_id, header.producer_epoch, places=key.places)
                if header.attributes & TRANSACTIONAL_BIT
                else None,
            )
            self.idempotency.record(key.key_hash, entry)

    def _record_transaction(self, header: BatchHeader) -> None:
        ended = self.transactions.record(header)
        marker = header.marker
        if ended is None or marker is None:
            return
        for at in range(0, len(ended.key_hashes), KEY_HASH_BYTES):
            key_hash = ended.key_hashes[at : at + KEY_HASH_BYTES]
            self.idempotency.end_transaction(key_hash, header.base_offset, marker)

    def forget_from(self, offset: int) -> None:
        """Forget state that comes from batches that end at or above ``offset``."""
        self.producers.forget_from(offset)
        self.idempotency.forget_from(offset)
        self.transactions.forget_from(offset)
        self.covers_offset = min(self.covers_offset, offset)

    def expire(self, now_ms: int) -> None:
        """Forget producers and idempotency keys that have expired."""
        self.producers.expire(now_ms)
        self.idempotency.expire(now_ms)

    def freeze(self, offset: int) -> WriterSnapshot:
        """Return the state of a log that ends at ``offset``, as a snapshot."""
        return WriterSnapshot(
            offset,
            max(offset, self.covers_offset),
            self.producers.freeze(),
            self.idempotency.freeze(),
            self.transactions.copy() if self.transactions else NO_TRANSACTIONS,
        )

    def install(self, snapshot: WriterSnapshot) -> None:
        """Replace the state with that of a snapshot."""
        self.producers = ProducerStates(snapshot.producers)
        self.idempotency = IdempotencyTable(snapshot.idempotency)
        self.transactions = snapshot.transactions.copy()
        self.covers_offset = snapshot.covers_offset
