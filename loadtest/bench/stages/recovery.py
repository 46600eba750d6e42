"""Measure the recovery of a node with a large log that is killed during writes and restarted.

The figure is the time until the node is ready. Each time, the stage checks that the node has every acknowledged record.
"""

from time import perf_counter

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import cluster as cluster_rows
from loadtest.bench.servers.subject import Subject, batch_ask, http_turn
from loadtest.bench.stages.produce import BATCH_BYTES, BATCH_CLIENTS, LARGE
from milena.client import Client
from milena.cluster.admin import AdminClient

_TOPIC = "big"
_WHOLE_BYTES = 10_000_000_000
_MORE_S = 1.0
"""Seconds of writing before each further kill."""


async def recover(plan: BenchPlan) -> Rounds:
    """Run one node with one partition of ``recovery_bytes``, and kill it once per round."""
    rounds = Rounds()
    records = BATCH_BYTES // LARGE
    async with Subject(plan.directory / "milena", node_count=1) as subject:
        url = await subject.create_topic(_TOPIC, is_durable=True, is_bounded=False)
        (node,) = subject.nodes
        ask = batch_ask(url, _TOPIC, records=records, size=LARGE, acks="all")
        written = 0
        while written * LARGE < plan.recovery_bytes:
            turn = await http_turn(url, ask, connections=BATCH_CLIENTS, seconds=_MORE_S)
            written += int(turn.units)
        for number in range(plan.rounds):
            turn = await http_turn(url, ask, connections=BATCH_CLIENTS, seconds=_MORE_S)
            written += int(turn.units)
            node.process.kill()
            began_s = perf_counter()
            node.process.start()
            await subject.wait_ready(node)
            seconds = perf_counter() - began_s
            await _check(url, written)
            rounds.note(cluster_rows.RECOVERY, Sample(figures={Quantity.SECONDS: seconds}))
            plan.say(f"round {number + 1} of {plan.rounds}")
    if plan.recovery_bytes < _WHOLE_BYTES:
        size = f"{written * LARGE / 1e9:.1f} GB"
        rounds.reduced[cluster_rows.RECOVERY] = f"with {size}; --recovery-gb 10 judges it"
    rounds.facts["log"] = f"{written * LARGE / 1e9:.1f} GB in one partition"
    return rounds


async def _check(url: str, written: int) -> None:
    """Check that the log has exactly the acknowledged records, and that the last one can be read."""
    async with AdminClient(url) as admin:
        (found,) = await admin.offsets(await admin.topic(_TOPIC))
    if found.high_watermark != written:
        raise HttpLoadError(
            f"{written} records were acknowledged, {found.high_watermark} are there"
        )
    async with Client(url) as client, client.reader(_TOPIC, 0, start=written - 1) as reader:
        values = [record.value async for record in reader]
    if [len(value or b"") for value in values] != [LARGE]:
        raise HttpLoadError("the last record is not what was written")
