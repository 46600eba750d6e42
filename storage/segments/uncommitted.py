"""Large batches that were appended as leader, kept in memory until every in-sync replica has them.

Each follower fetches these batches a moment after the append. A read from the page cache would copy them once for every
follower. That took a fifth of a leader's time when clients wrote megabytes. This module keeps the bytes that the client
sent, without a copy. They stay in memory until the client has its response anyway.

Small appends are kept in ``tail``. If there is no room here, the batch is read from the file, as all older ones are.
"""

from collections import deque
from collections.abc import Sequence

from milena.disk.files import Buffer
from milena.model.batch.header import BatchHeader

UNCOMMITTED_BYTES_MAX = 32 << 20
"""Limit for all logs of a node together. Without it, a follower that hangs would fill its leader's memory."""

BATCH_BYTES_MIN = 4 << 10
"""Smallest batch that is kept; keeping a smaller one would cost as much as reading it."""


class UncommittedMemory:
    """Memory that all logs of a node share; used only by the thread that owns the logs."""

    __slots__ = ("free_bytes",)

    def __init__(self, bytes_max: int = UNCOMMITTED_BYTES_MAX) -> None:
        """Share ``bytes_max`` bytes among all logs."""
        self.free_bytes = bytes_max


class _Batch:
    __slots__ = ("base_offset", "chunks", "next_offset", "size_bytes")

    def __init__(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.size_bytes = header.batch_bytes
        self.chunks = chunks


class Uncommitted:
    """The uncommitted large batches of one log, in order of offsets; batches that were not kept leave gaps."""

    __slots__ = ("_batches", "_by_offset", "_memory")

    def __init__(self, memory: UncommittedMemory) -> None:
        self._memory = memory
        self._batches: deque[_Batch] = deque()
        self._by_offset: dict[int, _Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def keep(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        """Keep the batch at the log's end if it is large and there is room; ``chunks`` must not change."""
        size = header.batch_bytes
        if BATCH_BYTES_MIN <= size <= self._memory.free_bytes:
            batch = _Batch(header, chunks)
            self._batches.append(batch)
            self._by_offset[batch.base_offset] = batch
            self._memory.free_bytes -= size

    def find(self, offset: int, *, max_bytes: int, end_offset: int) -> list[Buffer]:
        """Return whole batches from the one that starts at ``offset``, up to ``max_bytes`` and ``end_offset``.

        The list is empty if that batch is not kept here, or is larger than ``max_bytes``.
        """
        chunks: list[Buffer] = []
        batch = self._by_offset.get(offset)
        while (
            batch is not None and batch.size_bytes <= max_bytes and batch.next_offset <= end_offset
        ):
            chunks += batch.chunks
            max_bytes -= batch.size_bytes
            batch = self._by_offset.get(batch.next_offset)
        return chunks

    def forget_below(self, offset: int) -> None:
        """Drop batches below ``offset``, because they are committed."""
        batches = self._batches
        while batches and batches[0].next_offset <= offset:
            batch = batches.popleft()
            del self._by_offset[batch.base_offset]
            self._memory.free_bytes += batch.size_bytes

    def forget(self) -> None:
        """Drop all batches, because the log was cut, closed or deleted."""
        for batch in self._batches:
            self._memory.free_bytes += batch.size_bytes
        self._batches.clear()
        self._by_offset.clear()
