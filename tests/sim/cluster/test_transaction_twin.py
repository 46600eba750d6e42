"""The twin inside of a run: images and logs that contradict themselves are found."""

from dataclasses import replace

import pytest
from immutables import Map

from milena.model.batch.encode import encode_batch, encode_marker
from milena.model.batch.header import (
    BatchHeader,
    Marker,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.columns import RecordColumns
from raft_meta.machine.image import AllocatedProducer, Ending, Image
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.transaction_twin import Chronicle, Decision, Decisions, Identity

KEY = ("t", 0)
ONE: Identity = (1, 0)
COMMITTED = {ONE: Decision(5, {KEY: 2})}
ABORTED = {ONE: Decision(5, None)}


def image(index: int, epoch: int, last: str = "", ending: int | None = None) -> Image:
    """Producer 1 at an epoch; its first transaction is about to be committed below ``ending``."""
    producer = AllocatedProducer(producer_id=1, producer_epoch=epoch, name="one", last=last)
    found = Image(index=index, producers=Map({1: producer}))
    if ending is None:
        return found
    endings: Map[Identity, Ending] = Map({ONE: Ending(end_offset=ending)})
    return replace(found, ending=Map({KEY: endings}))


def batch(offset: int, *, is_transactional: bool = True) -> BatchHeader:
    encoded = encode_batch(
        RecordColumns(None, None, None, [b"v"], None),
        base_timestamp_ms=1,
        producer=ProducerStamp(*ONE, -1) if is_transactional else None,
        transaction=TransactionExtension(-1, -1, 1_000) if is_transactional else None,
    )
    return placed(encoded, offset)


def marker(offset: int, commit: int | None) -> BatchHeader:
    end = Marker(commit is not None, 0, commit or 0)
    return placed(encode_marker(end, producer_id=1, producer_epoch=0, timestamp_ms=1), offset)


def placed(encoded: bytes, offset: int) -> BatchHeader:
    return decode_header(encoded).stamped(base_offset=offset, leader_epoch=0, append_time_ms=1)


def test_what_raises_an_epoch_decides_its_transaction() -> None:
    committed, taken_over = Decisions(), Decisions()
    for decisions, last, ending in ((committed, "committed", 7), (taken_over, "", None)):
        decisions.take(image(1, 0))
        assert decisions.take(image(2, 1, last, ending)) == []
    decision = committed.by_identity[ONE]
    assert (decision.index, decision.ends) == (2, {KEY: 7})
    assert [decision.commits(KEY, offset) for offset in (6, 7)] == [True, False]
    assert not decision.commits(("t", 1), 0)
    assert committed.take(image(3, 1, "committed")) == [(KEY, ONE)]
    assert taken_over.by_identity == {ONE: Decision(2, None)}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (image(1, 1), image(2, 0), "became"),
        (image(1, 1, "aborted"), image(2, 1, "committed"), "became"),
        (image(1, 1, "committed", 7), image(2, 1, "committed", 8), "became"),
        (image(1, 1, "aborted"), image(2, 1, "aborted", 7), "once more"),
        (image(1, 0), image(2, 1, "aborted", 7), "says otherwise"),
    ],
)
def test_a_decision_that_changes_is_found(before: Image, after: Image, why: str) -> None:
    decisions = Decisions()
    decisions.take(image(0, 0))
    decisions.take(before)
    with pytest.raises(ViolationError, match=why):
        decisions.take(after)


def test_a_log_is_stable_up_to_the_first_transaction_without_a_committed_marker() -> None:
    chronicle = Chronicle(KEY)
    batches = [batch(0, is_transactional=False), batch(1), batch(2), marker(3, 2)]
    chronicle.extend(batches, COMMITTED)
    assert [chronicle.stable_end(hw) for hw in range(5)] == [0, 1, 1, 1, 4]
    assert [chronicle.is_committed(offset) for offset in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("batches", "decisions"),
    [
        ([batch(0), marker(1, 2)], {}),
        ([batch(0), marker(1, 2)], ABORTED),
        ([batch(0), marker(1, None)], COMMITTED),
        ([batch(0), marker(1, 3)], COMMITTED),
        ([batch(0), marker(1, 2), marker(2, 2)], COMMITTED),
        ([batch(0), marker(1, 2), batch(2)], COMMITTED),
        ([marker(0, 2)], COMMITTED),
        ([batch(1)], COMMITTED),
    ],
    ids=[
        "undecided",
        "aborted",
        "committed",
        "to another end",
        "twice",
        "goes on",
        "of nothing",
        "unseen",
    ],
)
def test_a_log_that_says_what_nobody_decided_is_found(
    batches: list[BatchHeader], decisions: dict[Identity, Decision]
) -> None:
    with pytest.raises(ViolationError):
        Chronicle(KEY).extend(batches, decisions)
