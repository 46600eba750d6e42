"""What a failed attempt means, and the waits between attempts."""

from random import Random

import pytest

from milena.errors import (
    AnswerError,
    BadRecordError,
    DeliveryTimeoutError,
    NotNowError,
    ProducerFencedError,
    SequenceRefusedError,
    ServerFailedError,
    TargetNotFoundError,
    TooLargeError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
    is_worth_another_try,
)
from milena.producing.retry import Backoff, Judgement, Step, judge


def answer(kind):
    return kind("m", status=500, error_code=None)


NOTHING_WRITTEN = {
    UnreachableError("m"): Step.RETRY,
    answer(NotNowError): Step.RETRY,
    answer(TooLargeError): Step.SPLIT,
    answer(SequenceRefusedError): Step.RENEW,
    answer(TargetNotFoundError): Step.FAIL,
    answer(ProducerFencedError): Step.FAIL,
    answer(AnswerError): Step.FAIL,
    BadRecordError("m"): Step.FAIL,
    DeliveryTimeoutError("m"): Step.FAIL,
}
UNKNOWN = [answer(UnknownResultError), answer(ServerFailedError), UnexpectedAnswerError("m")]


@pytest.mark.parametrize("is_idempotent", [True, False])
@pytest.mark.parametrize(("error", "step"), NOTHING_WRITTEN.items(), ids=repr)
def test_a_certain_refusal_is_certain(error, step, is_idempotent):
    found = judge(error, is_idempotent=is_idempotent, may_be_written=False, record_count=2)
    assert found == Judgement(step, is_fate_known=True)


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_an_unknown_result_is_tried_again_only_if_the_log_would_know_it(error):
    arguments = {"may_be_written": False, "record_count": 1}
    assert judge(error, is_idempotent=True, **arguments) == Judgement(Step.RETRY, False)
    assert judge(error, is_idempotent=False, **arguments) == Judgement(Step.FAIL, False)


@pytest.mark.parametrize(("error", "step"), NOTHING_WRITTEN.items(), ids=repr)
def test_once_it_may_be_written_only_the_same_bytes_may_follow(error, step):
    found = judge(error, is_idempotent=True, may_be_written=True, record_count=2)
    assert found.step is (Step.RETRY if step is Step.RETRY else Step.FAIL)


def test_one_record_cannot_be_split():
    error = answer(TooLargeError)
    found = judge(error, is_idempotent=True, may_be_written=False, record_count=1)
    assert found.step is Step.FAIL


def test_a_question_may_be_asked_again_whatever_became_of_it():
    worth = {type(error) for error in [*NOTHING_WRITTEN, *UNKNOWN] if is_worth_another_try(error)}
    assert worth == {
        UnreachableError,
        NotNowError,
        DeliveryTimeoutError,
        UnknownResultError,
        ServerFailedError,
    }


def test_waits_double_up_to_the_longest():
    backoff = Backoff(first_ms=50, most_ms=1000, jitter=0)
    waits = [backoff.wait_ms(failures, Random(0)) for failures in range(1, 8)]
    assert waits == [50, 100, 200, 400, 800, 1000, 1000]
    assert backoff.wait_ms(10**6, Random(0)) == 1000


def test_waits_differ_within_their_share():
    backoff = Backoff(first_ms=100, most_ms=1000)
    chance = Random(0)
    waits = {backoff.wait_ms(1, chance) for _ in range(100)}
    assert len(waits) == 100
    assert 80 <= min(waits) <= max(waits) <= 120
