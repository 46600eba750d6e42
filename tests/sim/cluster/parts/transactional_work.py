"""What clients of transactions know: where they write, what they wrote, and what they were told of it.

Each value is sent in one ``Work`` alone, so that the judge can tell what became of it from the logs.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from milena.model.errors import (
    FateUnknownError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from milena.model.requests import ProducerTransaction, Records, TransactionCommit
from tests.sim.cluster.history import encoded
from tests.sim.cluster.invariants import ViolationError

PREFIX = "x"
"""Of values."""


class Place(NamedTuple):
    """A partition of one of the topics. Clients number them."""

    topic: str
    partition: int


PLACES = (Place("ledger", 0), Place("ledger", 1), Place("stock", 0))
STOCK = 2
"""The number of the last one, which is compacted in some runs."""
KEYS = 6


@dataclass(slots=True, eq=False)
class Work:
    """A transaction, as its client knows it. ``group``: its client's own.

    ``places``: value → number of the partition to which it was sent. ``named``: the values that its commit names, of
    which it was told the offsets, if at all: ``offsets``. ``next_offset``: to which it moves its group, 0: it does not.
    """

    group: str
    next_offset: int = 0
    places: dict[str, int] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)
    is_keyed: bool = False
    """It is one request, under an idempotency key."""
    is_committed: bool = False
    """Somebody said so."""
    is_aborted: bool = False
    """Likewise, for good."""
    is_in_doubt: bool = False
    """It may have been committed by a call that got no answer."""
    answers: list[str] = field(default_factory=list)

    def note_commit(self, error: BaseException | None) -> None:
        """The answer to a call that would commit it.

        Raises:
            ViolationError: it contradicts another one.
        """
        self.answers.append("committed" if error is None else repr(error))
        match error:
            case None | TransactionCommittedError():
                self.is_committed = True
            case TransactionAbortedError():
                self.is_aborted = True
            case FateUnknownError() | TimeoutError():
                self.is_in_doubt = True
            case _:
                pass
        self._check()

    def note_abort(self, error: BaseException | None) -> None:
        """The answer to a call that would abort it.

        Raises:
            ViolationError: likewise.
        """
        self.answers.append("aborted" if error is None else repr(error))
        match error:
            case None:
                self.is_aborted = True
            case TransactionCommittedError():
                self.is_committed = True
            case _:
                pass
        self._check()

    def _check(self) -> None:
        if self.is_committed and self.is_aborted:
            raise ViolationError(f"{self.group} {[*self.places]}: {self.answers}")


@dataclass(slots=True)
class Session:
    """A work that is written step by step. ``commit``: how it was to be committed."""

    work: Work
    transaction: ProducerTransaction
    mode: str
    """plain, keyed or numbered: how its writes are recognised."""
    ends: dict[int, int] = field(default_factory=dict)
    """Place → end of what was acknowledged there; ``counts``: how many records."""
    counts: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Place → records that were sent: the next sequence."""
    is_doubtful: bool = False
    """A write got no answer."""
    is_over: bool = False
    """So somebody said."""
    commit: TransactionCommit | None = None


def key_of(value: str) -> bytes:
    """Of its record: few, so that compaction has something to do."""
    return b"k%d" % (int(value.removeprefix(PREFIX)) * 104_729 % KEYS)


def records_of(*values: str) -> Records:
    """Values under their keys."""
    return Records(
        keys=[key_of(value) for value in values], values=[encoded(value) for value in values]
    )
