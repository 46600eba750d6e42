"""The rate by the number of records, partitions, nodes or readers: contenders that differ in this number only.

All write with acks=all to topics that do not sync, to show the nodes and not the disk. They use the bare client of the
other stages. Each point of a curve has the same number of clients, so that their number has no effect.
"""

import os
from contextlib import AsyncExitStack
from dataclasses import replace

from loadtest.bench.measuring.resident import RESIDENT_BYTES
from loadtest.bench.measuring.rounds import Contender
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan, InTurns
from loadtest.bench.reports.curves import (
    ALL_REPLICAS,
    BATCHES,
    JSON,
    ONE_REPLICA,
    PARTITIONS,
    READERS,
    TURNS,
)
from loadtest.bench.servers.subject import Subject, batch_ask, json_ask
from loadtest.bench.stages.clients import bare_client, batches
from loadtest.bench.stages.produce import SMALL, start_milena
from loadtest.bench.stages.reading import stored_topic

ROUNDS_MAX, TURN_S_MAX = 3, 1.0
"""The rounds and seconds of the two dozen contenders, which take two minutes: a curve needs no more."""
BATCH_CLIENTS = 16
"""The clients of the curve over records per request: while one waits for followers, the leader serves others."""
SPREAD_CLIENTS = 24
"""The clients of the curve over partitions: a multiple of all its numbers, so each partition has as many."""
SPREAD_PARTITIONS = 24
"""Partitions of the curve over nodes: each node leads the same number, except for one or two."""
_SPREAD_RECORDS = 100


async def curves(plan: BenchPlan) -> Rounds:
    """Measure all curves, in fewer and shorter turns than rows with a floor get."""
    short = replace(
        plan, rounds=min(plan.rounds, ROUNDS_MAX), seconds=min(plan.seconds, TURN_S_MAX)
    )
    return await InTurns(start=_start, resident_bytes=RESIDENT_BYTES)(short)


async def _start(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    rounds.facts[TURNS] = f"{plan.rounds} rounds of {plan.seconds:g} s"
    subject = await start_milena(plan, stack)
    return [
        *await _over_records(subject),
        *[await _into(subject, name, count) for count, name in PARTITIONS.items()],
        *await _over_nodes(plan, stack, subject),
        *await _over_readers(subject),
    ]


async def _over_records(subject: Subject) -> list[Contender]:
    url = await subject.create_topic("sizes", is_durable=False)
    return [
        bare_client(
            name,
            [(url, ask_of(url, "sizes", records=records, size=SMALL, acks="all"))],
            BATCH_CLIENTS,
            subject.pids,
        )
        for curve, ask_of in ((JSON, json_ask), (BATCHES, batch_ask))
        for records, name in curve.items()
    ]


async def _into(
    subject: Subject, name: str, partitions: int, *, replicas: int | None = None
) -> Contender:
    """Return a contender that writes encoded batches into its own topic; ``replicas`` is that of ``create_topic``."""
    topic = f"spread-{partitions}-{replicas or 'all'}"
    await subject.create_topic(topic, is_durable=False, partitions=partitions, replicas=replicas)
    asks = batches(await subject.leader_urls(topic), topic, records=_SPREAD_RECORDS)
    return bare_client(name, asks, SPREAD_CLIENTS // partitions, subject.pids)


async def _over_nodes(plan: BenchPlan, stack: AsyncExitStack, three: Subject) -> list[Contender]:
    """Return the contenders of the curve over nodes; ``three`` are the nodes of the other curves, used again here."""
    found = []
    for count in node_counts(os.cpu_count() or 1):
        subject = three
        if count != len(three.nodes):
            directory = plan.directory / f"milena-{count}"
            subject = Subject(directory, node_count=count, settings=plan.settings)
            await stack.enter_async_context(subject)
        # With one node, both curves have the same point.
        for name, replicas in {ONE_REPLICA[count]: 1, ALL_REPLICAS[count]: count}.items():
            found.append(await _into(subject, name, SPREAD_PARTITIONS, replicas=replicas))
    return found


def node_counts(cores: int) -> list[int]:
    """Return the numbers of nodes to measure: above three only if each node and the clients have a core."""
    return [count for count in ONE_REPLICA if count <= max(3, cores - 1)]


async def _over_readers(subject: Subject) -> list[Contender]:
    url, ask, _ = await stored_topic(subject)
    return [bare_client(name, [(url, ask)], count, subject.pids) for count, name in READERS.items()]
