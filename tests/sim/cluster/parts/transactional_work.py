"""The knowledge of clients about their transactions: the places, the values, and the responses.

Each value belongs to one ``Work`` only, so the checker can find the fate of each from the logs.
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
"""The prefix of values."""


class Place(NamedTuple):
    """A partition of one of the topics. Clients number the places."""

    topic: str
    partition: int


PLACES = (Place("ledger", 0), Place("ledger", 1), Place("stock", 0))
STOCK = 2
"""The number of the last place, which is compacted in some runs."""
KEYS = 6


@dataclass(slots=True, eq=False)
class Work:
    """A transaction, as its client knows it. ``group`` is the client's own group.

    ``places`` has the place of each sent value. ``named`` has the values that its commit names; ``offsets`` their
    offsets, as far as they are known. ``next_offset`` is the group's new offset; 0 means that there is none.
    """

    group: str
    next_offset: int = 0
    places: dict[str, int] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)
    is_keyed: bool = False
    """Whether it is one request with an idempotency key."""
    is_committed: bool = False
    """Whether a response called it committed."""
    is_aborted: bool = False
    """Whether a response called it aborted, which is final."""
    is_in_doubt: bool = False
    """Whether a call that got no response may have committed it."""
    answers: list[str] = field(default_factory=list)

    def note_commit(self, error: BaseException | None) -> None:
        """Note the response to a call that would commit it.

        Raises:
            ViolationError: the response contradicts an earlier one.
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
        """Note the response to a call that would abort it.

        Raises:
            ViolationError: the response contradicts an earlier one.
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
    """A transaction that is written step by step; ``commit`` is the latest request to commit it."""

    work: Work
    transaction: ProducerTransaction
    mode: str
    """plain, keyed or numbered: how a repeated write is recognized."""
    ends: dict[int, int] = field(default_factory=dict)
    """The end of the acknowledged records by place; ``counts`` has their number."""
    counts: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """The number of sent records by place, which is the next sequence."""
    is_doubtful: bool = False
    """Whether a write got no response."""
    is_over: bool = False
    """Whether a response said that it is over."""
    commit: TransactionCommit | None = None


def key_of(value: str) -> bytes:
    """Return the key of a value's record: there are few keys, so that compaction can remove records."""
    return b"k%d" % (int(value.removeprefix(PREFIX)) * 104_729 % KEYS)


def records_of(*values: str) -> Records:
    """Return records of these values, with keys."""
    return Records(
        keys=[key_of(value) for value in values], values=[encoded(value) for value in values]
    )
