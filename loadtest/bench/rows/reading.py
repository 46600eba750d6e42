"""Rows of reading: stored batches, consumers, and the end of a log while others read what is cold."""

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

COPIER = "bare aiohttp, a file of 1 MB read and sent"
ONE_LEADER = "JSON 1 x 100 B, acks=1, 64 clients"
ONE_ALL = "JSON 1 x 100 B, acks=all, 64 clients"
ONE_LEADER_DURABLE = f"{ONE_LEADER}, durable"
ONE_ALL_DURABLE = f"{ONE_ALL}, durable"

NATS_100 = "NATS JetStream R3, async, 100 B"
NATS_1K = "NATS JetStream R3, async, 1 KB"
JSON_1000 = "JSON 1000 x 100 B, acks=all"
STREAM_100 = "v3 streams, a 100 B record an object, acks=all"
BINARY_100 = "binary batches of 100 B, acks=all"
BINARY_1K = "binary batches of 1 KB, acks=all"
JSON_1000_DURABLE = f"{JSON_1000}, durable"
BINARY_100_DURABLE = f"{BINARY_100}, durable"

NATS_SYNC = "NATS JetStream R3, one client"
SINGLE_ALL = "JSON 1 x 100 B, acks=all, one client"
SINGLE_LEADER = "JSON 1 x 100 B, acks=1, one client"
SINGLE_ALL_AWAKE = f"{SINGLE_ALL}, processors awake"
SINGLE_LEADER_AWAKE = f"{SINGLE_LEADER}, processors awake"
"""Nodes with ``cpu_awake_ms``."""
NATS_SYNC_SYNCED = "NATS JetStream R3, synced, one client"
SINGLE_ALL_DURABLE = f"{SINGLE_ALL}, durable"
SINGLE_LEADER_DURABLE = f"{SINGLE_LEADER}, durable"

ETCD_ONE, ETCD_MANY = "etcd put, one client", "etcd put, 64 clients"
COMMIT_ONE, COMMIT_MANY = "metadata commit, one client", "metadata commits, 64 clients"

PLAIN_WRITES = "JSON 1 x 100 B, six partitions, acks=all, 64 clients"
TRANSACTIONS = "transactions of two partitions, 64 clients"
KEYED_TRANSACTIONS = f"{TRANSACTIONS}, each under a key"
PLAIN_BATCHES = "JSON 1000 x 100 B, six partitions, acks=all"
TRANSACTION_BATCHES = "transactions of 1000 x 100 B for each of six partitions"
CONFIG_COMMITS = "metadata commit, one client, beside transactions"
SESSION_COMMITS = "commit of a session's transaction, until it is read"

NGINX = "nginx sendfile, 1 MB"
FETCH = "binary fetch of 1 MB"

NATS_PULL = "NATS JetStream R3, pull, 100 B"
CONSUMER = "Python consumer, batches of records, 100 B"
CONSUMER_EACH = "Python consumer, one record at a time, 100 B"
GROUP_CONSUMER = "Python consumer of a group, polls of 500 records, 100 B"

TAIL_ACK, TAIL_DELIVERY = "tail, acknowledgement", "tail, delivery"
COLD_ACK = f"{TAIL_ACK}, four read an old log"
COLD_DELIVERY = f"{TAIL_DELIVERY}, four read an old log"
BEHIND_ACK = f"{TAIL_ACK}, a follower catches up"
BEHIND_DELIVERY = f"{TAIL_DELIVERY}, a follower catches up"

ROWS: tuple[Target, ...] = (
    Target(
        name="fetch",
        what="binary fetch of 1 MB / nginx sendfile",
        stage="fetch",
        subject=FETCH,
        reference=NGINX,
        durability=Durability.NONE,
        floor=0.7,
        ambition=1.0,
    ),
    Target(
        name="fetch-host",
        what="binary fetch of 1 MB / bare aiohttp that reads and sends a file",
        stage="fetch",
        subject=FETCH,
        reference=COPIER,
        durability=Durability.NONE,
        floor=0.55,
        ambition=0.8,
    ),
    Target(
        name="consumer",
        what="Python consumer, records of 100 B / NATS pull",
        stage="consumer",
        subject=CONSUMER,
        reference=NATS_PULL,
        durability=Durability.NONE,
        floor=2,
        ambition=5,
    ),
    Target(
        name="consumer-each",
        what="the same, one record at a time",
        stage="consumer",
        subject=CONSUMER_EACH,
        reference=NATS_PULL,
        durability=Durability.NONE,
    ),
    Target(
        name="group-consumer",
        what="the same, a member of a group that polls / NATS pull",
        stage="consumer",
        subject=GROUP_CONSUMER,
        reference=NATS_PULL,
        durability=Durability.NONE,
        floor=1.5,
        ambition=3,
    ),
    *(
        Target(
            name=f"{name}{suffix}",
            what=f"{what}, {quantile}, {meanwhile} / without",
            stage="tail",
            subject=subject,
            reference=reference,
            quantity=quantity,
            durability=Durability.DURABLE,
            floor=floor,
            ambition=ambition,
            is_less_better=True,
        )
        for name, what, meanwhile, subject, reference in (
            ("cold-ack", "acks=all", "four read a cold log", COLD_ACK, TAIL_ACK),
            ("cold-delivery", "delivery", "four read a cold log", COLD_DELIVERY, TAIL_DELIVERY),
            ("catch-up-ack", "acks=all", "a follower catches up", BEHIND_ACK, TAIL_ACK),
            (
                "catch-up-delivery",
                "delivery",
                "a follower catches up",
                BEHIND_DELIVERY,
                TAIL_DELIVERY,
            ),
        )
        for suffix, quantile, quantity, floor, ambition in (
            ("", "p50", Quantity.P50, 3.0, 1.5),
            ("-p99", "p99", Quantity.P99, 5.0, 2.0),
        )
    ),
)
