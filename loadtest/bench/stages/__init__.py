"""The stages of a run. Each starts what it measures, lets it take turns, and kills it."""

from loadtest.bench.measuring.resident import RESIDENT_BYTES
from loadtest.bench.plan import InTurns, Stage
from loadtest.bench.stages import (
    access,
    clients,
    curves,
    demo,
    fairness,
    kafka,
    metadata,
    produce,
    reading,
    recovery,
    soak,
    standing,
    tail,
    transactions,
)

IN_TURNS: dict[str, InTurns] = {
    "requests": InTurns(start=produce.requests),
    "batches": InTurns(start=produce.batches, resident_bytes=RESIDENT_BYTES),
    "latency": InTurns(start=produce.latency),
    "latency-durable": InTurns(start=produce.latency_durable),
    "metadata": InTurns(start=metadata.commits),
    "fetch": InTurns(start=reading.fetch),
    "consumer": InTurns(start=reading.consumer),
    "kafka": InTurns(start=kafka.kafka),
    "transactions": InTurns(start=transactions.transactions),
    "clients": InTurns(start=clients.clients),
    "demo": InTurns(start=demo.demo),
    "access": InTurns(start=access.access),
    "fairness": InTurns(start=fairness.fairness),
}
STAGES: dict[str, Stage] = {
    **IN_TURNS,
    "tail": tail.tail,
    "idle": standing.idle,
    "kafka-idle": standing.kafka_idle,
    "partitions": standing.partitions,
    "recovery": recovery.recover,
    "soak": soak.soak,
    "curves": curves.curves,
}
"""The stages, in the order in which they run."""
