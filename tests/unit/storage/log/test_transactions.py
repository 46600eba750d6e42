"""Transactions in a log: what readers of committed records see of it, whatever happens to the log."""

import pytest

from milena.model.batch.decode import decode_columns, iterate_headers, records_in
from milena.model.batch.encode import frame_batch
from milena.model.batch.header import (
    BODY_POSITION,
    HEADER_BYTES,
    NO_STAMP,
    Extent,
    IdempotencyExtension,
    KeyPlace,
    ProducerStamp,
    decode_header,
)
from milena.model.batch.v2 import kafka_batch
from milena.model.errors import (
    CorruptBatchError,
    InvalidProducerError,
    StaleProducerEpochError,
)
from storage.compaction.policy import BatchSieve, KeyMap, SieveCounts, SieveRules
from storage.log.partition_log import PartitionLog
from storage.log.reader import without_aborted
from storage.state.idempotency import IDEMPOTENCY_WINDOW_MS, IdempotencyTable
from storage.state.producer_state import ACCEPT, Duplicate, WriterState
from tests.support.disk.compacted_log import (
    COMPACTED,
    append,
    compact,
    keyed_batch,
    records_of,
    roll,
    values_of,
)
from tests.support.disk.kafka_batches import decoded
from tests.support.disk.log_model import NOW_MS, open_log, read_all, stamped
from tests.support.disk.memory_files import MemoryFiles
from tests.support.disk.transactions import kafka_transactional, marker, transactional

KEY = IdempotencyExtension(b"k" * 16, b"b" * 8, 1)


@pytest.fixture
def files():
    return MemoryFiles()


@pytest.fixture
def log(files):
    return open_log(files, is_listed=False)


def plain(value: bytes) -> bytes:
    return keyed_batch([(b"k", value)])


def committed(log: PartitionLog, high_watermark: int | None = None) -> list[bytes | None]:
    """Values that a reader of committed records gets."""
    hw = log.log_end_offset if high_watermark is None else high_watermark
    end = log.writers.transactions.stable_end(hw)
    found = []
    for batch in read_all(log):
        seen = without_aborted(bytes(batch), log.writers.transactions.aborted)
        header = decode_header(seen)
        if header.base_offset < end and not header.is_control:
            found += [value for _, _, _, value, _ in records_in(seen, 0)]
    return found


def state_of(log: PartitionLog) -> object:
    return log.writers.transactions.rows()


def test_an_open_transaction_ends_what_may_be_read_and_its_marker_goes_on(log):
    append(log, plain(b"a"), transactional(1, 0, (b"k", b"t")), plain(b"b"))
    assert log.writers.transactions.stable_end(3) == 1
    append(log, marker(1, 0, 1, commit=2))
    assert committed(log) == [b"a", b"t", b"b"]


def test_a_marker_counts_once_it_is_committed_itself(log):
    append(log, transactional(1, 0, (b"k", b"t")), plain(b"a"), marker(1, 0, 0, commit=1))
    assert [log.writers.transactions.stable_end(hw) for hw in (0, 1, 2, 3)] == [0, 0, 0, 3]


def test_of_several_open_ones_the_first_counts(log):
    append(log, plain(b"a"))
    append(log, transactional(1, 0, (b"k", b"1")), transactional(2, 0, (b"k", b"2")))
    append(log, marker(1, 0, 1, commit=2))
    assert log.writers.transactions.stable_end(4) == 2


def test_nothing_of_an_aborted_one_is_seen_and_offsets_stay(log):
    append(log, transactional(1, 0, (b"k", b"t"), (b"k", b"u")), plain(b"a"))
    append(log, transactional(1, 0, (b"k", b"v")), marker(1, 0, 0))
    assert committed(log) == [b"a"]
    seen = without_aborted(b"".join(map(bytes, read_all(log))), log.writers.transactions.aborted)
    assert [(h.base_offset, h.next_offset) for _, h in iterate_headers(seen)] == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]


