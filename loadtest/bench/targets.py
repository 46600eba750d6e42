"""Targets of the figures: every row of the table with its floor and its ambition, and the verdicts (pure).

A row names two contenders of one stage, or one whose figure counts by itself. Where the peer does not sync, Milena's
topic does not either (``flush.messages`` at its largest): like is compared with like. The same with syncs, which is how
topics are unless somebody asks for less, stands beside it without a floor of its own; what a sync costs is the disk's
affair, and two rows judge how well it is shared and hidden.
"""

from dataclasses import dataclass
from enum import StrEnum, unique

from loadtest.bench.measuring.samples import Quantity, Rounds, Spread
from loadtest.bench.reports.curves import BATCHES, JSON, ONE_REPLICA, PARTITIONS, READERS


@unique
class Durability(StrEnum):
    """When a write counts as done."""

    DURABLE = "durable"
    """Synced to disk on whoever must have it before it is acknowledged."""
    UNSYNCED = "unsynced"
    """In the page cache of whoever must have it."""
    NONE = "-"
    """Nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row. Without ``reference`` the subject's figure itself is judged; without ``floor`` nothing is."""

    name: str
    what: str
    stage: str
    subject: str
    reference: str | None = None
    quantity: Quantity = Quantity.RATE
    durability: Durability
    floor: float | None = None
    ambition: float | None = None
    is_less_better: bool = False


@unique
class TargetVerdict(StrEnum):
    """How a row came out."""

    AMBITION = "ambition met"
    FLOOR = "floor met"
    BELOW = "BELOW THE FLOOR"
    SHOWN = "shown"
    """There is nothing to hold it against, or what it is measured on cannot tell."""
    ABSENT = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutcome:
    """A row with what was measured. ``spread`` is None when nothing was."""

    target: Target
    verdict: TargetVerdict
    spread: Spread | None = None
    ours: Spread | None = None
    theirs: Spread | None = None
    note: str = ""


def judge(target: Target, rounds: Rounds, *, is_disk_real: bool) -> TargetOutcome:
    """Hold what was measured against a row.

    ``is_disk_real``: whether syncs reach a disk. Where they cost nothing, durable rows are shown and not judged, and
    so is what was measured on less than the row says.
    """
    ours = rounds.figures(target.subject, target.quantity)
    if target.reference is None:
        values, theirs = ours, []
    else:
        values = rounds.ratios(target.subject, target.reference, target.quantity)
        theirs = rounds.figures(target.reference, target.quantity)
    if not values:
        return TargetOutcome(
            target=target, verdict=TargetVerdict.ABSENT, note=_why_absent(target, rounds)
        )
    spread = Spread.of(values)
    verdict, note = _verdict(target, spread.median), rounds.reduced.get(target.subject, "")
    if target.durability is Durability.DURABLE and not is_disk_real and target.floor is not None:
        note = note or "syncs cost nothing in this directory's file system"
    if note:
        verdict = TargetVerdict.SHOWN
    return TargetOutcome(
        target=target,
        verdict=verdict,
        spread=spread,
        ours=Spread.of(ours),
        theirs=Spread.of(theirs) if theirs else None,
        note=note,
    )


def _why_absent(target: Target, rounds: Rounds) -> str:
    names = (target.subject, target.reference)
    return "; ".join(rounds.failures[name] for name in names if name in rounds.failures)


def _verdict(target: Target, value: float) -> TargetVerdict:
    if target.floor is None:
        return TargetVerdict.SHOWN
    sign = -1 if target.is_less_better else 1
    if target.ambition is not None and sign * value >= sign * target.ambition:
        return TargetVerdict.AMBITION
    return TargetVerdict.FLOOR if sign * value >= sign * target.floor else TargetVerdict.BELOW


BARE = "bare aiohttp, 64 clients"
BARE_ONE = "bare aiohttp, one client"
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

