"""Writers, readers and the final read; every operation that ends is one event.

Each value is unique ("w0k2:17" = 17th value of key w0k2) and carries padding made from it, so that a reader can tell
a damaged or foreign record. A key has one partition and one writer, which waits for each request to end before the
next: a key's sequence numbers must appear in offset order.
"""

import asyncio
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.adapter import Adapter, ApiError, Key, Receipt, Value
from tests.chaos.cluster import Node
from tests.chaos.history import Ended, FinalRead, History, Outcome, Phase, Read, ReadFailed, Write
from tests.chaos.setup import Setup

READ_WAIT_MS = 200
FINAL_WAIT_MS = 100
PAGE_BYTES = 1 << 20
ANOTHER_NODE_SHARE = 0.01
"""A writer changes nodes now and then even when all is well."""
RETRY_AFTER_S = 0.1
DRAIN_S = 3.0


def make_value(record: str, padding_bytes: int) -> dict[str, str]:
    """The value of a record: its name, and padding that follows from it."""
    return {"id": record, "pad": f"{zlib.crc32(record.encode()):08x}" * (padding_bytes // 8)}


def identify(key: Key, value: Value) -> str:
    """The name of a record that was read, or a description of the damage."""
    match value:
        case {"id": str(record), "pad": str(padding)}:
            if value == make_value(record, len(padding)) and key == record.split(":")[0]:
                return record
        case _:
            pass
    return f"!damaged {str(value)[:40]}"


def merge(earlier: Receipt, later: Receipt) -> Receipt:
    """What is known after a retry: an attempt of unknown fate may still succeed, whatever a later one was told."""
    if later.outcome is Outcome.FAILED and earlier.outcome is Outcome.UNKNOWN:
        return Receipt(Outcome.UNKNOWN, error=f"{earlier.error}, then {later.error}")
    return later


class WorkloadRunner:
    """Runs a setup's workload against a cluster."""

    def __init__(
        self, setup: Setup, nodes: Sequence[Node], adapter: Adapter, history: History
    ) -> None:
        self._setup = setup
        self._workload = setup.workload
        self._nodes = nodes
        self._adapter = adapter
        self._history = history
        self._next_sequence: defaultdict[str, int] = defaultdict(int)
        self._is_stopping = False

    async def run(self) -> None:
        """Write and read for the run's duration."""
        workload = self._workload
        work = [self._write_on(i) for i in range(workload.writers)]
        work += [self._read_on(i) for i in range(workload.readers)]
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.wait(tasks, timeout=self._setup.seconds, return_when=asyncio.FIRST_EXCEPTION)
        self._is_stopping = True
        # Noted before the last requests end: they belong to the run, the time that they take does not.
        self._history.add(Ended(at_s=self._history.now_s()))
        await asyncio.wait(
            tasks, timeout=workload.write_timeout_s * (workload.retries + 1) + DRAIN_S
        )
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    # -- writers

    async def _write_on(self, number: int) -> None:
        rng = random.Random(f"{self._setup.seed}/writer/{number}")
        workload = self._workload
        partition = number % self._setup.partitions
        keys = [f"w{number}k{i}" for i in range(workload.keys_per_writer)]
        at = number % len(self._nodes)
        while not self._is_stopping:
            receipts = await self.write(
                rng.choice(keys),
                partition,
                at,
                rng.randint(1, workload.records_per_request_max),
                rng.choice(workload.acks),
            )
            is_good = all(r.outcome is Outcome.OK for r in receipts)
            if not is_good or rng.random() < ANOTHER_NODE_SHARE:
                at = (at + 1) % len(self._nodes)
            await asyncio.sleep(rng.expovariate(workload.requests_per_s))

    async def write(
        self, key: str, partition: int, at: int, count: int, acks: str
    ) -> list[Receipt]:
        """Write the next ``count`` records of a key through the node at this position."""
        first = self._next_sequence[key]
        self._next_sequence[key] = first + count
        names = [f"{key}:{first + i}" for i in range(count)]
        values = [(key, make_value(name, self._workload.padding_bytes)) for name in names]
        idempotency_key = (
            f"{self._setup.seed}-{key}-{first}" if self._workload.is_idempotent else None
        )
        sent_s = self._history.now_s()
        receipts = [Receipt(Outcome.UNKNOWN, error="cancelled")] * count
        node = self._nodes[at]
        try:
            for attempt in range(self._workload.retries + 1):
                node = self._nodes[(at + attempt) % len(self._nodes)]
                latest = await self._adapter.produce(
                    node.url,
                    self._setup.topic,
                    partition,
                    values,
                    acks=acks,
                    timeout_s=self._workload.write_timeout_s,
                    idempotency_key=idempotency_key,
                )
                receipts = list(map(merge, receipts, latest)) if attempt else latest
                if all(r.outcome is Outcome.OK for r in receipts):
                    break
                if attempt < self._workload.retries:
                    await asyncio.sleep(RETRY_AFTER_S)
        finally:
            for name, receipt in zip(names, receipts, strict=True):
                self._history.add(
                    Write(
                        at_s=self._history.now_s(),
                        sent_s=sent_s,
                        record=name,
                        partition=partition,
                        node=node.node_id,
                        acks=acks,
                        outcome=receipt.outcome,
                        offset=receipt.offset,
                        error=receipt.error,
                    )
                )
        return receipts

    # -- readers

    async def _read_on(self, number: int) -> None:
        """Even readers stay on one node, so that every replica is watched; odd ones move on failure."""
        rng = random.Random(f"{self._setup.seed}/reader/{number}")
        positions = dict.fromkeys(range(self._setup.partitions), 0)
        at = number % len(self._nodes)
        while not self._is_stopping:
            partition = rng.randrange(self._setup.partitions)
            following = await self._poll(
                f"r{number}", partition, self._nodes[at], positions[partition], Phase.RUN
            )
            if following is not None:
                positions[partition] = following
                continue
            if number % 2:
                at = (at + 1) % len(self._nodes)
            await asyncio.sleep(READ_WAIT_MS / 1000)

    async def _poll(
        self, reader: str, partition: int, node: Node, position: int, phase: Phase
    ) -> int | None:
        """One page; the next position, or None when there was no page."""
        is_final = phase is Phase.FINAL
        wait_ms = FINAL_WAIT_MS if is_final else READ_WAIT_MS
        try:
            page = await self._adapter.fetch(
                node.url,
                self._setup.topic,
                partition,
                position,
                wait_ms=wait_ms,
                max_bytes=PAGE_BYTES,
                timeout_s=self._workload.read_timeout_s + wait_ms / 1000,
                is_local=is_final,
            )
        except ApiError as error:
            self._history.add(
                ReadFailed(
                    at_s=self._history.now_s(),
                    reader=reader,
                    partition=partition,
                    node=node.node_id,
                    error=str(error)[:80],
                )
            )
            return None
        if not page:
            return position
        records = tuple((offset, identify(key, value)) for offset, key, value in page)
        self._history.add(
            Read(
                at_s=self._history.now_s(),
                reader=reader,
                partition=partition,
                node=node.node_id,
                from_offset=position,
                records=records,
                phase=phase,
            )
        )
        return max(position, records[-1][0] + 1)

    # -- after healing

    async def read_finally(self) -> None:
        """Write a marker to every partition, then read each from every node's own replica up to its marker.

        What this read shows is the truth that all else is compared with.
        """
        deadline_s = time.monotonic() + self._setup.final_timeout_s
        await asyncio.gather(
            *(self._read_partition(p, deadline_s) for p in range(self._setup.partitions))
        )

    async def _read_partition(self, partition: int, deadline_s: float) -> None:
        marker = await self._write_marker(partition, deadline_s)
        if marker is None:
            return
        for node in self._nodes:
            position = 0
            while position <= marker and time.monotonic() < deadline_s:
                reader = f"final{node.node_id}"
                following = await self._poll(reader, partition, node, position, Phase.FINAL)
                if following is None or following == position:
                    await asyncio.sleep(RETRY_AFTER_S)
                position = position if following is None else following
            self._history.add(
                FinalRead(
                    at_s=self._history.now_s(),
                    partition=partition,
                    node=node.node_id,
                    is_complete=position > marker,
                    end_offset=position,
                )
            )

    async def _write_marker(self, partition: int, deadline_s: float) -> int | None:
        at = partition
        while time.monotonic() < deadline_s:
            at = (at + 1) % len(self._nodes)
            receipts = await self.write(f"final{partition}", partition, at, 1, "all")
            if receipts[0].outcome is Outcome.OK:
                return receipts[0].offset
            await asyncio.sleep(RETRY_AFTER_S)
        return None
