"""``milena produce`` and ``milena consume`` as whole programs, from their start to their end.

The commands write a file of lines, and read records with keys; their output is discarded. The Python client's reader
reads the same records for comparison, and prints none.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.rows import clients as clients_rows
from loadtest.bench.servers.subject import Subject
from loadtest.bench.stages.produce import SMALL
from milena.client import Client

LINES, FEW_LINES = 500_000, 10_000
STORED = "stored"
_VALUE = b"x" * SMALL
_LIST_RECORDS = 1_000
_RUN = "RUN"
"""A placeholder for the number of the run: each run joins a new group, which has read nothing yet."""
_runs = count()


def producing(topic: str, url: str, directory: Path, pids: tuple[int, ...]) -> list[Contender]:
    """Return contenders that run ``milena produce`` for a large file and for a small one."""
    found = []
    for name, lines in {
        clients_rows.PRODUCE_LINES: LINES,
        clients_rows.PRODUCE_START: FEW_LINES,
    }.items():
        path = directory / f"{lines}.lines"
        path.write_bytes((_VALUE + b"\n") * lines)
        found.append(_command(name, url, ("produce", topic, str(path)), lines, pids))
    return found


async def consuming(subject: Subject, url: str, *, partitions: int) -> list[Contender]:
    """Return contenders that run ``milena consume`` in several forms and in a group, and a reader for comparison."""
    await subject.create_topic(STORED, is_durable=False, is_bounded=False, partitions=partitions)
    await _fill(url)
    member = ("--group", f"lines-{_RUN}", "--from-beginning", "--max-records", str(LINES))
    forms: dict[str, tuple[str, ...]] = {
        clients_rows.CONSUME_LINES: (),
        clients_rows.CONSUME_KEYS: ("--format", "key-value"),
        clients_rows.CONSUME_JSON: ("--format", "json"),
        clients_rows.CONSUME_GROUP: member,
    }
    return [
        reader(clients_rows.BARE_READER, url, STORED, partitions, subject.pids),
        *(
            _command(name, url, ("consume", STORED, *words), LINES, subject.pids)
            for name, words in forms.items()
        ),
    ]


async def _fill(url: str) -> None:
    values = [_VALUE] * _LIST_RECORDS
    async with Client(url) as client, client.producer() as producer:
        for first in range(0, LINES, _LIST_RECORDS):
            keys = [b"%08d" % number for number in range(first, first + _LIST_RECORDS)]
            await producer.send_many(STORED, values, keys=keys)


def reader(name: str, url: str, topic: str, partitions: int, pids: tuple[int, ...]) -> Contender:
    """Return a contender with the Python client's reader, which reads all partitions and ignores the records."""

    async def turn(seconds: float) -> Turn:
        began_s = perf_counter()
        read = 0
        async with Client(url) as client:
            while perf_counter() - began_s < seconds:
                for partition in range(partitions):
                    async with client.reader(topic, partition) as source:
                        async for records in source.batches():
                            read += len(records)
        took_s = perf_counter() - began_s
        return Turn(latencies_s=[took_s], units=read, seconds=took_s)

    return Contender(name=name, turn=turn, pids=pids)


def _command(
    name: str, url: str, words: Sequence[str], lines: int, pids: tuple[int, ...]
) -> Contender:
    """Return a contender that runs a command from start to end, repeatedly; each run processes ``lines`` records."""

    async def once() -> float:
        run = str(next(_runs))
        began_s = perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "milena", "--url", url),
            *(word.replace(_RUN, run) for word in words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode != 0:
            raise HttpLoadError(f"milena: {said.decode(errors='replace')[-300:]}")
        return perf_counter() - began_s

    return repeated(name, once, lines, pids)


def repeated(
    name: str, once: Callable[[], Awaitable[float]], count: int, pids: tuple[int, ...]
) -> Contender:
    """Return a contender that repeats ``once``, which processes ``count`` records and returns its seconds."""

    async def turn(seconds: float) -> Turn:
        latencies_s = [await once()]
        while sum(latencies_s) < seconds:
            latencies_s.append(await once())
        took_s = sum(latencies_s)
        return Turn(latencies_s=latencies_s, units=count * len(latencies_s), seconds=took_s)

    return Contender(name=name, turn=turn, pids=pids)
