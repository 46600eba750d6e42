"""Rows for transactions, compared with the same writes outside of transactions."""

from functools import partial

from loadtest.bench.measuring.samples import Quantity
from loadtest.bench.targets import Durability, Target

PLAIN_WRITES = "JSON 1 x 100 B, six partitions, acks=all, 64 clients"
TRANSACTIONS = "transactions of two partitions, 64 clients"
KEYED_TRANSACTIONS = f"{TRANSACTIONS}, each under a key"
PLAIN_BATCHES = "JSON 1000 x 100 B, six partitions, acks=all"
TRANSACTION_BATCHES = "transactions of 1000 x 100 B for each of six partitions"
CONFIG_COMMITS = "metadata commit, one client, beside transactions"
SESSION_COMMITS = "commit of a session's transaction"
SESSION_READ = f"{SESSION_COMMITS}, until it is read"

_transactions = partial(Target, stage="transactions", durability=Durability.DURABLE)

ROWS: tuple[Target, ...] = (
    _transactions(
        name="transactions",
        what="transactions of two partitions, 64 clients / plain writes",
        subject=TRANSACTIONS,
        reference=PLAIN_WRITES,
        floor=0.1,
        ambition=0.5,
    ),
    _transactions(
        name="transactions-keyed",
        what="transactions of two partitions, each under a key / plain writes",
        subject=KEYED_TRANSACTIONS,
        reference=PLAIN_WRITES,
        floor=0.1,
        ambition=0.5,
    ),
    _transactions(
        name="transaction-batches",
        what="JSON 1000 x 100 B for each of six partitions / plain writes",
        subject=TRANSACTION_BATCHES,
        reference=PLAIN_BATCHES,
        floor=0.3,
        ambition=0.7,
    ),
    _transactions(
        name="transaction-commit",
        what="commit of a session, p50 of one client / metadata commit",
        subject=SESSION_COMMITS,
        reference=CONFIG_COMMITS,
        quantity=Quantity.P50,
        floor=3,
        ambition=2,
    ),
    _transactions(
        name="transaction-read",
        what="the same, until readers see it",
        subject=SESSION_READ,
        reference=CONFIG_COMMITS,
        quantity=Quantity.P50,
        floor=5,
        ambition=3,
    ),
)
