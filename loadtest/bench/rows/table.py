"""All rows, in the order in which the table shows them."""

from loadtest.bench.rows import access, clients, cluster, curves, produce, reading, transactions
from loadtest.bench.targets import Target

TARGETS: tuple[Target, ...] = (
    *produce.ROWS,
    *reading.ROWS,
    *clients.ROWS,
    *transactions.ROWS,
    *access.ROWS,
    *cluster.ROWS,
    *curves.ROWS,
)
