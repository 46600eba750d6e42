"""Rows for a cluster without clients' records: metadata commits, idle nodes, many partitions, recovery, memory."""

from functools import partial

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.rows.produce import BARE, BARE_SYNCED_ONE
from loadtest.bench.targets import Durability, Target

ETCD_ONE, ETCD_MANY = "etcd put, one client", "etcd put, 64 clients"
COMMIT_ONE, COMMIT_MANY = "metadata commit, one client", "metadata commits, 64 clients"

IDLE = "idle node of three"
PARTITIONS_CREATED = "1,000 partitions, created"
PARTITIONS_IDLE = "1,000 partitions, idle"
FAILOVER = "1,000 partitions, failover of a third"
RECOVERY = "recovery after kill -9"
SOAK = "soak"

_metadata = partial(Target, stage="metadata", durability=Durability.DURABLE)
_idle = partial(Target, stage="idle", durability=Durability.NONE)
_partitions = partial(Target, stage="partitions", durability=Durability.NONE)

ROWS: tuple[Target, ...] = (
    _metadata(
        name="metadata",
        what="metadata commit, p50 of one client / etcd put",
        subject=COMMIT_ONE,
        reference=ETCD_ONE,
        quantity=Quantity.P50,
        host_row="metadata-host",
        ambition=1.0,
    ),
    _metadata(
        name="metadata-host",
        what="metadata commit, p50 of one client / bare aiohttp that syncs",
        subject=COMMIT_ONE,
        reference=BARE_SYNCED_ONE,
        quantity=Quantity.P50,
        floor=6.0,
        ambition=2.0,
    ),
    _metadata(
        name="metadata-64",
        what="metadata commits, 64 clients / etcd put",
        subject=COMMIT_MANY,
        reference=ETCD_MANY,
        host_row="metadata-64-host",
        ambition=1.2,
    ),
    _metadata(
        name="metadata-64-host",
        what="metadata commits, 64 clients / bare aiohttp",
        subject=COMMIT_MANY,
        reference=BARE,
        floor=0.08,
        ambition=0.2,
    ),
    _idle(
        name="idle-cpu",
        what="idle node, % of a core",
        subject=IDLE,
        quantity=Quantity.CPU,
        floor=2,
        ambition=1,
    ),
    _idle(
        name="idle-memory",
        what="idle node, MB",
        subject=IDLE,
        quantity=Quantity.MEMORY,
        floor=120,
        ambition=80,
    ),
    _partitions(
        name="partitions-created",
        what="1,000 partitions on 3 nodes, created and each written to, s",
        subject=PARTITIONS_CREATED,
        quantity=Quantity.SECONDS,
        floor=30,
        ambition=10,
    ),
    _partitions(
        name="partitions-idle",
        what="1,000 partitions on 3 nodes, idle, % of a core",
        subject=PARTITIONS_IDLE,
        quantity=Quantity.CPU,
        floor=10,
        ambition=4,
    ),
    _partitions(
        name="partitions-failover",
        what="1,000 partitions, each led elsewhere and written to after kill -9, s",
        subject=FAILOVER,
        quantity=Quantity.SECONDS,
        floor=5,
        ambition=3,
    ),
    Target(
        name="recovery",
        what="ready again after kill -9 with a big log (10 GB), s",
        stage="recovery",
        subject=RECOVERY,
        quantity=Quantity.SECONDS,
        durability=Durability.NONE,
        floor=10,
        ambition=3,
    ),
    Target(
        name="soak",
        what="memory of a node under load, growth after the first third, %",
        stage="soak",
        subject=SOAK,
        quantity=Quantity.GROWTH,
        durability=Durability.NONE,
        floor=10,
        ambition=3,
    ),
)
