"""Run many simulations: ``python -m tests.sim.cluster --seeds 0:100``. A failure prints the command that replays it."""

import argparse
import functools
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.sim.cluster.platform import quiet
from tests.sim.cluster.world import Options, World

PROBLEM_CHARACTERS_MAX = 3_000
PROGRESS_SEEDS = 50
"""The number of seeds between two progress lines."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster", description=__doc__)
    parser.add_argument("--seeds", default="0:50", help="first:end")
    parser.add_argument("--seed", type=int, help="this one alone, with its story")
    parser.add_argument("--nodes", type=int, default=default.nodes, help="voters")
    parser.add_argument("--observers", type=int, help="nodes without a vote; default: drawn")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of faults, virtual")
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument("--faults", default="", help="kinds, comma separated; default: drawn")
    parser.add_argument("--parts", help="comma separated, or none; default: drawn")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--digests", action="store_true", help="print what each run comes to")
    parser.add_argument("--keep-going", action="store_true", help="not only to the first failure")
    parser.add_argument("--log", action="store_true", help="what the nodes say")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the seeds; the exit code is 1 if one failed."""
    parsed = parse(sys.argv[1:])
    options = Options(
        nodes=parsed.nodes,
        observers=parsed.observers,
        seconds=parsed.seconds,
        partitions=parsed.partitions,
        kinds=tuple(filter(None, parsed.faults.split(","))),
        parts=None
        if parsed.parts is None
        else tuple(name for name in parsed.parts.split(",") if name not in {"", "none"}),
    )
    if parsed.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    else:
        quiet()
    is_alone = parsed.seed is not None
    seeds = [parsed.seed] if is_alone else range(*map(int, parsed.seeds.split(":")))
    began, failed, runs, events = time.perf_counter(), 0, 0, 0
    for outcome in outcomes(seeds, options, parsed.jobs):
        runs += 1
        events += outcome.events
        if is_alone or outcome.has_failed:
            print(outcome.story, flush=True)
        if runs % PROGRESS_SEEDS == 0:
            print(f"{runs} seeds, {runs / (time.perf_counter() - began):.2f} a second", flush=True)
        if parsed.digests:
            print(f"seed {outcome.seed}: digest {outcome.digest}", flush=True)
        if outcome.has_failed:
            failed += 1
            if not parsed.keep_going:
                break
    seconds = time.perf_counter() - began
    print(
        f"{runs} seeds in {seconds:.0f} s: {runs / seconds:.2f} seeds/s, {events / seconds:.0f} events/s; "
        f"{failed} failed"
    )
    return int(failed > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run, without its objects."""

    seed: int
    events: int
    digest: str
    has_failed: bool
    story: str


def outcomes(seeds: Iterable[int], options: Options, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes in the order of the seeds; with several jobs, they come from several processes."""
    if jobs == 1:
        yield from (run(options, seed) for seed in seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(functools.partial(run, options), seeds)


def run(options: Options, seed: int) -> Outcome:
    """Run one seed and free all its objects; an exception of the run becomes a problem."""
    _freeze()
    outcome = _run(options, seed)
    # Collect now: a world is full of cycles, and a process does thousands of runs.
    gc.collect()
    return outcome


@functools.cache
def _freeze() -> None:
    """Hide all present objects from the collector: searching them costs more than the garbage of a run."""
    gc.collect()
    gc.freeze()


def _run(options: Options, seed: int) -> Outcome:
    world = World(seed, options)
    try:
        world.run(is_frozen=True)
    except Exception:
        world.problems.append(traceback.format_exc())
    return Outcome(
        seed=seed,
        events=world.scheduler.events,
        digest=world.digest,
        has_failed=bool(world.problems),
        story=story(world),
    )


def report(world: World, *, is_alone: bool) -> None:
    """Print the result of a run."""
    if is_alone or world.problems:
        print(story(world), flush=True)


def story(world: World) -> str:
    """Return what happened in a run, and the command that replays it."""
    seed, history = world.seed, world.history
    counts = (
        f"seed {seed}: {world.scheduler.now:.1f} virtual s, {world.scheduler.events} events, "
        f"digest {world.digest}, {len(history.writes)} writes, {history.acknowledged} acknowledged, "
        f"{history.doubts} in doubt, {history.reads} reads, {world.faults.struck} faults"
    )
    lines = [*world.lines, counts]
    if world.problems:
        problems = "\n  ".join(world.problems[:5])[:PROBLEM_CHARACTERS_MAX]
        lines += [
            f"seed {seed} FAILED: {problems}",
            f"  replay: {world.options.command(seed)}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings must be iterated in the same order in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim.cluster", *sys.argv[1:]])
    sys.exit(main())
