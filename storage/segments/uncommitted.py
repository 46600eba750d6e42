"""Large batches that were appended as leader, kept in memory until every replica in sync has them.

Each follower asks for them a moment later. Read back from the page cache they would be copied once for every follower,
into memory that is new each time: a fifth of what a leader does when clients write megabytes. Here they are the very
bytes that the client sent, which are in memory until the client is answered anyway.

Small appends are ``tail``'s. What finds no room here is read from the file, as everything is later on.
"""

from collections import deque
from collections.abc import Sequence

from milena.disk.files import Buffer
from milena.model.batch.header import BatchHeader

UNCOMMITTED_BYTES_MAX = 32 << 20
"""Of all logs of a node: a replica that hangs must not make its leader keep more."""

BATCH_BYTES_MIN = 4 << 10
"""To keep a smaller batch by itself would cost as much as to read it."""


class UncommittedMemory:
    """Memory that all logs of a node share; the thread that owns them alone uses it."""

    __slots__ = ("free_bytes",)

    def __init__(self, bytes_max: int = UNCOMMITTED_BYTES_MAX) -> None:
        """``bytes_max``: in all logs together."""
        self.free_bytes = bytes_max


class _Batch:
    __slots__ = ("base_offset", "chunks", "next_offset", "size_bytes")

    def __init__(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.size_bytes = header.batch_bytes
        self.chunks = chunks


class Uncommitted:
    """Of one log; offsets rise along the batches, with gaps where one was not kept."""

    __slots__ = ("_batches", "_by_offset", "_memory")

    def __init__(self, memory: UncommittedMemory) -> None:
        self._memory = memory
        self._batches: deque[_Batch] = deque()
        self._by_offset: dict[int, _Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def keep(self, header: BatchHeader, chunks: Sequence[Buffer]) -> None:
        """Keep a batch that lies at the log's end now, if it is large and there is room; ``chunks`` do not change."""
        size = header.batch_bytes
        if BATCH_BYTES_MIN <= size <= self._memory.free_bytes:
            batch = _Batch(header, chunks)
            self._batches.append(batch)
            self._by_offset[batch.base_offset] = batch
            self._memory.free_bytes -= size

    def find(self, offset: int, *, max_bytes: int, end_offset: int) -> list[Buffer]:
        """Batches from the one that begins at ``offset``, whole, up to ``end_offset``; none where it is not here.

        Not even one if it is larger than ``max_bytes``.
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
        """Everything below ``offset`` is committed."""
        batches = self._batches
        while batches and batches[0].next_offset <= offset:
            batch = batches.popleft()
            del self._by_offset[batch.base_offset]
            self._memory.free_bytes += batch.size_bytes

    def forget(self) -> None:
        """Nothing of it is to be served any more."""
        for batch in self._batches:
            self._memory.free_bytes += batch.size_bytes
        self._batches.clear()
        self._by_offset.clear()
