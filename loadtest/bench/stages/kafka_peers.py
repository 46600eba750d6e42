"""Other listeners of Kafka's protocol: Tansu, which is a broker in Rust, and the bare listener, which keeps nothing."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from loadtest.bench.clients import kafka_clients
from loadtest.bench.clients.kafka_clients import VALUE
from loadtest.bench.measuring.rounds import Contender, Turn, on_a_thread
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import kafka as rows
from loadtest.bench.servers.peers import (
    PeerMissingError,
    bare_kafka,
    executable,
    listening,
    tansu,
)
from loadtest.bench.stages.produce import start_peer

_LINES_PER_S = 400_000
"""Lines of a file for each second of a turn; about as many as librdkafka's own tool sends."""


async def contenders(
    plan: BenchPlan,
    stack: AsyncExitStack,
    rounds: Rounds,
    *,
    subject: str,
    pids: tuple[int, ...],
) -> list[Contender]:
    """Start the other listeners; ``subject`` is an address of Milena, which kcat compares with Tansu."""
    if not plan.has_peers:
        return []
    bare, bare_pids = stack.enter_context(bare_kafka(plan.directory / "bare-kafka"))
    await listening(bare, "the bare listener")
    found = [
        on_a_thread(
            rows.BARE_PRODUCER, partial(kafka_clients.confluent_send, bare), pids=bare_pids
        ),
        on_a_thread(rows.BARE_ONE, partial(kafka_clients.one_turn, bare), pids=bare_pids),
    ]
    names = (rows.TANSU_PRODUCER, rows.TANSU_CONSUMER, rows.KCAT_TANSU)
    started = start_peer(plan, stack, rounds, names, tansu(plan.directory / "tansu"))
    if started is None:
        return found
    address, tansu_pids = started
    await listening(address, "Tansu")
    await asyncio.to_thread(kafka_clients.create_topics, address, "kafka-plain", "kafka-stored")
    await asyncio.to_thread(kafka_clients.fill, address, "kafka-stored")
    send = partial(kafka_clients.confluent_send, address)
    read = partial(kafka_clients.confluent_read, address, "kafka-stored")
    found += [
        on_a_thread(rows.TANSU_PRODUCER, send, pids=tansu_pids),
        on_a_thread(rows.TANSU_CONSUMER, read, pids=tansu_pids),
    ]
    try:
        kcat = executable("kcat")
    except PeerMissingError as error:
        rounds.failures |= dict.fromkeys((rows.KCAT_LINES, rows.KCAT_TANSU), str(error))
        return found
    return [
        *found,
        _kcat(rows.KCAT_LINES, kcat, subject, plan.directory, pids=pids),
        _kcat(rows.KCAT_TANSU, kcat, address, plan.directory, pids=tansu_pids),
    ]


def _kcat(
    name: str, kcat: str, address: str, directory: Path, *, pids: tuple[int, ...]
) -> Contender:
    def turn(seconds: float) -> Turn:
        count = int(_LINES_PER_S * seconds)
        lines = directory / f"{count}.lines"
        if not lines.exists():
            lines.write_bytes((VALUE + b"\n") * count)
        return kafka_clients.kcat_turn(kcat, address, lines, count)

    return on_a_thread(name, turn, pids=pids)
