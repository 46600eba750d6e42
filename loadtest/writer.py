"""Writes a stream of records exactly once over HTTP, whatever the nodes do meanwhile.

The stream is split by key over workers. A worker has one request under way, which it repeats, with the same
``Idempotency-Key`` and body, to one node after the other until every record of it is acknowledged by all in-sync
replicas. So the order of a key is kept, and an answer that got lost costs a retry, never a second copy.
"""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp

from loadtest.receipts import parse_answer
from loadtest.source import Record, Source, request_body

REQUEST_TIMEOUT_S = 10.0
"""Longer than a failover: whether a write happened is best learnt from its first request."""
GIVE_UP_AFTER_S = 120.0
"""A request that fails for this long means that the cluster does not come back."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.02, 0.25
QUEUE_BATCHES = 2
"""Batches that wait per worker: enough that none is idle, little enough to keep memory small."""


class WriteError(Exception):
    """The cluster refused a record for good, or did not take it in two minutes."""


@dataclass(slots=True)
class Progress:
    """Records acknowledged so far, and the longest time that a partition had to wait for it.

    ``on_acknowledged`` is called with the number of records of each answer.
    """

    clock: Callable[[], float]
    on_acknowledged: Callable[[int], None]
    records: int = 0
    value_bytes: int = 0
    retries: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    longest_gap_s: float = 0.0
    longest_gap_partition: int | None = None
    _last: dict[int, float] = field(default_factory=dict)

    def begin(self) -> None:
        """The first request is about to be sent."""
        self.started_s = self.ended_s = self.clock()

    def acknowledged(self, partitions: set[int], records: int, value_bytes: int) -> None:
        """One request was acknowledged; it had records in these partitions."""
        now = self.clock()
        for partition in partitions:
            gap = now - self._last.get(partition, self.started_s)
            if gap > self.longest_gap_s:
                self.longest_gap_s, self.longest_gap_partition = gap, partition
            self._last[partition] = now
        self.records += records
        self.value_bytes += value_bytes
        self.ended_s = now
        self.on_acknowledged(records)

    @property
    def seconds(self) -> float:
        """From the first request to the last acknowledgement."""
        return self.ended_s - self.started_s


class Writer:
    """Writes one source to one topic."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Sequence[str],
        topic: str,
        *,
        run_id: str,
        progress: Progress,
        workers: int,
        records_per_request: int,
    ) -> None:
        self._session = session
        self._urls = tuple(urls)
        self._path = f"/topics/{quote(topic, safe='')}"
        self._run_id = run_id
        self._progress = progress
        self._records_per_request = records_per_request
        self._queues: list[asyncio.Queue[list[Record] | None]] = [
            asyncio.Queue(QUEUE_BATCHES) for _ in range(workers)
        ]
        self._headers: dict[str, str] = {}

    async def write(self, source: Source, on_record: Callable[[Record], None]) -> None:
        """Write everything; returns once it is all acknowledged.

        ``on_record`` sees every record before it is sent, in the order of its key.

        Raises:
            WriteError: a record could not be written.
        """
        self._headers = {
            "Content-Type": source.media_type,
            "Accept": "application/vnd.kafka.v2+json",
        }
        self._progress.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(self._queues)):
                    tasks.create_task(self._worker(number))
                tasks.create_task(self._feed(source.open(), on_record))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _feed(self, records: Iterator[Record], on_record: Callable[[Record], None]) -> None:
        spread = RoundRobin(len(self._queues), self._records_per_request)
        pending: list[list[Record]] = [[] for _ in self._queues]
        for record in records:
            on_record(record)
            worker = spread.worker_of(record.key)
            batch = pending[worker]
            batch.append(record)
            if len(batch) == self._records_per_request:
                await self._queues[worker].put(batch)
                pending[worker] = []
        for queue, batch in zip(self._queues, pending, strict=True):
            if batch:
                await queue.put(batch)
            await queue.put(None)

    async def _worker(self, number: int) -> None:
        async for sequence, batch in _numbered(self._queues[number]):
            await self._send(f"{self._run_id}-{number}-{sequence}", batch, number)

    async def _send(self, key: str, batch: list[Record], node: int) -> None:
        """Repeat one request until it is acknowledged."""
        body = request_body(batch)
        headers = {**self._headers, "Idempotency-Key": key}
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        backoff = BACKOFF_S_MIN
        while True:
            url = self._urls[node % len(self._urls)]
            partitions, trouble = await self._attempt(url, body, headers, len(batch))
            if not trouble:
                size = sum(len(record.value) for record in batch)
                self._progress.acknowledged(partitions, len(batch), size)
                return
            if time.monotonic() > deadline:
                raise WriteError(f"not written in {GIVE_UP_AFTER_S:g} s: {trouble} from {url}")
            self._progress.retries += 1
            node += 1
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, BACKOFF_S_MAX)

    async def _attempt(
        self, url: str, body: bytes, headers: dict[str, str], count: int
    ) -> tuple[set[int], str]:
        """One request: partitions written to, or what is wrong in a way that a retry may mend."""
        params = {"acks": "all", "timeout_ms": str(int(REQUEST_TIMEOUT_S * 900))}
        try:
            async with self._session.post(
                url + self._path, data=body, headers=headers, params=params
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return set(), str(error) or type(error).__name__
        return read_receipts(response.status, answer, count)


def read_receipts(status: int, answer: bytes, count: int) -> tuple[set[int], str]:
    """Partitions of an acknowledged request, or ``(_, trouble)`` when it should be repeated.

    Raises:
        WriteError: the request is wrong, so that a repetition would fail as well.
    """
    parsed = parse_answer(status, answer, count)
    if parsed.is_final:
        raise WriteError(parsed.trouble)
    return {receipt.partition for receipt in parsed.receipts}, parsed.trouble


class RoundRobin:
    """Which worker takes a record: by hash of its key; without a key, runs of ``run`` records in turn."""

    def __init__(self, workers: int, run: int) -> None:
        self._workers = workers
        self._run = run
        self._keyless = 0

    def worker_of(self, key: str | None) -> int:
        """The worker of the next record."""
        if key is not None:
            return zlib.crc32(key.encode()) % self._workers
        self._keyless += 1
        return (self._keyless - 1) // self._run % self._workers


async def _numbered(
    queue: asyncio.Queue[list[Record] | None],
) -> AsyncIterator[tuple[int, list[Record]]]:
    sequence = 0
    while (batch := await queue.get()) is not None:
        yield sequence, batch
        sequence += 1
