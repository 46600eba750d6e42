"""Compare Kafka clients with HTTP clients of the same nodes.

Single requests are frames that were made before the turn, so that the client costs little. librdkafka, through
confluent-kafka, shows what a program gets. Its calls block, so they run on threads.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from itertools import cycle
from struct import Struct
from time import perf_counter

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from loadtest.bench.clients import one_client
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import kafka as kafka_rows
from loadtest.bench.servers.subject import Subject, json_ask
from loadtest.bench.stages.clients import LIST_RECORDS
from loadtest.bench.stages.produce import SMALL
from loadtest.bench.stages.reading import FETCH_BYTES, stored_topic
from milena.client import Client

_VALUE = b"x" * SMALL
_BATCH_RECORDS = 640
"""Records of 100 B in a batch of 64 KB; a fetch of 1 MB has sixteen batches, as over HTTP."""
_STORED_BATCHES = 64
_SIZE, _PATIENCE_S, _SETTLE_S = Struct(">i"), 30.0, 2.0
_HEAD = Struct(">hhih")
_FETCH_OFFSETS = 16


# -- frames ----------------------------------------------------------------------------------------


def _frame(key: int, version: int, body: bytes) -> bytes:
    """Return a request without a client id. Both versions here are the last ones before the compact encoding."""
    frame = _HEAD.pack(key, version, 1, -1) + body
    return _SIZE.pack(len(frame)) + frame


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def produce_frame(topic: str, *, records: int) -> bytes:
    """Return a request that writes records of 100 B into partition 0, with acks=all."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 30)
    for _ in range(records):
        builder.append(timestamp=None, key=None, value=_VALUE)
    builder.close()
    batch = bytes(builder.buffer())
    body = Struct(">hhii").pack(-1, -1, 30_000, 1) + _text(topic)
    return _frame(0, 8, body + Struct(">iii").pack(1, 0, len(batch)) + batch)


def fetch_frame(topic: str, offset: int) -> bytes:
    """Return a request for 1 MB of partition 0, without a wait or a session."""
    body = Struct(">iiiibiii").pack(-1, 0, 1, FETCH_BYTES, 1, 0, -1, 1) + _text(topic)
    part = Struct(">iiiqqi").pack(1, 0, -1, offset, -1, FETCH_BYTES)
    return _frame(1, 11, body + part + Struct(">ih").pack(0, 0))


def is_whole(answer: bytes) -> bool:
    """Return whether a response is complete."""
    return len(answer) >= _SIZE.size and len(answer) >= _SIZE.size + _SIZE.unpack_from(answer)[0]


def check_produced(answer: bytes, topic: str) -> None:
    """Make sure that a response of Produce says that the records are written.

    Raises:
        HttpLoadError: it does not.
    """
    # Size, correlation id, topics, name, partitions, partition.
    (code,) = Struct(">h").unpack_from(answer, 4 + 4 + 4 + 2 + len(topic) + 4 + 4)
    if code:
        raise HttpLoadError(f"a produce request got the error code {code}")


def _ask_turn(
    address: str, frames: list[bytes], check: Callable[[bytes], None], seconds: float
) -> tuple[list[float], float, int]:
    host, _, port = address.rpartition(":")
    requests, size = cycle(frames), 0
    with closing(OneClient(host, int(port))) as client:

        def work() -> None:
            nonlocal size
            answer = client.exchange(next(requests), is_whole)
            size += len(answer)
            check(answer)

        latencies_s, took_s = one_client.repeat(work, seconds)
    return latencies_s, took_s, size


# -- the stage -------------------------------------------------------------------------------------