READY_BATCHES = "bare client, finished batches of 2,240 x 100 B"
READY_JSON = "bare client, finished JSON of 1,000 x 100 B"
READY_FETCH = "bare client, stored batches of 100 B"
PRODUCER = "Python producer, send, 100 B"
PRODUCER_BLOCKING = f"{PRODUCER}, blocking"
PRODUCER_MANY = "Python producer, send_many, 100 B"
PRODUCER_MANY_BLOCKING = f"{PRODUCER_MANY}, blocking"
PRODUCE_LINES = "milena produce, 500,000 lines of 100 B"
PRODUCE_START = "milena produce, 10,000 lines of 100 B"
GROUP_CONSUMER = "Python consumer of a group, polls, 100 B"

BARE_LOCUST = "bare locust users, requests for a second of processor"
LOCUST = "the load test's users, requests for a second of processor"

TAIL_ACK, TAIL_DELIVERY = "tail, acknowledgement", "tail, delivery"
COLD_ACK = f"{TAIL_ACK}, four read an old log"
COLD_DELIVERY = f"{TAIL_DELIVERY}, four read an old log"
BEHIND_ACK = f"{TAIL_ACK}, a follower catches up"
BEHIND_DELIVERY = f"{TAIL_DELIVERY}, a follower catches up"

ACCESS_OPEN = "JSON 1 x 100 B, one node, 16 clients, open"
ACCESS_BEARER = "JSON 1 x 100 B, one node, 16 clients, by token"
ACCESS_BASIC = "JSON 1 x 100 B, one node, 16 clients, by password"
ACCESS_ENTRIES = "JSON 1 x 100 B, one node, 16 clients, 10,000 entries"
ACCESS_JWT = "JSON 1 x 100 B, one node, 16 clients, by JWT"
ACCESS_TLS = f"{ACCESS_BEARER}, over TLS"
ACCESS_MUTUAL = "JSON 1 x 100 B, one node, 16 clients, by certificate, over TLS"
ACCESS_OPEN_BATCHES = "JSON 1000 x 100 B, one node, open"
ACCESS_BEARER_BATCHES = "JSON 1000 x 100 B, one node, by token"
ACCESS_TLS_BATCHES = f"{ACCESS_BEARER_BATCHES}, over TLS"
ACCESS_OPEN_LOOKS = "GET of a partition, one node, open"
ACCESS_BEARER_LOOKS = "GET of a partition, one node, by token"
ACCESS_STRANGERS = f"{ACCESS_BEARER}, strangers knock"
ACCESS_PROBES = f"{ACCESS_BEARER}, others ask whether it lives"
MODEST_ALONE = "JSON 1 x 100 B, one node, 20 users, alone"
MODEST_BESIDE = "JSON 1 x 100 B, one node, 20 users, beside one who fills it"

IDLE = "idle node of three"
PARTITIONS_CREATED = "1,000 partitions, created"
PARTITIONS_IDLE = "1,000 partitions, idle"
FAILOVER = "1,000 partitions, failover of a third"
RECOVERY = "recovery after kill -9"
SOAK = "soak"

_PLAIN, _SYNCED, _NOTHING = Durability.UNSYNCED, Durability.DURABLE, Durability.NONE

