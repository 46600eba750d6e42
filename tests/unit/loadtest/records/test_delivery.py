"""A request is repeated while that may help, and what is known of a record only grows."""

import pytest

from loadtest.records.delivery import BACKOFF_S_MAX, BACKOFF_S_MIN, RequestDelivery
from loadtest.records.receipts import Fate, ProduceAnswer, RecordReceipt, unanswered


def told(*fates, is_final=False):
    receipts = tuple(
        RecordReceipt(fate, 1, 10 + at) if fate is Fate.ACKNOWLEDGED else RecordReceipt(fate)
        for at, fate in enumerate(fates)
    )
    trouble = "" if set(fates) == {Fate.ACKNOWLEDGED} else "trouble"
    return ProduceAnswer(receipts=receipts, trouble=trouble, is_final=is_final)


OK, REFUSED, UNKNOWN = Fate.ACKNOWLEDGED, Fate.REFUSED, Fate.UNKNOWN


def delivery(count=1, *, is_patient=True):
    return RequestDelivery(count=count, deadline_s=30.0, is_patient=is_patient)


def fates(sent):
    return [(run.first, len(run.receipts), run.fate) for run in sent.runs()]


def test_an_acknowledged_request_is_done():
    sent = delivery(3)
    assert sent.next_attempt_in(told(OK, OK, OK), 1.0) is None
    assert fates(sent) == [(0, 3, OK)]


def test_a_request_of_unknown_fate_is_repeated_until_it_is_known():
    sent = delivery(2, is_patient=False)
    assert sent.next_attempt_in(told(UNKNOWN, UNKNOWN), 1.0) is not None
    assert sent.next_attempt_in(told(REFUSED, REFUSED), 1.1) is not None
    assert fates(sent) == [(0, 2, UNKNOWN)]
    assert sent.next_attempt_in(told(OK, OK), 1.2) is None
    assert fates(sent) == [(0, 2, OK)]


def test_the_patient_repeat_a_refusal_and_the_others_give_up():
    assert delivery(is_patient=True).next_attempt_in(told(REFUSED), 1.0) is not None
    sent = delivery(is_patient=False)
    assert sent.next_attempt_in(told(REFUSED), 1.0) is None
    assert fates(sent) == [(0, 1, REFUSED)]


def test_a_node_that_is_down_is_no_reason_to_give_up():
    sent = delivery(is_patient=False)
    assert sent.next_attempt_in(unanswered(1, "refused", is_sent=False), 1.0) is not None


def test_a_wrong_request_is_not_repeated():
    sent = delivery(2)
    assert sent.next_attempt_in(told(REFUSED, REFUSED, is_final=True), 1.0) is None
    assert fates(sent) == [(0, 2, REFUSED)]


def test_at_the_deadline_what_is_known_stands():
    sent = delivery(4)
    assert sent.next_attempt_in(told(OK, UNKNOWN, REFUSED, REFUSED), 29.9) == pytest.approx(
        BACKOFF_S_MIN
    )
    assert sent.next_attempt_in(told(REFUSED, REFUSED, REFUSED, UNKNOWN), 30.0) is None
    assert fates(sent) == [(0, 1, OK), (1, 1, UNKNOWN), (2, 1, REFUSED), (3, 1, UNKNOWN)]


def test_the_first_place_stands():
    sent = delivery()
    sent.next_attempt_in(told(OK), 1.0)
    sent.next_attempt_in(ProduceAnswer(receipts=(RecordReceipt(OK, 2, 99),)), 1.1)
    assert sent.runs()[0].receipts == (RecordReceipt(OK, 1, 10),)


def test_pauses_grow_to_their_bound():
    sent = delivery()
    pauses = [sent.next_attempt_in(told(UNKNOWN), 0.0) for _ in range(12)]
    assert pauses[0] == BACKOFF_S_MIN
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_S_MAX


def test_without_any_answer_nothing_is_known():
    assert fates(delivery(2)) == [(0, 2, UNKNOWN)]
