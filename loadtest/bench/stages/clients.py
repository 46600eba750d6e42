"""The rates of the Python producer, the command and locust's users, compared with bare clients.

The bare client sends to the same topic requests that were made before the turn: the producer's batches, or the same
lines as JSON. The difference to its figure is the cost of making them. For the command see ``commands.py``.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

from loadtest.bench.clients.http_load import Ask, HttpLoadError
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import clients as clients_rows
from loadtest.bench.servers.subject import batch_ask, http_turn, json_ask
from loadtest.bench.stages import commands
from loadtest.bench.stages.produce import SMALL, start_milena
from milena import sync
from milena.client import Client

PARTITIONS = 6
BATCH_RECORDS = 2_240
"""Records of 100 B in a batch of 256 KiB, the producer's default."""
LIST_RECORDS = 1_000
"""The number of records that a program passes to ``send_many`` at a time."""
JSON_CONNECTIONS = 2
"""Connections to each leader: six in all, as many as there are partitions."""
_VALUE = b"x" * SMALL

LOCUST_USERS = 8
_BENCH = Path(__file__).parents[1]
_METERED = _BENCH / "clients" / "locust_users.py"
_LOCUSTFILE = _BENCH.with_name("locustfile.py")

Sending = Callable[[str, float], Awaitable[int]]
"""A function that sends records to a node's URL for some seconds, and returns how many."""


