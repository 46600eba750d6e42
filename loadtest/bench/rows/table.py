"""All rows, in the order in which the table shows them."""

from loadtest.bench.rows import (
    access,
    clients,
    cluster,
    curves,
    kafka,
    produce,
    reading,
    transactions,
)
from loadtest.bench.targets import Target

TARGETS: tuple[Target, ...] = (
    *produce.ROWS,
    *reading.ROWS,
    *clients.ROWS,
    *kafka.ROWS,
    *transactions.ROWS,
    *access.ROWS,
    *cluster.ROWS,
    *curves.ROWS,
)
