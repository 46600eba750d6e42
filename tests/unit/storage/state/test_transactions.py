"""Which transactions of a log are open, what of them counts, and how far readers of committed records may read."""

import pytest

from milena.model.batch.encode import encode_batch, encode_marker
from milena.model.batch.header import (
    Extent,
    IdempotencyExtension,
    KeyPlace,
    Marker,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.columns import RecordColumns
from milena.model.errors import (
    CorruptLogError,
    InvalidProducerError,
    StaleProducerEpochError,
    TooManyTransactionsError,
)
from storage.state import transactions
from storage.state.idempotency import IdempotencyEntry
from storage.state.producer_state import ACCEPT, WriterState
from storage.state.sealed import seal
from storage.state.transactions import AbortedRange, Identity
from storage.state.writer_snapshot import decode_snapshot, encode_snapshot

NOW_MS = 1_700_000_000_000
ONE, TWO, THREE = (1, 0), (2, 0), (3, 0)
KEY = IdempotencyExtension(b"k" * 16, b"b" * 8, 6)


def batch(
    identity: Identity, *keys: IdempotencyExtension, sequence: int = -1, records: int = 1
) -> bytes:
    """Records of a transaction, under these keys."""
    return encode_batch(
        RecordColumns(None, None, None, [b"v"] * records, None),
        base_timestamp_ms=NOW_MS,
        producer=ProducerStamp(*identity, sequence),
        request_keys=keys,
        transaction=TransactionExtension(4, 40, 30_000),
    )


def end_of(
    identity: Identity, *, commit: int | None = None, extents: tuple[Extent, ...] = ()
) -> bytes:
    """A marker: committed below ``commit``, or aborted."""
    return encode_marker(
        Marker(commit is not None, 0, commit or 0, extents),
        producer_id=identity[0],
        producer_epoch=identity[1],
        timestamp_ms=NOW_MS,
    )


class Log:
    """Only what a log remembers of its batches."""

    def __init__(self) -> None:
        self.state = WriterState()
        self.end = 0

    def append(self, *batches: bytes) -> None:
        for each in batches:
            header = decode_header(each).stamped(
                base_offset=self.end, leader_epoch=0, append_time_ms=NOW_MS
            )
            self.state.record(header, self.end, NOW_MS)
            self.end = header.next_offset

    def pass_by(self, count: int = 1) -> None:
        """Records of nobody's transaction."""
        self.end += count

    @property
    def aborted(self) -> dict[Identity, AbortedRange]:
        return self.state.transactions.aborted

    def stable_end(self, high_watermark: int | None = None) -> int:
        return self.state.transactions.stable_end(
            self.end if high_watermark is None else high_watermark
        )


def test_an_open_transaction_ends_what_is_stable_where_it_begins() -> None:
    log = Log()
    log.pass_by(3)
    log.append(batch(ONE), batch(TWO), batch(ONE))
    assert [log.stable_end(hw) for hw in (0, 2, 3, 4, 6)] == [0, 2, 3, 3, 3]
    log.append(end_of(ONE, commit=6))
    assert log.stable_end() == 4
    log.append(end_of(TWO))
    assert log.stable_end() == 8


@pytest.mark.parametrize("commit", [1, None])
def test_a_marker_counts_once_it_is_below_the_high_watermark(commit: int | None) -> None:
    log = Log()
    log.append(batch(ONE))
    log.pass_by()
    log.append(end_of(ONE, commit=commit))
    assert [log.stable_end(hw) for hw in (1, 2)] == [0, 0]
    assert log.state.transactions.is_ending(ONE, 2)
    assert log.stable_end(3) == 3
    assert not log.state.transactions.is_ending(ONE, 3)


def test_all_of_an_aborted_one_is_aborted_and_nothing_of_one_that_is_committed_whole() -> None:
    log = Log()
    log.append(batch(ONE), batch(TWO), batch(ONE), end_of(ONE), end_of(TWO, commit=2))
    assert log.aborted == {ONE: AbortedRange(0, 3)}


def test_what_a_commit_does_not_reach_is_aborted() -> None:
    log = Log()
    log.append(batch(ONE), batch(ONE), batch(ONE), end_of(ONE, commit=2))
    assert log.aborted == {ONE: AbortedRange(2, 3)}


def test_after_its_marker_nobody_writes_under_its_epoch_with_a_sequence_or_without() -> None:
    log = Log()
    log.append(batch(ONE, sequence=0), end_of(ONE, commit=1))
    for sequence in (-1, 1):
        with pytest.raises(StaleProducerEpochError):
            log.state.producers.check(decode_header(batch(ONE, sequence=sequence)), NOW_MS)
    assert log.state.producers.check(decode_header(batch((1, 1), sequence=0)), NOW_MS) == ACCEPT
    with pytest.raises(InvalidProducerError):
        log.state.producers.check(decode_header(batch((1, 1), sequence=1)), NOW_MS)


def test_a_marker_of_which_the_log_has_no_record_changes_nothing() -> None:
    log = Log()
    log.append(end_of(ONE))
    assert not log.state.transactions
    assert log.stable_end() == 1


def test_its_key_is_free_once_it_is_aborted_and_says_all_that_it_wrote_once_it_is_committed() -> (
    None
):
    extents = (Extent("ab" * 16, 0, 1, 2), Extent("cd" * 16, 3, 7, 9))
    log = Log()
    log.append(batch(ONE, KEY))
    undecided = log.state.idempotency.lookup(KEY.key_hash, NOW_MS)
    assert undecided is not None
    assert undecided.transaction == (*ONE, -1, (), ())
    log.append(end_of(ONE))
    assert log.state.idempotency.lookup(KEY.key_hash, NOW_MS) is None
    log.append(batch(TWO, KEY), end_of(TWO, commit=3, extents=extents))
    committed = log.state.idempotency.lookup(KEY.key_hash, NOW_MS)
    assert committed is not None
    assert committed.transaction == (*TWO, 3, extents, ())


ONE_KEY = IdempotencyExtension(b"1" * 16, b"b" * 8, 6, (KeyPlace(0, 0, 2), KeyPlace(1, 4, 1)))
TWO_KEY = IdempotencyExtension(b"2" * 16, b"B" * 8, 6, (KeyPlace(0, 3, 1),))
"""They share a transaction, and the third of five records of their home is of another, which is at home elsewhere."""
EXTENTS = (Extent("ab" * 16, 0, 2, 7), Extent("cd" * 16, 3, 70, 80))


def shared(log: Log) -> list[IdempotencyEntry | None]:
    return [log.state.idempotency.lookup(key.key_hash, NOW_MS) for key in (ONE_KEY, TWO_KEY)]


def test_each_of_the_keys_that_share_one_has_its_own_records_and_they_are_forgotten_together() -> (
    None
):
    log = Log()
    log.pass_by(2)
    log.append(batch(ONE, ONE_KEY, TWO_KEY, records=5))
    first, second = shared(log)
    assert first == (b"b" * 8, 6, 2, 3, NOW_MS, (*ONE, -1, (), ONE_KEY.places))
    assert second == (b"B" * 8, 6, 5, 5, NOW_MS, (*ONE, -1, (), TWO_KEY.places))
    log.append(end_of(ONE))
    assert shared(log) == [None, None]


def test_all_of_them_are_answered_by_its_marker_until_that_is_cut_off() -> None:
    log = Log()
    log.pass_by(2)
    log.append(batch(ONE, ONE_KEY, TWO_KEY, records=5), end_of(ONE, commit=7, extents=EXTENTS))
    found = [entry.transaction for entry in shared(log) if entry is not None]
    assert found == [(*ONE, 7, EXTENTS, key.places) for key in (ONE_KEY, TWO_KEY)]
    assert log.state.idempotency.answers(NOW_MS) == {7}
    log.state.forget_from(7)
    found = [entry.transaction for entry in shared(log) if entry is not None]
    assert found == [(*ONE, -1, (), key.places) for key in (ONE_KEY, TWO_KEY)]
    log.state.forget_from(6)
    first, second = shared(log)
    assert first is not None
    assert second is not None
    log.state.forget_from(2)
    assert shared(log) == [None, None]


def test_a_snapshot_has_what_a_shared_one_wrote_once_and_its_keys_have_it_in_common() -> None:
    log = Log()
    log.append(batch(ONE, ONE_KEY, TWO_KEY, records=5), batch(TWO, KEY))
    once = encode_snapshot(log.state.freeze(log.end))
    assert decode_snapshot(once).transactions.open == log.state.transactions.open
    log.append(end_of(ONE, commit=5, extents=EXTENTS), end_of(TWO, commit=6, extents=EXTENTS[:1]))
    content = encode_snapshot(log.state.freeze(log.end))
    assert content.count(EXTENTS[1].topic_id.encode()) == 1
    again = decode_snapshot(content)
    assert again.idempotency == log.state.idempotency.freeze()
    assert list(again.idempotency) == list(log.state.idempotency.freeze())
    one, two = (again.idempotency[key.key_hash].transaction for key in (ONE_KEY, TWO_KEY))
    assert one is not None
    assert two is not None
    assert one.extents is two.extents


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [[]],
        [[1, 0, 5, [], None]],
        [[1, 0, 5, None, []]],
        [[1, 0, 5, [], [[b"k" * 16, [[0, 0, 1]]]]]],
        [[1, 0, 5, [], [[ONE_KEY.key_hash, [[0, 0]]]]]],
        [[1, 0, "x", [], []]],
    ],
)
def test_what_is_no_row_of_keys_that_share_is_refused(rows: object) -> None:
    keys = [[ONE_KEY.key_hash], [b"b" * 8], [6], [0], [1], [NOW_MS]]
    with pytest.raises(CorruptLogError):
        decode_snapshot(seal(b"MPS1", [0, 0, [], keys, [[[], [], []], [], rows]]))


