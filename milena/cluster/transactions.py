"""Value classes for open transactions, as the leaders of their partitions report them (pure)."""

from dataclasses import dataclass

from milena.fields import AnswerFields, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPart:
    """The records of a transaction in one partition. Readers of committed records wait at ``first_offset``."""

    topic: str
    partition: int
    first_offset: int
    records: int
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """A transaction that has not ended in all its partitions.

    ``state`` is ``open``, or ``ending``: decided, and leaders are writing the markers. ``began_ms`` is the wall time of
    the first record, in ms. An open transaction is aborted ``timeout_ms`` after that.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    state: str
    began_ms: int
    timeout_ms: int
    parts: tuple[TransactionPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsView:
    """The open transactions, the oldest first. Those that only ``silent_nodes`` know of are missing."""

    transactions: tuple[TransactionView, ...]
    silent_nodes: tuple[int, ...]


def open_transactions(answer: Json) -> TransactionsView:
    """Return the open transactions in a node's response."""
    fields = AnswerFields(answer, "transactions")
    return TransactionsView(
        transactions=tuple(
            row.read(
                TransactionView,
                parts=tuple(part.read(TransactionPart) for part in row.objects("partitions")),
            )
            for row in fields.objects("transactions")
        ),
        # Nodes of earlier releases do not tell.
        silent_nodes=fields.integers("silent_nodes") if fields.has("silent_nodes") else (),
    )
