"""Succession: a leader's batches must continue where the follower's log ends. Pure functions.

Two exceptions are valid:

    filler      compaction on the leader replaces batches without records by one empty batch, a filler. It may cover
                offsets that the follower has and offsets that it lacks; ``fit_filler`` cuts off the front
    straddling  the leader's log start may lie in the middle of a batch. An empty follower at this log start then begins
                with that whole batch (``is_straddling``, ``Cutting.begin_with``)
"""

from collections.abc import Sequence

from milena.disk.files import Buffer
from milena.model.batch.encode import encode_filler
from milena.model.batch.header import BatchHeader, decode_header
from milena.model.errors import CorruptBatchError


def fit_filler(data: Buffer, found: list[tuple[int, BatchHeader]], log_end_offset: int) -> Buffer:
    """Return the batches to append: if the first one is a filler, without its part below the log end.

    Args:
        data: whole batches from the leader.
        found: position and header of each batch in ``data``; the first entry is replaced if the filler was cut.
        log_end_offset: the end of the follower's log.
    """
    if not found or not found[0][1].is_filler:
        return data
    _, first = found[0]
    if not first.base_offset < log_end_offset < first.next_offset:
        return data
    filler = encode_filler(
        base_offset=log_end_offset,
        last_offset=first.last_offset,
        leader_epoch=first.leader_epoch,
        append_time_ms=first.append_time_ms,
        timestamp_ms=first.latest_timestamp_ms,
    )
    found[0] = (0, decode_header(filler))
    return filler + bytes(memoryview(data)[first.batch_bytes :])


def is_straddling(found: Sequence[tuple[int, BatchHeader]], start: int, end: int) -> bool:
    """Whether the log is empty (``start`` == ``end``), and the first batch begins below ``start`` and ends above."""
    if not found or start != end:
        return False
    first = found[0][1]
    return first.base_offset < start < first.next_offset


def check_succession(
    found: Sequence[tuple[int, BatchHeader]], *, offset: int, last_epoch: int
) -> None:
    """Check that the batches continue at ``offset`` without a gap, and that no leader epoch is below the one before.

    Raises:
        CorruptBatchError: a batch has another base offset, or a lower leader epoch.
    """
    epoch = max(last_epoch, 0)
    for _, header in found:
        if header.base_offset != offset:
            raise CorruptBatchError(
                f"the leader sent a batch at offset {header.base_offset} where {offset} follows"
            )
        if header.leader_epoch < epoch:
            raise CorruptBatchError(
                f"the leader sent leader epoch {header.leader_epoch} after {epoch}"
            )
        offset, epoch = header.next_offset, header.leader_epoch
