"""Compare the working tree with another commit, in rounds: ``make bench-compare BASE=commit``.

    python -m loadtest.bench.compare --base main [--rows json-all,fetch] [--rounds 8] [--seconds 2] [--out bench-report]

Nodes run from both trees. The clients run in this process and so have the same code for both; no module of the base is
imported here. With ``--again``, a row that is worse is measured once more in twice as many rounds, and the second
result counts. Exit code: 0 if no row is worse (``comparison.py`` has the rule), 1 if one is or the trees cannot be
compared, 2 if nothing was measured.
"""

import asyncio
import gc
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import click
import uvloop

from loadtest.bench.__main__ import chosen_rows, list_rows, machine_of
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.rounds import alternate
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan, InTurns
from loadtest.bench.reports import comparison
from loadtest.bench.reports.comparison import (
    ROUNDS_MIN,
    TOLERANCE,
    ComparedRow,
    RowVerdict,
    base_name,
)
from loadtest.bench.reports.report import contender_table
from loadtest.bench.servers.base_tree import BaseTreeError, check_out, environment_of
from loadtest.bench.stages import IN_TURNS
from loadtest.bench.targets import Target
from loadtest.cluster.local_cluster import ClusterError
from milena.errors import ClientError

_USUAL_ROWS = "requests,batches,latency,fetch"
"""The rows that cover the path of a record."""


def rows_of(wanted: str | None) -> list[Target]:
    """Return the rows to compare; rows with the same figure of Milena are measured once."""
    rows = chosen_rows(wanted or _USUAL_ROWS)
    alone = sorted({row.stage for row in rows} - set(IN_TURNS))
    if alone:
        raise click.BadParameter(f"no two programs take turns in {', '.join(alone)}")
    figures = {(row.subject, row.quantity): row for row in reversed(rows)}
    return [row for row in rows if figures[row.subject, row.quantity] is row]


async def measure(
    stage: InTurns, names: set[str], plan: BenchPlan, base: Mapping[str, str]
) -> Rounds:
    """Measure the named contenders of a stage in rounds; ``base`` is the environment of the base's nodes.

    Raises:
        HttpLoadError: a contender failed.
    """
    rounds = Rounds()
    missing: dict[str, str] = {}
    for number in range(plan.rounds):
        trees: list[tuple[Callable[[str], str], BenchPlan]] = [
            (str, replace(plan, directory=plan.directory / "new")),
            (base_name, replace(plan, directory=plan.directory / "base", settings=base)),
        ]
        # The base goes first in one round, and the new tree in the next.
        if number % 2 == 0:
            trees.reverse()
        async with AsyncExitStack() as stack:
            started = []
            for name_of, its_plan in trees:
                own = Rounds()
                contenders = await stage.start(its_plan, stack, own)
                started.append([replace(c, name=name_of(c.name)) for c in contenders])
                missing |= own.failures
            await alternate(
                [c for pair in zip(*started, strict=True) for c in pair if c.name in names],
                rounds,
                count=1,
                seconds=plan.seconds,
                say=lambda _: None,
                resident_bytes=stage.resident_bytes,
            )
        shutil.rmtree(plan.directory)
        if rounds.failures:
            raise HttpLoadError("; ".join(rounds.failures.values()))
        plan.say(f"round {number + 1} of {plan.rounds}")
    rounds.failures.update(missing)
    return rounds


async def run(
    rows: Sequence[Target], plan: BenchPlan, base: Mapping[str, str]
) -> dict[str, Rounds]:
    """Measure the rows stage by stage; return the rounds of each stage."""
    done = {}
    for name in IN_TURNS:
        subjects = {row.subject for row in rows if row.stage == name}
        if subjects:
            plan.say(f"{name}:")
            names = subjects | set(map(base_name, subjects))
            done[name] = await measure(IN_TURNS[name], names, plan, base)
            gc.collect()
    return done


Measure = Callable[[Sequence[Target], int], dict[str, Rounds]]
"""A function that takes rows and a number of rounds, and returns the measured rounds of each stage."""


def judged(
    rows: Sequence[Target], rounds: int, tolerance: float, measured: Measure, *, is_repeated: bool
) -> tuple[list[ComparedRow], dict[str, Rounds]]:
    """Return the verdict on each row, and the rounds that it is based on.

    If ``is_repeated``, a row that is worse is measured once more in twice as many rounds, and the second result counts.
    """
    stages = measured(rows, rounds)
    compared = [comparison.compare(row, stages[row.stage], tolerance) for row in rows]
    worse = [row.target for row in compared if row.change is RowVerdict.WORSE]
    if not (worse and is_repeated):
        return compared, stages
    stages |= measured(worse, 2 * rounds)
    again = {row.name: comparison.compare(row, stages[row.stage], tolerance) for row in worse}
    return [again.get(row.target.name, row) for row in compared], stages


@click.command()
@click.option("--base", "commit", required=True, help="What git calls the commit to compare with.")
@click.option("--rows", metavar="A,B", help=f"Rows or stages; absent: {_USUAL_ROWS}.")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=ROUNDS_MIN))
@click.option("--seconds", default=2.0, show_default=True, help="Of one turn of one tree.")
@click.option("--tolerance", default=TOLERANCE, show_default=True, type=click.FloatRange(0, 1),
              help="A row that is worse by less is the same.")  # fmt: skip
@click.option(
    "--again", is_flag=True, help="Measure rows that are worse once more, in twice the rounds."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Data goes to a folder in it; absent: build/. It should be on the disk that is to be measured.",
)
@click.option("--out", default="bench-report", show_default=True, type=click.Path(path_type=Path))
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=list_rows)
def main(
    *,
    commit: str,
    rows: str | None,
    rounds: int,
    seconds: float,
    tolerance: float,
    again: bool,
    directory: Path | None,
    out: Path,
) -> None:
    """Measure this tree and another commit, in rounds in which both take turns."""
    chosen = rows_of(rows)
    where = directory or Path("build")
    where.mkdir(parents=True, exist_ok=True)
    machine = machine_of(where)
    try:
        tree = check_out(commit)
        click.echo(f"base: {tree} ({machine.build})", err=True)
        base = environment_of(tree, machine.build)
    except BaseTreeError as error:
        raise click.ClickException(str(error)) from error
    # Disable the garbage collector, as in the benchmarks: its pauses in the client would count as time of the servers.
    gc.disable()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=where) as data,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        plan = BenchPlan(
            directory=Path(data).resolve() / "stage",
            rounds=rounds,
            seconds=seconds,
            say=lambda text: click.echo(text, err=True),
            has_peers=False,
        )

        def measured(rows: Sequence[Target], rounds: int) -> dict[str, Rounds]:
            return runner.run(run(rows, replace(plan, rounds=rounds), base))

        try:
            compared, stages = judged(chosen, rounds, tolerance, measured, is_repeated=again)
        except (HttpLoadError, ClientError, ClusterError, OSError) as error:
            raise click.ClickException(f"not compared: {error}") from error
    title = (
        f"this tree beside {commit} ({tree.name}): {rounds} rounds of {seconds:g} s, {machine.build} nodes, "
        f"Python {machine.python}, {machine.cores} cores, {machine.file_system}"
    )
    out.mkdir(parents=True, exist_ok=True)
    record = {"base": tree.name, **comparison.figures(compared, stages, machine)}
    (out / "compare.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    report = f"{title}\n\n{comparison.table(compared)}\n\n{contender_table(stages)}\n"
    (out / "compare.txt").write_text(report, encoding="utf-8")
    click.echo(report)
    sys.exit(comparison.exit_code(compared))


if __name__ == "__main__":
    main()
