"""Succession: a leader's batches must continue where the follower's log ends. Pure.

Two cases differ. Compaction on the leader may have merged batches that the follower has with batches that it lacks into
one filler; ``fit_filler`` cuts off its front. An empty log may start with a batch that begins below the log start,
because the leader's log starts in the middle of that batch; see ``PartitionLog.append_as_follower``.
"""

from collections.abc import Sequence

from milena.disk.files import Buffer
from milena.model.batch.encode import encode_filler
from milena.model.batch.header import BatchHeader, decode_header
from milena.model.errors import CorruptBatchError


def fit_filler(data: Buffer, found: list[tuple[int, BatchHeader]], log_end_offset: int) -> Buffer:
    """Cut off the part of a filler that lies below the log end; the leader merged known with missing batches.

    Args:
        data: the batches.
        found: positions and headers of the batches; the first one is replaced if it had to be fitted.
        log_end_offset: of the follower's log.

    Returns:
        The batches to append.
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
    """Whether an empty log at ``start`` == ``end`` must start with a batch around its start."""
    if not found or start != end:
        return False
    first = found[0][1]
    return first.base_offset < start < first.next_offset


def check_succession(
    found: Sequence[tuple[int, BatchHeader]], *, offset: int, last_epoch: int
) -> None:
    """Check that offsets leave no gap and that leader epochs do not fall.

    Raises:
        CorruptBatchError: they do.
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
