"""Items that a fake node lists: commits of groups, and open transactions."""

from http_api.ports.groups import OffsetToCommit
from milena.model.requests import OpenTransaction


def committed(topic: str, partition: int, offset: int = 0) -> OffsetToCommit:
    return OffsetToCommit(topic=topic, partition=partition, offset=offset)


def open_part(
    number: int,
    topic: str = "t",
    partition: int = 0,
    *,
    name: str | None = None,
    began_ms: int | None = None,
    timeout_ms: int = 60_000,
) -> OpenTransaction:
    return OpenTransaction(
        topic=topic,
        partition=partition,
        producer_id=number,
        producer_epoch=0,
        first_offset=7,
        records=2,
        began_ms=number if began_ms is None else began_ms,
        timeout_ms=timeout_ms,
        leader=1,
        state="open",
        producer_name=f"payer-{number}" if name is None else name,
    )
