"""Run many simulations: ``python -m tests.sim.kafka --seeds 0:100``. A failure prints the command that replays it."""

import argparse
import os
import sys
import time
import traceback
from collections import Counter

from tests.sim.cluster.__main__ import PROGRESS_SEEDS
from tests.sim.cluster.platform import quiet
from tests.sim.kafka.world import HangingError, KafkaWorld, Options, run_world


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.sim.kafka", description=__doc__)
    parser.add_argument("--seeds", default="0:50", help="first:end")
    parser.add_argument("--seed", type=int, help="this one alone, with its story")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of faults, virtual")
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument("--keep-going", action="store_true", help="not only to the first failure")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the seeds; the exit code is 1 if one failed."""
    parsed = parse(sys.argv[1:])
    options = Options(seconds=parsed.seconds, partitions=parsed.partitions)
    quiet()
    first, end = map(int, parsed.seeds.split(":"))
    seeds = range(first, end) if parsed.seed is None else [parsed.seed]
    began, failed, runs = time.perf_counter(), 0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        problems, world = run(seed, options)
        runs += 1
        counts += world.judge.counts
        counts["late requests"] += world.network.late
        counts["broken connections"] += world.network.breaks
        if parsed.seed is not None:
            print("\n".join(world.lines))
        if problems:
            failed += 1
            print(f"seed {seed} FAILED: {problems[0]}")
            print("\n".join(f"  {problem}" for problem in problems[1:6]))
            print(f"  replay: {options.command(seed)}", flush=True)
            if not parsed.keep_going:
                break
        if runs % PROGRESS_SEEDS == 0:
            print(f"{runs} seeds, {runs / (time.perf_counter() - began):.2f} a second", flush=True)
    seconds = time.perf_counter() - began
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"{runs} seeds in {seconds:.0f} s: {runs / seconds:.2f} seeds/s; {failed} failed")
    return int(failed > 0)


def run(seed: int, options: Options) -> tuple[list[str], KafkaWorld]:
    """Run one seed; an exception of the run becomes a problem."""
    world = KafkaWorld(seed, options)
    problems: list[str] = []
    try:
        world = run_world(seed, options, world)
    except HangingError:
        pass
    except Exception:
        problems = [traceback.format_exc()]
    return [*world.problems, *problems], world


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings must be iterated in the same order in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim.kafka", *sys.argv[1:]])
    sys.exit(main())
