"""Rows for the programs that use a cluster: Python producer, command line, demonstration, load test."""

from functools import partial

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

READY_BATCHES = "bare client, finished batches of 2,240 x 100 B"
READY_JSON = "bare client, finished JSON of 1,000 x 100 B"
PRODUCER = "Python producer, send, 100 B"
PRODUCER_BLOCKING = f"{PRODUCER}, blocking"
PRODUCER_MANY = "Python producer, send_many, 100 B"
PRODUCER_MANY_BLOCKING = f"{PRODUCER_MANY}, blocking"
PRODUCE_LINES = "milena produce, 500,000 lines of 100 B"
PRODUCE_START = "milena produce, 10,000 lines of 100 B"
BARE_READER = "Python reader of 500,000 records with keys, printed nowhere"
CONSUME_LINES = "milena consume, 500,000 lines of 100 B"
CONSUME_KEYS = f"{CONSUME_LINES}, with their keys"
CONSUME_JSON = f"{CONSUME_LINES}, as JSON"
CONSUME_GROUP = f"{CONSUME_LINES}, as a group's member"

READY_FLIGHTS = "bare client, finished batches of 512 KiB of flights"
DEMO_WRITE = "the demo's writer, which notes each flight"
FLIGHTS_READER = "Python reader of 336,776 flights, looked at nowhere"
DEMO_READ = "the demo's reader, which compares each flight"

BARE_LOCUST = "bare locust users, requests for a second of processor"
LOCUST = "the load test's users, requests for a second of processor"

_clients = partial(Target, stage="clients", durability=Durability.UNSYNCED)
_demo = partial(Target, stage="demo")

ROWS: tuple[Target, ...] = (
    _clients(
        name="producer-many",
        what="Python producer, send_many of 1,000 x 100 B / the same batches, finished",
        subject=PRODUCER_MANY,
        reference=READY_BATCHES,
        floor=0.3,
        ambition=0.6,
    ),
    _clients(
        name="producer-many-blocking",
        what="the same, blocking",
        subject=PRODUCER_MANY_BLOCKING,
        reference=READY_BATCHES,
        floor=0.3,
        ambition=0.6,
    ),
    _clients(
        name="producer",
        what="Python producer, send of 100 B / the same batches, finished",
        subject=PRODUCER,
        reference=READY_BATCHES,
        floor=0.12,
        ambition=0.6,
    ),
    _clients(
        name="producer-blocking",
        what="the same, blocking",
        subject=PRODUCER_BLOCKING,
        reference=READY_BATCHES,
        floor=0.12,
        ambition=0.6,
    ),
    _clients(
        name="produce-lines",
        what="milena produce, lines of 100 B, its start included / the same as finished JSON",
        subject=PRODUCE_LINES,
        reference=READY_JSON,
        floor=0.6,
        ambition=0.8,
    ),
    _clients(
        name="produce-start",
        what="milena produce of 10,000 lines, from start to end, ms",
        subject=PRODUCE_START,
        quantity=Quantity.P50,
        floor=600,
        ambition=300,
    ),
    *(
        _clients(
            name=name,
            what=f"milena consume{what} / the client's reader, which prints none",
            subject=subject,
            reference=BARE_READER,
            durability=Durability.NONE,
            floor=floor,
            ambition=ambition,
        )
        for name, what, subject, floor, ambition in (
            (
                "consume-lines",
                ", 500,000 lines of 100 B, its start included",
                CONSUME_LINES,
                0.3,
                0.6,
            ),
            ("consume-keys", " with keys", CONSUME_KEYS, 0.3, 0.6),
            ("consume-json", " as JSON", CONSUME_JSON, 0.2, 0.4),
            ("consume-group", ", a member of a group", CONSUME_GROUP, 0.3, 0.6),
        )
    ),
    _demo(
        name="demo-write",
        what="the demo's flights made, noted and written / the same batches, finished",
        subject=DEMO_WRITE,
        reference=READY_FLIGHTS,
        durability=Durability.DURABLE,
        floor=0.1,
        ambition=0.3,
    ),
    _demo(
        name="demo-read",
        what="the demo's flights read and checked / the Python client's reader, which looks at none",
        subject=DEMO_READ,
        reference=FLIGHTS_READER,
        durability=Durability.NONE,
        floor=0.4,
        ambition=0.7,
    ),
    _clients(
        name="locust",
        what="requests a second of processor of the load test's users / users that check nothing",
        subject=LOCUST,
        reference=BARE_LOCUST,
        floor=0.5,
        ambition=0.7,
    ),
)