def test_a_snapshot_tells_all_of_it() -> None:
    log = Log()
    log.append(batch(ONE, KEY), batch(TWO), end_of(TWO), batch(THREE), end_of(THREE, commit=4))
    again = decode_snapshot(encode_snapshot(log.state.freeze(log.end)))
    assert again.transactions.open == log.state.transactions.open
    assert again.transactions.aborted == {TWO: AbortedRange(1, 2)}
    assert again.transactions.rows() == log.state.transactions.rows()
    assert [again.transactions.stable_end(hw) for hw in (1, 3, 5)] == [0, 0, 0]
    assert again.idempotency == log.state.idempotency.freeze()


def test_a_copy_does_not_change_with_what_it_was_taken_of() -> None:
    log = Log()
    log.append(batch(ONE), batch(TWO))
    before = log.state.freeze(log.end)
    log.append(end_of(ONE), end_of(TWO, commit=2))
    assert set(before.transactions.open) == {ONE, TWO}
    assert not before.transactions.aborted


def test_what_lies_at_and_above_a_cut_is_forgotten() -> None:
    log = Log()
    log.append(batch(ONE), end_of(ONE), batch(TWO), batch(THREE), end_of(TWO))
    log.state.forget_from(3)
    found = log.state.transactions
    # That TWO is open again only its batch says, which the log reads once more.
    assert not found.open
    assert found.aborted == {ONE: AbortedRange(0, 1)}


