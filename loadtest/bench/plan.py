"""A run: its options, and its stages in order."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.samples import Rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """The options of a run. ``directory`` is empty, and on the disk that is to be measured."""

    directory: Path
    rounds: int = 5
    seconds: float = 2.0
    idle_s: float = 10.0
    partitions: int = 1000
    recovery_bytes: int = 1 << 30
    soak_s: float = 0.0
    say: Callable[[str], None] = print


Stage = Callable[[BenchPlan], Awaitable[Rounds]]
