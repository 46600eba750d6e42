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
JSON_V2 = "JSON fetch of 1 MB, records of Kafka clients"
JSON_COLUMNS = "JSON fetch of 1 MB, records of HTTP clients"
KAFKA_TRANSACTIONS = "transactions of one record, 64 Kafka producers"
HTTP_SESSIONS = "transactions of one record, 64 HTTP sessions, the same nodes"
MEMBERS_JOIN = "100 classic members join a group"
IDLE_CONNECTIONS = "1,000 idle Kafka connections"
CONFLUENT_LEADER = "confluent-kafka producer, acks=all, 100 B, the leader's processor"
BARE_PRODUCER = "confluent-kafka producer, 100 B, the bare listener"
BARE_ONE = "one Kafka client, one record, the bare listener"
TANSU_PRODUCER = "confluent-kafka producer, acks=all, 100 B, Tansu"
TANSU_CONSUMER = "confluent-kafka consumer, 100 B, Tansu"
KCAT_LINES = "kcat, lines of 100 B, acks=all"
KCAT_TANSU = "kcat, lines of 100 B, acks=all, Tansu"
KAFKA_ONE = "one Kafka client, one record, acks=all"
HTTP_ONE = "one HTTP client, one record, acks=all, the same nodes"

_kafka = partial(Target, stage="kafka", durability=Durability.NONE)
_idle = partial(Target, stage="kafka-idle", subject=IDLE_CONNECTIONS, durability=Durability.NONE)

ROWS: tuple[Target, ...] = (
    _kafka(
        name="kafka-fetch",
        what="Kafka fetch of 1 MB / binary fetch over HTTP",
        subject=KAFKA_FETCH,
        reference=HTTP_FETCH,
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
        name="kafka-produce-lines",
        what="kcat, lines of 100 B, acks=all, 3 replicas / the same on Tansu, in memory",
        subject=KCAT_LINES,
        reference=KCAT_TANSU,
        durability=Durability.UNSYNCED,
        floor=0.4,
        ambition=0.8,
    ),
    _kafka(
        name="kafka-produce-tansu",
        what="confluent-kafka producer, acks=all, 3 replicas / on Tansu, in memory",
        subject=CONFLUENT_PRODUCER,
        reference=TANSU_PRODUCER,
        durability=Durability.UNSYNCED,
        floor=0.7,
        ambition=1.0,
    ),
    _kafka(
        name="kafka-produce-cpu",
        what="the leader's processor a record of 100 B / the bare listener's, which keeps nothing",
        subject=CONFLUENT_LEADER,
        reference=BARE_PRODUCER,
        quantity=Quantity.CPU_PER_UNIT,
        durability=Durability.UNSYNCED,
        floor=6,
        ambition=3,
    ),
    _kafka(
        name="kafka-consume-tansu",
        what="confluent-kafka consumer / on Tansu, in memory",
        subject=CONFLUENT_CONSUMER,
        reference=TANSU_CONSUMER,
        floor=0.7,
        ambition=1.0,
    ),
    _kafka(
        name="kafka-consume-converted",
        what="Kafka consumer of records written over HTTP / of those written by Kafka clients",
        subject=CONFLUENT_CONVERTED,
        reference=CONFLUENT_CONSUMER,
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
    _kafka(
        name="kafka-one-host",
        what="one record of a Kafka client, acks=all, p50 / of the bare listener",
        subject=KAFKA_ONE,
        reference=BARE_ONE,
        quantity=Quantity.P50,
        durability=Durability.UNSYNCED,
        floor=5,
        ambition=3,
    ),
    _kafka(
        name="kafka-read-json",
        what="JSON fetch of records of Kafka clients / of records of HTTP clients",
        subject=JSON_V2,
        reference=JSON_COLUMNS,
        floor=0.8,
        ambition=1.0,
    ),
    _kafka(
        name="kafka-transactions",
        what="transactions of one record, 64 Kafka producers / as many HTTP sessions",
        subject=KAFKA_TRANSACTIONS,
        reference=HTTP_SESSIONS,
        durability=Durability.DURABLE,
        floor=0.4,
        ambition=0.8,
    ),
    _kafka(
        name="kafka-members",
        what="100 classic members, first JoinGroup until all have their assignment, ms",
        subject=MEMBERS_JOIN,
        quantity=Quantity.P50,
        floor=2_000,
        ambition=700,
    ),
    _idle(
        name="kafka-idle-cpu",
        what="listener and 1,000 idle connections, % of a core beyond a node without",
        quantity=Quantity.CPU,
        floor=0.5,
        ambition=0.1,
    ),
    _idle(
        name="kafka-idle-memory",
        what="the same, MB beyond a node without",
        quantity=Quantity.MEMORY,
        floor=45,
        ambition=30,
    ),
)
