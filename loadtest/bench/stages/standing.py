"""Measure the cost of nodes without work, of idle Kafka connections, and of many partitions."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing

from loadtest.bench.clients.kafka_wire import frame, is_whole
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.many_partitions import Phases, measure
from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import cluster as cluster_rows
from loadtest.bench.rows import kafka as kafka_rows
from loadtest.bench.servers.subject import Subject
from loadtest.cluster.local_cluster import LocalCluster

SETTLE_S = 3.0
_PARTITIONS = 3
_MANY = 1000
_CONNECTIONS = 1_000


async def idle(plan: BenchPlan) -> Rounds:
    """Measure three nodes with one topic and no clients; the busiest and the largest node count."""
    rounds = Rounds()
    async with Subject(plan.directory / "milena") as subject:
        await subject.create_topic("quiet", is_durable=True, partitions=_PARTITIONS)
        await asyncio.sleep(SETTLE_S)
        phases = Phases(subject)
        for number in range(plan.rounds):
            await asyncio.sleep(plan.idle_s)
            phase = phases.end("idle")
            figures = {
                Quantity.CPU: phase.cpu_percent,
                Quantity.MEMORY: max(phase.rss_mb.values()),
            }
            rounds.note(cluster_rows.IDLE, Sample(figures=figures))
            plan.say(f"round {number + 1} of {plan.rounds}")
    return rounds


async def kafka_idle(plan: BenchPlan) -> Rounds:
    """Measure a node with the Kafka listener and idle connections, and at the same time one without the listener.

    Both are clusters of one node, so that no other task of a cluster makes a difference.
    """
    rounds = Rounds()
    async with (
        Subject(plan.directory / "without", node_count=1) as without,
        Subject(
            plan.directory / "with", node_count=1, settings={"MILENA_KAFKA_LISTEN": "127.0.0.1:0"}
        ) as listening,
        AsyncExitStack() as stack,
    ):
        address = listening.nodes[0].kafka_address()
        clients = [stack.enter_context(closing(OneClient(address))) for _ in range(_CONNECTIONS)]
        # A connection that sends nothing at first is closed. ApiVersions is the first request of most clients.
        await asyncio.to_thread(_ask_each, clients)
        await asyncio.sleep(SETTLE_S)
        phases = [Phases(subject) for subject in (without, listening)]
        for number in range(plan.rounds):
            await asyncio.sleep(plan.idle_s)
            bare, loaded = (one.end("idle") for one in phases)
            figures = {
                Quantity.CPU: loaded.cpu_percent - bare.cpu_percent,
                Quantity.MEMORY: max(loaded.rss_mb.values()) - max(bare.rss_mb.values()),
            }
            rounds.note(kafka_rows.IDLE_CONNECTIONS, Sample(figures=figures))
            plan.say(f"round {number + 1} of {plan.rounds}")
        # Raises if the node has closed one of them.
        await asyncio.to_thread(_ask_each, clients)
    return rounds


def _ask_each(clients: Sequence[OneClient]) -> None:
    for client in clients:
        client.exchange(frame(18, 0, b""), is_whole)


async def partitions(plan: BenchPlan) -> Rounds:
    """Measure a topic of many partitions: its creation, its idle time, and the death of one of three leaders."""
    rounds = Rounds()
    async with LocalCluster(plan.directory / "milena", node_count=3) as cluster:
        phases = await measure(
            cluster, partitions=plan.partitions, topics=1, replication=3, idle_s=plan.idle_s
        )
    if plan.partitions < _MANY:
        for name in (
            cluster_rows.PARTITIONS_CREATED,
            cluster_rows.PARTITIONS_IDLE,
            cluster_rows.FAILOVER,
        ):
            rounds.reduced[name] = (
                f"with {plan.partitions} partitions; --partitions {_MANY} judges it"
            )
    for phase in phases:
        rounds.facts[phase.phase] = f"{phase.wall_s:.1f} s"
    (quiet,) = (phase for phase in phases if phase.phase == "idle")
    created_s = sum(phase.wall_s for phase in phases if phase.phase.startswith("create"))
    failover_s = sum(phase.wall_s for phase in phases if phase.phase.startswith("kill -9"))
    rounds.note(cluster_rows.PARTITIONS_CREATED, Sample(figures={Quantity.SECONDS: created_s}))
    rounds.note(cluster_rows.PARTITIONS_IDLE, Sample(figures={Quantity.CPU: quiet.cpu_percent}))
    rounds.note(cluster_rows.FAILOVER, Sample(figures={Quantity.SECONDS: failover_s}))
    return rounds
