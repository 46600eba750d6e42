"""Measurements of ``milena bench``: one client, one process, one topic (asyncio shell).

They measure the whole path of a program's records: this client's own work, the network, the node that it reaches,
replication and the disks. If the client's process is the bottleneck, the numbers are the client's. The report shows how
much of a core it took.
"""

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from milena.client import Client
from milena.commands.benchmarks.latencies import Latencies
from milena.commands.producing.pace import RecordSchedule
from milena.errors import ClientError
from milena.fields import Json
from milena.model.clock import SystemClock
from milena.producing.options import ProducerKeywords
from milena.reading.reader import PartitionReader
from milena.reading.topic_order import as_they_come
from milena.records import Receipt, StartAt

MS = 1000
LAST_READ_S = 10.0
"""How long the last records may take from their acknowledgement to the reader, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchBound:
    """The end of a measurement: the limit that is reached first. None is no limit."""

    records: int | None
    seconds: float | None

    def is_reached(self, records: int, seconds: float) -> bool:
        """Return whether a limit is reached."""
        return (self.records is not None and records >= self.records) or (
            self.seconds is not None and seconds >= self.seconds
        )


@dataclass(slots=True, kw_only=True)
class BenchResult:
    """The numbers of records and bytes, the time, and the durations by name."""

    what: str
    records: int = 0
    record_bytes: int = 0
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    failed: int = 0
    not_read: int = 0
    first_error: ClientError | None = None
    remark: str = ""
    latencies: dict[str, Latencies] = field(default_factory=dict)

    def text(self) -> str:
        """Return the result for people."""
        seconds = max(self.seconds, 1e-9)
        head = (
            f"{self.what}: {self.records} records, {self.record_bytes} bytes in {self.seconds:.2f} s: "
            f"{self.records / seconds:.0f} records/s, {self.record_bytes / seconds / 1e6:.2f} MB/s\n"
            f"this client used {self.client_cpu_s / seconds:.2f} of a core, which is a part of what was measured"
        )
        if self.failed:
            head += f"\n{self.failed} records were not acknowledged"
        if self.not_read:
            head += f"\n{self.not_read} records were acknowledged, and not read within {LAST_READ_S:g} s"
        if self.remark:
            head += f"\n{self.remark}"
        return "\n\n".join([head, *(found.text(of) for of, found in self.latencies.items())])

    def as_json(self) -> Json:
        """Return the result for programs."""
        seconds = max(self.seconds, 1e-9)
        return {
            "measured": self.what,
            "records": self.records,
            "bytes": self.record_bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records / seconds, 1),
            "bytes_per_s": round(self.record_bytes / seconds, 1),
            "client_cores": round(self.client_cpu_s / seconds, 3),
            "not_acknowledged": self.failed,
            "not_read": self.not_read,
            "error": None if self.first_error is None else self.first_error.message,
            "latency_ms": {of: found.as_json() for of, found in self.latencies.items()},
        }


class Stopwatch:
    """Wall and processor seconds of this process since the stopwatch was made."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._begun_s = self._now()
        self._cpu_s = time.process_time()

    def now(self) -> float:
        """Return the seconds of the loop's clock, which is finer than milliseconds."""
        return self._now()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return self._now() - self._begun_s

    def stop(self, result: BenchResult) -> None:
        """Note in the result how long it took."""
        result.seconds = self.seconds()
        result.client_cpu_s = time.process_time() - self._cpu_s


async def bench_produce(
    client: Client,
    topic: str,
    keywords: ProducerKeywords,
    *,
    bound: BenchBound,
    size: int,
    rate: float | None,
    chance: Random,
) -> BenchResult:
    """Write random bytes. At a rate, a latency runs from when a record was due to its acknowledgement.

    Without a rate there are no latencies: records mostly wait in this client's buffer, which is always full.
    """
    await client.metadata.partition_count(topic)
    result = BenchResult(what=f"records of {size} bytes written to {topic} and acknowledged")
    latencies = Latencies(chance)
    if rate is None:
        result.remark = (
            "without --rate, records wait in this client's full buffer: latency is not measured"
        )
    else:
        result.latencies["write latency"] = latencies
    # No delay is dropped here: a record that is sent late was late for the program that wanted to send it.
    pace = None if rate is None else RecordSchedule(rate, catch_up_s=float("inf"))
    clock, sent = SystemClock(), 0
    watch = Stopwatch()
    on_delivery = partial(_acknowledged, result=result, latencies=latencies, watch=watch, size=size)
    async with client.producer(**keywords) as producer:
        while not bound.is_reached(sent, watch.seconds()) and result.first_error is None:
            due_s = watch.now() if pace is None else pace.next_due(watch.now())
            if due_s > watch.now():
                await clock.sleep((due_s - watch.now()) * MS)
            await producer.send(
                topic, chance.randbytes(size), on_delivery=partial(on_delivery, due_s=due_s)
            )
            sent += 1
        await producer.flush()
        watch.stop(result)
    return result


