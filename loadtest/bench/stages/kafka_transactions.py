"""Transactions of Kafka producers: one record and a commit, again and again, by many producers at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from time import perf_counter

from kafka.record import MemoryRecordsBuilder

from loadtest.bench.clients import kafka_wire as wire
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.measuring.rounds import Turn
from loadtest.bench.stages.produce import SMALL

PRODUCERS = 64
_TIMEOUT_MS = 60_000
_RETRIABLE = frozenset({14, 15, 16, 51})
"""The coordinator loads, is not available, or has moved; a transaction of this producer is being ended."""
_PATIENCE_S = 10.0
_VALUE = b"x" * SMALL


def side_by_side(work: Callable[[int, float], Turn], seconds: float) -> Turn:
    """Do the work of each producer on a thread; return the turn of all together. ``work`` takes their numbers."""
    with ThreadPoolExecutor(PRODUCERS) as threads:
        return Turn.together(list(threads.map(work, range(PRODUCERS), repeat(seconds))))


def commit_for(address: str, topic: str, name: str, seconds: float) -> Turn:
    """Write one record to partition 0 and commit it, repeatedly. A latency is that of a whole transaction."""
    latencies_s: list[float] = []
    with closing(OneClient(address)) as client:
        made = _ask(client, 22, 0, wire.text(name) + wire.int32(_TIMEOUT_MS), _init_code)
        made.int32()
        made.int16()
        producer_id, epoch = made.int64(), made.int16()
        identity = wire.text(name) + wire.int64(producer_id) + wire.int16(epoch)
        enlist = wire.int32(1) + wire.text(topic) + wire.int32(1) + wire.int32(0)
        began_s = perf_counter()
        while not latencies_s or perf_counter() - began_s < seconds:
            sent_s = perf_counter()
            _ask(client, 24, 0, identity + enlist, _enlisted_code)
            body = _records(producer_id, epoch, len(latencies_s))
            head = wire.text(name) + wire.int16(-1) + wire.int32(30_000)
            part = wire.int32(1) + wire.text(topic) + wire.int32(1) + wire.int32(0)
            _ask(client, 0, 8, head + part + wire.data(body), _produced_code)
            _ask(client, 26, 1, identity + b"\1", _ended_code)
            latencies_s.append(perf_counter() - sent_s)
    return Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=perf_counter() - began_s)


def _records(producer_id: int, epoch: int, sequence: int) -> bytes:
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=0,
        batch_size=1 << 20,
        transactional=True,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    builder.append(timestamp=None, key=None, value=_VALUE)
    builder.close()
    return bytes(builder.buffer())


def _ask(
    client: OneClient,
    key: int,
    version: int,
    body: bytes,
    code_of: Callable[[wire.KafkaFields], int],
) -> wire.KafkaFields:
    """Send a request until its code is no more retriable; return the response, from its start."""
    request, ends_s = wire.frame(key, version, body), perf_counter() + _PATIENCE_S
    while True:
        content = client.exchange(request, wire.is_whole)
        code = code_of(wire.KafkaFields(content))
        if not code:
            return wire.KafkaFields(content)
        if code not in _RETRIABLE or perf_counter() > ends_s:
            raise HttpLoadError(f"a transaction got the error code {code} for the API key {key}")


def _init_code(answer: wire.KafkaFields) -> int:
    answer.int32()
    return answer.int16()


def _enlisted_code(answer: wire.KafkaFields) -> int:
    # Throttle time, topics, name, partitions, partition.
    for read in (answer.int32, answer.int32, answer.text, answer.int32, answer.int32):
        read()
    return answer.int16()


def _produced_code(answer: wire.KafkaFields) -> int:
    for read in (answer.int32, answer.text, answer.int32, answer.int32):
        read()
    return answer.int16()


_ended_code = _init_code
