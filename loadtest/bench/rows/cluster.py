"""Rows for a cluster without clients' records: metadata commits, idle nodes, many partitions, recovery, memory."""

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

ROWS: tuple[Target, ...] = (
    Target(
        name="metadata",
        what="metadata commit, p50 of one client / etcd put",
        stage="metadata",
        subject=COMMIT_ONE,
        reference=ETCD_ONE,
        quantity=Quantity.P50,
        durability=Durability.DURABLE,
        host_row="metadata-host",
        ambition=1.0,
        is_less_better=True,
    ),
    Target(
        name="metadata-host",
        what="metadata commit, p50 of one client / bare aiohttp that syncs",
        stage="metadata",
        subject=COMMIT_ONE,
        reference=BARE_SYNCED_ONE,
        quantity=Quantity.P50,
        durability=Durability.DURABLE,
        floor=6.0,
        ambition=2.0,
        is_less_better=True,
    ),
    Target(
        name="metadata-64",
        what="metadata commits, 64 clients / etcd put",
        stage="metadata",
        subject=COMMIT_MANY,
        reference=ETCD_MANY,
        durability=Durability.DURABLE,
        host_row="metadata-64-host",
        ambition=1.2,
    ),
    Target(
        name="metadata-64-host",
        what="metadata commits, 64 clients / bare aiohttp",
        stage="metadata",
        subject=COMMIT_MANY,
        reference=BARE,
        durability=Durability.DURABLE,
        floor=0.08,
        ambition=0.2,
    ),
    Target(
        name="idle-cpu",
        what="idle node, % of a core",
        stage="idle",
        subject=IDLE,
        quantity=Quantity.CPU,
        durability=Durability.NONE,
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
        durability=Durability.NONE,
        floor=120,
        ambition=80,
        is_less_better=True,
    ),
    Target(
        name="partitions-created",
        what="1,000 partitions on 3 nodes, created and each written to, s",
        stage="partitions",
        subject=PARTITIONS_CREATED,
        quantity=Quantity.SECONDS,
        durability=Durability.NONE,
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
        durability=Durability.NONE,
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
        durability=Durability.NONE,
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
        durability=Durability.NONE,
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
        durability=Durability.NONE,
        floor=10,
        ambition=3,
        is_less_better=True,
    ),
)
