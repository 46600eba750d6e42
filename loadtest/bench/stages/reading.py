"""Compare reads: stored batches and a file sent by sendfile; Python consumers and NATS."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter

from loadtest.bench.clients.http_load import Ask, HttpLoad, encode_request
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import reading as reading_rows
from loadtest.bench.servers.peers import NatsCluster, bare_server, listening, nats_cluster, nginx
from loadtest.bench.servers.subject import Subject, batch_ask, fetch_ask, http_turn
from loadtest.bench.stages.produce import SMALL, http_contender, start_milena, start_peer
from milena.client import Client
from milena.records import StartAt

FETCH_BYTES = 1 << 20
FETCH_CLIENTS = 2
_MB = 1e6
_BATCH_RECORDS = 640
"""Records of 100 B in a batch of 64 KB; a fetch has sixteen batches."""
_FETCH_OFFSETS = 16
_STORED_RECORDS = 400_000
_NATS_MESSAGES = 200_000
_SETTLE_S = 0.2


async def _fill(url: str, topic: str, *, records: int) -> int:
    """Write batches of records of 100 B until there are ``records``; return their number."""
    ask = batch_ask(url, topic, records=_BATCH_RECORDS, size=SMALL, acks="all")
    written = 0.0
    while written < records:
        written += (await http_turn(url, ask, connections=1, seconds=0.2)).units
    return int(written)


async def fetch(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare fetches of 1 MB of stored batches by two clients with a file of the same size."""
    subject = await start_milena(plan, stack)
    url, ask, size = await stored_topic(subject)
    rounds.facts["a fetch"] = f"{size:,} bytes"
    contenders = [
        http_contender(reading_rows.FETCH, url, ask, connections=FETCH_CLIENTS, pids=subject.pids)
    ]
    return contenders + await _copier(plan, stack, size) + await _nginx(plan, stack, rounds, size)


async def stored_topic(
    subject: Subject, *, batches: int = 4 * _FETCH_OFFSETS
) -> tuple[str, Ask, int]:
    """Fill a topic; return its leader's URL, fetches of 1 MB each, and the bytes of one response."""
    url = await subject.create_topic("stored", is_durable=False, is_bounded=False)
    await _fill(url, "stored", records=batches * _BATCH_RECORDS)
    offsets = [number * _BATCH_RECORDS for number in range(_FETCH_OFFSETS)]
    ask = fetch_ask(url, "stored", offsets, max_bytes=FETCH_BYTES)
    size = await _body_bytes(url, ask)
    return url, replace(ask, units=size / _MB), size


async def _copier(plan: BenchPlan, stack: AsyncExitStack, size: int) -> list[Contender]:
    if not plan.has_peers:
        return []
    url, pids = stack.enter_context(bare_server(plan.directory / "bare", b"x" * size))
    await listening(url, "bare aiohttp")
    ask = Ask(requests=[encode_request(url, "GET", "/")], units=size / _MB)
    return [http_contender(reading_rows.COPIER, url, ask, connections=FETCH_CLIENTS, pids=pids)]


async def _nginx(
    plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds, size: int
) -> list[Contender]:
    peer = nginx(plan.directory / "nginx", b"x" * size)
    started = start_peer(plan, stack, rounds, [reading_rows.NGINX], peer)
    if started is None:
        return []
    url, pids = started
    await listening(url, "nginx")
    ask = Ask(requests=[encode_request(url, "GET", "/content")], units=size / _MB)
    return [http_contender(reading_rows.NGINX, url, ask, connections=FETCH_CLIENTS, pids=pids)]


async def _body_bytes(url: str, ask: Ask) -> int:
    """Return the size of the first response; all are equal."""
    load = HttpLoad(url, ask, connections=1)
    await load.open()
    try:
        await load.run(0)
    finally:
        load.close()
    return load.answer_bytes


async def consumer(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare ways in which one consumer reads records of 100 B from start to end, in a group and without one."""
    subject = await start_milena(plan, stack)
    url = await subject.create_topic("stored", is_durable=False, is_bounded=False)
    stored = await _fill(url, "stored", records=_STORED_RECORDS)
    contenders = [
        _reader(reading_rows.CONSUMER, url, stored, subject.pids, is_each=False),
        _reader(reading_rows.CONSUMER_EACH, url, stored, subject.pids, is_each=True),
        _member(url, stored, subject.pids),
    ]
    peer = nats_cluster(plan.directory / "nats", is_synced=False)
    nats = start_peer(plan, stack, rounds, [reading_rows.NATS_PULL], peer)
    if nats is not None:
        contenders.append(await _nats_pull(nats))
    return contenders


def _reader(name: str, url: str, stored: int, pids: tuple[int, ...], *, is_each: bool) -> Contender:
    async def turn(seconds: float) -> Turn:
        """Read the whole log repeatedly until the time is over; the last pass is completed."""
        began_s = perf_counter()
        count = 0
        async with Client(url) as client:
            while perf_counter() - began_s < seconds:
                async with client.reader("stored", 0, end=stored) as reader:
                    if is_each:
                        async for _ in reader:
                            count += 1
                    else:
                        async for records in reader.batches():
                            count += len(records)
        took_s = perf_counter() - began_s
        return Turn(latencies_s=[took_s], units=count, seconds=took_s)

    return Contender(name=name, turn=turn, pids=pids)


def _member(url: str, stored: int, pids: tuple[int, ...]) -> Contender:
    async def turn(seconds: float) -> Turn:
        """Read the whole log repeatedly until the time is over; joining the group is not counted."""
        count, took_s = 0, 0.0
        async with (
            Client(url) as client,
            client.consumer(
                "stored", group="bench", start=StartAt.EARLIEST, auto_commit=False
            ) as consumer,
        ):
            while not consumer.assignment:
                await consumer.poll(timeout_s=_SETTLE_S)
            while took_s < seconds:
                consumer.seek("stored", 0, 0)
                left, began_s = stored, perf_counter()
                while left > 0:
                    left -= len(await consumer.poll())
                took_s += perf_counter() - began_s
                count += stored
        return Turn(latencies_s=[took_s], units=count, seconds=took_s)

    return Contender(name=reading_rows.GROUP_CONSUMER, turn=turn, pids=pids)


async def _nats_pull(nats: NatsCluster) -> Contender:
    load = await nats.stream()
    try:
        await load.publish_many(SMALL, seconds=None, count=_NATS_MESSAGES)
    finally:
        load.close()

    async def turn(seconds: float) -> Turn:
        """Read the whole stream repeatedly until the time is over; creating a consumer is not counted."""
        count, took_s = 0, 0.0
        load = await nats.reconnect()
        try:
            while took_s < seconds:
                name = await load.create_consumer()
                # The servers tell each other of the new consumer. A request that arrives before that is lost.
                await asyncio.sleep(_SETTLE_S)
                began_s = perf_counter()
                count += await load.pull(name, _NATS_MESSAGES)
                took_s += perf_counter() - began_s
        finally:
            load.close()
        return Turn(latencies_s=[took_s], units=count, seconds=took_s)

    return Contender(name=reading_rows.NATS_PULL, turn=turn, pids=nats.pids)
