"""Rows on the cost of authentication, and on greedy clients that must not starve others."""

from functools import partial

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

_access = partial(Target, stage="access", durability=Durability.UNSYNCED)
_small = partial(_access, floor=0.90, ambition=0.97)

ROWS: tuple[Target, ...] = (
    _small(
        name="access-token",
        what="small writes of 16 clients, by token / open",
        subject=ACCESS_BEARER,
        reference=ACCESS_OPEN,
    ),
    _small(
        name="access-password",
        what="small writes of 16 clients, by password / open",
        subject=ACCESS_BASIC,
        reference=ACCESS_OPEN,
    ),
    _small(
        name="access-entries",
        what="small writes of 16 clients, 10,000 entries / open",
        subject=ACCESS_ENTRIES,
        reference=ACCESS_OPEN,
    ),
    _small(
        name="access-jwt",
        what="small writes of 16 clients, by JWT / open",
        subject=ACCESS_JWT,
        reference=ACCESS_OPEN,
    ),
    _access(
        name="access-tls",
        what="small writes of 16 clients, by token, over TLS / without TLS",
        subject=ACCESS_TLS,
        reference=ACCESS_BEARER,
        floor=0.70,
        ambition=0.85,
    ),
    _small(
        name="access-mutual-tls",
        what="small writes of 16 clients over TLS, by certificate / by token",
        subject=ACCESS_MUTUAL,
        reference=ACCESS_TLS,
    ),
    _access(
        name="access-tls-batches",
        what="JSON 1000 x 100 B, by token, over TLS / without TLS",
        subject=ACCESS_TLS_BATCHES,
        reference=ACCESS_BEARER_BATCHES,
        floor=0.80,
        ambition=0.95,
    ),
    _access(
        name="access-batches",
        what="JSON 1000 x 100 B, by token / open",
        subject=ACCESS_BEARER_BATCHES,
        reference=ACCESS_OPEN_BATCHES,
        floor=0.90,
        ambition=0.95,
    ),
    _access(
        name="access-looks",
        what="looks at a partition, by token / open",
        subject=ACCESS_BEARER_LOOKS,
        reference=ACCESS_OPEN_LOOKS,
        durability=Durability.NONE,
        floor=0.85,
        ambition=0.93,
    ),
    _access(
        name="access-strangers",
        what="small writes beside 1,000 bad logins a second / alone",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_BEARER,
        floor=0.70,
        ambition=0.90,
    ),
    _access(
        name="access-guesses",
        what="small writes beside 1,000 bad logins a second / beside as many probes",
        subject=ACCESS_STRANGERS,
        reference=ACCESS_PROBES,
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
    ),
)
