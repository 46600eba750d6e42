"""Kafka clients of the bench: single requests, librdkafka by way of confluent-kafka, and kcat.

Single requests are frames that were made before the turn, so that the client costs little. librdkafka shows what a
program gets. All of them block, so they run on threads.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from struct import Struct
from time import perf_counter

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.record import MemoryRecordsBuilder

from loadtest.bench.clients import one_client
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.kafka_wire import frame, is_whole, text
from loadtest.bench.clients.one_client import OneClient
from loadtest.bench.measuring.rounds import Turn

VALUE = b"x" * 100
BATCH_RECORDS = 640
"""Records of 100 B in a batch of 64 KB; a fetch of 1 MB has sixteen batches, as over HTTP."""
STORED_BATCHES = 512
"""Far more than a client asks for in advance, so that the rate is not that of its own queue."""
STORED_RECORDS = STORED_BATCHES * BATCH_RECORDS
FETCH_BYTES = 1 << 20
_FETCH_OFFSETS = 16
_CALL_RECORDS = 1_000
"""Records between two looks at the clock, or of one call that reads."""
_PATIENCE_S = 30.0


def stored_offsets() -> list[int]:
    """Return the offsets from which clients fetch: each the first of a batch."""
    return [number * BATCH_RECORDS for number in range(_FETCH_OFFSETS)]


# -- frames ----------------------------------------------------------------------------------------


def produce_frame(topic: str, *, records: int) -> bytes:
    """Return a request that writes records of 100 B into partition 0, with acks=all."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 30)
    for _ in range(records):
        builder.append(timestamp=None, key=None, value=VALUE)
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
    requests, size = cycle(frames), 0
    with closing(OneClient(address)) as client:

        def work() -> None:
            nonlocal size
            answer = client.exchange(next(requests), is_whole)
            size += len(answer)
            check(answer)

        latencies_s, took_s = one_client.repeat(work, seconds)
    return latencies_s, took_s, size


def create_topics(bootstrap: str, *names: str) -> None:
    """Create topics of one partition at a single broker.

    Raises:
        HttpLoadError: the broker did not create one.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, num_partitions=1, replication_factor=1) for name in names]
    try:
        for created in admin.create_topics(topics).values():
            created.result(_PATIENCE_S)
    except (KafkaException, TimeoutError) as error:
        raise HttpLoadError(f"{bootstrap} created no topics: {error}") from error


def fill(address: str, topic: str) -> None:
    """Write what consumers and fetches read: ``STORED_RECORDS`` records in whole batches."""
    request = produce_frame(topic, records=BATCH_RECORDS)
    with closing(OneClient(address)) as client:
        for _ in range(STORED_BATCHES):
            check_produced(client.exchange(request, is_whole), topic)


def fetch_turn(address: str, seconds: float) -> Turn:
    """Fetch 1 MB after the other from the topic ``kafka-stored``; a unit is a megabyte."""
    frames = [fetch_frame("kafka-stored", offset) for offset in stored_offsets()]

    def check(answer: bytes) -> None:
        if len(answer) < FETCH_BYTES // 2:
            raise HttpLoadError(f"a fetch of {FETCH_BYTES} bytes got {len(answer)}")

    latencies_s, took_s, size = _ask_turn(address, frames, check, seconds)
    return Turn(latencies_s=latencies_s, units=size / 1e6, seconds=took_s)


def one_turn(address: str, seconds: float) -> Turn:
    """Write one record after the other into the topic ``kafka-one``."""
    frames = [produce_frame("kafka-one", records=1)]
    latencies_s, took_s, _ = _ask_turn(
        address, frames, lambda answer: check_produced(answer, "kafka-one"), seconds
    )
    return Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=took_s)


def confluent_send(bootstrap: str, seconds: float) -> Turn:
    """Write records of 100 B into the topic ``kafka-plain``, as many as the client takes."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    count, began_s = 0, perf_counter()
    while perf_counter() - began_s < seconds:
        for _ in range(_CALL_RECORDS):
            try:
                producer.produce("kafka-plain", VALUE)
            except BufferError:
                producer.poll(0.01)
                continue
            count += 1
        producer.poll(0)
    if producer.flush(_PATIENCE_S):
        raise HttpLoadError("records of confluent-kafka were not acknowledged in time")
    took_s = perf_counter() - began_s
    return Turn(latencies_s=[took_s], units=count, seconds=took_s)


def confluent_read(bootstrap: str, topic: str, seconds: float) -> Turn:
    """Read the stored records of a topic repeatedly until the time is over; connecting is not counted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            # At the end of the topic, a fetch waits so long before the consumer can begin again.
            "fetch.wait.max.ms": 10,
        }
    )
    count, took_s = 0, 0.0
    with closing(consumer):
        while took_s < seconds:
            consumer.assign([TopicPartition(topic, 0, 0)])
            read = len(_consumed(consumer, 1))
            began_s = perf_counter()
            while read < STORED_RECORDS:
                # A call waits until it has as many records as it asks for.
                read += len(_consumed(consumer, min(_CALL_RECORDS, STORED_RECORDS - read)))
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


def kcat_turn(kcat: str, bootstrap: str, lines: Path, count: int) -> Turn:
    """Write a file of ``count`` lines by a client in C, its start included: no Python is in the way.

    kcat runs with the librdkafka of confluent-kafka. Debian's cannot read Tansu's list of versions.

    Raises:
        HttpLoadError: not all lines were acknowledged.
    """
    command = [kcat, "-P", "-b", bootstrap, "-t", "kafka-plain", "-l", str(lines)]
    packages = Path(confluent_kafka.__file__).parent.parent
    library = ":".join(map(str, packages.glob("confluent_kafka.libs/librdkafka-*")))
    began_s = perf_counter()
    done = subprocess.run(
        [*command, "-X", "acks=all", "-X", "linger.ms=5"],
        env={**os.environ, "LD_PRELOAD": library},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    took_s = perf_counter() - began_s
    if done.returncode:
        raise HttpLoadError(f"kcat wrote not all lines: {done.stderr[:300]}")
    return Turn(latencies_s=[took_s], units=count, seconds=took_s)
