"""Records in, out and away: the parts of ``http_api.ports.RecordsPort`` as one object."""

from collections.abc import Sequence

from milena.model.requests import (
    Acks,
    BatchReceipt,
    Doubt,
    FetchRequest,
    FetchResult,
    PartitionOffsets,
    ProduceRequest,
    Queued,
    Receipt,
)
from node.services.produce import ProduceService
from node.services.reads import ReadService
from node.services.record_deletion import DeletionService


class RecordsService:
    """Implements ``RecordsPort``."""

    def __init__(
        self, produce: ProduceService, reads: ReadService, deletions: DeletionService
    ) -> None:
        self._produce = produce
        self._reads = reads
        self._deletions = deletions

    def queue(self, request: ProduceRequest) -> Queued | None:
        """Append a few records without a task of their own."""
        return self._produce.queue(request)

    async def produce(self, request: ProduceRequest) -> Sequence[Receipt]:
        """Append records; one receipt each, in order."""
        return await self._produce.produce(request)

    async def produce_batch(
        self, topic: str, partition: int, batch: bytes, *, acks: Acks, timeout_ms: int
    ) -> BatchReceipt:
        """Append one batch that a client encoded."""
        return await self._produce.produce_batch(
            topic, partition, batch, acks=acks, timeout_ms=timeout_ms
        )

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read committed records."""
        return await self._reads.fetch(request)

    async def doubt(self, doubt: Doubt) -> None:
        """Let a copy be checked that a reader found damaged."""
        await self._reads.doubt(doubt)

    async def delete_records(
        self, topic: str, partition: int, before: int | None, *, timeout_ms: int
    ) -> int:
        """Delete what lies below an offset, for good."""
        return await self._deletions.delete_records(topic, partition, before, timeout_ms=timeout_ms)

    async def offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """The readable range."""
        return await self._reads.offsets(topic, partition)
