"""Batches that were refused: which ones they keep back, whose, and for how long."""

from milena.model.types import MonotonicMs
from node.kafka.refused_batches import KEPT_MS, RefusedBatch, RefusedBatches

FIRST, SECOND = (RefusedBatch("t", 0, 7, 0, sequence) for sequence in (0, 5))


def kept_back(
    refused: RefusedBatches, batch: RefusedBatch, now_ms: int, by: str = "User:ann"
) -> int | None:
    return refused.before(batch, by, MonotonicMs(now_ms), kept_ms=KEPT_MS)


def test_a_refused_batch_keeps_back_later_ones_of_its_principal_until_it_comes() -> None:
    refused = RefusedBatches()
    refused.note([SECOND, FIRST], "User:ann", MonotonicMs(1))
    assert kept_back(refused, SECOND, 2) == 0
    assert kept_back(refused, SECOND, 2, "User:bob") is None
    assert kept_back(refused, FIRST, 2, "User:bob") is None
    assert kept_back(refused, SECOND, 2) == 0
    assert kept_back(refused, FIRST, 2) is None
    assert kept_back(refused, SECOND, 2) is None


def test_nothing_is_remembered_of_clients_that_never_come_back() -> None:
    refused = RefusedBatches()
    assert not refused.may_keep_back(MonotonicMs(1))
    refused.note([FIRST], "User:ann", MonotonicMs(1))
    refused.note([FIRST], "User:bob", MonotonicMs(9))
    assert refused.may_keep_back(MonotonicMs(9 + KEPT_MS))
    assert kept_back(refused, SECOND, 9 + KEPT_MS, "User:bob") == 0
    assert not refused.may_keep_back(MonotonicMs(10 + KEPT_MS))
    assert kept_back(refused, SECOND, 9, "User:bob") is None