async def kafka(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare reads, writes and single records of both interfaces."""
    del rounds
    settings = {"MILENA_KAFKA_LISTEN": "127.0.0.1:0", **plan.settings}
    subject = await stack.enter_async_context(Subject(plan.directory / "milena", settings=settings))
    pids = subject.pids
    http_url, http_ask, _ = await stored_topic(subject)
    kafka_stored = await _topic(subject, "kafka-stored", is_bounded=False)
    single = await _topic(subject, "kafka-one", is_bounded=True)
    # A Kafka client would ask again if a leader has not taken over yet; these frames would not.
    await asyncio.sleep(_SETTLE_S)
    await asyncio.to_thread(_fill, kafka_stored, "kafka-stored")
    single_url = await subject.create_topic("http-one", is_durable=False)
    await _topic(subject, "kafka-plain", is_bounded=True)
    plain_url = await subject.create_topic("plain", is_durable=False)
    one_ask = json_ask(single_url, "http-one", records=1, size=SMALL, acks="all")

    def on_thread(name: str, turn: Callable[[float], Turn]) -> Contender:
        async def take(seconds: float) -> Turn:
            return await asyncio.to_thread(turn, seconds)

        return Contender(name=name, turn=take, pids=pids)

    bootstrap = subject.nodes[0].kafka_address()
    count = _STORED_BATCHES * _BATCH_RECORDS
    return [
        on_thread(kafka_rows.KAFKA_FETCH, lambda s: _fetch_turn(kafka_stored, s)),
        on_thread(kafka_rows.HTTP_FETCH, lambda s: one_client.http_turn(http_url, http_ask, s)),
        on_thread(kafka_rows.KAFKA_ONE, lambda s: _one_turn(single, s)),
        on_thread(kafka_rows.HTTP_ONE, lambda s: one_client.http_turn(single_url, one_ask, s)),
        on_thread(kafka_rows.CONFLUENT_PRODUCER, lambda s: _confluent_send(bootstrap, s)),
        Contender(
            name=kafka_rows.HTTP_PRODUCER, turn=lambda s: _send_many(plain_url, s), pids=pids
        ),
        on_thread(
            kafka_rows.CONFLUENT_CONSUMER,
            lambda s: _confluent_read(bootstrap, "kafka-stored", count, s),
        ),
        on_thread(
            kafka_rows.CONFLUENT_CONVERTED,
            lambda s: _confluent_read(bootstrap, "stored", count, s),
        ),
    ]


async def _topic(subject: Subject, name: str, *, is_bounded: bool) -> str:
    """Create a topic; return the address of its leader for Kafka clients."""
    url = await subject.create_topic(name, is_durable=False, is_bounded=is_bounded)
    return next(node for node in subject.nodes if node.url == url).kafka_address()


def _fill(address: str, topic: str) -> None:
    frame = produce_frame(topic, records=_BATCH_RECORDS)
    host, _, port = address.rpartition(":")
    with closing(OneClient(host, int(port))) as client:
        for _ in range(_STORED_BATCHES):
            check_produced(client.exchange(frame, is_whole), topic)


def _fetch_turn(address: str, seconds: float) -> Turn:
    frames = [
        fetch_frame("kafka-stored", number * _BATCH_RECORDS) for number in range(_FETCH_OFFSETS)
    ]

    def check(answer: bytes) -> None:
        if len(answer) < FETCH_BYTES // 2:
            raise HttpLoadError(f"a fetch of {FETCH_BYTES} bytes got {len(answer)}")

    latencies_s, took_s, size = _ask_turn(address, frames, check, seconds)
    return Turn(latencies_s=latencies_s, units=size / 1e6, seconds=took_s)


def _one_turn(address: str, seconds: float) -> Turn:
    frames = [produce_frame("kafka-one", records=1)]
    latencies_s, took_s, _ = _ask_turn(
        address, frames, lambda answer: check_produced(answer, "kafka-one"), seconds
    )
    return Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=took_s)


def _confluent_send(bootstrap: str, seconds: float) -> Turn:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    count, began_s = 0, perf_counter()
    while perf_counter() - began_s < seconds:
        for _ in range(LIST_RECORDS):
            try:
                producer.produce("kafka-plain", _VALUE)
            except BufferError:
                producer.poll(0.01)
                continue
            count += 1
        producer.poll(0)
    if producer.flush(_PATIENCE_S):
        raise HttpLoadError("records of confluent-kafka were not acknowledged in time")
    took_s = perf_counter() - began_s
    return Turn(latencies_s=[took_s], units=count, seconds=took_s)


async def _send_many(url: str, seconds: float) -> Turn:
    values = [_VALUE] * LIST_RECORDS
    count, began_s = 0, perf_counter()
    async with Client(url) as client, client.producer() as producer:
        while perf_counter() - began_s < seconds:
            await producer.send_many("plain", values)
            count += LIST_RECORDS
    took_s = perf_counter() - began_s
    return Turn(latencies_s=[took_s], units=count, seconds=took_s)


def _confluent_read(bootstrap: str, topic: str, records: int, seconds: float) -> Turn:
    """Read the first records of a topic repeatedly until the time is over; connecting is not counted."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    count, took_s = 0, 0.0
    with closing(consumer):
        while took_s < seconds:
            consumer.assign([TopicPartition(topic, 0, 0)])
            read = len(_consumed(consumer, 1))
            began_s = perf_counter()
            while read < records:
                # A call waits until it has as many records as it asks for.
                read += len(_consumed(consumer, min(LIST_RECORDS, records - read)))
            took_s += perf_counter() - began_s
            count += read
    return Turn(latencies_s=[took_s], units=count, seconds=took_s)


def _consumed(consumer: Consumer, count: int) -> list[object]:
    found = consumer.consume(count, _PATIENCE_S)
    errors = [error for message in found if (error := message.error()) is not None]
    if errors or not found:
        why = KafkaException(errors[0]) if errors else "no record came"
        raise HttpLoadError(f"confluent-kafka reads nothing: {why}")
    return list(found)
