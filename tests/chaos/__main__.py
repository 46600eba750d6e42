"""Run many chaos runs, one after the other, each in its own process.

    python -m tests.chaos --scenario all --seconds 60 --seeds 1,2,3 --disk loop --network netns

The exit code is the worst verdict (1 unsafe, 2 not live, 3 inconclusive, 0 good). A run that is not good keeps its
data, the nodes' logs and its history in ``--out``, and prints the command that repeats it. The same seed gives the same
faults at the same times, but not the same interleaving.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.chaos.report import VERDICTS, Verdict
from tests.chaos.scenarios import NONE, available
from tests.chaos.setup import DiskKind, NetworkKind

ROOT = Path(__file__).resolve().parents[2]
WORST_FIRST = (Verdict.UNSAFE, Verdict.NOT_LIVE, Verdict.INCONCLUSIVE, Verdict.GOOD)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run."""

    scenario: str
    seed: int
    verdict: Verdict
    work: Path


def command_of(scenario: str, seed: int, work: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of one run."""
    place = ("--scenario", scenario, "--seed", str(seed), "--work", str(work))
    return [sys.executable, "-m", "tests.chaos.run", *place, *options]


def run_one(scenario: str, seed: int, work: Path, options: Sequence[str]) -> Result:
    """Run one run in its own process; pass its output on."""
    print(f"== {scenario}, seed {seed} -> {work}", flush=True)
    command = command_of(scenario, seed, work, options)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    verdict = Verdict(code) if code in tuple(Verdict) else Verdict.NOT_LIVE
    if verdict is not Verdict.GOOD:
        print(f"repeat: {' '.join(command_of(scenario, seed, Path('chaos-runs/again'), options))}")
    return Result(scenario, seed, verdict, work)


def chosen(scenario: str, disk: DiskKind, network: NetworkKind) -> list[str]:
    """Return the scenario names in a text: ``all``, or names separated by commas."""
    if scenario == "all":
        return [name for name in available(disk, network) if name != NONE]
    return scenario.split(",")


@click.command(help=__doc__)
@click.option("--scenario", default="all", show_default=True, help="Names, 'all' or 'list'.")
@click.option("--seconds", type=float, default=60.0, show_default=True)
@click.option("--seeds", default="1", show_default=True, help="Comma-separated.")
@click.option("--disk", type=click.Choice([k.value for k in DiskKind]), default="dir")
@click.option("--network", type=click.Choice([k.value for k in NetworkKind]), default="none")
@click.option("--acks", default="all", show_default=True, help="Comma-separated: mixed at random.")
@click.option(
    "--idempotent", "is_idempotent", is_flag=True, help="Idempotent writes, with retries."
)
@click.option(
    "--no-transactions", "is_plain", is_flag=True, help="Writes without transactions alone."
)
@click.option("--clients", default="http,kafka", show_default=True, help="Programs take turns.")
@click.option("--keep", "is_kept", is_flag=True, help="Keep the data of good runs.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("chaos-runs"), show_default=True
)
def main(
    scenario: str,
    seconds: float,
    seeds: str,
    disk: str,
    network: str,
    acks: str,
    is_idempotent: bool,
    is_plain: bool,
    clients: str,
    is_kept: bool,
    out: Path,
) -> None:
    """Run scenarios with seeds; see the module."""
    if scenario == "list":
        print(*available(DiskKind(disk), NetworkKind(network)), sep="\n")
        return
    options = [
        *("--seconds", f"{seconds:g}", "--disk", disk, "--network", network, "--acks", acks),
        *("--clients", clients),
        *(["--idempotent"] if is_idempotent else []),
        *(["--no-transactions"] if is_plain else []),
        *(["--keep"] if is_kept else []),
    ]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    results = [
        run_one(name, seed, out.resolve() / f"{stamp}-{name}-{seed}", options)
        for name in chosen(scenario, DiskKind(disk), NetworkKind(network))
        for seed in map(int, seeds.split(","))
    ]
    bad = [r for r in results if r.verdict is not Verdict.GOOD]
    print(f"\n{len(results) - len(bad)} of {len(results)} runs good")
    for result in bad:
        told = VERDICTS[result.verdict]
        print(f"  {result.scenario}, seed {result.seed}: {told} -> {result.work}")
    sys.exit(next((v for v in WORST_FIRST if any(r.verdict is v for r in results)), Verdict.GOOD))


if __name__ == "__main__":
    main()
