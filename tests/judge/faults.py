"""Inject faults while steps run: kills, pauses, cuts, shifted clocks and changed bits on disks.

A seed decides kind, node and duration.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.judge.cluster import Cluster

_SHIFTS_S = (-691_200.0, -8_000.0, -30.0, 30.0, 8_000.0, 691_200.0, 691_200.0, 2_592_000.0)
_KINDS = (
    ("kill", "pause", "cut"),
    ("kill", "pause", "cut"),
    ("kill-all",),
    ("clock",),
    ("clock", "kill"),
    ("rot",),
    ("rot", "kill", "pause"),
)


@dataclass
class Storm:
    """The faults of one episode, on their own thread; one node at a time, or a kill of all."""

    cluster: Cluster
    rng: random.Random
    kinds: Sequence[str] = ()
    over: threading.Event = field(default_factory=threading.Event)
    told: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None
    rotten: int = 0  # bits change on the disk of this node only: the others have every record

    def start(self) -> None:
        """Start to inject faults."""
        self.kinds = self.kinds or self.rng.choice(_KINDS)
        self.rotten = self.rng.choice(sorted(self.cluster.nodes))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.wait(self.rng.uniform(1.0, 5.0)):
            kind = self.rng.choice(list(self.kinds))
            node = self.rng.choice(sorted(self.cluster.nodes))
            lasts = self.rng.uniform(1.0, 5.0)
            self.told.append(f"{kind} {node} for {lasts:.1f} s")
            getattr(self, "_" + kind.replace("-", "_"))(node, lasts)

    def _kill(self, node: int, lasts: float) -> None:
        self.cluster.kill(node)
        self.over.wait(lasts / 2)
        self.cluster.launch(node)
        self._wait(node)

    def _kill_all(self, _node: int, _lasts: float) -> None:
        for node in self.cluster.nodes:
            self.cluster.kill(node)
        for node in self.cluster.nodes:
            self.cluster.launch(node)
        self._wait(0)

    def _wait(self, _node: int) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until and not self.over.is_set():
            if self.cluster.wait_ready(1):
                return

    def _pause(self, node: int, lasts: float) -> None:
        self.cluster.pause(node, is_paused=True)
        self.over.wait(lasts)
        self.cluster.pause(node, is_paused=False)

    def _cut(self, node: int, lasts: float) -> None:
        self.cluster.cut(node, is_cut=True)
        self.over.wait(lasts)
        self.cluster.cut(node, is_cut=False)

    def _clock(self, node: int, lasts: float) -> None:
        shift = self.rng.choice(_SHIFTS_S)
        self.told.append(f"clock of {node} by {shift:+.0f} s")
        self.cluster.set_clock(node, shift)
        self.over.wait(lasts + 2)
        self.cluster.set_clock(node, 0.0)

    def _rot(self, _node: int, _lasts: float) -> None:
        self.told.append(self.cluster.rot(self.rotten, self.rng))

    def stop(self) -> bool:
        """Undo all faults; return whether every node is ready again."""
        self.over.set()
        if self.thread is not None:
            self.thread.join()
        for node in self.cluster.nodes:
            self.cluster.set_clock(node, 0.0)
        return self.cluster.wait_ready()