def test_a_damaged_batch_is_not_taken_for_one_that_was_aborted(log):
    """A reader would skip committed records. As they are, it finds the damage."""
    append(log, transactional(6, 0, (b"k", b"v")), transactional(7, 0, (b"k", b"t")))
    append(log, marker(7, 0, 1, commit=2), marker(6, 0, 0))
    batches = [bytes(batch) for batch in read_all(log)]
    aborted = log.writers.transactions.aborted
    assert aborted == {(6, 0): (0, 3)}
    for place in range(len(batches[1])):
        for bit in range(8):
            damaged = bytearray(batches[1])
            damaged[place] ^= 1 << bit
            seen = without_aborted(batches[0] + damaged + batches[2], aborted)
            assert seen.endswith(damaged + batches[2])
            assert not decode_header(seen).record_count


def test_behind_a_damaged_batch_nothing_of_an_aborted_one_is_seen(log):
    """A reader that passes over the damaged batch, whose checksum is wrong, must not meet aborted records."""
    append(log, *(transactional(6, 0, (b"k", bytes([n]))) for n in range(3)), marker(6, 0, 0))
    first, damaged, last, *_ = (bytearray(batch) for batch in read_all(log))
    damaged[-1] ^= 1
    seen = without_aborted(first + damaged + last, log.writers.transactions.aborted)
    assert [header.record_count for _, header in iterate_headers(seen)] == [0, 1, 0]


def test_of_a_committed_one_what_comes_behind_its_end_is_aborted(log):
    append(log, transactional(1, 0, (b"k", b"t")), transactional(1, 0, (b"k", b"late")))
    append(log, marker(1, 0, 0, commit=1))
    assert committed(log) == [b"t"]


def test_after_its_end_its_epoch_writes_no_more_and_the_next_begins_at_sequence_0(log):
    append(log, transactional(1, 4, (b"k", b"t"), sequence=0), marker(1, 4, 0, commit=1))
    late = decode_header(transactional(1, 4, (b"k", b"late"), sequence=1))
    unnumbered = decode_header(transactional(1, 4, (b"k", b"late")))
    for header in (late, unnumbered):
        with pytest.raises(StaleProducerEpochError):
            log.producer_check(header, NOW_MS)
    log.producer_check(decode_header(transactional(1, 5, (b"k", b"n"), sequence=0)), NOW_MS)
    assert log.writers.producers.last_sequence(1) is None
    assert log.writers.producers.epoch_of(1) == 5


