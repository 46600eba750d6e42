"""Draw episodes of steps from a seed, run them with several workers while nodes break, and judge the end."""

from __future__ import annotations

import random
import threading
import time
import traceback
from dataclasses import dataclass

from tests.judge.checks import Checker
from tests.judge.model import Model
from tests.judge.steps import STEPS, reads, topics
from tests.judge.world import World
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.judge.rules import Verdicts
    from tests.judge.client import Transport
    from collections.abc import Sequence


@dataclass(frozen=True)
class Planned:
    """A step of an episode: who runs it, what it is, and the seed of its details."""

    worker: int
    kind: str
    seed: int


@dataclass(frozen=True)
class Plan:
    """An episode: its steps, and whether nodes break meanwhile."""

    seed: str
    steps: tuple[Planned, ...]
    is_stormy: bool = False
    is_closed: bool = False


def plan(seed: str, *, kinds: Sequence[str] = ()) -> Plan:
    """Draw an episode."""
    rng = random.Random(seed)
    names = list(kinds or STEPS)
    weights = [STEPS[name][1] for name in names]
    workers = rng.choice((1, 1, 2, 3))
    steps = tuple(
        Planned(rng.randrange(workers), rng.choices(names, weights)[0], rng.getrandbits(48))
        for _ in range(rng.randint(15, 60))
    )
    return Plan(seed, steps, is_stormy=rng.random() < 0.5, is_closed=rng.random() < 0.5)


@dataclass
class Driver:
    """Runs episodes on one cluster."""

    transport: Transport
    nodes: Sequence[int]
    verdicts: Verdicts
    cluster_id: str = ""
    statuses: dict[str, int] | None = None

    def world(self, episode: Plan, prefix: str) -> World:
        """Return what the steps of an episode work on."""
        model = Model(time.monotonic)
        world = World(
            self.transport, self.nodes, model, self.verdicts, Checker(model, self.verdicts)
        )
        world.prefix, world.cluster_id, world.is_closed = prefix, self.cluster_id, episode.is_closed
        world.is_stormy = episode.is_stormy
        return world

    def run(self, episode: Plan, world: World) -> None:
        """Run the steps of an episode, each worker's in turn."""
        rng = random.Random(f"{episode.seed} topics")
        self._mark(episode, "create", "main")
        for _ in range(rng.choice((1, 2))):
            topics.create(world, rng)
        workers = sorted({step.worker for step in episode.steps})
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
        for number, step in enumerate(episode.steps):
            if step.worker != worker:
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
        """Read everything back from every node once nothing breaks any more."""
        rng = random.Random(f"{episode.seed} end")
        self._mark(episode, "end", "main")
        for topic in list(world.model.topics.values()):
            for part in topic.partitions:
                for node in self.nodes:
                    form = rng.choice([form for form in reads.FORMATS if form.is_stream])
                    reads.read_from(
                        world, rng, part, form, part.start_range(world.now, world.now)[1], node=node
                    )
