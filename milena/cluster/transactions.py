"""List open transactions, as the leaders of their partitions report them, and abort them."""

from dataclasses import dataclass

from milena.cluster.http import HttpSession
from milena.fields import AnswerFields


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


async def transactions(
    http: HttpSession, *, older_than_ms: int | None = None
) -> list[TransactionView]:
    """Return the transactions that leaders hold open, the oldest first."""
    query = "" if older_than_ms is None else f"?older_than_ms={older_than_ms}"
    answer = AnswerFields(await http.get(f"/transactions{query}"), "transactions")
    return [
        TransactionView(
            producer_id=row.integer("producer_id"),
            producer_epoch=row.integer("producer_epoch"),
            transactional_id=row.optional_text("transactional_id"),
            state=row.text("state"),
            began_ms=row.integer("began_ms"),
            timeout_ms=row.integer("timeout_ms"),
            parts=tuple(
                TransactionPart(
                    topic=part.text("topic"),
                    partition=part.integer("partition"),
                    first_offset=part.integer("first_offset"),
                    records=part.integer("records"),
                    leader=part.integer("leader"),
                )
                for part in row.objects("partitions")
            ),
        )
        for row in answer.objects("transactions")
    ]


async def abort(http: HttpSession, producer_id: int, producer_epoch: int) -> None:
    """Abort a transaction, so that no reader of committed records sees its records."""
    await http.post(f"/transactions/{producer_id}/{producer_epoch}:abort", {})
