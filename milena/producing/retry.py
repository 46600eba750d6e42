"""Judge a failed attempt to append a batch, and time the next attempt (pure).

The judgement depends on what is known of the batch:

- While every attempt is known to have written nothing, any producer may send the batch again.
- Once the result of an attempt is unknown, only an idempotent producer may send the batch again, with the same bytes.
- If a batch is given up after an attempt with unknown result, its result is unknown, even if the last attempt wrote
  nothing. There is one exception: a failed ``if_match`` may prove that no attempt has written it
  (``sender._rules_out``).
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
    """The step that follows a failed attempt; see ``milena.producing.sender``."""

    RETRY = "send the same bytes again"
    SPLIT = "send the records in two batches"
    RENEW = "take a new producer id and send the records under it"
    FAIL = "give up"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The next step after a failed attempt. ``is_fate_known``: this attempt is known to have written nothing."""

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
    # An earlier attempt may have written the batch. Splitting or renewing it would write the records a second time.
    if step is not Step.RETRY and may_be_written:
        step = Step.FAIL
    if step is Step.SPLIT and record_count == 1:
        step = Step.FAIL
    return Judgement(step, is_fate_known=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double from ``first_ms`` to ``most_ms``, each made longer or shorter by a random part (``jitter``)."""

    first_ms: float
    most_ms: float
    jitter: float = 0.2
    """The largest random change of a wait, as a fraction of it, so that producers that failed together retry apart."""

    def wait_ms(self, failures: int, chance: Random) -> float:
        """Return the wait in ms after this many failures in a row; ``failures`` is at least 1."""
        # After 30 doublings the wait is above any limit. A much larger shift would overflow the float.
        exact = min(self.most_ms, self.first_ms * (1 << min(failures - 1, 30)))
        return exact * chance.uniform(1 - self.jitter, 1 + self.jitter)