def _acknowledged(
    receipt: Receipt | None,
    error: ClientError | None,
    *,
    result: BenchResult,
    latencies: Latencies,
    watch: Stopwatch,
    size: int,
    due_s: float,
) -> None:
    if receipt is None:
        result.failed += 1
        result.first_error = result.first_error or error
        return
    latencies.add((watch.now() - due_s) * MS)
    result.records += 1
    result.record_bytes += size


async def bench_consume(
    client: Client, topic: str, *, bound: BenchBound, chance: Random
) -> BenchResult:
    """Read all partitions from first record to end. A latency is the wait for the next records."""
    partitions = await client.metadata.partition_count(topic)
    result = BenchResult(what=f"records of {topic} read, by one client")
    waits = result.latencies["wait for the next records of a partition"] = Latencies(chance)
    watch = Stopwatch()
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(client.reader(topic, partition, start=StartAt.EARLIEST))
            for partition in range(partitions)
        ]
        stream = await stack.enter_async_context(aclosing(as_they_come(readers)))
        asked_s = watch.now()
        async for records in stream:
            waits.add((watch.now() - asked_s) * MS)
            result.records += len(records)
            result.record_bytes += sum(len(r.value or b"") + len(r.key or b"") for r in records)
            if bound.is_reached(result.records, watch.seconds()):
                break
            asked_s = watch.now()
        watch.stop(result)
    return result


async def bench_latency(
    client: Client,
    topic: str,
    keywords: ProducerKeywords,
    *,
    bound: BenchBound,
    size: int,
    rate: float,
    chance: Random,
) -> BenchResult:
    """Write to one partition at a rate, and read it at the same time.

    The latencies are the times until acknowledged, and until read.
    """
    await client.metadata.partition_count(topic)
    result = BenchResult(
        what=f"records of {size} bytes written to {topic}-0 at {rate:g}/s and read back"
    )
    written = result.latencies["write latency"] = Latencies(chance)
    seen = result.latencies["write to read latency"] = Latencies(chance)
    echo = Echo(seen)
    watch = Stopwatch()
    clock, pace, sent = SystemClock(), RecordSchedule(rate, catch_up_s=float("inf")), 0
    on_delivery = partial(_acknowledged, result=result, latencies=written, watch=watch, size=size)
    async with client.reader(topic, 0, start=StartAt.LATEST, follow=True) as reader:
        await reader.locate()
        async with asyncio.TaskGroup() as tasks, client.producer(**keywords) as producer:
            reading = tasks.create_task(echo.read(reader, watch))
            while not bound.is_reached(sent, watch.seconds()) and result.first_error is None:
                due_s = pace.next_due(watch.now())
                if due_s > watch.now():
                    await clock.sleep((due_s - watch.now()) * MS)
                value = chance.randbytes(size)
                echo.due[value] = due_s
                await producer.send(
                    topic, value, partition=0, on_delivery=partial(on_delivery, due_s=due_s)
                )
                sent += 1
            await producer.flush()
            watch.stop(result)
            with suppress(TimeoutError):
                await asyncio.wait_for(echo.wait_for_all(), LAST_READ_S)
            reading.cancel()
    result.not_read = len(echo.due) - result.failed
    return result


class Echo:
    """Records that were written and not yet read back, by their bytes."""

    def __init__(self, seen: Latencies) -> None:
        self.due: dict[bytes, float] = {}
        self._seen = seen
        self._is_any_read = asyncio.Event()

    async def read(self, reader: PartitionReader, watch: Stopwatch) -> None:
        """Read until cancelled. Records of other programs may arrive in between."""
        async for records in reader.batches():
            for record in records:
                due_s = self.due.pop(record.value or b"", None)
                if due_s is not None:
                    self._seen.add((watch.now() - due_s) * MS)
            self._is_any_read.set()

    async def wait_for_all(self) -> None:
        """Wait until everything that was written is read."""
        while self.due:
            self._is_any_read.clear()
            await self._is_any_read.wait()