TARGETS: tuple[Target, ...] = (
    Target(
        name="json-leader",
        what="JSON 1 x 100 B, acks=1, 64 clients / bare aiohttp",
        stage="requests",
        subject=ONE_LEADER,
        reference=BARE,
        durability=_PLAIN,
        floor=0.60,
        ambition=0.80,
    ),
    Target(
        name="json-all",
        what="JSON 1 x 100 B, acks=all, 3 replicas, 64 clients / bare aiohttp",
        stage="requests",
        subject=ONE_ALL,
        reference=BARE,
        durability=_PLAIN,
        floor=0.45,
        ambition=0.70,
    ),
    Target(
        name="json-leader-durable",
        what="the same, acks=1",
        stage="requests",
        subject=ONE_LEADER_DURABLE,
        reference=BARE,
        durability=_SYNCED,
    ),
    Target(
        name="json-all-durable",
        what="the same, acks=all, 3 replicas",
        stage="requests",
        subject=ONE_ALL_DURABLE,
        reference=BARE,
        durability=_SYNCED,
    ),
    Target(
        name="durable",
        what="acks=all, 64 clients, durable / unsynced",
        stage="requests",
        subject=ONE_ALL_DURABLE,
        reference=ONE_ALL,
        durability=_SYNCED,
        floor=0.4,
        ambition=0.7,
    ),
    Target(
        name="json-1000",
        what="JSON 1000 x 100 B, acks=all / NATS R3 async 100 B",
        stage="batches",
        subject=JSON_1000,
        reference=NATS_100,
        durability=_PLAIN,
        floor=2.5,
        ambition=4,
    ),
    Target(
        name="stream",
        what="v3 streams, a receipt a record of 100 B, acks=all / NATS R3 async 100 B",
        stage="batches",
        subject=STREAM_100,
        reference=NATS_100,
        durability=_PLAIN,
        floor=0.5,
        ambition=1.5,
    ),
    Target(
        name="binary-100",
        what="binary batches of 100 B, acks=all / NATS R3 async 100 B",
        stage="batches",
        subject=BINARY_100,
        reference=NATS_100,
        durability=_PLAIN,
        floor=6,
        ambition=10,
    ),
    Target(
        name="binary-1k",
        what="binary batches of 1 KB, acks=all / NATS R3 async 1 KB",
        stage="batches",
        subject=BINARY_1K,
        reference=NATS_1K,
        durability=_PLAIN,
        floor=2.5,
        ambition=4,
    ),
    Target(
        name="json-1000-durable",
        what="JSON 1000 x 100 B, acks=all, durable / unsynced",
        stage="batches",
        subject=JSON_1000_DURABLE,
        reference=JSON_1000,
        durability=_SYNCED,
    ),
    Target(
        name="binary-100-durable",
        what="binary batches of 100 B, acks=all, durable / unsynced",
        stage="batches",
        subject=BINARY_100_DURABLE,
        reference=BINARY_100,
        durability=_SYNCED,
    ),
    Target(
        name="latency",
        what="acks=all, p50 of one client, processors awake / NATS R3",
        stage="latency",
        subject=SINGLE_ALL_AWAKE,
        reference=NATS_SYNC,
        quantity=Quantity.P50,
        durability=_PLAIN,
        floor=1.0,
        ambition=0.6,
        is_less_better=True,
    ),
    Target(
        name="latency-host",
        what="acks=all, p50 of one client / bare aiohttp",
        stage="latency",
        subject=SINGLE_ALL,
        reference=BARE_ONE,
        quantity=Quantity.P50,
        durability=_PLAIN,
        floor=5.0,
        ambition=3.0,
        is_less_better=True,
    ),
    Target(
        name="latency-all",
        what="p50 of one client, acks=all / acks=1, processors awake",
        stage="latency",
        subject=SINGLE_ALL_AWAKE,
        reference=SINGLE_LEADER_AWAKE,
        quantity=Quantity.P50,
        durability=_PLAIN,
        floor=2.5,
        ambition=1.6,
        is_less_better=True,
    ),
    Target(
        name="latency-default",
        what="acks=all, p50 of one client, processors that sleep / NATS R3",
        stage="latency",
        subject=SINGLE_ALL,
        reference=NATS_SYNC,
        quantity=Quantity.P50,
        durability=_PLAIN,
        is_less_better=True,
    ),
    Target(
        name="latency-all-default",
        what="p50 of one client, acks=all / acks=1, processors that sleep",
        stage="latency",
        subject=SINGLE_ALL,
        reference=SINGLE_LEADER,
        quantity=Quantity.P50,
        durability=_PLAIN,
        is_less_better=True,
    ),
    Target(
        name="latency-durable",
        what="acks=all, p50 of one client / NATS R3",
        stage="latency-durable",
        subject=SINGLE_ALL_DURABLE,
        reference=NATS_SYNC_SYNCED,
        quantity=Quantity.P50,
        durability=_SYNCED,
        floor=1.0,
        ambition=0.6,
        is_less_better=True,
    ),
    Target(
        name="latency-all-durable",
        what="p50 of one client, acks=all / acks=1",
        stage="latency-durable",
        subject=SINGLE_ALL_DURABLE,
        reference=SINGLE_LEADER_DURABLE,
        quantity=Quantity.P50,
        durability=_SYNCED,
        floor=2.5,
        ambition=1.6,
        is_less_better=True,
    ),
    Target(
        name="metadata",
        what="metadata commit, p50 of one client / etcd put",
        stage="metadata",
        subject=COMMIT_ONE,
        reference=ETCD_ONE,
        quantity=Quantity.P50,
        durability=_SYNCED,
        floor=1.5,
        ambition=1.0,
        is_less_better=True,
    ),
    Target(
        name="metadata-64",
        what="metadata commits, 64 clients / etcd put",
        stage="metadata",
        subject=COMMIT_MANY,
        reference=ETCD_MANY,
        durability=_SYNCED,
        floor=0.7,
        ambition=1.2,
    ),
    Target(
        name="fetch",
        what="binary fetch of 1 MB / nginx sendfile",
        stage="fetch",
        subject=FETCH,
        reference=NGINX,
        durability=_NOTHING,
        floor=0.7,
        ambition=1.0,
    ),
    Target(
        name="fetch-host",
        what="binary fetch of 1 MB / bare aiohttp that reads and sends a file",
        stage="fetch",
        subject=FETCH,
        reference=COPIER,
        durability=_NOTHING,
        floor=0.55,
        ambition=0.8,
    ),
    Target(
        name="consumer",
        what="Python consumer, records of 100 B / NATS pull",
        stage="consumer",
        subject=CONSUMER,
        reference=NATS_PULL,
        durability=_NOTHING,
        floor=2,
        ambition=5,
    ),
    Target(
        name="consumer-each",
        what="the same, one record at a time",
        stage="consumer",
        subject=CONSUMER_EACH,
        reference=NATS_PULL,
        durability=_NOTHING,
    ),
    Target(
        name="producer-many",
        what="Python producer, send_many of 1,000 x 100 B / the same batches, finished",
        stage="clients",
        subject=PRODUCER_MANY,
        reference=READY_BATCHES,
        durability=_PLAIN,
        floor=0.3,
        ambition=0.6,
    ),
    Target(
        name="producer-many-blocking",
        what="the same, blocking",
        stage="clients",
        subject=PRODUCER_MANY_BLOCKING,
        reference=READY_BATCHES,
        durability=_PLAIN,
        floor=0.3,
        ambition=0.6,
    ),
    Target(
        name="producer",
        what="Python producer, send of 100 B / the same batches, finished",
        stage="clients",
        subject=PRODUCER,
        reference=READY_BATCHES,
        durability=_PLAIN,
        floor=0.12,
        ambition=0.6,
    ),
    Target(
        name="producer-blocking",
        what="the same, blocking",
        stage="clients",
        subject=PRODUCER_BLOCKING,
        reference=READY_BATCHES,
        durability=_PLAIN,
        floor=0.12,
        ambition=0.6,
    ),
    Target(
        name="produce-lines",
        what="milena produce, lines of 100 B, its start included / the same as finished JSON",
        stage="clients",
        subject=PRODUCE_LINES,
        reference=READY_JSON,
        durability=_PLAIN,
        floor=0.6,
        ambition=0.8,
    ),
    Target(
        name="produce-start",
        what="milena produce of 10,000 lines, from start to end, ms",
        stage="clients",
        subject=PRODUCE_START,
        quantity=Quantity.P50,
        durability=_PLAIN,
        floor=600,
        ambition=300,
        is_less_better=True,
    ),
    Target(
        name="group-consumer",
        what="Python consumer of a group, records of 100 B / stored batches as they are",
        stage="clients",
        subject=GROUP_CONSUMER,
        reference=READY_FETCH,
        durability=_NOTHING,
        floor=0.05,
        ambition=0.15,
    ),
    Target(
        name="locust",
        what="requests a second of processor of the load test's users / users that check nothing",
        stage="clients",
        subject=LOCUST,
        reference=BARE_LOCUST,
        durability=_PLAIN,
        floor=0.5,
        ambition=0.7,
    ),
    *(
        Target(
            name=f"{name}{suffix}",
            what=f"{what}, {quantile}, {meanwhile} / without",
            stage="tail",
            subject=subject,
            reference=reference,
            quantity=quantity,
            durability=_SYNCED,
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
    Target(
        name="transactions",
        what="transactions of two partitions, 64 clients / plain writes",
        stage="transactions",
        subject=TRANSACTIONS,
        reference=PLAIN_WRITES,
        durability=_SYNCED,
        floor=0.1,
        ambition=0.5,
    ),
    Target(
        name="transactions-keyed",
        what="transactions of two partitions, each under a key / plain writes",
        stage="transactions",
        subject=KEYED_TRANSACTIONS,
        reference=PLAIN_WRITES,
        durability=_SYNCED,
        floor=0.1,
        ambition=0.5,
    ),
    Target(
        name="transaction-batches",
        what="JSON 1000 x 100 B for each of six partitions / plain writes",
        stage="transactions",
        subject=TRANSACTION_BATCHES,
        reference=PLAIN_BATCHES,
        durability=_SYNCED,
        floor=0.3,
        ambition=0.7,
    ),
    Target(
        name="transaction-commit",
        what="commit of a session, p50 of one client / metadata commit",
        stage="transactions",
        subject=SESSION_COMMITS,
        reference=CONFIG_COMMITS,
        quantity=Quantity.P50,
        durability=_SYNCED,
        floor=5,
        ambition=2,
        is_less_better=True,
    ),
    Target(
        name="idle-cpu",
        what="idle node, % of a core",
        stage="idle",
        subject=IDLE,
        quantity=Quantity.CPU,
        durability=_NOTHING,
        floor=2,
        ambition=1,
        is_less_better=True,
    ),
    Target(
        name="idle-memory",
        what="idle node, MB",
        stage="idle",
        subject=IDLE,
        quantity=Quantity.MEMORY,
        durability=_NOTHING,
        floor=120,
        ambition=80,
        is_less_better=True,
    ),
    Target(
        name="access-token",
        what="small writes of 16 clients, by token / open",
        stage="access",
        subject=ACCESS_BEARER,
        reference=ACCESS_OPEN,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-password",
        what="small writes of 16 clients, by password / open",
        stage="access",
        subject=ACCESS_BASIC,
        reference=ACCESS_OPEN,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-entries",
        what="small writes of 16 clients, 10,000 entries / open",
        stage="access",
        subject=ACCESS_ENTRIES,
        reference=ACCESS_OPEN,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-jwt",
        what="small writes of 16 clients, by JWT / open",
        stage="access",
        subject=ACCESS_JWT,
        reference=ACCESS_OPEN,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-tls",
        what="small writes of 16 clients, by token, over TLS / without TLS",
        stage="access",
        subject=ACCESS_TLS,
        reference=ACCESS_BEARER,
        durability=_PLAIN,
        floor=0.70,
        ambition=0.85,
    ),
    Target(
        name="access-mutual-tls",
        what="small writes of 16 clients over TLS, by certificate / by token",
        stage="access",
        subject=ACCESS_MUTUAL,
        reference=ACCESS_TLS,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-tls-batches",
        what="JSON 1000 x 100 B, by token, over TLS / without TLS",
        stage="access",
        subject=ACCESS_TLS_BATCHES,
        reference=ACCESS_BEARER_BATCHES,
        durability=_PLAIN,
        floor=0.80,
        ambition=0.95,
    ),
    Target(
        name="access-batches",
        what="JSON 1000 x 100 B, by token / open",
        stage="access",
        subject=ACCESS_BEARER_BATCHES,
        reference=ACCESS_OPEN_BATCHES,
        durability=_PLAIN,
        floor=0.90,
        ambition=0.95,
    ),
    Target(
        name="access-looks",
        what="looks at a partition, by token / open",
        stage="access",
        subject=ACCESS_BEARER_LOOKS,
        reference=ACCESS_OPEN_LOOKS,
        durability=_NOTHING,
        floor=0.85,
        ambition=0.93,
    ),
    Target(
        name="access-strangers",
        what="small writes beside 1,000 bad logins a second / alone",
        stage="access",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_BEARER,
        durability=_PLAIN,
        floor=0.70,
        ambition=0.90,
    ),
    Target(
        name="access-guesses",
        what="small writes beside 1,000 bad logins a second / beside as many probes",
        stage="access",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_PROBES,
        durability=_PLAIN,
        floor=0.90,
        ambition=1.0,
    ),
    Target(
        name="fairness-p99",
        what="p99 of 20 users' small writes beside one who fills the node / alone",
        stage="fairness",
        subject=MODEST_BESIDE,
        reference=MODEST_ALONE,
        quantity=Quantity.P99,
        durability=_PLAIN,
        floor=2.0,
        ambition=1.3,
        is_less_better=True,
    ),
    Target(
        name="partitions-created",
        what="1,000 partitions on 3 nodes, created and each written to, s",
        stage="partitions",
        subject=PARTITIONS_CREATED,
        quantity=Quantity.SECONDS,
        durability=_NOTHING,
        floor=30,
        ambition=10,
        is_less_better=True,
    ),
    Target(
        name="partitions-idle",
        what="1,000 partitions on 3 nodes, idle, % of a core",
        stage="partitions",
        subject=PARTITIONS_IDLE,
        quantity=Quantity.CPU,
        durability=_NOTHING,
        floor=10,
        ambition=4,
        is_less_better=True,
    ),
    Target(
        name="partitions-failover",
        what="1,000 partitions, each led elsewhere and written to after kill -9, s",
        stage="partitions",
        subject=FAILOVER,
        quantity=Quantity.SECONDS,
        durability=_NOTHING,
        floor=5,
        ambition=3,
        is_less_better=True,
    ),
    Target(
        name="recovery",
        what="ready again after kill -9 with a big log (10 GB), s",
        stage="recovery",
        subject=RECOVERY,
        quantity=Quantity.SECONDS,
        durability=_NOTHING,
        floor=10,
        ambition=3,
        is_less_better=True,
    ),
    Target(
        name="soak",
        what="memory of a node under load, growth after the first third, %",
        stage="soak",
        subject=SOAK,
        quantity=Quantity.GROWTH,
        durability=_NOTHING,
        floor=10,
        ambition=3,
        is_less_better=True,
    ),
    Target(
        name="curve-json",
        what="records/s as JSON, 10,000 a request / one",
        stage="curves",
        subject=JSON[10_000],
        reference=JSON[1],
        durability=_PLAIN,
    ),
    Target(
        name="curve-batches",
        what="records/s as encoded batches, 10,000 a request / one",
        stage="curves",
        subject=BATCHES[10_000],
        reference=BATCHES[1],
        durability=_PLAIN,
    ),
    Target(
        name="curve-partitions",
        what="records/s of 24 clients, 24 partitions / one",
        stage="curves",
        subject=PARTITIONS[24],
        reference=PARTITIONS[1],
        durability=_PLAIN,
    ),
    Target(
        name="curve-nodes",
        what="records/s of 24 clients, one replica, 3 nodes / one",
        stage="curves",
        subject=ONE_REPLICA[3],
        reference=ONE_REPLICA[1],
        durability=_PLAIN,
    ),
    Target(
        name="curve-readers",
        what="MB/s fetched, 4 readers of a topic / one",
        stage="curves",
        subject=READERS[4],
        reference=READERS[1],
        durability=_NOTHING,
    ),
)
