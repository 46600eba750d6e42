"""The executor's side of a transactional write: the rows of a task to the cluster, each chunk under a key.

Chunks go one after the other, so that rows stay in their order; the next one is made while one is on its way.
"""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from milena.blocking.loop_thread import ClientLoopThread
from milena.client import Client
from milena.errors import TargetNotFoundError
from milena.producing.options import MESSAGE_BYTES_MAX
from milena.records import TopicPartition
from spark_ext.chunks import Chunk, Chunker, TopicShape
from spark_ext.options import WriteOptions
from spark_ext.transaction import (
    BatchNumber,
    BatchTransaction,
    TaskWritten,
    explained,
    is_committed,
    merged,
    patiently,
)
from spark_ext.write_schema import WriteColumns, runs_in

if TYPE_CHECKING:
    from milena.cluster.transport import WrittenPart

REQUEST_MS = 30_000
"""How long a node may try to write a chunk; it is sent again after that."""


class ChunkWriter:
    """Writes chunks within a transaction, on a loop of its own. A context manager.

    Attributes:
        parts: what was acknowledged, a row for each chunk and partition; complete after ``settle``.
    """

    def __init__(self, transaction: BatchTransaction, *, task: int) -> None:
        self._transaction = transaction
        self._task = task
        self._thread = ClientLoopThread()
        self._client = Client(transaction.urls, credentials=transaction.credentials)
        self._sending: asyncio.Task[None] | None = None
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
        """Send it, once the one before is written; raises what became of that."""
        self._thread.run(self._put(chunk))

    def settle(self) -> None:
        """Wait for the last one."""
        self._thread.run(self._settle())

    async def _close(self) -> None:
        # What is on its way when the task fails.
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})
        await self._client.__aexit__(None, None, None)

    async def _put(self, chunk: Chunk) -> None:
        await self._settle()
        self._sending = asyncio.create_task(self._send(chunk))

    async def _settle(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending

    async def _send(self, chunk: Chunk) -> None:
        body = chunk.body()
        found = await patiently(
            lambda: self._client.transport.append_keyed(
                chunk.topic,
                body,
                near=chunk.turn,
                key=f"{self._task}/{chunk.number}",
                transaction=self._transaction.header,
                timeout_ms=REQUEST_MS,
            )
        )
        self.parts += [(TopicPartition(chunk.topic, p), part) for p, part in found.items()]


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
    with explained(transaction), ChunkWriter(transaction, task=task) as writer:
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
            for run in runs_in(batch, columns):
                for chunk in chunker.add(run):
                    writer.put(chunk)
        for chunk in chunker.finish():
            writer.put(chunk)
        writer.settle()
        parts = tuple(sorted(merged([writer.parts]).items()))
    return TaskWritten(transaction=transaction, number=number, parts=parts)
