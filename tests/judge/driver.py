"""Draw episodes of steps from a seed, run them with several workers under faults, and check the final state."""

from __future__ import annotations

import random
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.judge.checks import Checker
from tests.judge.client import Request, Response
from tests.judge.model import Fate, Model
from tests.judge.paths.read import FORMATS
from tests.judge.steps import CLOSED, STEPS, access, crowds, kafka, reads, topics, transactions
from tests.judge.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.judge.client import Transport
    from tests.judge.paths.kafka import KafkaPath
    from tests.judge.rules import Verdicts


EPISODE_S = 45.0  # after this time, an episode starts no further step


@dataclass(frozen=True)
class Planned:
    """A step of an episode: its worker, its kind, and the seed of its details."""

    worker: int
    kind: str
    seed: int


@dataclass(frozen=True)
class Plan:
    """An episode: its steps, and whether faults are injected meanwhile."""

    seed: str
    steps: tuple[Planned, ...]
    is_stormy: bool = False
    is_closed: bool = False


def plan(seed: str, *, kinds: Sequence[str] = (), workers: int = 0) -> Plan:
    """Draw an episode; the number of workers is also drawn unless it is given."""
    rng = random.Random(seed)
    is_stormy, is_closed = rng.random() < 0.4, rng.random() < 0.5
    names = [name for name in kinds or STEPS if is_closed or name not in CLOSED]
    weights = [STEPS[name][1] for name in names]
    workers = workers or rng.choice((1, 1, 2, 3))
    steps = tuple(
        Planned(rng.randrange(workers), rng.choices(names, weights)[0], rng.getrandbits(48))
        for _ in range(rng.randint(15, 60))
    )
    return Plan(seed, steps, is_stormy=is_stormy, is_closed=is_closed)


@dataclass
class Driver:
    """Runs episodes on one cluster."""

    transport: Transport
    nodes: Sequence[int]
    verdicts: Verdicts
    cluster_id: str = ""
    kafka: KafkaPath | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    contained: dict[int, float] = field(default_factory=dict)

    def world(self, episode: Plan, prefix: str) -> World:
        """Return the world in which the steps of an episode run."""
        model = Model(
            self.clock,
            lambda: " in " + str(getattr(self.verdicts.local, "step", "")).split("#")[-1],
        )
        world = World(
            self.transport, self.nodes, model, self.verdicts, Checker(model, self.verdicts)
        )
        world.prefix, world.cluster_id, world.is_closed = prefix, self.cluster_id, episode.is_closed
        world.is_stormy, world.sleep, world.kafka = episode.is_stormy, self.sleep, self.kafka
        return world

    def prepare(self, episode: Plan, world: World) -> None:
        """Create topics and, in a cluster with access control, users."""
        rng = random.Random(f"{episode.seed} topics")
        self._mark(episode, "prepare", "main")
        for _ in range(rng.choice((1, 2))):
            topics.create(world, rng)
        if episode.is_closed:
            world.notes["is_prepared"] = access.prepare(world, rng)
            body = {"topic_name": "__audit", "partitions_count": 1}
            world.until_answered(rng, world.json("POST", "/admin/topics", body))

    def run(self, episode: Plan, world: World) -> None:
        """Run the steps of an episode; each worker runs its steps in order."""
        workers = sorted({step.worker for step in episode.steps})
        if len(workers) == 1:
            self._work(episode, world, workers[0])
            return
        threads = [
            threading.Thread(target=self._work, args=(episode, world, worker)) for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _mark(self, episode: Plan, step: str, worker: str) -> None:
        self.verdicts.local.step = f"{episode.seed} {step}"
        self.verdicts.local.worker = worker

    def _work(self, episode: Plan, world: World, worker: int) -> None:
        until = world.now + EPISODE_S
        for number, step in enumerate(episode.steps):
            if step.worker != worker or world.now > until:
                continue
            if not world.model.topics or (step.kind in CLOSED and not world.notes["is_prepared"]):
                continue
            self._mark(episode, f"#{number} {step.kind}", str(worker))
            try:
                STEPS[step.kind][0](world, random.Random(step.seed))
            except Exception:
                self.verdicts.check(
                    "J-status",
                    False,
                    step.kind,
                    "an answer that can be read",
                    traceback.format_exc()[-1500:],
                )

    def end(self, episode: Plan, world: World) -> None:
        """Read everything back from every node, after all faults have ended."""
        rng = random.Random(f"{episode.seed} end")
        self._mark(episode, "end", "main")
        until = world.now + 90
        while not (is_over := transactions.all_over(world, rng)) and world.now < until:
            world.sleep(0.5)
        self.verdicts.check(
            "J-available",
            is_over,
            "GET /transactions",
            "no transaction of the episode",
            "one is open",
        )
        self._metrics(world, rng)
        if episode.is_closed:
            crowds.audit(world, rng)
        transactions.look(world, rng)
        for topic in list(world.model.topics.values()):
            for part in topic.partitions:
                # The first reader of damaged records has them repaired, so any reader may come first.
                for node in rng.sample([*self.nodes, None], len(self.nodes) + 1):
                    if node is None:
                        kafka.read_whole(world, rng, part)
                        continue
                    form = rng.choice([form for form in FORMATS if form.is_stream])
                    reads.read_from(
                        world, rng, part, form, part.first(world.now), node=node, is_all=True
                    )
                reads.tail(world, rng, part, rng.choice(FORMATS))
                reads.by_time(world, rng, part, rng.choice(FORMATS))
        self._atomic(world)

    def _metrics(self, world: World, rng: random.Random) -> None:
        """Read each node's count of contained errors; it starts at 0 at each start of a node."""
        for node in self.nodes:
            answer = world.ask(rng, Request("GET", "/metrics?partitions=false"), node=node)
            if not isinstance(answer, Response) or answer.status != 200:
                continue
            lines = [
                line
                for line in answer.body.decode().splitlines()
                if line.startswith("milena_contained_errors_total")
            ]
            count = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
            before = self.contained.get(node, 0.0)
            self.contained[node] = count
            where = f"/metrics of node {node}"
            self.verdicts.check(
                "J-contained", count <= before or not count, where, f"{before:.0f} errors", lines
            )

    def _atomic(self, world: World) -> None:
        """Check that each transaction of unknown fate is in the topics as a whole, or not at all."""
        for tx in {tx for topic in world.model.topics.values() for tx in topic.transactions}:
            if tx.fate is not Fate.UNKNOWN or any(part.deletions for part in tx.low):
                continue
            asked = [sent for sent in tx.sent if sent.fate is not Fate.REFUSED]
            seen = [
                sent.uid
                for sent in asked
                if any(sent.uid in part.uids for part in sent.topic.partitions)
            ]
            needed = [sent for sent in asked if sent.fate is Fate.ACKED] or asked
            is_whole = not seen or {sent.uid for sent in needed} <= set(seen)
            where = f"transaction {tx.name}"
            self.verdicts.check(
                "J-tx-atomic", is_whole, where, f"{len(asked)} records, or none", f"{seen} alone"
            )
