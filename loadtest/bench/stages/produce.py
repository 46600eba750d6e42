"""Compare writes: one record per request, many records per request, and one client that waits for each response."""

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from time import perf_counter
from typing import TypeVar

from loadtest.bench.clients import one_client
from loadtest.bench.clients.http_load import Ask, encode_request
from loadtest.bench.clients.nats_wire import publish_each
from loadtest.bench.clients.record_stream import RecordStream
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import produce as produce_rows
from loadtest.bench.servers.peers import (
    PeerMissingError,
    bare_server,
    listening,
    nats_cluster,
)
from loadtest.bench.servers.subject import Subject, batch_ask, http_turn, json_ask

CLIENTS = 64
BATCH_CLIENTS = 4
"""Connections of the producers: enough that the leader always has work, and few enough to keep its queue short."""
SMALL, LARGE = 100, 1024
BATCH_BYTES = 1 << 20
_AWAKE_DEVICE = "/dev/cpu_dma_latency"
_AWAKE_SETTINGS = {"MILENA_CPU_AWAKE_MS": "10"}

T = TypeVar("T")


def http_contender(
    name: str,
    url: str,
    ask: Ask,
    *,
    connections: int,
    pids: tuple[int, ...],
    tls: ssl.SSLContext | None = None,
) -> Contender:
    """Return a contender that sends requests to a server."""

    async def turn(seconds: float) -> Turn:
        if connections == 1:
            return await asyncio.to_thread(one_client.http_turn, url, ask, seconds)
        return await http_turn(url, ask, connections=connections, seconds=seconds, tls=tls)

    return Contender(name=name, turn=turn, pids=pids)


async def start_milena(plan: BenchPlan, stack: AsyncExitStack) -> Subject:
    """Start three nodes; leaving the stack kills them."""
    subject = Subject(plan.directory / "milena", settings=plan.settings)
    return await stack.enter_async_context(subject)


