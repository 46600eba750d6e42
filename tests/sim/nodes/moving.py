"""The same bad days for five nodes whose partitions are on the move: begun, redirected, cancelled at any time.

``python -m tests.sim.nodes.moving --count 100`` runs many seeds. Beside what every campaign promises: once faults stop
each move arrives, and brokers that hold no replica any more have nothing of it on their disks.
"""

import argparse
import asyncio
import sys
import traceback
from collections.abc import Coroutine

from http_api.ports import ReassignmentRequest, ReplicaTarget
from milena.model.errors import MilenaError
from raft_meta.machine.image import Partition
from tests.sim.nodes.campaign import HEAL_MS, PARTITIONS, TOPIC, WRITABLE_MS, Campaign
from tests.support.clusters.nodes import ROOT, Cluster
from tests.support.time.virtual_time import run_virtual

NODES = (1, 2, 3, 4, 5)
PATIENCE_S = 2.0
"""Of whoever asks for a move; what became of it is nobody's business."""


class MovingCampaign(Campaign):
    """See the module."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moves = 0
        self.arrivals = 0
        self.cluster = Cluster(
            node_ids=NODES,
            seed=self.seed,
            network_ms=lambda rng: rng.expovariate(1.0) + (rng.random() < 0.01) * 50,
            disk_delay_ms=lambda rng: rng.expovariate(0.5) + (rng.random() < 0.01) * 100,
            preferred_interval_ms=3_000,
            throttle_bytes_per_s=20_000,
        )

    def is_known(self) -> bool:
        """Whether a node that runs has a majority, and its image."""
        return any(
            self.cluster.has_quorum(node_id) and node.metadata.image.topic(TOPIC) is not None
            for node_id, node in self.cluster.nodes.items()
        )

    def state(self, partition: int) -> Partition:
        found = self.cluster.image.topic(TOPIC)
        assert found is not None
        return self.cluster.image.partitions[found.topic_id, partition]

    # The nemesis.

    async def do_harm(self) -> None:
        end = self.clock.now_ms() + self.seconds * 1000
        harms = (
            self.kill, self.kill, self.restart, self.restart, self.restart, self.isolate,
            self.cut, self.heal, self.heal, self.stop, self.confuse_quorum, self.fill_disk,
            self.power_cut_of_all, self.move, self.move, self.move, self.move, self.cancel,
            self.heal, self.restart, self.wipe,
        )  # fmt: skip
        before = [self.state(number).replicas for number in range(PARTITIONS)]
        while self.clock.now_ms() < end:
            await self.clock.sleep(self.rng.uniform(50, 1_500))
            if self.is_known():
                now = [self.state(number) for number in range(PARTITIONS)]
                settled = [state.settled for state in now]
                self.arrivals += sum(
                    one != other for one, other in zip(before, settled, strict=True)
                )
                before = settled
            await self.rng.choice(harms)()

    async def ask(self, work: Coroutine[object, object, object], what: str) -> None:
        self.note(what)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await work
        except (TimeoutError, MilenaError) as error:
            self.note(f"  {type(error).__name__}: {error}")

    async def move(self) -> None:
        node = self.some_node()
        if node is None:
            return
        partition = self.rng.randrange(PARTITIONS)
        replicas = tuple(self.rng.sample(NODES, 3))
        target = ReplicaTarget(topic=TOPIC, partition=partition, replicas=replicas)
        request = ReassignmentRequest(partitions=(target,), max_concurrent=self.rng.choice((0, 1)))
        self.moves += 1
        await self.ask(node.reassignments.reassign(request), f"move {partition} to {replicas}")

    async def cancel(self) -> None:
        node = self.some_node()
        if node is not None:
            await self.ask(node.reassignments.cancel(None, None), "cancel")

    async def wipe(self) -> None:
        """A dead broker that holds no replica in sync loses its directory."""
        if not self.is_known():
            return
        states = [self.state(number) for number in range(PARTITIONS)]
        for node_id in NODES:
            is_needed = any(node_id in {*state.isr, *state.eligible} for state in states)
            if node_id not in self.cluster.nodes and not is_needed:
                self.note(f"wipe {node_id}")
                self.cluster.files.pop(node_id, None)
                return

    async def recover(self) -> None:
        self.note("recover")
        await self.heal()
        for node_id in NODES:
            if node_id not in self.cluster.nodes:
                await self.cluster.restart(node_id)
        await self.cluster.until(self.has_arrived, HEAL_MS)
        deadline = self.clock.now_ms() + WRITABLE_MS
        for number in range(PARTITIONS):
            while not await self.is_writable(number):
                assert self.clock.now_ms() < deadline, "no progress after faults stopped"
                await self.clock.sleep(100)

    def has_arrived(self) -> bool:
        # Nodes that all started while there was no majority know of no topic yet.
        if not self.cluster.is_led(TOPIC):
            return False
        states = [self.state(number) for number in range(PARTITIONS)]
        return all(state.moving is None and state.isr == state.replicas for state in states)

    async def copies(self, partition: int) -> list[list[str]]:
        replicas = self.state(partition).replicas
        for node_id in NODES:
            files = self.files_of(node_id, partition)
            assert bool(files) == (node_id in replicas), (node_id, replicas, files)
        return [
            await self.cluster.nodes[node_id].read(TOPIC, partition, is_local=True)
            for node_id in replicas
        ]

    def files_of(self, node_id: int, partition: int) -> list[str]:
        topic = self.cluster.image.topic(TOPIC)
        assert topic is not None
        folder = f"{ROOT}/topics/{topic.topic_id}/{partition}/"
        return [path for path in self.cluster.files[node_id].paths() if path.startswith(folder)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    bad = 0
    for seed in range(options.first, options.first + options.count):
        campaign = MovingCampaign(seed, options.seconds)
        try:
            problems = run_virtual(campaign.run())
        except Exception:
            problems = [traceback.format_exc()]
        acknowledged = sum(w.offset is not None for w in campaign.history.writes.values())
        print(
            f"seed={seed} writes={len(campaign.history.writes)} acknowledged={acknowledged}"
            f" moves={campaign.moves} arrivals={campaign.arrivals}"
        )
        if problems:
            bad += 1
            print("\n".join([*campaign.events, *problems[:20]]))
            if not options.keep_going:
                return 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
