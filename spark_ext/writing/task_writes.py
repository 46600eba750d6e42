"""The executor's side of a transactional write: the rows of a task to the cluster, each chunk under a key.

Chunks of a partition go one after the other, so that rows stay in their order, and those of several at once; the next
ones are made while some are on their way, or wait for their turn.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from milena.blocking.loop_thread import ClientLoopThread
from milena.client import Client
from milena.cluster.transport import WrittenPart
from milena.errors import TargetNotFoundError
from milena.model.types import Codec
from milena.producing.options import COMPRESSIONS, MESSAGE_BYTES_MAX
from spark_ext.cluster.patience import patiently
from spark_ext.options.parsing import WriteOptions
from spark_ext.rows.blocks import block_of
from spark_ext.rows.write_schema import WriteColumns
from spark_ext.writing.chunks import Chunk, Chunker, TopicShape
from spark_ext.writing.transaction import (
    BatchNumber,
    BatchTransaction,
    TaskWritten,
    explained,
    is_committed,
    merged,
)

if TYPE_CHECKING:
    from milena.records import TopicPartition

REQUEST_MS = 30_000
"""How long a node may try to write a chunk; it is sent again after that."""

CHUNKS_AHEAD = 4
"""Of a task, on their way or waiting for it; a cluster writes to few disks, and Spark has other tasks."""


class ChunkWriter:
    """Writes chunks within a transaction, on a loop of its own. A context manager.

    Attributes:
        parts: what was acknowledged, a row for each chunk; complete after ``settle``.
    """

    def __init__(self, transaction: BatchTransaction, *, task: int, codec: Codec) -> None:
        self._transaction = transaction
        self._task = task
        self._codec = codec
        self._thread = ClientLoopThread()
        self._client = Client(transaction.urls, credentials=transaction.credentials)
        self._sending: deque[asyncio.Task[None]] = deque()
        self._last: dict[TopicPartition, asyncio.Task[None]] = {}
        self.parts: list[tuple[TopicPartition, WrittenPart]] = []

    def __enter__(self) -> Self:
        self._thread.run(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._thread.run(self._close())
        finally:
            self._thread.close()

    def is_committed(self, number: BatchNumber) -> bool:
        """Whether nothing is left to do."""
        return self._thread.run(is_committed(self._client, number))

    def shape_of(self, topic: str) -> TopicShape:
        """What is to be known of a topic, which may be made by this."""
        return self._thread.run(_shape_of(self._client, topic))

    def put(self, chunk: Chunk) -> None:
        """Send it, once the one before of its partition is written; raises what became of one before it."""
        batch = chunk.batch(codec=self._codec, time_ms=self._transaction.began_ms)
        self._thread.run(self._put(chunk, batch))

    def settle(self) -> None:
        """Wait for the last ones."""
        self._thread.run(self._settle(0))

    async def _close(self) -> None:
        # What is on its way when the task fails.
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def _put(self, chunk: Chunk, batch: bytes) -> None:
        await self._settle(CHUNKS_AHEAD - 1)
        sending = asyncio.create_task(self._send(chunk, batch, self._last.get(chunk.where)))
        self._sending.append(sending)
        self._last[chunk.where] = sending

    async def _settle(self, left_max: int) -> None:
        """Wait until so many are left at most, for the oldest first."""
        while len(self._sending) > left_max:
            await self._sending.popleft()

    async def _send(self, chunk: Chunk, batch: bytes, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        answer = await patiently(
            lambda: self._client.transport.append(
                *chunk.where,
                batch,
                acks="all",
                timeout_ms=REQUEST_MS,
                if_match=None,
                transaction=self._transaction.header,
                key=f"{self._task}/{chunk.key}",
            )
        )
        assert answer.last_offset is not None, "with acks=all an answer says where records are"
        part = WrittenPart(end_offset=answer.last_offset + 1, records=chunk.records)
        self.parts.append((chunk.where, part))


async def _shape_of(client: Client, topic: str) -> TopicShape:
    async def find() -> TopicShape:
        try:
            view = await client.metadata.topic(topic)
        except TargetNotFoundError:
            if not await client.transport.can_make_topic(topic):
                raise
            view = await client.metadata.topic(topic)
        text = view.configs.get("max.message.bytes", "")
        return TopicShape(
            partition_count=len(view.partitions),
            batch_bytes_max=int(text) if text.isdecimal() else MESSAGE_BYTES_MAX,
        )

    return await patiently(find)


def write_task(
    rows: Iterator[pa.RecordBatch],
    *,
    task: int,
    transaction: BatchTransaction,
    number: BatchNumber | None,
    options: WriteOptions,
    columns: WriteColumns,
) -> TaskWritten:
    """Write the rows of one task, unless its batch is committed; returns once every replica in sync has them.

    ``task`` is Spark's number of it in the batch, the same for each attempt.

    Raises:
        RecordError: a row that cannot be a record.
        BatchAbortedError: the transaction is over.
        ClientError: some of it is not written.
    """
    with (
        explained(transaction.transactional_id),
        ChunkWriter(transaction, task=task, codec=COMPRESSIONS[options.compression]) as writer,
    ):
        if number is not None and writer.is_committed(number):
            for _ in rows:
                pass
            return TaskWritten(transaction=transaction, number=number, is_skipped=True)
        chunker = Chunker(
            topic=options.topic,
            seed=task + (0 if number is None else number.batch_id),
            shape_of=writer.shape_of,
        )
        for batch in rows:
            for chunk in chunker.add(block_of(batch, columns)):
                writer.put(chunk)
        for chunk in chunker.finish():
            writer.put(chunk)
        writer.settle()
        parts = tuple(sorted(merged([writer.parts]).items()))
    return TaskWritten(transaction=transaction, number=number, parts=parts)
