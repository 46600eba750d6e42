"""The steps that the driver draws: each sends requests, updates the model, and checks the responses."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.judge.steps import (
    access,
    bodies,
    bounds,
    consumers,
    crowds,
    groups,
    kafka,
    reads,
    topics,
    transactions,
    writes,
)
from tests.judge.world import World

Step = Callable[[World, random.Random], None]

STEPS: dict[str, tuple[Step, int]] = {
    "write": (writes.write, 10),
    "repeat": (writes.repeat, 5),
    "old-key": (writes.old_key, 2),
    "sequenced": (writes.sequenced, 3),
    "conditional": (writes.conditional, 3),
    "pipeline": (writes.pipeline, 3),
    "unsure": (writes.unsure, 1),
    "read": (reads.read, 12),
    "read-topic": (reads.read_topic, 3),
    "end": (reads.end, 3),
    "create": (topics.create_shared, 1),
    "delete-records": (topics.delete_records, 2),
    "recreate": (topics.recreate, 2),
    "tx-one": (transactions.one_request, 5),
    "tx-session": (transactions.session, 5),
    "tx-list": (transactions.look, 4),
    "offsets": (groups.offsets, 3),
    "members": (groups.members, 1),
    "static-members": (groups.static_members, 2),
    "consume": (consumers.consume, 3),
    "kafka-write": (kafka.write, 5),
    "kafka-read": (kafka.read, 5),
    "kafka-ends": (kafka.ends, 3),
    "kafka-create": (kafka.create, 1),
    "kafka-delete-records": (kafka.delete_records, 1),
    "kafka-transaction": (kafka.transaction, 4),
    "neighbours": (bodies.neighbours, 3),
    "frames": (bodies.frames, 3),
    "heads": (bodies.heads, 2),
    "hasty": (bodies.followed, 3),
    "bounds": (bounds.bounds, 3),
    "trailers": (access.trailers, 3),
    "other-hosts": (access.other_hosts, 2),
    "forbidden": (access.forbidden, 4),
    "lists": (access.lists, 2),
    "transactions-of-others": (access.transactions_of_others, 2),
    "producer-of-another": (access.producer_of_another, 2),
    "key-of-another": (access.key_of_another, 2),
    "tokens": (access.tokens, 3),
    "read-as-reader": (access.read_as_reader, 1),
    "streams": (crowds.streams, 2),
    "strangers": (crowds.strangers, 2),
    "many-tokens": (crowds.tokens, 2),
}
CLOSED = frozenset(
    {
        *("forbidden", "lists", "transactions-of-others", "producer-of-another", "key-of-another"),
        *("tokens", "read-as-reader", "streams", "strangers", "many-tokens"),
    }
)
