"""Write and read by Kafka's protocol, with a client of its own: confluent-kafka, as docs/kafka.md configures it."""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.judge.checks import Row
from tests.judge.cluster import PASSWORD
from tests.judge.model import Shown
from tests.judge.paths.write import Receipt, WritePath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.judge.model import Sent

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KAFKA_PATH = WritePath("kafka", "", "bytes")
"""Draws the records of Kafka clients: any bytes."""
TIMEOUT_S = 30.0
_LATE_S = 2.0
_SETTINGS: Mapping[str, object] = {
    "socket.timeout.ms": 5_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 500,
    "log_level": 0,
}


@dataclass(frozen=True)
class Fetched:
    """Records of a partition, with the time at which the client started. `is_whole`: it reached the end."""

    rows: list[Row]
    began: float
    is_whole: bool


@dataclass(frozen=True)
class KafkaPath:
    """The Kafka listeners of the nodes. A closed cluster gets the credentials of the administrator."""

    servers: str

    def settings(self, *, is_closed: bool, **more: object) -> dict[str, Any]:
        """Return the settings of a client."""
        own = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
        return {
            "bootstrap.servers": self.servers,
            **_SETTINGS,
            **(own if is_closed else {}),
            **more,
        }

    def admin(self, *, is_closed: bool) -> AdminClient:
        """Return a client for topics."""
        return AdminClient(self.settings(is_closed=is_closed))

    @contextmanager
    def consumer(self, *, is_closed: bool, **more: object) -> Iterator[Consumer]:
        """Yield a consumer that commits nothing by itself."""
        own = {
            "group.id": "judge",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer(self.settings(is_closed=is_closed, **{**own, **more}))
        try:
            yield consumer
        finally:
            consumer.close()


def write(producer: Producer, records: Sequence[Sent], partition: int) -> list[Receipt]:
    """Write records to a partition; return one receipt each. Status 504: the fate is unknown."""
    receipts: list[Receipt | None] = [None] * len(records)

    def note(place: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            receipts[place] = Receipt(200, message.partition(), message.offset())
        else:
            receipts[place] = Receipt(504, code=error.code())

    for place, sent in enumerate(records):
        producer.produce(
            sent.topic.name,
            sent.value.data,
            sent.key.data,
            partition,
            on_delivery=functools.partial(note, place),
            timestamp=sent.timestamp or 0,
            headers=list(sent.headers),
        )
    until = time.monotonic() + TIMEOUT_S
    while None in receipts and time.monotonic() < until:
        producer.poll(0.05)
    if None in receipts:
        # It also drops what is produced soon after it.
        producer.purge()
        producer.flush(0)
    return [one or Receipt(504) for one in receipts]


def fetch(consumer: Consumer, name: str, number: int, start: int, now: Any) -> Fetched | None:
    """Read a partition from an offset to its end; None if the client reports an error or is late."""
    began, until, rows = now(), time.monotonic() + TIMEOUT_S, []
    consumer.assign([TopicPartition(name, number, start)])
    while time.monotonic() < until:
        for message in consumer.consume(1_000, _LATE_S):
            error = message.error()
            if error is None:
                rows.append(_row(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                return Fetched(rows, began, is_whole=True)
            else:
                return None
    return Fetched(rows, began, is_whole=False) if rows else None


def _row(message: Message) -> Row:
    headers: Any = message.headers() or ()
    _, time_ms = message.timestamp()
    return Row(
        int(message.offset() or 0),
        Shown(_bytes(message.key())),
        Shown(_bytes(message.value())),
        tuple((name, value) for name, value in headers),
        time_ms,
    )


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)
