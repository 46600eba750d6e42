"""Run many simulations: ``python -m tests.sim.groups --seeds 0:100``. A failure prints the command that replays it."""

import argparse
import logging
import os
import sys
import time
import traceback

from tests.sim.cluster.__main__ import PROGRESS_SEEDS, report
from tests.sim.cluster.platform import quiet
from tests.sim.groups.world import GroupOptions, GroupWorld


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    default = GroupOptions()
    parser = argparse.ArgumentParser(prog="python -m tests.sim.groups", description=__doc__)
    parser.add_argument("--seeds", default="0:50", help="first:end")
    parser.add_argument("--seed", type=int, help="this one alone, with its story")
    parser.add_argument("--nodes", type=int, default=default.nodes)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of faults, virtual")
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument("--members", type=int, default=default.members)
    parser.add_argument("--consumers", type=int, default=default.consumers)
    parser.add_argument("--kafka", type=int, default=default.kafka, help="members by KIP-848")
    parser.add_argument("--faults", default="", help="kinds, comma separated; default: drawn")
    parser.add_argument("--keep-going", action="store_true", help="not only to the first failure")
    parser.add_argument("--log", action="store_true", help="what the nodes say")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the seeds; the exit code is 1 if one failed."""
    parsed = parse(sys.argv[1:])
    options = GroupOptions(
        nodes=parsed.nodes,
        seconds=parsed.seconds,
        partitions=parsed.partitions,
        members=parsed.members,
        consumers=parsed.consumers,
        kafka=parsed.kafka,
        kinds=tuple(filter(None, parsed.faults.split(","))),
    )
    if parsed.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    else:
        quiet()
    first, end = map(int, parsed.seeds.split(":"))
    seeds = range(first, end) if parsed.seed is None else [parsed.seed]
    began, failed, runs, events, harms = time.perf_counter(), 0, 0, 0, 0
    for seed in seeds:
        world = run(seed, options)
        runs, events, harms = runs + 1, events + world.scheduler.events, harms + len(world.harms)
        report(world, is_alone=parsed.seed is not None)
        if parsed.seed is not None:
            print("\n".join(world.harms))
        if runs % PROGRESS_SEEDS == 0:
            print(f"{runs} seeds, {runs / (time.perf_counter() - began):.2f} a second", flush=True)
        if world.problems:
            failed += 1
            if not parsed.keep_going:
                break
    seconds = time.perf_counter() - began
    print(
        f"{runs} seeds in {seconds:.0f} s: {runs / seconds:.2f} seeds/s, {events / seconds:.0f} events/s, "
        f"{harms} breakdowns of members; {failed} failed"
    )
    return int(failed > 0)


def run(seed: int, options: GroupOptions) -> GroupWorld:
    """Run one seed; an exception of the run becomes a problem."""
    world = GroupWorld(seed, options)
    try:
        world.run()
    except Exception:
        world.problems.append(traceback.format_exc())
    return world


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings must be iterated in the same order in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim.groups", *sys.argv[1:]])
    sys.exit(main())
