"""Steps that the driver draws: each sends requests, tells the model, and judges the answers."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.judge.steps import reads, topics, transactions, writes
from tests.judge.world import World

Step = Callable[[World, random.Random], None]

STEPS: dict[str, tuple[Step, int]] = {
    "write": (writes.write, 10),
    "repeat": (writes.repeat, 5),
    "read": (reads.read, 12),
    "read-topic": (reads.read_topic, 3),
    "end": (reads.end, 3),
    "create": (topics.create_shared, 1),
    "delete-records": (topics.delete_records, 2),
    "recreate": (topics.recreate, 2),
    "tx-one": (transactions.one_request, 5),
    "tx-session": (transactions.session, 5),
}
