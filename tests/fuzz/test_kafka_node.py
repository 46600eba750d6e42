"""A whole node gets mutated requests of every API: each ends in a response or the end of its connection."""

import os
import random
import struct

from tests.fuzz.mutations import KINDS, Edit, mutated
from tests.fuzz.targets.kafka import sample_requests
from tests.support.clusters.kafka_clients import client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import after, settle, virtual

REQUESTS = int(os.environ.get("KAFKA_FUZZ_REQUESTS", "400"))
SEED = int(os.environ.get("KAFKA_FUZZ_SEED", "1"))
WAIT_MS = 40


@virtual
async def test_no_mutated_request_meets_an_error_that_the_node_did_not_expect() -> None:
    """``KAFKA_FUZZ_REQUESTS`` and ``KAFKA_FUZZ_SEED`` choose more requests, and other ones."""
    rng = random.Random(SEED)
    seeds = list(sample_requests())
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        answered = 0
        for number in range(REQUESTS):
            edits = [
                Edit(
                    rng.randrange(KINDS),
                    rng.randrange(1 << 16),
                    rng.randrange(1 << 16),
                    rng.randrange(256),
                )
                for _ in range(rng.randint(0, 3))
            ]
            frame = mutated(rng.choice(seeds), edits, rng.choice(seeds))
            client = client_of(node)
            client.send(struct.pack(">i", len(frame)) + frame)
            await after(WAIT_MS)
            answered += bool(client.transport.sent)
            client.transport.abort()
            await settle(3)
            where = f"request {number} of seed {SEED}: {frame.hex()}"
            assert node.counts.contained.total == 0, where
            assert not node.fatal, where
        assert answered > REQUESTS // 10
