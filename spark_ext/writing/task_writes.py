"""Write the rows of a task in a transaction, on the executor. Each chunk has an idempotency key.

Chunks of one partition are sent one after the other, so that rows stay in order. Chunks of several partitions are sent
at the same time. The next chunks are made while earlier ones are in flight.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from milena.blocking.loop_thread import ClientLoopThread
from milena.client import Client
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS_MAX
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
"""How long a node may try to write a chunk, in ms; after that the chunk is sent again."""

CHUNKS_AHEAD = 4
"""Chunks of a task in flight or waiting. More would not help: a cluster has few disks, and other tasks write too."""


class ChunkWriter:
    """A context manager that writes chunks within a transaction, on its own event loop.

    Attributes:
        parts: the acknowledged partition and part of each chunk; complete after ``settle``.
    """

    def __init__(self, transaction: BatchTransaction, *, task: int, codec: Codec) -> None:
        self._transaction = transaction
        self._task = task
        self._codec = codec
        self._thread = ClientLoopThread()
        self._client = Client(
            transaction.urls,
            credentials=transaction.credentials,
            connect_timeout_ms=CONNECT_TIMEOUT_MS_MAX,
        )
        self._sending: deque[asyncio.Task[None]] = deque()
        self._last: dict[TopicPartition, asyncio.Task[None]] = {}
        self.parts: list[tuple[TopicPartition, WrittenPart]] = []

    def __enter__(self) -> Self:
        self._thread.run(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.run(self._close())
        finally:
            self._thread.close()

    def is_committed(self, number: BatchNumber) -> bool:
        """Return whether the batch is committed, so that the task has nothing to do."""
        return self._thread.run(is_committed(self._client, number))

    def shape_of(self, topic: str) -> TopicShape:
        """Return the shape of a topic; the cluster may create the topic for it."""
        return self._thread.run(_shape_of(self._client, topic))

    def put(self, chunk: Chunk) -> None:
        """Send a chunk after the previous chunk of its partition; raises the error of an earlier chunk."""
        # Encode on the task's thread, so that the loop's thread can send meanwhile. The time is that of the
        # transaction: with the clock, a repeated task would send other bytes under the same key, which is refused.
        batch = chunk.batch(codec=self._codec, time_ms=self._transaction.began_ms)
        self._thread.run(self._put(chunk, batch))

    def settle(self) -> None:
        """Wait until all chunks are acknowledged; raises the first error."""
        self._thread.run(self._settle(0))

    async def _close(self) -> None:
        # When the task fails, some chunks are in flight. Spark's next attempt sends them again under the same keys.
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
        """Wait until at most ``left_max`` chunks are left, the oldest first."""
        while len(self._sending) > left_max:
            await self._sending.popleft()

    async def _send(self, chunk: Chunk, batch: bytes, before: asyncio.Task[None] | None) -> None:
        # Sent at the same time, two chunks of a partition could arrive in either order. If the earlier one fails,
        # this one fails with its error and is not sent.
        if before is not None:
            await before
        answer = await patiently(
            lambda: self._client.transport.append(
                *chunk.where,
                batch,
                acks="all",
                timeout_ms=REQUEST_MS,
                if_match=None,
                # The key makes retries and repeated tasks safe: the node answers with the records' first offsets
                # (docs/guarantees.md, Transactions).
                transaction=self._transaction.header,
                key=f"{self._task}/{chunk.key}",
            )
        )
        assert answer.last_offset is not None, "with acks=all an answer says where records are"
        part = WrittenPart(end_offset=answer.last_offset + 1, records=chunk.records)
        self.parts.append((chunk.where, part))


async def _shape_of(client: Client, topic: str) -> TopicShape:
    async def find() -> TopicShape:
        # Unlike a producer, a chunk needs the number of partitions before its first write. So the topic is created
        # here, if the cluster does that, and not by the write.
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
    """Write the rows of one task, unless its batch is committed; return when every in-sync replica has them.

    ``task`` is Spark's number of the task in the batch, which is the same for each attempt.

    Raises:
        RecordError: a row that cannot be a record.
        BatchAbortedError: the transaction is over.
        ClientError: some records are not written.
    """
    with (
        explained(transaction.transactional_id),
        ChunkWriter(transaction, task=task, codec=COMPRESSIONS[options.compression]) as writer,
    ):
        if number is not None and writer.is_committed(number):
            # Read the rows all the same: Spark reuses a worker only if the worker read its input to the end.
            for _ in rows:
                pass
            return TaskWritten(transaction=transaction, number=number, is_skipped=True)
        chunker = Chunker(
            topic=options.topic,
            # Different tasks and batches start at different partitions, or small batches would all go to the first.
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
