"""Judge a failed attempt to append a batch, and time the next attempt (pure).

The judgement depends on what is known of the batch:

- While every attempt is known to have written nothing, any producer may send the batch again.
- Once the result of an attempt is unknown, only an idempotent producer may send it again, with exactly the same bytes.
- If such a batch is given up, its result stays unknown, even if the last attempt certainly wrote nothing. The one
  exception is a failed ``if_match`` that rules out all earlier attempts (``milena.producing.sender``).
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
    """The step after a failed attempt."""

    RETRY = "send the same bytes again"
    SPLIT = "send the records in two batches"
    RENEW = "take a new producer id and send the records under it"
    FAIL = "give up"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The meaning of a failed attempt. ``is_fate_known``: this attempt wrote nothing."""

    step: Step
    is_fate_known: bool


_NOTHING_WRITTEN: dict[type[ClientError], Step] = {
    UnreachableError: Step.RETRY,
    NotNowError: Step.RETRY,
    TooLargeError: Step.SPLIT,
    SequenceRefusedError: Step.RENEW,
}

UNKNOWN = (UnknownResultError, ServerFailedError, UnexpectedAnswerError)
"""Errors after which the request may have been carried out."""


def judge(
    error: ClientError, *, is_idempotent: bool, may_be_written: bool, record_count: int
) -> Judgement:
    """Return the meaning of an attempt that ended in ``error``.

    Args:
        error: the error that the transport raised.
        is_idempotent: the batch has a producer id and a sequence.
        may_be_written: the result of an earlier attempt is unknown.
        record_count: records in the batch. A single record cannot be split.
    """
    if isinstance(error, UNKNOWN):
        return Judgement(Step.RETRY if is_idempotent else Step.FAIL, is_fate_known=False)
    step = _NOTHING_WRITTEN.get(type(error), Step.FAIL)
    # The log may hold the first bytes. Other bytes would write the records a second time.
    if step is not Step.RETRY and may_be_written:
        step = Step.FAIL
    if step is Step.SPLIT and record_count == 1:
        step = Step.FAIL
    return Judgement(step, is_fate_known=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double from ``first_ms`` to ``most_ms``, each changed by a random share of up to ``jitter``."""

    first_ms: float
    most_ms: float
    jitter: float = 0.2
    """The largest random share of a wait. Producers that failed together must not retry together."""

    def wait_ms(self, failures: int, chance: Random) -> float:
        """Return the wait in ms after this many failures in a row; ``failures`` is at least 1."""
        # 2**30 times any first wait is above any bound. A larger shift would overflow the float.
        exact = min(self.most_ms, self.first_ms * (1 << min(failures - 1, 30)))
        return exact * chance.uniform(1 - self.jitter, 1 + self.jitter)
