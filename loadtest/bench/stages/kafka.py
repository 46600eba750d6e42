"""Compare Kafka clients with HTTP clients of the same nodes.

Single requests are frames that were made before the turn, so that the client costs little. librdkafka, through
confluent-kafka, shows what a program gets. Its calls block, so they run on threads.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from itertools import count, cycle
from struct import Struct
from time import perf_counter

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from loadtest.bench.clients import kafka_members, one_client
from loadtest.bench.clients.http_load import Ask, HttpLoadError, encode_request
from loadtest.bench.clients.kafka_wire import KafkaAnswer, frame, is_whole, text
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import kafka as kafka_rows
from loadtest.bench.servers.subject import Subject, json_ask
from loadtest.bench.stages import kafka_transactions
from loadtest.bench.stages.clients import LIST_RECORDS, send_many, sending
from loadtest.bench.stages.produce import SMALL
from loadtest.bench.stages.reading import FETCH_BYTES, stored_topic
from loadtest.bench.stages.transactions import commit_for

_VALUE = b"x" * SMALL
_BATCH_RECORDS = 640
"""Records of 100 B in a batch of 64 KB; a fetch of 1 MB has sixteen batches, as over HTTP."""
_STORED_BATCHES = 64
_PATIENCE_S, _SETTLE_S = 30.0, 2.0
_FETCH_OFFSETS = 16
_JSON_TYPE = "application/vnd.kafka.binary.v2+json"
MEMBERS = 100
"""Members that join a group at the same time."""


# -- frames ----------------------------------------------------------------------------------------


def produce_frame(topic: str, *, records: int) -> bytes:
    """Return a request that writes records of 100 B into partition 0, with acks=all."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 30)
    for _ in range(records):
        builder.append(timestamp=None, key=None, value=_VALUE)
    builder.close()
    batch = bytes(builder.buffer())
    body = Struct(">hhii").pack(-1, -1, 30_000, 1) + text(topic)
    return frame(0, 8, body + Struct(">iii").pack(1, 0, len(batch)) + batch)


def fetch_frame(topic: str, offset: int) -> bytes:
    """Return a request for 1 MB of partition 0, without a wait or a session."""
    body = Struct(">iiiibiii").pack(-1, 0, 1, FETCH_BYTES, 1, 0, -1, 1) + text(topic)
    part = Struct(">iiiqqi").pack(1, 0, -1, offset, -1, FETCH_BYTES)
    return frame(1, 11, body + part + Struct(">ih").pack(0, 0))


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
    settings = {
        "MILENA_KAFKA_LISTEN": "127.0.0.1:0",
        "MILENA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        **plan.settings,
    }
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
    # A topic that does not sync accepts no transactions.
    session_url = await subject.create_topic("sessions", is_durable=True)
    transacted = await _topic(subject, "transacted", is_bounded=True, is_durable=True)
    kafka_url = next(n.url for n in subject.nodes if n.kafka_address() == kafka_stored)

    def on_thread(name: str, turn: Callable[[float], Turn]) -> Contender:
        async def take(seconds: float) -> Turn:
            return await asyncio.to_thread(turn, seconds)

        return Contender(name=name, turn=take, pids=pids)

    bootstrap = subject.nodes[0].kafka_address()
    stored_count = _STORED_BATCHES * _BATCH_RECORDS
    groups = count()

    async def join(_: float) -> Turn:
        name = f"bench-{next(groups)}"
        address = await asyncio.to_thread(_coordinator, bootstrap, name)
        took_s = await kafka_members.join_group(address, name, MEMBERS)
        return Turn(latencies_s=[took_s], units=MEMBERS, seconds=took_s)

    return [
        on_thread(kafka_rows.KAFKA_FETCH, lambda s: _fetch_turn(kafka_stored, s)),
        on_thread(kafka_rows.HTTP_FETCH, lambda s: one_client.http_turn(http_url, http_ask, s)),
        on_thread(kafka_rows.KAFKA_ONE, lambda s: _one_turn(single, s)),
        on_thread(kafka_rows.HTTP_ONE, lambda s: one_client.http_turn(single_url, one_ask, s)),
        on_thread(kafka_rows.CONFLUENT_PRODUCER, lambda s: _confluent_send(bootstrap, s)),
        sending(kafka_rows.HTTP_PRODUCER, plain_url, send_many, pids),
        on_thread(
            kafka_rows.CONFLUENT_CONSUMER,
            lambda s: _confluent_read(bootstrap, "kafka-stored", stored_count, s),
        ),
        on_thread(
            kafka_rows.CONFLUENT_CONVERTED,
            lambda s: _confluent_read(bootstrap, "stored", stored_count, s),
        ),
        on_thread(
            kafka_rows.JSON_V2,
            lambda s: one_client.http_turn(kafka_url, _json_fetch(kafka_url, "kafka-stored"), s),
        ),
        on_thread(
            kafka_rows.JSON_COLUMNS,
            lambda s: one_client.http_turn(http_url, _json_fetch(http_url, "stored"), s),
        ),
        on_thread(
            kafka_rows.KAFKA_TRANSACTIONS,
            lambda s: kafka_transactions.side_by_side(
                lambda n: kafka_transactions.commit_for(transacted, "transacted", f"kafka-{n}", s)
            ),
        ),
        on_thread(
            kafka_rows.HTTP_SESSIONS,
            lambda s: kafka_transactions.side_by_side(
                lambda n: commit_for(
                    session_url, s, topic="sessions", name=f"http-{n}", is_read=False
                )
            ),
        ),
        Contender(name=kafka_rows.MEMBERS_JOIN, turn=join, pids=pids),
    ]


def _json_fetch(url: str, topic: str) -> Ask:
    """Return fetches of records of 1 MB of batches, as JSON with values in base64."""
    path = f"/topics/{topic}/partitions/0/records?max_bytes={FETCH_BYTES}&offset="
    offsets = [number * _BATCH_RECORDS for number in range(_FETCH_OFFSETS)]
    requests = [
        encode_request(url, "GET", f"{path}{offset}", Accept=_JSON_TYPE) for offset in offsets
    ]
    return Ask(requests=requests, units=1)


def _coordinator(address: str, group: str) -> str:
    """Return where Kafka clients reach the coordinator of a group."""
    host, _, port = address.rpartition(":")
    with closing(OneClient(host, int(port))) as client:
        found = KafkaAnswer(client.exchange(frame(10, 0, text(group)), is_whole))
    if code := found.int16():
        raise HttpLoadError(f"the coordinator of a group: error code {code}")
    found.int32()
    return f"{found.text()}:{found.int32()}"


async def _topic(subject: Subject, name: str, *, is_bounded: bool, is_durable: bool = False) -> str:
    """Create a topic; return the address of its leader for Kafka clients."""
    url = await subject.create_topic(name, is_durable=is_durable, is_bounded=is_bounded)
    return next(node for node in subject.nodes if node.url == url).kafka_address()


def _fill(address: str, topic: str) -> None:
    request = produce_frame(topic, records=_BATCH_RECORDS)
    host, _, port = address.rpartition(":")
    with closing(OneClient(host, int(port))) as client:
        for _ in range(_STORED_BATCHES):
            check_produced(client.exchange(request, is_whole), topic)


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
