"""Let contenders take short turns, round by round; the order is reversed in every other round.

Other load on the machine affects all contenders alike if turns are short and rounds are many.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import psutil

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.process_cpu import tree_cpu_s
from loadtest.bench.measuring.resident import make_resident
from loadtest.bench.measuring.samples import Rounds, Sample, sample_of
from milena.errors import ClientError

WARM_UP_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of one turn: the latency of each call, and the units of all calls together."""

    latencies_s: Sequence[float]
    units: float
    seconds: float

    @classmethod
    def together(cls, turns: Sequence["Turn"]) -> "Turn":
        """Return one turn for several that were taken at the same time."""
        return cls(
            latencies_s=[latency_s for turn in turns for latency_s in turn.latencies_s],
            units=sum(turn.units for turn in turns),
            seconds=max(turn.seconds for turn in turns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A measured program. ``turn`` takes about the given seconds; ``pids`` are the program's server processes."""

    name: str
    turn: Callable[[float], Awaitable[Turn]]
    pids: tuple[int, ...]


def on_a_thread(name: str, turn: Callable[[float], Turn], *, pids: tuple[int, ...]) -> Contender:
    """Return a contender whose turn blocks."""

    async def take(seconds: float) -> Turn:
        return await asyncio.to_thread(turn, seconds)

    return Contender(name=name, turn=take, pids=pids)


class Watch:
    """Measures the CPU of this process, of some servers and of all others, from its creation until ``stop``."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._before = self._now()
        self.foreign_cpu = 0.0
        """The CPU use of other processes, in cores; they include the servers of other contenders."""

    def _now(self) -> tuple[float, float, float, float]:
        servers_s = sum(map(tree_cpu_s, self._pids))
        return perf_counter(), process_time(), servers_s, machine_cpu_s()

    def stop(self) -> None:
        """End the measurement."""
        differences = [now - then for now, then in zip(self._now(), self._before, strict=True)]
        seconds, self._client_s, self._servers_s, all_s = differences
        self.foreign_cpu = max(0.0, (all_s - self._client_s - self._servers_s) / seconds)

    def sample(self, turn: Turn) -> Sample:
        """Return the sample of a turn that was taken during the measurement."""
        return sample_of(
            turn.latencies_s,
            units=turn.units,
            seconds=turn.seconds,
            client_cpu_s=self._client_s,
            servers_cpu_s=self._servers_s,
        )


def machine_cpu_s() -> float:
    """Return the busy seconds of all processors of the machine."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


async def alternate(
    contenders: Sequence[Contender],
    rounds: Rounds,
    *,
    count: int,
    seconds: float,
    say: Callable[[str], None],
    resident_bytes: int = 0,
) -> None:
    """Run the rounds, after warm-up turns that are not counted.

    A contender that fails once is left out after that, and the reason is noted. Before each turn, free memory is
    touched (``resident.py``).
    """
    for number in range(-1, count):
        order = contenders if number % 2 == 0 else list(reversed(contenders))
        for contender in order:
            if contender.name in rounds.failures:
                continue
            # Write out what earlier turns left in the page cache: writing it later would cost this turn.
            await asyncio.to_thread(os.sync)
            make_resident(resident_bytes)
            sample, others = await _take(contender, WARM_UP_S if number < 0 else seconds, rounds)
            if number >= 0:
                rounds.note(contender.name, sample)
                rounds.foreign_cpu = max(rounds.foreign_cpu, others)
        if number >= 0:
            say(f"round {number + 1} of {count}")


async def _take(
    contender: Contender, seconds: float, rounds: Rounds
) -> tuple[Sample | None, float]:
    watch = Watch(contender.pids)
    try:
        turn = await contender.turn(seconds)
    except (HttpLoadError, ClientError, OSError) as error:
        rounds.failures[contender.name] = f"{contender.name}: {error}"
        return None, 0.0
    watch.stop()
    return watch.sample(turn), watch.foreign_cpu
