"""The stages of a run; each starts what it measures, lets it take turns, and kills it."""

from loadtest.bench.plan import Stage
from loadtest.bench.stages import metadata, produce, reading, recovery, soak, standing, tail

STAGES: dict[str, Stage] = {
    "requests": produce.requests,
    "batches": produce.batches,
    "latency": produce.latency,
    "latency-durable": produce.latency_durable,
    "metadata": metadata.commits,
    "fetch": reading.fetch,
    "consumer": reading.consumer,
    "tail": tail.tail,
    "idle": standing.idle,
    "partitions": standing.partitions,
    "recovery": recovery.recover,
    "soak": soak.soak,
}
"""In the order in which they run."""
