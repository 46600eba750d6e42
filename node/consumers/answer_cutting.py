"""Chooses the records that go into a response. Pure.

The size of a record is that of its key and value as stored, in bytes. A response has at least one record, even if this
record alone exceeds the client's limit. Otherwise a large record would block the consumer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of
from milena.model.columns import RecordColumns
from milena.model.errors import CorruptBatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRoom:
    """The room that is left in a response. ``needs_one``: the response has no record yet."""

    payload_bytes: int
    records: int
    needs_one: bool

    @property
    def is_over(self) -> bool:
        """Whether no more record fits."""
        return not self.needs_one and (self.payload_bytes <= 0 or self.records <= 0)

    def less(self, cut: "CutRecords") -> "AnswerRoom":
        """Return the room that is left after the records of ``cut``."""
        return AnswerRoom(
            payload_bytes=self.payload_bytes - cut.payload_bytes,
            records=self.records - cut.record_count,
            needs_one=self.needs_one and not cut.record_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRecords:
    """Records of one partition that go into a response: the records of ``batches`` in [start_offset, end_offset)."""

    start_offset: int
    end_offset: int
    """One above the last record of the response; ``start_offset`` if there is none."""
    next_offset: int
    """Where to continue reading: at or above ``end_offset``, after offsets whose records compaction removed."""
    leader_epoch: int
    """The leader epoch of the last record; -1 if there is none."""
    record_count: int
    payload_bytes: int
    is_full: bool
    """Whether another record was there but did not fit."""
    batches: bytes
    damaged_at: int | None = None
    """The offset from which on stored records are damaged; the records here all come before it."""


def cut(batches: bytes, start_offset: int, end_offset: int, room: AnswerRoom) -> CutRecords:
    """Take as many records as there is room for, from ``start_offset`` up to ``end_offset`` (exclusive).

    Args:
        batches: whole stored batches in order. The first may start below ``start_offset``, and the last may end above
            ``end_offset``.
        start_offset: the reader's position.
        end_offset: the offset at which reading ended, exclusive.
        room: the room that is left in the response.
    """
    count = used = 0
    epoch = -1
    is_full = False
    damaged_at = None
    last_end = next_offset = start_offset
    first = last = 0
    try:
        for position, header in iterate_batches(batches):
            if header.base_offset >= end_offset:
                break
            if header.last_offset < start_offset:
                first = last = position + header.batch_bytes
                continue
            if not header.is_control and header.record_count:
                columns = decode_columns(batches, header, position)
                taken = _take(columns, offsets_of(header, columns), start_offset, end_offset, room)
                if taken.count:
                    count, used = count + taken.count, used + taken.payload_bytes
                    last_end, epoch = taken.end_offset, header.leader_epoch
                    last = position + header.batch_bytes
                    room = AnswerRoom(
                        payload_bytes=room.payload_bytes - taken.payload_bytes,
                        records=room.records - taken.count,
                        needs_one=False,
                    )
                is_full = taken.is_full
                if is_full:
                    next_offset = max(next_offset, last_end)
                    break
            next_offset = min(header.next_offset, end_offset)
    except CorruptBatchError:
        damaged_at = next_offset
    return CutRecords(
        start_offset=start_offset,
        end_offset=last_end,
        next_offset=max(next_offset, last_end),
        leader_epoch=epoch,
        record_count=count,
        payload_bytes=used,
        is_full=is_full,
        batches=batches[first:last] if count else b"",
        damaged_at=damaged_at,
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """Records of one batch. ``is_full``: another record was there but did not fit."""

    count: int
    payload_bytes: int
    end_offset: int
    is_full: bool


def _take(
    columns: RecordColumns, offsets: Sequence[int], start: int, end: int, room: AnswerRoom
) -> _Taken:
    sizes = _sizes(columns)
    count = used = 0
    taken_end = start
    for offset, size in zip(offsets, sizes, strict=True):
        if offset < start:
            continue
        if offset >= end:
            break
        is_first = room.needs_one and not count
        if not is_first and (used + size > room.payload_bytes or count >= room.records):
            return _Taken(count, used, taken_end, True)
        count += 1
        used += size
        taken_end = offset + 1
    return _Taken(count, used, taken_end, False)


def _sizes(columns: RecordColumns) -> list[int]:
    sizes = [len(value) if value else 0 for value in columns.values]
    if columns.keys is None:
        return sizes
    return [size + (len(key) if key else 0) for size, key in zip(sizes, columns.keys, strict=True)]
