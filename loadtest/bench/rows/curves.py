"""Rows for curves: the last point of each in relation to its first."""

from functools import partial

from loadtest.bench.reports.curves import BATCHES, JSON, ONE_REPLICA, PARTITIONS, READERS
from loadtest.bench.targets import Durability, Target

_curves = partial(Target, stage="curves", durability=Durability.UNSYNCED)

ROWS: tuple[Target, ...] = (
    _curves(
        name="curve-json",
        what="records/s as JSON, 10,000 a request / one",
        subject=JSON[10_000],
        reference=JSON[1],
    ),
    _curves(
        name="curve-batches",
        what="records/s as encoded batches, 10,000 a request / one",
        subject=BATCHES[10_000],
        reference=BATCHES[1],
    ),
    _curves(
        name="curve-partitions",
        what="records/s of 24 clients, 24 partitions / one",
        subject=PARTITIONS[24],
        reference=PARTITIONS[1],
    ),
    _curves(
        name="curve-nodes",
        what="records/s of 24 clients, one replica, 3 nodes / one",
        subject=ONE_REPLICA[3],
        reference=ONE_REPLICA[1],
    ),
    _curves(
        name="curve-readers",
        what="MB/s fetched, 4 readers of a topic / one",
        subject=READERS[4],
        reference=READERS[1],
        durability=Durability.NONE,
    ),
)
