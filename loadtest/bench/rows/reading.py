"""Rows for reads: stored batches, consumers, and the end of a log while other clients read old records from disk."""

from functools import partial

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

_fetch = partial(Target, stage="fetch", durability=Durability.NONE)
_consumer = partial(Target, stage="consumer", reference=NATS_PULL, durability=Durability.NONE)

ROWS: tuple[Target, ...] = (
    _fetch(
        name="fetch",
        what="binary fetch of 1 MB / nginx sendfile",
        subject=FETCH,
        reference=NGINX,
        host_row="fetch-host",
        ambition=1.0,
    ),
    _fetch(
        name="fetch-host",
        what="binary fetch of 1 MB / bare aiohttp that reads and sends a file",
        subject=FETCH,
        reference=COPIER,
        floor=0.55,
        ambition=0.8,
    ),
    _consumer(
        name="consumer",
        what="Python consumer, records of 100 B / NATS pull",
        subject=CONSUMER,
        floor=2,
        ambition=5,
    ),
    _consumer(name="consumer-each", what="the same, one record at a time", subject=CONSUMER_EACH),
    _consumer(
        name="group-consumer",
        what="the same, a member of a group that polls / NATS pull",
        subject=GROUP_CONSUMER,
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