async def clients(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare the ways to write records of 100 B into six partitions, and to read them."""
    subject = await start_milena(plan, stack)
    await subject.create_topic("plain", is_durable=False, is_bounded=True, partitions=PARTITIONS)
    urls = await subject.leader_urls("plain")
    pids, url = subject.pids, urls[0]
    return [
        bare_client(
            clients_rows.READY_BATCHES, batches(urls, "plain", records=BATCH_RECORDS), 1, pids
        ),
        bare_client(clients_rows.READY_JSON, _json(urls, "plain"), JSON_CONNECTIONS, pids),
        sending(clients_rows.PRODUCER, url, _send, pids),
        sending(clients_rows.PRODUCER_BLOCKING, url, _send_blocking, pids),
        sending(clients_rows.PRODUCER_MANY, url, send_many, pids),
        sending(clients_rows.PRODUCER_MANY_BLOCKING, url, _send_many_blocking, pids),
        *commands.producing("plain", url, plan.directory, pids),
        *await commands.consuming(subject, url, partitions=PARTITIONS),
        _locust(
            clients_rows.BARE_LOCUST,
            url,
            files=[_METERED],
            arguments=["BareUser"],
            directory=plan.directory,
            pids=pids,
        ),
        _locust(
            clients_rows.LOCUST,
            url,
            files=[_LOCUSTFILE, _METERED],
            arguments=[
                "JsonOne",
                "--topic",
                "plain",
                "--ledger",
                str(plan.directory / "ledger"),
            ],
            directory=plan.directory,
            pids=pids,
        ),
    ]


# -- the bare client -----------------------------------------------------------------------------------


async def spread(asks: Sequence[tuple[str, Ask]], *, connections: int, seconds: float) -> Turn:
    """Load several servers at the same time; return one turn for all."""
    turns = await asyncio.gather(
        *(http_turn(url, ask, connections=connections, seconds=seconds) for url, ask in asks)
    )
    return Turn.together(turns)


def batches(urls: Sequence[str], topic: str, *, records: int) -> list[tuple[str, Ask]]:
    """Return writes of encoded batches with acks=all for the leaders of a topic's partitions, which have these URLs."""
    return [
        (url, batch_ask(url, topic, records=records, size=SMALL, acks="all", partition=partition))
        for partition, url in enumerate(urls)
    ]


def _json(urls: Sequence[str], topic: str) -> list[tuple[str, Ask]]:
    return [
        (url, json_ask(url, topic, records=LIST_RECORDS, size=SMALL, acks="all"))
        for url in dict.fromkeys(urls)
    ]


def bare_client(
    name: str, asks: Sequence[tuple[str, Ask]], connections: int, pids: tuple[int, ...]
) -> Contender:
    """Return a contender that sends requests to several servers, over ``connections`` connections to each."""

    async def turn(seconds: float) -> Turn:
        return await spread(asks, connections=connections, seconds=seconds)

    return Contender(name=name, turn=turn, pids=pids)


# -- the client ----------------------------------------------------------------------------------------


def sending(name: str, url: str, send: Sending, pids: tuple[int, ...]) -> Contender:
    """Return a contender that sends records with a producer, which it makes for each turn."""

    async def turn(seconds: float) -> Turn:
        began_s = perf_counter()
        count = await send(url, seconds)
        took_s = perf_counter() - began_s
        return Turn(latencies_s=[took_s], units=count, seconds=took_s)

    return Contender(name=name, turn=turn, pids=pids)


async def _send(url: str, seconds: float) -> int:
    count, ends_s = 0, perf_counter() + seconds
    async with Client(url) as client, client.producer() as producer:
        while perf_counter() < ends_s:
            for _ in range(LIST_RECORDS):
                await producer.send("plain", _VALUE)
            count += LIST_RECORDS
    return count


async def send_many(url: str, seconds: float) -> int:
    """Send lists of records to the topic "plain" with the Python producer; return how many records."""
    values = [_VALUE] * LIST_RECORDS
    count, ends_s = 0, perf_counter() + seconds
    async with Client(url) as client, client.producer() as producer:
        while perf_counter() < ends_s:
            await producer.send_many("plain", values)
            count += LIST_RECORDS
    return count


async def _send_blocking(url: str, seconds: float) -> int:
    def send() -> int:
        count, ends_s = 0, perf_counter() + seconds
        with sync.Client(url) as client, client.producer() as producer:
            while perf_counter() < ends_s:
                for _ in range(LIST_RECORDS):
                    producer.send("plain", _VALUE)
                count += LIST_RECORDS
        return count

    return await asyncio.to_thread(send)


async def _send_many_blocking(url: str, seconds: float) -> int:
    def send() -> int:
        values = [_VALUE] * LIST_RECORDS
        count, ends_s = 0, perf_counter() + seconds
        with sync.Client(url) as client, client.producer() as producer:
            while perf_counter() < ends_s:
                producer.send_many("plain", values)
                count += LIST_RECORDS
        return count

    return await asyncio.to_thread(send)


# -- locust --------------------------------------------------------------------------------------------


def _locust(
    name: str,
    url: str,
    *,
    files: Sequence[Path],
    arguments: Sequence[str],
    directory: Path,
    pids: tuple[int, ...],
) -> Contender:
    """Return a contender with users of one kind. Its rate is per CPU second of the users, which use a whole core."""
    meter = directory / "meter.json"
    root = str(_LOCUSTFILE.parents[1])
    environment = {
        **os.environ,
        "LOCUST_METER": str(meter),
        "BARE_TOPIC": "plain",
        "PYTHONPATH": root + os.pathsep + os.environ.get("PYTHONPATH", ""),
    }

    async def turn(seconds: float) -> Turn:
        meter.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "--headless", "--only-summary", "--host", url),
            *("-f", ",".join(map(str, files)), "--users", str(LOCUST_USERS)),
            *("--spawn-rate", str(LOCUST_USERS), "--run-time", f"{max(1, round(seconds))}s"),
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode != 0 or not meter.exists():
            raise HttpLoadError(f"locust: {said.decode(errors='replace')[-300:]}")
        figures = json.loads(meter.read_text(encoding="utf-8"))
        return Turn(
            latencies_s=[seconds], units=figures["requests"], seconds=max(figures["cpu_s"], 0.01)
        )

    return Contender(name=name, turn=turn, pids=pids)
