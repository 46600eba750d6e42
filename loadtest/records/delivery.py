"""Deliver one request until its fate is known: which responses need another attempt, and the final fates (pure).

A request is repeated with the same body and idempotency key, so a repetition writes nothing twice. Knowledge about a
record only grows. An acknowledgement is final. After one unknown attempt, the fate stays unknown until the record is
acknowledged. A record counts as refused only if every attempt was refused.
"""

from dataclasses import dataclass, field
from itertools import groupby

from loadtest.records.receipts import Fate, ProduceAnswer, RecordReceipt

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRun:
    """Consecutive records of a request with the same fate; ``first`` is the index of their first record."""

    first: int
    receipts: tuple[RecordReceipt, ...]

    @property
    def fate(self) -> Fate:
        """Return the fate of the request's records, which is the same for all."""
        return self.receipts[0].fate


@dataclass(slots=True)
class RequestDelivery:
    """A request of ``count`` records. If ``is_patient``, refusals are also retried, until ``deadline_s``.

    An impatient request gives a refused record up, so that the judge can tell whether the refusal was true.
    """

    count: int
    deadline_s: float
    is_patient: bool
    attempts: int = 0
    _receipts: list[RecordReceipt | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._receipts = [None] * self.count

    def next_attempt_in(self, answer: ProduceAnswer, now_s: float) -> float | None:
        """Note a response; return the seconds to wait before the next attempt, or None if the request is finished."""
        for at, receipt in enumerate(answer.receipts):
            self._receipts[at] = _merged(self._receipts[at], receipt)
        self.attempts += 1
        if self._is_done(answer) or now_s >= self.deadline_s:
            return None
        backoff = BACKOFF_S_MIN * (1 << min(self.attempts - 1, 8))
        return min(backoff, BACKOFF_S_MAX, max(self.deadline_s - now_s, 0.0))

    def _is_done(self, answer: ProduceAnswer) -> bool:
        fates = {receipt.fate for receipt in self._receipts if receipt is not None}
        if answer.is_final or fates == {Fate.ACKNOWLEDGED}:
            return True
        return not self.is_patient and not answer.is_unsent and fates == {Fate.REFUSED}

    def runs(self) -> list[RecordRun]:
        """Return the fates known so far; consecutive records with the same fate are one run."""
        known = [RecordReceipt(Fate.UNKNOWN) if r is None else r for r in self._receipts]
        runs: list[RecordRun] = []
        at = 0
        for _, group in groupby(known, key=lambda receipt: receipt.fate):
            receipts = tuple(group)
            runs.append(RecordRun(first=at, receipts=receipts))
            at += len(receipts)
        return runs


def _merged(old: RecordReceipt | None, new: RecordReceipt) -> RecordReceipt:
    if old is None or new.fate is Fate.ACKNOWLEDGED:
        # A second acknowledgement must name the same offset. Keep the first; the judge compares it with the topic.
        return old if old is not None and old.fate is Fate.ACKNOWLEDGED else new
    if old.fate is Fate.REFUSED:
        return new
    return old
