"""Rows on the cost of authentication, and on greedy clients that must not starve others."""

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

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

ROWS: tuple[Target, ...] = (
    Target(
        name="access-token",
        what="small writes of 16 clients, by token / open",
        stage="access",
        subject=ACCESS_BEARER,
        reference=ACCESS_OPEN,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-password",
        what="small writes of 16 clients, by password / open",
        stage="access",
        subject=ACCESS_BASIC,
        reference=ACCESS_OPEN,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-entries",
        what="small writes of 16 clients, 10,000 entries / open",
        stage="access",
        subject=ACCESS_ENTRIES,
        reference=ACCESS_OPEN,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-jwt",
        what="small writes of 16 clients, by JWT / open",
        stage="access",
        subject=ACCESS_JWT,
        reference=ACCESS_OPEN,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-tls",
        what="small writes of 16 clients, by token, over TLS / without TLS",
        stage="access",
        subject=ACCESS_TLS,
        reference=ACCESS_BEARER,
        durability=Durability.UNSYNCED,
        floor=0.70,
        ambition=0.85,
    ),
    Target(
        name="access-mutual-tls",
        what="small writes of 16 clients over TLS, by certificate / by token",
        stage="access",
        subject=ACCESS_MUTUAL,
        reference=ACCESS_TLS,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.97,
    ),
    Target(
        name="access-tls-batches",
        what="JSON 1000 x 100 B, by token, over TLS / without TLS",
        stage="access",
        subject=ACCESS_TLS_BATCHES,
        reference=ACCESS_BEARER_BATCHES,
        durability=Durability.UNSYNCED,
        floor=0.80,
        ambition=0.95,
    ),
    Target(
        name="access-batches",
        what="JSON 1000 x 100 B, by token / open",
        stage="access",
        subject=ACCESS_BEARER_BATCHES,
        reference=ACCESS_OPEN_BATCHES,
        durability=Durability.UNSYNCED,
        floor=0.90,
        ambition=0.95,
    ),
    Target(
        name="access-looks",
        what="looks at a partition, by token / open",
        stage="access",
        subject=ACCESS_BEARER_LOOKS,
        reference=ACCESS_OPEN_LOOKS,
        durability=Durability.NONE,
        floor=0.85,
        ambition=0.93,
    ),
    Target(
        name="access-strangers",
        what="small writes beside 1,000 bad logins a second / alone",
        stage="access",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_BEARER,
        durability=Durability.UNSYNCED,
        floor=0.70,
        ambition=0.90,
    ),
    Target(
        name="access-guesses",
        what="small writes beside 1,000 bad logins a second / beside as many probes",
        stage="access",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_PROBES,
        durability=Durability.UNSYNCED,
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
        durability=Durability.UNSYNCED,
        floor=2.0,
        ambition=1.3,
        is_less_better=True,
    ),
)
