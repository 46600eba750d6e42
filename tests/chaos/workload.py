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

from tests.chaos.adapter import Adapter, Receipt, Value, merge
from tests.chaos.cluster import Cluster
from tests.chaos.drafts import Programs
from tests.chaos.history import ANY_NODE, Ended, History, Outcome, View, Write
from tests.chaos.kafka_clients import KafkaProducer, KafkaRefusedError
from tests.chaos.kafka_programs import KafkaPages, KafkaTransactors
from tests.chaos.reading import READ_WAIT_MS, RETRY_AFTER_S, PageReader, make_value
from tests.chaos.setup import PLACES, Client, Setup
from tests.chaos.transactors import Transactors

ANOTHER_NODE_SHARE = 0.01
"""The share of requests before which a writer changes nodes, even if its node works."""
DRAIN_S = 3.0
SETTLE_S = 3.0
"""The wait before the final read, in s: longer than a node continues with a request after its client is gone."""


class WorkloadRunner:
    """Runs the workload of a setup against a cluster."""

    def __init__(self, setup: Setup, cluster: Cluster, adapter: Adapter, history: History) -> None:
        self._setup = setup
        self._workload = setup.workload
        self._nodes = cluster.nodes
        self._servers = cluster.kafka_servers
        self._adapter = adapter
        self._history = history
        self._pages = PageReader(setup, adapter, history)
        self._kafka_pages = KafkaPages(setup, self._servers, history)
        self._programs = Programs(setup, self._nodes, history, "workload")
        self._transactors = Transactors(setup, self._nodes, adapter, history, self._pages)
        self._kafka_transactors = KafkaTransactors(
            setup, self._nodes, self._servers, history, self._kafka_pages
        )
        self._next_sequence: defaultdict[str, int] = defaultdict(int)

    @property
    def _has_transactions(self) -> bool:
        return self._workload.transactions_per_s > 0

    async def run(self) -> None:
        """Write and read for the duration of the run."""
        workload = self._workload
        work = [self._write_on(i) for i in range(workload.writers)]
        work += [self._read_on(i) for i in range(workload.readers)]
        if self._has_transactions:
            work += self._transactors.work() + self._kafka_transactors.work()
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.wait(tasks, timeout=self._setup.seconds, return_when=asyncio.FIRST_EXCEPTION)
        for programs in (self._programs, self._transactors, self._kafka_transactors):
            programs.is_stopping = True
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

    def _client(self, number: int) -> Client:
        """Return the interface of a writer or a reader."""
        clients = self._workload.clients
        return clients[number % len(clients)]

    # -- writers

    async def _write_on(self, number: int) -> None:
        rng = random.Random(f"{self._setup.seed}/writer/{number}")
        workload = self._workload
        partition = number % self._setup.partitions
        keys = [f"w{number}k{i}" for i in range(workload.keys_per_writer)]
        at = number % len(self._nodes)
        producer = KafkaProducer(self._servers) if self._client(number) is Client.KAFKA else None
        try:
            while not self._programs.is_stopping:
                key, count = rng.choice(keys), rng.randint(1, workload.records_per_request_max)
                if producer is not None:
                    try:
                        await self.write_to_kafka(producer, key, partition, count)
                    except KafkaRefusedError:
                        producer.close()
                        producer = KafkaProducer(self._servers)
                else:
                    acks = rng.choice(workload.acks)
                    receipts = await self.write(key, partition, at, count, acks)
                    is_good = all(r.outcome is Outcome.OK for r in receipts)
                    if not is_good or rng.random() < ANOTHER_NODE_SHARE:
                        at = (at + 1) % len(self._nodes)
                await asyncio.sleep(rng.expovariate(workload.requests_per_s))
        finally:
            if producer is not None:
                producer.close()

    async def write_to_kafka(
        self, producer: KafkaProducer, key: str, partition: int, count: int
    ) -> None:
        """Write the next ``count`` records of a key with an idempotent producer, which repeats them by itself.

        Raises:
            KafkaRefusedError: the producer can do nothing more.
        """
        names, values = self._next_records(key, count)
        topic, number = self._setup.located(View.PLAIN, partition)
        sent_s = self._history.now_s()
        receipts = [Receipt(Outcome.UNKNOWN, error="cancelled")] * count
        try:
            receipts = await producer.write(topic, number, values)
        finally:
            self._note(names, receipts, sent_s, partition, ANY_NODE, "all", is_once=True)

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
        names, values = self._next_records(key, count)
        idempotency_key = f"{self._setup.seed}-{names[0]}" if self._workload.is_idempotent else None
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
            self._note(names, receipts, sent_s, partition, node.node_id, acks, view=view)
        return receipts

    def _next_records(self, key: str, count: int) -> tuple[list[str], list[tuple[str, Value]]]:
        """Return the next names of a key, and the records with these names."""
        first = self._next_sequence[key]
        self._next_sequence[key] = first + count
        names = [f"{key}:{first + i}" for i in range(count)]
        return names, [(key, make_value(name, self._workload.padding_bytes)) for name in names]

    def _note(
        self,
        names: Sequence[str],
        receipts: Sequence[Receipt],
        sent_s: float,
        partition: int,
        node: int,
        acks: str,
        *,
        view: View = View.PLAIN,
        is_once: bool = False,
    ) -> None:
        for name, receipt in zip(names, receipts, strict=True):
            self._history.add(
                Write(
                    at_s=self._history.now_s(),
                    sent_s=sent_s,
                    record=name,
                    partition=partition,
                    node=node,
                    acks=acks,
                    outcome=receipt.outcome,
                    offset=receipt.offset,
                    error=receipt.error,
                    view=view,
                    is_once=is_once,
                )
            )

    # -- readers

    async def _read_on(self, number: int) -> None:
        """Read repeatedly. Readers with even numbers stay on one node, so each replica is read; others may move."""
        if self._client(number) is Client.KAFKA:
            await self._kafka_pages.read_on(self._programs, f"r{number}", View.PLAIN)
            return
        rng = random.Random(f"{self._setup.seed}/reader/{number}")
        positions = dict.fromkeys(range(self._setup.partitions), 0)
        at = number % len(self._nodes)
        while not self._programs.is_stopping:
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
        """Write a marker to every partition; then read each partition up to its marker.

        It is read from every node's own replica, and over Kafka. The checkers use this read as the reference for
        everything else.
        """
        deadline_s = time.monotonic() + self._setup.final_timeout_s
        plain = [self._read_partition(p, deadline_s) for p in range(self._setup.partitions)]
        places = range(len(PLACES)) if self._has_transactions else ()
        await asyncio.gather(*plain, *(self._read_place(p, deadline_s) for p in places))
        if self._has_transactions:
            await self._transactors.look_at_group(deadline_s)

    async def _read_partition(self, partition: int, deadline_s: float) -> None:
        marker = await self._write_marker(View.PLAIN, partition, deadline_s)
        if marker is not None:
            for node in self._nodes:
                await self._pages.read_all(node, View.PLAIN, partition, marker, deadline_s)
            if Client.KAFKA in self._workload.clients:
                await self._kafka_pages.read_all(View.PLAIN, partition, marker, deadline_s)

    async def _read_place(self, place: int, deadline_s: float) -> None:
        """Read a partition in both views. Committed readers reach the marker when no transaction is open."""
        await asyncio.sleep(SETTLE_S)
        marker = await self._write_marker(View.COMMITTED, place, deadline_s)
        if marker is None:
            return
        for view in (View.UNCOMMITTED, View.COMMITTED):
            for node in self._nodes:
                await self._pages.read_all(node, view, place, marker, deadline_s)
            if Client.KAFKA in self._workload.clients:
                await self._kafka_pages.read_all(view, place, marker, deadline_s)

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
