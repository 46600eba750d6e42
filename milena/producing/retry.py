"""Retries: the meaning of a failed attempt to append a batch, and how long to wait before the next (pure).

The one question is what is known of the batch. While every attempt is known to have written nothing, it may be sent
again by anybody. Once an attempt's result is not known, only an idempotent producer may send it again, the very same
bytes; and if it is given up after that, its result stays unknown whatever the last attempt said.
"""

from dataclasses import dataclass
from enum import Enum, unique
from random import Random

from milena.errors import (
    ClientError,
    NotNowError,
    SequenceRefusedError,
    ServerFailedError,
    TooLargeError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)


@unique
class Step(Enum):
    """Steps after a failed attempt."""

    RETRY = "send the same bytes again"
    SPLIT = "send the records in two batches"
    RENEW = "take a new producer id and send the records under it"
    FAIL = "give up"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``is_fate_known``: this attempt wrote nothing."""

    step: Step
    is_fate_known: bool


_NOTHING_WRITTEN: dict[type[ClientError], Step] = {
    UnreachableError: Step.RETRY,
    NotNowError: Step.RETRY,
    TooLargeError: Step.SPLIT,
    SequenceRefusedError: Step.RENEW,
}

UNKNOWN = (UnknownResultError, ServerFailedError, UnexpectedAnswerError)
"""What was asked for may have been done."""


def judge(
    error: ClientError, *, is_idempotent: bool, may_be_written: bool, record_count: int
) -> Judgement:
    """Meaning of an attempt that ended in ``error``.

    Args:
        error: what the transport raised.
        is_idempotent: the batch has a producer id and a sequence.
        may_be_written: an earlier attempt's result is not known.
        record_count: records in the batch; a single one cannot be split.
    """
    if isinstance(error, UNKNOWN):
        return Judgement(Step.RETRY if is_idempotent else Step.FAIL, is_fate_known=False)
    step = _NOTHING_WRITTEN.get(type(error), Step.FAIL)
    # Other bytes than those that may be in the log would write the records a second time.
    if step is not Step.RETRY and may_be_written:
        step = Step.FAIL
    if step is Step.SPLIT and record_count == 1:
        step = Step.FAIL
    return Judgement(step, is_fate_known=True)


def is_worth_another_try(error: ClientError) -> bool:
    """Of a call that may be done twice: the cluster may answer it in a moment."""
    return error.is_retriable or isinstance(error, UnknownResultError | ServerFailedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times that double from ``first_ms`` to ``most_ms``, each within ``jitter`` of its own share."""

    first_ms: float
    most_ms: float
    jitter: float = 0.2
    """Producers that failed together must not come back together."""

    def wait_ms(self, failures: int, chance: Random) -> float:
        """How long to wait after this many failures in a row, at least 1."""
        # 2**30 times any first wait is above any bound; more would overflow in the end.
        exact = min(self.most_ms, self.first_ms * (1 << min(failures - 1, 30)))
        return exact * chance.uniform(1 - self.jitter, 1 + self.jitter)