def test_an_aborted_one_is_remembered_until_the_log_begins_behind_its_marker() -> None:
    log = Log()
    log.append(batch(ONE), batch(TWO), end_of(ONE), end_of(TWO))
    taken = log.aborted
    for start, left in ((2, [ONE, TWO]), (3, [TWO]), (4, [])):
        log.state.transactions.forget_below(start)
        assert list(log.aborted) == left
    assert set(taken) == {ONE, TWO}, "who reads what is gone by now goes on with what he took"


def test_one_too_many_is_refused_and_those_that_are_open_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    log.append(batch(ONE), batch(TWO))
    monkeypatch.setattr(transactions, "OPEN_MAX", 2)
    log.state.transactions.check_room(TWO)
    with pytest.raises(TooManyTransactionsError, match="2 open transactions"):
        log.state.transactions.check_room(THREE)
    log.append(end_of(ONE))
    monkeypatch.setattr(transactions, "ABORTED_MAX", 1)
    with pytest.raises(TooManyTransactionsError, match="1 aborted transactions"):
        log.state.transactions.check_room(THREE)


@pytest.mark.parametrize(
    "tables",
    [
        None,
        [[], []],
        [[], [], None],
        [[[1, 0, 0, 1, 1, NOW_MS, 1, 4, 40, "no bytes"]], [], []],
        [[[1, 0, 0, 1, 1, NOW_MS, 1, 4, 40]], [], []],
        [[], [[1, 0, 0]], []],
        [[], [[1, 0, 0, "x"]], []],
        [[], [], [[1, 0, 0, 0, 0]]],
    ],
)
def test_what_is_no_state_of_transactions_is_refused(tables: object) -> None:
    with pytest.raises(CorruptLogError):
        decode_snapshot(seal(b"MPS1", [0, 0, [], [[]] * 6, [tables, []]]))
