"""Run the simulation of the metadata quorum over a range of seeds.

    python -m tests.sim.raft --seeds 0:1000 [--voters 5] [--observers 1] [--wipe]

A failure prints the broken invariant, and the command that repeats it.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import Counter, defaultdict

from tests.sim.raft.world import World


def main() -> int:
    """Run the seeds and report; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:end")
    parser.add_argument("--voters", type=int, default=3)
    parser.add_argument("--observers", type=int, default=0)
    parser.add_argument("--wipe", action="store_true", help="voters lose their directories")
    parser.add_argument("--hard", action="store_true", help="slow, crowded, faults all the time")
    parser.add_argument("--trace", action="store_true", help="print every event of a failing run")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: never")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, end = map(int, options.seeds.split(":"))
    failures: defaultdict[str, list[int]] = defaultdict(list)
    totals: Counter[str] = Counter()
    started = time.perf_counter()
    seed = first
    for seed in range(first, end):
        if options.seconds and time.perf_counter() - started > options.seconds:
            break
        world = World(
            seed,
            voters=options.voters,
            observers=options.observers,
            has_wipes=options.wipe,
            is_hard=options.hard,
            is_traced=options.trace,
        )
        try:
            violation = world.run()
            kind, details = violation.args if violation else ("", "")
        except Exception:
            kind, details = "exception", traceback.format_exc()
        totals.update(world.checker.stats)
        if kind:
            failures[kind].append(seed)
            if options.trace:
                print("\n".join(world.lines))
            print(f"seed {seed}: {kind}: {details[-1500:]}")
            print(f"  replay: {_replay(options, seed)}", flush=True)
            if options.stop:
                break
    seconds = time.perf_counter() - started
    failed = sum(map(len, failures.values()))
    print(f"{seed - first + 1} seeds in {seconds:.0f} s, {failed} failed; {dict(totals)}")
    for kind, seeds in sorted(failures.items()):
        print(f"  {kind}: {len(seeds)}, first after {seeds[0] - first + 1}: {seeds[:10]}")
    return bool(failures)


def _replay(options: argparse.Namespace, seed: int) -> str:
    words = [f"python -m tests.sim.raft --seeds {seed}:{seed + 1} --voters {options.voters}"]
    if options.observers:
        words.append(f"--observers {options.observers}")
    if options.wipe:
        words.append("--wipe")
    if options.hard:
        words.append("--hard")
    return " ".join([*words, "--trace"])


if __name__ == "__main__":
    sys.exit(main())
