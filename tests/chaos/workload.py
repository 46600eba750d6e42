"""Writers, readers and the final read; every completed operation is one event.

Each value is unique ("w0k2:17" is the 17th value of key w0k2) and has padding made from it. So a reader can recognize a
damaged or foreign record. A key has one partition and one writer, which waits for each response. So a key's sequence
numbers must ascend with the offsets.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.adapter import Adapter, Receipt, merge
from tests.chaos.cluster import Node
from tests.chaos.history import Ended, History, Outcome, View, Write
from tests.chaos.reading import READ_WAIT_MS, RETRY_AFTER_S, PageReader, make_value
from tests.chaos.setup import PLACES, Setup
from tests.chaos.transactors import Transactors

ANOTHER_NODE_SHARE = 0.01
"""The share of requests before which a writer changes nodes, even if its node works."""
DRAIN_S = 3.0
SETTLE_S = 3.0
"""The wait before the final read, in s: longer than a node continues with a request after its client is gone."""


class WorkloadRunner:
    """Runs the workload of a setup against a cluster."""

    def __init__(
        self, setup: Setup, nodes: Sequence[Node], adapter: Adapter, history: History
    ) -> None:
        self._setup = setup
        self._workload = setup.workload
        self._nodes = nodes
        self._adapter = adapter
        self._history = history
        self._pages = PageReader(setup, adapter, history)
        self._transactors = (
            Transactors(setup, nodes, adapter, history, self._pages)
            if setup.workload.transactions_per_s
            else None
        )
        self._next_sequence: defaultdict[str, int] = defaultdict(int)
        self._is_stopping = False

    async def run(self) -> None:
        """Write and read for the duration of the run."""
        workload = self._workload
        work = [self._write_on(i) for i in range(workload.writers)]
        work += [self._read_on(i) for i in range(workload.readers)]
        work += self._transactors.work() if self._transactors else []
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.wait(tasks, timeout=self._setup.seconds, return_when=asyncio.FIRST_EXCEPTION)
        self._is_stopping = True
        if self._transactors:
            self._transactors.is_stopping = True
        # Note the end before the last requests end. They are part of the run, but their time is not.
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
        self,
        key: str,
        partition: int,
        at: int,
        count: int,
        acks: str,
        view: View = View.PLAIN,
    ) -> list[Receipt]:
        """Write the next ``count`` records of a key, through the node at this position."""
        first = self._next_sequence[key]
        self._next_sequence[key] = first + count
        names = [f"{key}:{first + i}" for i in range(count)]
        values = [(key, make_value(name, self._workload.padding_bytes)) for name in names]
        idempotency_key = (
            f"{self._setup.seed}-{key}-{first}" if self._workload.is_idempotent else None
        )
        topic, number = self._setup.located(view, partition)
        sent_s = self._history.now_s()
        receipts = [Receipt(Outcome.UNKNOWN, error="cancelled")] * count
        node = self._nodes[at]
        try:
            for attempt in range(self._workload.retries + 1):
                node = self._nodes[(at + attempt) % len(self._nodes)]
                latest = await self._adapter.produce(
                    node.url,
                    topic,
                    number,
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
                        view=view,
                    )
                )
        return receipts

    # -- readers

    async def _read_on(self, number: int) -> None:
        """Read repeatedly. Readers with even numbers stay on one node, so each replica is read; others may move."""
        rng = random.Random(f"{self._setup.seed}/reader/{number}")
        positions = dict.fromkeys(range(self._setup.partitions), 0)
        at = number % len(self._nodes)
        while not self._is_stopping:
            partition = rng.randrange(self._setup.partitions)
            following = await self._pages.poll(
                f"r{number}", self._nodes[at], View.PLAIN, partition, positions[partition]
            )
            if following is not None:
                positions[partition] = following
                continue
            if number % 2:
                at = (at + 1) % len(self._nodes)
            await asyncio.sleep(READ_WAIT_MS / 1000)

    # -- after healing

    async def read_finally(self) -> None:
        """Write a marker to every partition; then read each partition from every node's own replica up to its marker.

        The checkers use this read as the reference for everything else.
        """
        deadline_s = time.monotonic() + self._setup.final_timeout_s
        plain = [self._read_partition(p, deadline_s) for p in range(self._setup.partitions)]
        places = range(len(PLACES)) if self._transactors else ()
        await asyncio.gather(*plain, *(self._read_place(p, deadline_s) for p in places))
        if self._transactors:
            await self._transactors.look_at_group(deadline_s)

    async def _read_partition(self, partition: int, deadline_s: float) -> None:
        marker = await self._write_marker(View.PLAIN, partition, deadline_s)
        if marker is not None:
            for node in self._nodes:
                await self._pages.read_all(node, View.PLAIN, partition, marker, deadline_s)

    async def _read_place(self, place: int, deadline_s: float) -> None:
        """Read a partition in both views. Committed readers reach the marker when no transaction is open."""
        await asyncio.sleep(SETTLE_S)
        marker = await self._write_marker(View.COMMITTED, place, deadline_s)
        if marker is None:
            return
        for view in (View.UNCOMMITTED, View.COMMITTED):
            for node in self._nodes:
                await self._pages.read_all(node, view, place, marker, deadline_s)

    async def _write_marker(self, view: View, partition: int, deadline_s: float) -> int | None:
        key = f"final{partition}" if view is View.PLAIN else f"tail{partition}"
        at = partition
        while time.monotonic() < deadline_s:
            at = (at + 1) % len(self._nodes)
            receipts = await self.write(key, partition, at, 1, "all", view)
            if receipts[0].outcome is Outcome.OK:
                return receipts[0].offset
            await asyncio.sleep(RETRY_AFTER_S)
        return None
