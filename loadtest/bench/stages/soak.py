"""Load nodes for a long time; their memory must not grow.

Writers of single records, a writer of thousands at once, and a reader at the end of the log run at the same time. Each
node's memory is measured once a second. The first third of the time does not count, because caches and buffers fill.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import cluster as cluster_rows
from loadtest.bench.servers.subject import Subject, http_turn, json_ask
from loadtest.bench.stages.produce import SMALL
from milena.client import Client
from milena.reading.cursor import OnOutOfRange

SAMPLES_MIN = 9
_WHOLE_S = 1200
_EVERY_S = 1.0
_WRITERS = 8
_PIECE_S = 10.0


async def soak(plan: BenchPlan) -> Rounds:
    """Load three nodes for ``soak_s`` seconds; measure nothing if that is 0."""
    rounds = Rounds()
    if plan.soak_s <= 0:
        rounds.failures[cluster_rows.SOAK] = "a soak takes long; --soak-minutes 20 runs it"
        return rounds
    async with Subject(plan.directory / "milena") as subject:
        url = await subject.create_topic("soaked", is_durable=True)
        ends_s = perf_counter() + plan.soak_s
        memory: dict[int, list[float]] = {}
        async with asyncio.TaskGroup() as group:
            singles = group.create_task(_write(url, ends_s, records=1, connections=_WRITERS))
            many = group.create_task(_write(url, ends_s, records=1000, connections=1))
            following = group.create_task(_follow(url, ends_s))
            while perf_counter() < ends_s:
                await asyncio.sleep(_EVERY_S)
                for pid in subject.pids:
                    memory.setdefault(pid, []).append(resident_mb(pid))
    for name, task in (("one at a time", singles), ("1,000 at a time", many), ("read", following)):
        rounds.facts[name] = f"{task.result():,} records"
    rounds.facts["memory at the end"] = ", ".join(f"{m[-1]:.0f} MB" for m in memory.values())
    growths = [growth for values in memory.values() if (growth := growth_of(values)) is not None]
    if not growths:
        rounds.failures[cluster_rows.SOAK] = "the soak was too short to tell"
        return rounds
    if plan.soak_s < _WHOLE_S:
        rounds.reduced[cluster_rows.SOAK] = (
            f"after {plan.soak_s / 60:g} minutes; --soak-minutes {_WHOLE_S // 60} judges it"
        )
    figures = {
        Quantity.GROWTH: max(growths),
        Quantity.MEMORY: max(max(values) for values in memory.values()),
    }
    rounds.note(cluster_rows.SOAK, Sample(figures=figures))
    return rounds


def growth_of(values: Sequence[float]) -> float | None:
    """Return by how many percent the last third's median exceeds the second third's; None for too few samples."""
    third = len(values) // 3
    if len(values) < SAMPLES_MIN:
        return None
    before, after = median(values[third : 2 * third]), median(values[2 * third :])
    return 100 * (after / before - 1)


def resident_mb(pid: int) -> float:
    """Return the anonymous memory of a process, in MB: its own memory, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


async def _write(url: str, ends_s: float, *, records: int, connections: int) -> int:
    ask = json_ask(url, "soaked", records=records, size=SMALL, acks="all")
    written = 0.0
    while (left_s := ends_s - perf_counter()) > 0:
        turn = await http_turn(url, ask, connections=connections, seconds=min(_PIECE_S, left_s))
        written += turn.units
    return int(written)


async def _follow(url: str, ends_s: float) -> int:
    """Read records until the time is up; records that retention deleted first are skipped."""
    count = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ends_s - perf_counter()), Client(url) as client:
            reader = client.reader("soaked", 0, follow=True, on_out_of_range=OnOutOfRange.EARLIEST)
            async with reader:
                async for chunk in reader.chunks():
                    count += chunk.next_offset - chunk.start_offset
    return count