def test_the_marker_of_an_epoch_does_not_disturb_the_next_ones_sequences(log):
    append(log, transactional(1, 4, (b"k", b"t"), sequence=0))
    append(log, transactional(1, 5, (b"k", b"n"), sequence=0), marker(1, 4, 0))
    log.producer_check(decode_header(transactional(1, 5, (b"k", b"m"), sequence=1)), NOW_MS)
    assert committed(log) == []
    append(log, marker(1, 5, 1, commit=2))
    assert committed(log) == [b"n"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_knows_what_the_log_says(files, log, is_clean):
    append(log, plain(b"a"), transactional(1, 0, (b"k", b"open"), keys=(KEY,)))
    append(log, transactional(2, 0, (b"k", b"no")), marker(2, 0, 2))
    append(log, transactional(3, 0, (b"k", b"yes")))
    log.checkpointing.run(3, is_forced=True)
    append(log, marker(3, 0, 4, commit=5))
    log.writers.transactions.stable_end(3)
    before = state_of(log)
    log.close(is_clean=is_clean)
    again = open_log(files, was_clean=is_clean)
    assert state_of(again) == before
    assert [again.writers.transactions.stable_end(hw) for hw in (1, 2, 5, 6)] == [1, 1, 1, 1]


def test_a_marker_that_is_cut_off_leaves_its_transaction_open(log):
    append(log, transactional(1, 0, (b"k", b"t"), keys=(KEY,)), plain(b"a"))
    before = state_of(log)
    append(log, marker(1, 0, 0, commit=1))
    log.cutting.truncate_to(2)
    assert state_of(log) == before
    assert log.writers.transactions.stable_end(2) == 0
    append(log, marker(1, 0, 0))
    assert committed(log) == [b"a"]


def test_a_follower_that_begins_anew_knows_transactions_by_its_own_log_alone(files, log):
    append(log, transactional(1, 0, (b"k", b"no")), marker(1, 0, 0))
    append(log, transactional(2, 0, (b"k", b"t"), keys=(KEY,)), marker(2, 0, 2, commit=3))
    log.start.advance(2)
    follower = open_log(MemoryFiles(), is_listed=False)
    follower.cutting.restart_at(2, log.producer_snapshot(4))
    assert not follower.writers.transactions
    for batch in read_all(log):
        follower.append_as_follower(batch)
    assert committed(follower) == [b"t"]
    entry = follower.idempotency_lookup(KEY.key_hash, NOW_MS)
    assert entry is not None
    assert entry.transaction is not None
    assert entry.transaction.marker_offset == 3


def test_a_key_is_answered_by_its_marker_and_forgotten_with_an_abort(files, log):
    extents = (Extent("ab" * 16, 0, 0, 1), Extent("cd" * 16, 3, 7, 9))
    append(log, transactional(1, 0, (b"k", b"t"), keys=(KEY,)))
    entry = log.idempotency_lookup(KEY.key_hash, NOW_MS)
    assert entry is not None
    assert entry.transaction == (1, 0, -1, (), ())
    append(log, marker(1, 0, 0, commit=1, extents=extents))
    log.close(is_clean=True)
    log = open_log(files, was_clean=True)
    entry = log.idempotency_lookup(KEY.key_hash, NOW_MS)
    assert entry is not None
    assert entry.transaction == (1, 0, 1, extents, ())
    other = IdempotencyExtension(b"o" * 16, b"b" * 8, 1)
    append(log, transactional(2, 0, (b"k", b"t"), keys=(other,)), marker(2, 0, 2))
    assert log.idempotency_lookup(other.key_hash, NOW_MS) is None


SHARERS = (
    IdempotencyExtension(b"1" * 16, b"b" * 8, 1, (KeyPlace(0, 0, 1), KeyPlace(1, 4, 1))),
    IdempotencyExtension(b"2" * 16, b"b" * 8, 1, (KeyPlace(0, 1, 2),)),
)
SHARED_EXTENTS = (Extent("ab" * 16, 0, 0, 3), Extent("cd" * 16, 3, 70, 79))


def shared(producer_epoch: int = 0, letter: bytes = b"a") -> bytes:
    """A batch of three records that two requests under keys share."""
    pairs = [(letter, b"1"), (letter, b"2"), (b"b", b"3")]
    return transactional(1, producer_epoch, *pairs, keys=SHARERS, owner=4)


def entries_of(log: PartitionLog, now_ms: int = NOW_MS) -> list[object]:
    return [log.idempotency_lookup(key.key_hash, now_ms) for key in SHARERS]


@pytest.mark.parametrize("was_clean", [True, False])
def test_keys_that_share_a_batch_are_there_after_a_restart_with_the_snapshot_and_without(
    files, log, was_clean
):
    append(log, plain(b"p"), shared())
    undecided = entries_of(log)
    append(log, marker(1, 0, 1, commit=4, extents=SHARED_EXTENTS))
    wanted = entries_of(log)
    for key, entry in zip(SHARERS, wanted, strict=True):
        assert entry.transaction == (1, 0, 4, SHARED_EXTENTS, key.places)
    assert [(entry.base_offset, entry.last_offset) for entry in wanted] == [(1, 1), (2, 3)]
    log.close(is_clean=was_clean)
    log = open_log(files, was_clean=was_clean)
    assert entries_of(log) == wanted
    log.cutting.truncate_to(4)
    assert entries_of(log) == undecided
    log.cutting.truncate_to(1)
    assert entries_of(log) == [None, None]


def test_an_abort_frees_all_keys_that_share_it_also_when_the_log_was_cut_meanwhile(files, log):
    append(log, shared(), marker(1, 0, 0, commit=3, extents=SHARED_EXTENTS))
    log.cutting.truncate_to(3)
    append(log, marker(1, 0, 0))
    assert entries_of(log) == [None, None]
    log.close(is_clean=False)
    assert entries_of(open_log(files)) == [None, None]


def test_a_follower_that_was_sent_the_writers_knows_the_keys_that_share(log):
    append(log, shared(), marker(1, 0, 0, commit=3, extents=SHARED_EXTENTS))
    follower = open_log(MemoryFiles(), is_listed=False)
    follower.cutting.restart_at(3, log.producer_snapshot(4))
    # Who asks it meanwhile takes nothing from what it was told.
    assert all(follower.has_key(key.key_hash, NOW_MS) for key in SHARERS)
    follower.append_as_follower(read_all(log)[-1])
    assert entries_of(follower) == entries_of(log)


def test_what_retention_removed_is_not_kept_in_mind(log):
    append(log, transactional(1, 0, (b"k", b"no")), marker(1, 0, 0), plain(b"a"))
    taken = log.writers.transactions.aborted
    log.start.advance(2)
    assert not log.writers.transactions.aborted
    assert taken, "who reads what is gone by now goes on with what he knew"


class TestOfKafkaClients:
    """A client numbers its records over many transactions; each transaction has an identity of its own in the log."""

    def test_the_header_names_both(self, log):
        append(log, kafka_transactional((9, 4), (5, 1, 7), (b"k", b"a"), (b"k", b"b")))
        header = decode_header(read_all(log)[0])
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, -1)
        assert header.client == ProducerStamp(5, 1, 7)
        numbered = header.numbered()
        assert (numbered.producer_id, numbered.base_sequence, numbered.last_sequence) == (5, 7, 8)
        assert not numbered.is_transactional

    def test_a_retry_is_recognised_by_the_clients_numbers_also_in_a_later_transaction(self, log):
        append(log, kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a"), (b"k", b"b")))
        append(log, marker(9, 0, 0, commit=2))
        for own in ((9, 1), (9, 2), (10, 0)):
            late = decode_header(kafka_transactional(own, (5, 0, 0), (b"k", b"a"), (b"k", b"b")))
            assert log.producer_check(late, NOW_MS) == Duplicate(0, 1)

    def test_sequences_go_on_over_transactions(self, log):
        append(log, kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a")), marker(9, 0, 0))
        following = decode_header(kafka_transactional((9, 1), (5, 0, 1), (b"k", b"b")))
        assert log.producer_check(following, NOW_MS) is ACCEPT
        for sequence in (3, 2**31 - 1):
            gap = decode_header(kafka_transactional((9, 1), (5, 0, sequence), (b"k", b"b")))
            with pytest.raises(InvalidProducerError):
                log.producer_check(gap, NOW_MS)

    def test_the_marker_refuses_what_comes_late(self, log):
        append(log, kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a")), marker(9, 0, 0, commit=1))
        late = decode_header(kafka_transactional((9, 0), (5, 0, 1), (b"k", b"late")))
        with pytest.raises(StaleProducerEpochError):
            log.producer_check(late, NOW_MS)

    def test_a_fenced_client_is_refused_and_its_successor_starts_at_0(self, log):
        append(log, kafka_transactional((9, 0), (5, 1, 0), (b"k", b"a")))
        with pytest.raises(StaleProducerEpochError):
            log.producer_check(
                decode_header(kafka_transactional((9, 1), (5, 0, 1), (b"k", b"zombie"))), NOW_MS
            )
        successor = kafka_transactional((9, 1), (5, 2, 0), (b"k", b"n"))
        assert log.producer_check(decode_header(successor), NOW_MS) is ACCEPT

    def test_recovery_knows_the_numbers_again(self, files, log):
        append(log, kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a")))
        log.close(is_clean=False)
        again = open_log(files, was_clean=False)
        assert (9, 0) in again.writers.transactions.open
        repeated = decode_header(kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a")))
        assert again.producer_check(repeated, NOW_MS) == Duplicate(0, 0)

    def test_compaction_ends_the_transaction_in_both_headers_and_keeps_the_numbers(self, files):
        log = open_log(files, config=COMPACTED, is_listed=False)
        append(log, kafka_transactional((9, 0), (5, 0, 0), (b"a", b"1"), (b"b", b"2")))
        append(log, marker(9, 0, 0, commit=2))
        append(log, kafka_transactional((9, 1), (5, 0, 2), (b"a", b"never")), marker(9, 1, 3))
        append(log, keyed_batch([(b"b", b"3")]))
        roll(log)
        assert compact(log)
        assert records_of(log) == {0: (b"a", b"1"), 5: (b"b", b"3")}
        first, batch = next((decode_header(b), b) for b in read_all(log) if decode_header(b).is_v2)
        assert (first.is_transactional, first.client, first.transaction) == (False, None, None)
        assert (first.producer_id, first.producer_epoch, first.base_sequence) == (5, 0, 0)
        inner = decoded(b"".join(bytes(piece) for piece in kafka_batch(batch, first)))
        assert not inner.attributes & 0x10
        assert inner.producer == (5, 0, 0)
        log.close(is_clean=False)
        again = open_log(files, config=COMPACTED, was_clean=False)
        for state in (log, again):
            late = kafka_transactional((9, 2), (5, 0, 0), (b"a", b"1"), (b"b", b"2"))
            assert state.producer_check(decode_header(late), NOW_MS) == Duplicate(0, 1)

    @pytest.mark.parametrize(
        ("client", "attributes"),
        [(b"\0" * 13, 0), (b"\xff" * 14, 0), (b"\0" * 14, 0x10), (b"\0" * 14, 0x80)],
    )
    def test_other_extensions_are_refused(self, client, attributes):
        made = kafka_transactional((9, 0), (5, 0, 0), (b"k", b"a"))
        header = decode_header(made)
        kept = made[HEADER_BYTES : HEADER_BYTES + 3 + 16]
        body = bytearray(made[BODY_POSITION:HEADER_BYTES])
        body[1] &= ~attributes
        extension = b"\6" + len(client).to_bytes(2, "big") + client
        spoiled = frame_batch(
            NO_STAMP,
            bytes(body),
            (b"" if attributes == 0x10 else kept) + extension,
            made[header.header_bytes :],
        )
        with pytest.raises(CorruptBatchError):
            decode_header(spoiled)


class TestCompaction:
    @pytest.fixture
    def log(self, files):
        return open_log(files, config=COMPACTED, is_listed=False)

    def test_committed_records_replace_others_and_aborted_ones_go(self, log):
        append(log, keyed_batch([(b"a", b"1"), (b"b", b"2")]))
        append(log, transactional(1, 0, (b"a", b"3")), marker(1, 0, 2, commit=3))
        append(log, transactional(2, 0, (b"b", b"never")), marker(2, 0, 4))
        roll(log)
        assert compact(log)
        assert records_of(log) == {1: (b"b", b"2"), 2: (b"a", b"3")}
        headers = [decode_header(b) for b in read_all(log)]
        assert all(h.marker is not None for h in headers if h.is_transactional)
        assert not log.writers.transactions.aborted

    def test_a_marker_stays_until_every_replica_has_it(self, log):
        append(log, transactional(1, 0, (b"a", b"1")), marker(1, 0, 0, commit=1))
        append(log, transactional(1, 1, (b"a", b"2")), marker(1, 1, 2, commit=3))
        roll(log)
        assert compact(log, tombstone_end=1)
        assert [decode_header(b).base_offset for b in read_all(log) if decode_header(b).marker] == [
            1,
            3,
        ]
        follower = open_log(MemoryFiles(), is_listed=False)
        append(follower, transactional(1, 0, (b"a", b"1")))
        for batch in read_all(log)[1:]:
            follower.append_as_follower(batch)
        assert not follower.writers.transactions.open
        assert follower.writers.transactions.stable_end(4) == 4

    def test_its_producers_last_marker_stays_as_long_as_the_producer_is_known(self, files, log):
        append(log, transactional(1, 0, (b"a", b"1"), sequence=0), marker(1, 0, 0, commit=1))
        append(log, keyed_batch([(b"a", b"2")]))
        roll(log)
        assert compact(log)
        log.close(is_clean=False)
        again = open_log(files, config=COMPACTED, was_clean=False)
        assert again.writers.producers.epoch_of(1) == 1

    def test_one_whose_marker_lies_behind_what_is_compacted_counts_by_its_outcome(self, log):
        append(log, keyed_batch([(b"a", b"1")]), transactional(1, 0, (b"a", b"never")))
        append(log, transactional(2, 0, (b"b", b"2")))
        roll(log)
        append(log, marker(1, 0, 1), marker(2, 0, 2, commit=3))
        assert compact(log)
        assert values_of(log) == {b"a": b"1", b"b": b"2"}
        assert committed(log) == [b"1", b"2"]

    def copied(self, log: PartitionLog) -> PartitionLog:
        follower = open_log(MemoryFiles(), config=COMPACTED, is_listed=False)
        for batch in read_all(log):
            follower.append_as_follower(batch)
        return follower

    @pytest.mark.parametrize("is_late", [False, True])
    def test_a_copy_of_the_compacted_log_answers_the_retry_of_a_key(self, log, is_late):
        """Also where the marker came behind what was compacted first."""
        extents = (Extent("ab" * 16, 0, 0, 1), Extent("cd" * 16, 3, 7, 9))
        append(log, transactional(1, 0, (b"a", b"t"), keys=(KEY,), owner=4))
        append(log, keyed_batch([(b"a", b"1")]), keyed_batch([(b"a", b"2")]))
        if is_late:
            roll(log)
        append(log, marker(1, 0, 0, commit=1, extents=extents))
        for _ in range(2):
            assert compact(log) or not is_late
            append(log, keyed_batch([(b"a", b"3")]))
            roll(log)
        assert compact(log)
        wanted = log.idempotency_lookup(KEY.key_hash, NOW_MS)
        assert wanted is not None
        assert wanted.transaction == (1, 0, 3, extents, ())
        follower = self.copied(log)
        assert follower.idempotency_lookup(KEY.key_hash, NOW_MS) == wanted
        assert not follower.writers.transactions.open
        assert values_of(follower) == {b"a": b"3"}

    def test_a_copy_of_the_compacted_log_answers_the_retries_of_keys_that_share(self, log):
        append(log, shared(), marker(1, 0, 0, commit=3, extents=SHARED_EXTENTS))
        append(log, keyed_batch([(b"a", b"4")]), keyed_batch([(b"b", b"5")]))
        roll(log)
        compact(log)
        wanted = entries_of(log)
        assert None not in wanted
        follower = self.copied(log)
        assert entries_of(follower) == wanted
        assert not follower.writers.transactions.open
        assert values_of(follower) == {b"a": b"4", b"b": b"5"}

    @pytest.mark.parametrize("known", [(), (0,), (1,), (0, 1)])
    def test_the_batch_keeps_its_mark_for_as_long_as_one_of_its_keys_is_known(self, known):
        batch = stamped(shared(), base_offset=0, leader_epoch=0, append_time_ms=NOW_MS)
        header = decode_header(batch)
        later = keyed_batch([(b"a", b"4"), (b"b", b"5")])
        later = stamped(later, base_offset=4, leader_epoch=0, append_time_ms=NOW_MS)
        keys, writers = KeyMap(0), WriterState()
        for each in (batch, later):
            keys.add(decode_header(each), decode_columns(each, decode_header(each)))
        writers.record(header, 0, NOW_MS)
        entries = writers.idempotency.freeze()
        hashes = [SHARERS[number].key_hash for number in known]
        writers.idempotency = IdempotencyTable({key: entries[key] for key in hashes})
        rules = SieveRules(
            keys=keys,
            writers=writers,
            aborted={},
            answers=(),
            now_ms=NOW_MS,
            delete_retention_ms=0,
            tombstone_end=0,
        )
        sieve = BatchSieve(rules, SieveCounts())
        kept = [each.header for each in (*sieve.take(batch, header, 0), *sieve.end())]
        assert [each.next_offset for each in kept] == [header.next_offset]
        assert kept[0].record_count == 0
        marked = (kept[0].transaction, kept[0].request_keys)
        assert (marked == (header.transaction, header.request_keys)) == bool(known)

    @pytest.mark.parametrize("value", [b"new", None])
    def test_a_record_of_a_request_with_a_key_is_replaced_like_any_other(self, log, value):
        """Also for good: a record that stayed would be the last of its key once a tombstone behind it is gone."""
        append(log, transactional(1, 0, (b"a", b"old"), (b"b", b"x"), keys=(KEY,), owner=4))
        append(log, marker(1, 0, 0, commit=2), keyed_batch([(b"a", value)]))
        roll(log)
        compact(log)
        answer = log.idempotency_lookup(KEY.key_hash, NOW_MS)
        assert answer is not None
        assert records_of(log) == {1: (b"b", b"x"), 3: (b"a", value)}
        assert self.copied(log).idempotency_lookup(KEY.key_hash, NOW_MS) == answer
        for later_ms in (2_000, 2 * IDEMPOTENCY_WINDOW_MS):
            append(log, keyed_batch([(b"c", b"1")]))
            roll(log)
            assert compact(log, now_ms=NOW_MS + later_ms)
            left = values_of(log)
            del left[b"c"]
            assert left == {b"b": b"x"} | ({} if value is None else {b"a": value})
        assert not self.copied(log).writers.transactions.open

    def test_a_tombstone_of_a_request_with_a_key_goes_after_a_while(self, log):
        append(log, keyed_batch([(b"a", b"1")]))
        append(
            log, transactional(1, 0, (b"a", None), keys=(KEY,), owner=4), marker(1, 0, 1, commit=2)
        )
        roll(log)
        compact(log)
        assert records_of(log) == {1: (b"a", None)}
        assert compact(log, now_ms=NOW_MS + 1_000)
        assert records_of(log) == {}
        assert log.idempotency_lookup(KEY.key_hash, NOW_MS) is not None

    def test_once_none_is_known_both_may_go(self, log):
        append(log, shared(), marker(1, 0, 0, commit=3, extents=SHARED_EXTENTS))
        append(log, transactional(1, 1, (b"a", b"4"), (b"b", b"5")), marker(1, 1, 4, commit=6))
        roll(log)
        assert compact(log, now_ms=NOW_MS + IDEMPOTENCY_WINDOW_MS + 1)
        assert records_of(log) == {4: (b"a", b"4"), 5: (b"b", b"5")}
        assert not any(decode_header(batch).request_keys for batch in read_all(log))

    def test_a_key_that_is_forgotten_lets_its_batch_and_its_marker_go(self, log):
        append(log, transactional(1, 0, (b"a", b"t"), keys=(KEY,), owner=4))
        append(log, marker(1, 0, 0, commit=1))
        append(log, transactional(1, 1, (b"a", b"2")), marker(1, 1, 2, commit=3))
        roll(log)
        assert compact(log, now_ms=NOW_MS + IDEMPOTENCY_WINDOW_MS + 1)
        assert records_of(log) == {2: (b"a", b"2")}

    def test_keys_of_a_sessions_writes_keep_nothing_open(self, log):
        other = IdempotencyExtension(b"o" * 16, b"b" * 8, 1)
        append(log, transactional(1, 0, (b"a", b"t")))
        append(log, transactional(1, 0, (b"b", b"u"), keys=(KEY,)))
        append(log, transactional(1, 0, (b"c", b"v"), keys=(other,)), marker(1, 0, 0, commit=3))
        append(log, transactional(1, 1, (b"a", b"2")), marker(1, 1, 4, commit=5))
        roll(log)
        assert compact(log)
        assert not self.copied(log).writers.transactions.open

    def test_a_replay_of_the_compacted_log_leaves_nothing_open(self, files, log):
        for number in range(30):
            first = log.log_end_offset
            append(log, transactional(1, number, (b"a", b"%d" % number), (b"b", b"x")))
            append(log, marker(1, number, first, commit=first + 2 if number % 3 else None))
        roll(log)
        assert compact(log)
        assert values_of(log) == {b"a": b"29", b"b": b"x"}
        wanted = committed(log)
        log.close(is_clean=False)
        again = open_log(files, config=COMPACTED, was_clean=False)
        assert not again.writers.transactions.open
        assert committed(again) == wanted
