"""The options of a run of the benchmarks, and the type of its stages."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.measuring.rounds import Contender, alternate
from loadtest.bench.measuring.samples import Rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """The options of a run. ``directory`` is empty, and is on the disk to measure."""

    directory: Path
    rounds: int = 5
    seconds: float = 2.0
    idle_s: float = 10.0
    partitions: int = 1000
    recovery_bytes: int = 1 << 30
    soak_s: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    """More environment variables for the nodes, in stages whose contenders take turns."""
    has_peers: bool = True
    """True if stages whose contenders take turns also measure peers; False if they measure Milena alone."""
    say: Callable[[str], None] = print


Stage = Callable[[BenchPlan], Awaitable[Rounds]]
Start = Callable[[BenchPlan, AsyncExitStack, Rounds], Awaitable[list[Contender]]]
"""A function that starts contenders and notes the missing ones. Leaving the stack kills the contenders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InTurns:
    """A stage whose contenders take turns; ``resident_bytes`` is the argument of ``alternate``."""

    start: Start
    resident_bytes: int = 0

    async def __call__(self, plan: BenchPlan) -> Rounds:
        """Start all contenders, let them take turns, and kill them; return the rounds."""
        rounds = Rounds()
        async with AsyncExitStack() as stack:
            contenders = await self.start(plan, stack, rounds)
            await alternate(
                contenders,
                rounds,
                count=plan.rounds,
                seconds=plan.seconds,
                say=plan.say,
                resident_bytes=self.resident_bytes,
            )
        return rounds