async def requests(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare requests with one record of 100 B, from 64 clients."""
    contenders = await bare(plan, stack, "POST", {produce_rows.BARE: CLIENTS})
    subject = await start_milena(plan, stack)
    plain = await subject.create_topic("plain", is_durable=False)
    synced = await subject.create_topic("synced", is_durable=True)
    for name, url, topic, acks in (
        (produce_rows.ONE_LEADER, plain, "plain", "1"),
        (produce_rows.ONE_ALL, plain, "plain", "all"),
        (produce_rows.ONE_LEADER_DURABLE, synced, "synced", "1"),
        (produce_rows.ONE_ALL_DURABLE, synced, "synced", "all"),
    ):
        ask = json_ask(url, topic, records=1, size=SMALL, acks=acks)
        contenders.append(http_contender(name, url, ask, connections=CLIENTS, pids=subject.pids))
    return contenders


async def bare(
    plan: BenchPlan, stack: AsyncExitStack, method: str, clients: Mapping[str, int]
) -> list[Contender]:
    """Return contenders that send 100 B to the bare server; ``clients`` has the number of clients of each."""
    if not plan.has_peers:
        return []
    url, pids = stack.enter_context(bare_server(plan.directory / f"bare-{method}"))
    await listening(url, "bare aiohttp")
    ask = Ask(requests=[encode_request(url, method, "/", b"x" * SMALL)])
    return [
        http_contender(name, url, ask, connections=connections, pids=pids)
        for name, connections in clients.items()
    ]


async def batches(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare requests with many records."""
    subject = await start_milena(plan, stack)
    plain = await subject.create_topic("plain", is_durable=False)
    synced = await subject.create_topic("synced", is_durable=True)
    contenders = _nats_async(plan, stack, rounds)
    for name, url, topic, size, is_json in (
        (produce_rows.JSON_1000, plain, "plain", SMALL, True),
        (produce_rows.BINARY_100, plain, "plain", SMALL, False),
        (produce_rows.BINARY_1K, plain, "plain", LARGE, False),
        (produce_rows.JSON_1000_DURABLE, synced, "synced", SMALL, True),
        (produce_rows.BINARY_100_DURABLE, synced, "synced", SMALL, False),
    ):
        if is_json:
            ask = json_ask(url, topic, records=1000, size=size, acks="all")
        else:
            ask = batch_ask(url, topic, records=BATCH_BYTES // size, size=size, acks="all")
        contenders.append(
            http_contender(name, url, ask, connections=BATCH_CLIENTS, pids=subject.pids)
        )
    contenders.append(await _v3_streams(subject, plain))
    return contenders


async def _v3_streams(subject: Subject, url: str) -> Contender:
    path = f"/v3/clusters/{await subject.cluster_id()}/topics/plain/records?acks=all"

    async def turn(seconds: float) -> Turn:
        streams = [await RecordStream.connect(url, path) for _ in range(BATCH_CLIENTS)]
        began_s = perf_counter()
        try:
            counts = await asyncio.gather(*(stream.send_for(seconds, SMALL) for stream in streams))
        finally:
            for stream in streams:
                stream.close()
        took_s = perf_counter() - began_s
        return Turn(latencies_s=[took_s], units=sum(counts), seconds=took_s)

    return Contender(name=produce_rows.STREAM_100, turn=turn, pids=subject.pids)


def _nats_async(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    names = {produce_rows.NATS_100: SMALL, produce_rows.NATS_1K: LARGE}
    peer = nats_cluster(plan.directory / "nats", is_synced=False)
    nats = start_peer(plan, stack, rounds, names, peer)
    if nats is None:
        return []

    def contender(name: str, size: int) -> Contender:
        async def turn(seconds: float) -> Turn:
            load = await nats.stream()
            began_s = perf_counter()
            try:
                count = await load.publish_many(size, seconds=seconds, count=None)
            finally:
                load.close()
            took_s = perf_counter() - began_s
            return Turn(latencies_s=[took_s], units=count, seconds=took_s)

        return Contender(name=name, turn=turn, pids=nats.pids)

    return [contender(name, size) for name, size in names.items()]


def start_peer(
    plan: BenchPlan,
    stack: AsyncExitStack,
    rounds: Rounds,
    contenders: Iterable[str],
    peer: AbstractContextManager[T],
) -> T | None:
    """Start a peer, which leaving the stack kills; None if the plan has no peers, or its program is missing.

    If the program is missing, the failure of these contenders is noted.
    """
    if not plan.has_peers:
        return None
    try:
        return stack.enter_context(peer)
    except PeerMissingError as error:
        rounds.failures.update(dict.fromkeys(contenders, str(error)))
        return None


async def latency(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Measure one client that waits for each record, in the page cache of the required replicas."""
    names = {produce_rows.SINGLE_ALL: "all", produce_rows.SINGLE_LEADER: "1"}
    awake_names = {produce_rows.SINGLE_ALL_AWAKE: "all", produce_rows.SINGLE_LEADER_AWAKE: "1"}
    contenders = await bare(plan, stack, "POST", {produce_rows.BARE_ONE: 1})
    contenders += _nats_each(plan, stack, rounds, produce_rows.NATS_SYNC, is_synced=False)
    contenders += await _singles(await start_milena(plan, stack), names, is_durable=False)
    if os.access(_AWAKE_DEVICE, os.W_OK):
        settings = {**plan.settings, **_AWAKE_SETTINGS}
        awake = Subject(plan.directory / "awake", settings=settings)
        await stack.enter_async_context(awake)
        contenders += await _singles(awake, awake_names, is_durable=False)
    else:
        why = f"{_AWAKE_DEVICE} cannot be written to, which cpu_awake_ms needs"
        rounds.failures.update(dict.fromkeys(awake_names, why))
    return contenders


async def latency_durable(
    plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds
) -> list[Contender]:
    """Measure one client that waits for each record, on the disks of the required replicas."""
    names = {produce_rows.SINGLE_ALL_DURABLE: "all", produce_rows.SINGLE_LEADER_DURABLE: "1"}
    contenders = await bare(plan, stack, "PUT", {produce_rows.BARE_SYNCED_ONE: 1})
    contenders += _nats_each(plan, stack, rounds, produce_rows.NATS_SYNC_SYNCED, is_synced=True)
    return contenders + await _singles(await start_milena(plan, stack), names, is_durable=True)


async def _singles(
    subject: Subject, acks_of: Mapping[str, str], *, is_durable: bool
) -> list[Contender]:
    url = await subject.create_topic("single", is_durable=is_durable)
    return [
        http_contender(
            name,
            url,
            json_ask(url, "single", records=1, size=SMALL, acks=acks),
            connections=1,
            pids=subject.pids,
        )
        for name, acks in acks_of.items()
    ]


def _nats_each(
    plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds, name: str, *, is_synced: bool
) -> list[Contender]:
    peer = nats_cluster(plan.directory / "nats", is_synced=is_synced)
    nats = start_peer(plan, stack, rounds, [name], peer)
    if nats is None:
        return []

    async def turn(seconds: float) -> Turn:
        (await nats.stream()).close()
        return await asyncio.to_thread(publish_each, nats.leader_port, SMALL, seconds)

    return [Contender(name=name, turn=turn, pids=nats.pids)]
