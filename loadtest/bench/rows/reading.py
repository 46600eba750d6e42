"""Rows for reads: stored batches, consumers, and the end of a log while other clients read old records from disk."""

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

COPIER = "bare aiohttp, a file of 1 MB read and sent"
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
        host_row="fetch-host",
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
