"""Batches as a log stores them, created without a log."""

from collections.abc import Sequence

from milena.model.batch.decode import records_in
from milena.model.batch.encode import encode_batch, encode_filler, stamp_batch
from milena.model.columns import RecordColumns
from node.consumers.answer_cutting import CutRecords


def stored(
    base: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    deltas: Sequence[int] | None = None,
    epoch: int = 7,
    is_control: bool = False,
) -> bytes:
    """Return a batch as a leader stores it."""
    columns = RecordColumns(
        offset_deltas=None if deltas is None else list(deltas),
        timestamp_deltas=None,
        keys=None if keys is None else list(keys),
        values=list(values),
        headers=None,
    )
    batch = encode_batch(columns, base_timestamp_ms=1, is_control=is_control)
    stamped = stamp_batch(batch, base_offset=base, leader_epoch=epoch, append_time_ms=1)
    return stamped + batch[31:]


def filler(base: int, count: int) -> bytes:
    """Return the filler that compaction leaves in the place of this many records."""
    return encode_filler(
        base_offset=base,
        last_offset=base + count - 1,
        leader_epoch=7,
        append_time_ms=1,
        timestamp_ms=1,
    )


def offsets_in(made: CutRecords) -> list[int]:
    """Return the offsets of the records that a cut delivers."""
    return [row[0] for row in records_in(made.batches, made.start_offset, made.end_offset)]
