"""Transactions that are open, as the leaders of their partitions tell of them, and their abort."""

from dataclasses import dataclass

from milena.cluster.http import HttpSession
from milena.fields import AnswerFields


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPart:
    """What a transaction has written to one partition; committed reading of it ends at ``first_offset``."""

    topic: str
    partition: int
    first_offset: int
    records: int
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """A transaction without an end in some partitions.

    ``state``: open, or ending (decided, while leaders write it down). ``began_ms``: wall ms of its first record;
    ``timeout_ms`` from then on it is aborted.
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
    """Those that leaders hold open, the oldest first."""
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
    """Let nothing count of what a transaction wrote."""
    await http.post(f"/transactions/{producer_id}/{producer_epoch}:abort", {})
