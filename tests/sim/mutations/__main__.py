"""Remove guards of the production code one by one; the simulation must fail without each.

    python -m tests.sim.mutations                    every guard; writes the table to tests/sim/mutations/mutations.md
    python -m tests.sim.mutations --only lease,crc   some guards; writes their rows, and keeps the others
    python -m tests.sim.mutations --one lease        this process runs without the guard, to examine a failure

A mutation is a piece of a module's source text, and its replacement. It is applied when the module is imported, in a
separate process; no file changes. It is an error if the text does not occur exactly once, so the table cannot become
outdated. Tests of guards against the Raft library apply mutations within their process
(``tests.sim.mutations.imports.imported_anew``).

Some guards stand before another guard, so that random faults do not reveal their absence. Such a guard has a directed
test instead, which must fail with the mutation.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.imports import MutatingFinder
from tests.sim.mutations.mutation import SIMULATIONS, Mutation
from tests.sim.mutations.table import TABLE, Verdict, row, table

ROOT = Path(__file__).parents[3]
SEEDS_MAX = 400
SECONDS_MAX = 3_600.0
"""The timeout per guard in real seconds. The limit that matters is the number of seeds."""
FOUND = 1
"""The exit code of a simulation with a problem, and of pytest with a failed test."""


def run_one(mutation: Mutation, seeds: str) -> int:
    """Run in this process, which ends with the simulation's exit code."""
    sys.meta_path.insert(0, MutatingFinder(mutation))
    if mutation.by not in SIMULATIONS:
        import pytest  # noqa: PLC0415 - only where a test is the judge

        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(ROOT / mutation.by)]))
    stop = ["--stop"] if mutation.by == "raft" else []
    sys.argv = [mutation.by, "--seeds", seeds, *stop, *mutation.options]
    # Import here: the guard must be removed before any module is loaded.
    if mutation.by == "raft":
        from tests.sim.raft.__main__ import main  # noqa: PLC0415
    elif mutation.by == "kafka":
        from tests.sim.kafka.__main__ import main  # noqa: PLC0415
    else:
        from tests.sim.cluster.__main__ import main  # noqa: PLC0415
    return main()


def judge(mutation: Mutation) -> Verdict:
    """Run the mutation in its own process; return the verdict."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.sim.mutations", "--one", mutation.name]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(mutation=mutation, seeds=None, symptom="", seconds=SECONDS_MAX)
    seconds = time.perf_counter() - began
    is_found = done.returncode == FOUND
    seeds = _seeds(done.stdout) if is_found else None
    if not is_found and done.returncode:
        raise RuntimeError(f"{mutation.name}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    if is_found and "LookupError" in done.stderr:
        raise RuntimeError(done.stderr[-500:])
    return Verdict(mutation=mutation, seeds=seeds, symptom=_symptom(done.stdout), seconds=seconds)


def _seeds(output: str) -> int:
    counts = [
        int(line.split()[0])
        for line in output.splitlines()
        if line[:1].isdigit() and " seeds in " in line
    ]
    return counts[-1] if counts else 0


def _symptom(output: str) -> str:
    for line in output.splitlines():
        if line.startswith("seed ") and "FAILED: " in line:
            return line.partition("FAILED: ")[2].partition(" ")[2]
        if line.startswith("seed ") and line.count(": ") >= 2 and "virtual s" not in line:
            return line.partition(": ")[2]
        if line.startswith("FAILED "):
            return line.partition("::")[2].partition(" - ")[0]
    return ""


def main() -> int:
    """Run all mutations, or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="names, comma separated")
    parser.add_argument("--one", help="run this one here")
    parser.add_argument("--seeds", default=f"0:{SEEDS_MAX}")
    options = parser.parse_args()
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    if options.one:
        return run_one(by_name[options.one], options.seeds)
    chosen = [by_name[name] for name in options.only.split(",") if name] or list(MUTATIONS)
    verdicts = []
    for mutation in chosen:
        verdict = judge(mutation)
        verdicts.append(verdict)
        print(f"{row(verdict)} {verdict.seconds:.0f} s", flush=True)
        # Write each row at once, so that an interrupted run keeps its results.
        TABLE.write_text(table(TABLE.read_text(encoding="utf-8"), verdict), encoding="utf-8")
    missed = sum(verdict.seeds is None for verdict in verdicts)
    print(f"{len(verdicts)} guards, {missed} whose absence nobody noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
