"""Repeats a response when a client asks again with its token: reads the same records again."""

from collections.abc import Awaitable, Callable

from http_api.ports.groups import Reset
from milena.model.errors import NotReadyError, OffsetOutOfRangeError
from milena.model.requests import Doubt, FetchResult
from node.consumers.answer_cutting import AnswerRoom, CutRecords, cut
from node.consumers.consumer_messages import DeliveryRow
from node.consumers.consumer_sessions import ConsumerSession
from node.consumers.cursor import GivenExtent
from node.peers.messages import Blob
from raft_meta.machine.image import PartitionKey

READ_BYTES = 1 << 20
"""Bytes that are read at a time. An extent came from one read, which was not larger."""
_ALL = AnswerRoom(payload_bytes=1 << 62, records=1 << 62, needs_one=True)


async def read_again(
    session: ConsumerSession, extent: GivenExtent, report_damage: Callable[[Doubt], Awaitable[None]]
) -> list[DeliveryRow]:
    """Return the records of an extent, without those that were deleted since, by retention or by a client.

    Raises:
        ReplicaDamagedError: the records are damaged.
        NotReadyError: the replica that was read does not have the records yet.
        MilenaError: the partition cannot be read.
    """
    offset, rows = extent.start_offset, list[DeliveryRow]()
    while offset < extent.end_offset:
        try:
            result = await session.positions.fetch(extent.key, offset, max_bytes=READ_BYTES)
        except OffsetOutOfRangeError:
            first = await session.positions.offset_of(extent.key, Reset.EARLIEST)
            if first <= offset:
                raise
            offset = first
            continue
        end = min(extent.end_offset, result.readable_end)
        made = cut(result.batches, offset, end, _ALL)
        if made.damaged_at is not None:
            await _report(session, extent, made.damaged_at, result, report_damage)
        if made.next_offset == offset:
            raise NotReadyError(
                f"{session.view.name(extent.key)} cannot be read at offset {offset} yet; ask again"
            )
        if made.record_count:
            rows.append(row_of(session, extent.key, made))
        offset = made.next_offset
    return rows


async def _report(
    session: ConsumerSession,
    extent: GivenExtent,
    damaged_at: int,
    result: FetchResult,
    report_damage: Callable[[Doubt], Awaitable[None]],
) -> None:
    topic = session.view.image.topics[extent.key[0]]
    doubt = Doubt(
        topic=topic.name,
        partition=extent.key[1],
        offset=damaged_at,
        broker_id=result.broker_id,
    )
    await report_damage(doubt)
    raise doubt.error


def row_of(session: ConsumerSession, key: PartitionKey, made: CutRecords) -> DeliveryRow:
    """Return the records of one partition in the form of a response."""
    return DeliveryRow(
        topic=session.view.image.topics[key[0]].name,
        partition=key[1],
        start_offset=made.start_offset,
        end_offset=made.end_offset,
        batches=Blob(made.batches),
    )
