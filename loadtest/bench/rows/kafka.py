"""Rows for Kafka clients beside HTTP clients of the same nodes: bytes read, records written, and one record."""

from functools import partial

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

KAFKA_FETCH = "Kafka fetch of 1 MB"
HTTP_FETCH = "binary fetch of 1 MB, the same nodes"
CONFLUENT_PRODUCER = "confluent-kafka producer, acks=all, 100 B"
HTTP_PRODUCER = "Python producer, send_many, acks=all, 100 B, the same nodes"
CONFLUENT_CONSUMER = "confluent-kafka consumer, records of Kafka clients, 100 B"
CONFLUENT_CONVERTED = "confluent-kafka consumer, records of HTTP clients, 100 B"
KAFKA_ONE = "one Kafka client, one record, acks=all"
HTTP_ONE = "one HTTP client, one record, acks=all, the same nodes"

_kafka = partial(Target, stage="kafka")

ROWS: tuple[Target, ...] = (
    _kafka(
        name="kafka-fetch",
        what="Kafka fetch of 1 MB / binary fetch over HTTP",
        subject=KAFKA_FETCH,
        reference=HTTP_FETCH,
        durability=Durability.NONE,
        floor=0.8,
        ambition=1.0,
    ),
    _kafka(
        name="kafka-produce",
        what="confluent-kafka producer / our producer's send_many",
        subject=CONFLUENT_PRODUCER,
        reference=HTTP_PRODUCER,
        durability=Durability.UNSYNCED,
    ),
    _kafka(
        name="kafka-consume-converted",
        what="Kafka consumer of records written over HTTP / of those written by Kafka clients",
        subject=CONFLUENT_CONVERTED,
        reference=CONFLUENT_CONSUMER,
        durability=Durability.NONE,
        floor=0.4,
        ambition=0.7,
    ),
    _kafka(
        name="kafka-one",
        what="one record of a Kafka client, p50 / of an HTTP client",
        subject=KAFKA_ONE,
        reference=HTTP_ONE,
        quantity=Quantity.P50,
        durability=Durability.UNSYNCED,
        floor=1.2,
        ambition=0.9,
    ),
)
