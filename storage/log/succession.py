"""Succession: batches of a leader must go on where the follower's log ends. Pure.

Two things are not as they seem. Compaction on the leader may have joined what the follower has with what it misses into
one filler, which is fitted here. And an empty log may begin with a batch that reaches below its start: the one in whose
middle the leader's log starts; see ``PartitionLog.append_as_follower``.
"""

from collections.abc import Sequence

from milena.disk.files import Buffer
from milena.model.batch.encode import encode_filler
from milena.model.batch.header import BatchHeader, decode_header
from milena.model.errors import CorruptBatchError


def fit_filler(data: Buffer, found: list[tuple[int, BatchHeader]], log_end_offset: int) -> Buffer:
    """Let a filler that begins below our log end begin there: the leader joined what we have with what we miss.

    Args:
        data: the batches.
        found: their positions and headers; the first is replaced when it had to be fitted.
        log_end_offset: of the follower's log.
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
    """Whether a log from ``start`` to ``end``, an empty one, is to begin with a batch around its start."""
    if not found or start != end:
        return False
    first = found[0][1]
    return first.base_offset < start < first.next_offset


def check_succession(
    found: Sequence[tuple[int, BatchHeader]], *, offset: int, last_epoch: int
) -> None:
    """Offsets leave no gap, and leader epochs do not fall.

    Raises:
        CorruptBatchError: otherwise.
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
