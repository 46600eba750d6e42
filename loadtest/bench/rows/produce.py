"""Rows for writes: small records and batches, at full load and by one client that waits for each response."""

from functools import partial

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

BARE = "bare aiohttp, 64 clients"
BARE_ONE = "bare aiohttp, one client"
BARE_SYNCED_ONE = "bare aiohttp that syncs, one client"

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
"""These two contenders' nodes run with ``cpu_awake_ms``."""
NATS_SYNC_SYNCED = "NATS JetStream R3, synced, one client"
SINGLE_ALL_DURABLE = f"{SINGLE_ALL}, durable"
SINGLE_LEADER_DURABLE = f"{SINGLE_LEADER}, durable"

_requests = partial(Target, stage="requests", durability=Durability.DURABLE)
_batches = partial(Target, stage="batches", durability=Durability.UNSYNCED)
_latency = partial(Target, stage="latency", quantity=Quantity.P50, durability=Durability.UNSYNCED)
_latency_durable = partial(
    Target, stage="latency-durable", quantity=Quantity.P50, durability=Durability.DURABLE
)

ROWS: tuple[Target, ...] = (
    _requests(
        name="json-leader",
        what="JSON 1 x 100 B, acks=1, 64 clients / bare aiohttp",
        subject=ONE_LEADER,
        reference=BARE,
        durability=Durability.UNSYNCED,
        floor=0.60,
        ambition=0.80,
    ),
    _requests(
        name="json-all",
        what="JSON 1 x 100 B, acks=all, 3 replicas, 64 clients / bare aiohttp",
        subject=ONE_ALL,
        reference=BARE,
        durability=Durability.UNSYNCED,
        floor=0.45,
        ambition=0.70,
    ),
    _requests(
        name="json-leader-durable",
        what="the same, acks=1",
        subject=ONE_LEADER_DURABLE,
        reference=BARE,
    ),
    _requests(
        name="json-all-durable",
        what="the same, acks=all, 3 replicas",
        subject=ONE_ALL_DURABLE,
        reference=BARE,
    ),
    _requests(
        name="durable",
        what="acks=all, 64 clients, durable / unsynced",
        subject=ONE_ALL_DURABLE,
        reference=ONE_ALL,
        floor=0.4,
        ambition=0.7,
    ),
    _batches(
        name="json-1000",
        what="JSON 1000 x 100 B, acks=all / NATS R3 async 100 B",
        subject=JSON_1000,
        reference=NATS_100,
        floor=2.5,
        ambition=4,
    ),
    _batches(
        name="stream",
        what="v3 streams, a receipt a record of 100 B, acks=all / NATS R3 async 100 B",
        subject=STREAM_100,
        reference=NATS_100,
        floor=0.5,
        ambition=1.5,
    ),
    _batches(
        name="binary-100",
        what="binary batches of 100 B, acks=all / NATS R3 async 100 B",
        subject=BINARY_100,
        reference=NATS_100,
        floor=6,
        ambition=10,
    ),
    _batches(
        name="binary-1k",
        what="binary batches of 1 KB, acks=all / NATS R3 async 1 KB",
        subject=BINARY_1K,
        reference=NATS_1K,
        floor=2.5,
        ambition=4,
    ),
    _batches(
        name="json-1000-durable",
        what="JSON 1000 x 100 B, acks=all, durable / unsynced",
        subject=JSON_1000_DURABLE,
        reference=JSON_1000,
        durability=Durability.DURABLE,
    ),
    _batches(
        name="binary-100-durable",
        what="binary batches of 100 B, acks=all, durable / unsynced",
        subject=BINARY_100_DURABLE,
        reference=BINARY_100,
        durability=Durability.DURABLE,
    ),
    _latency(
        name="latency",
        what="acks=all, p50 of one client, processors awake / NATS R3",
        subject=SINGLE_ALL_AWAKE,
        reference=NATS_SYNC,
        host_row="latency-host",
        ambition=0.6,
    ),
    _latency(
        name="latency-host",
        what="acks=all, p50 of one client / bare aiohttp",
        subject=SINGLE_ALL,
        reference=BARE_ONE,
        floor=5.0,
        ambition=3.0,
    ),
    _latency(
        name="latency-all",
        what="p50 of one client, acks=all / acks=1, processors awake",
        subject=SINGLE_ALL_AWAKE,
        reference=SINGLE_LEADER_AWAKE,
        floor=2.5,
        ambition=1.6,
    ),
    _latency(
        name="latency-default",
        what="acks=all, p50 of one client, processors that sleep / NATS R3",
        subject=SINGLE_ALL,
        reference=NATS_SYNC,
    ),
    _latency(
        name="latency-all-default",
        what="p50 of one client, acks=all / acks=1, processors that sleep",
        subject=SINGLE_ALL,
        reference=SINGLE_LEADER,
    ),
    _latency_durable(
        name="latency-durable",
        what="acks=all, p50 of one client / NATS R3",
        subject=SINGLE_ALL_DURABLE,
        reference=NATS_SYNC_SYNCED,
        host_row="latency-durable-host",
        ambition=0.6,
    ),
    _latency_durable(
        name="latency-durable-host",
        what="acks=all, p50 of one client / bare aiohttp that syncs",
        subject=SINGLE_ALL_DURABLE,
        reference=BARE_SYNCED_ONE,
        floor=4.0,
        ambition=1.5,
    ),
    _latency_durable(
        name="latency-all-durable",
        what="p50 of one client, acks=all / acks=1",
        subject=SINGLE_ALL_DURABLE,
        reference=SINGLE_LEADER_DURABLE,
        floor=2.5,
        ambition=1.6,
    ),
)
