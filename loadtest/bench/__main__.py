"""Measure all promised figures, and the programs that they are compared with: ``make bench``.

    python -m loadtest.bench [--rows json-all,fetch] [--rounds 5] [--seconds 2] [--out bench-report]

The exit code is 0 when no row is below its floor, 1 when one is, 2 when nothing was measured.
"""

import asyncio
import gc
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.reports.chart import draw
from loadtest.bench.reports.curve_chart import draw_curves
from loadtest.bench.reports.report import (
    Machine,
    beside,
    contender_table,
    exit_code,
    figures,
    table,
)
from loadtest.bench.rows.table import TARGETS
from loadtest.bench.stages import STAGES
from loadtest.bench.targets import Target, judge
from loadtest.cluster.local_cluster import ClusterError
from milena.commands import output
from milena.commands.options import FiniteRange
from milena.errors import ClientError
from milena.model.build_kind import build_kind

_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system of a path, from the text of ``/proc/mounts``."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, place, found, *_ = line.split()
        is_above = path == Path(place) or Path(place) in path.parents
        if is_above and len(place) >= len(best):
            best, kind = place, found
    return kind


def interpreter_of(version: str, configured: str, maps: str) -> str:
    """Return Python's version, and a note if it was built without profile-guided optimization, which costs a third.

    ``configured`` has the arguments of Python's configure script, ``maps`` the text of ``/proc/self/maps``.
    """
    # Debian's Python does not load libpython3. The configure arguments that it reports are those of another build.
    is_plain = "/libpython3" in maps and "--enable-optimizations" not in configured
    return f"{version}, built without a profile" if is_plain else version


def machine_of(directory: Path) -> Machine:
    """Return the facts of this machine, and of the disk on which a directory lies."""
    mounts, maps = Path("/proc/self/mounts"), Path("/proc/self/maps")
    kind = "unknown"
    if mounts.exists():
        kind = file_system_of(directory.resolve(), mounts.read_text(encoding="utf-8"))
    return Machine(
        cores=os.cpu_count() or 1,
        python=interpreter_of(
            platform.python_version(),
            str(sysconfig.get_config_var("CONFIG_ARGS")),
            maps.read_text(encoding="utf-8") if maps.exists() else "",
        ),
        # The nodes inherit the environment by which this process found its modules.
        build=build_kind(),
        file_system=kind,
        is_disk_real=kind not in _MEMORY_FILE_SYSTEMS,
    )


def chosen_rows(rows: str | None) -> list[Target]:
    """Return all rows, or only the rows and stages named in ``rows``."""
    if rows is None:
        return list(TARGETS)
    names = {name.strip() for name in rows.split(",")}
    unknown = names - {t.name for t in TARGETS} - set(STAGES)
    if unknown:
        raise click.BadParameter(f"no row or stage is called {', '.join(sorted(unknown))}")
    return [t for t in TARGETS if t.name in names or t.stage in names]


async def run(plan: BenchPlan, names: Sequence[str]) -> dict[str, Rounds]:
    """Run stage after stage; remove the files of a stage before the next one starts."""
    done = {}
    for name in names:
        plan.say(f"{name}:")
        shutil.rmtree(plan.directory, ignore_errors=True)
        plan.directory.mkdir(parents=True)
        try:
            done[name] = await STAGES[name](plan)
        except (HttpLoadError, ClientError, ClusterError, OSError) as error:
            failures = {t.subject: str(error) for t in TARGETS if t.stage == name}
            done[name] = Rounds(failures=failures)
        for contender, reason in done[name].failures.items():
            plan.say(f"  left out: {contender}: {reason}")
        gc.collect()
    shutil.rmtree(plan.directory, ignore_errors=True)
    return done


def list_rows(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """Print the rows and exit: the option ``--list``."""
    if not is_wanted:
        return
    lines = [(t.name, t.stage, t.durability.value, t.what) for t in TARGETS]
    click.echo(output.table(("ROW", "STAGE", "WRITES", "WHAT"), lines))
    context.exit()


@click.command()
@click.option("--rows", metavar="A,B", help="Rows or stages; absent: all.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=2.0, show_default=True, help="Of one turn of one contender.")
@click.option("--idle", "idle_s", default=10.0, show_default=True, help="Seconds of an idle round.")
@click.option("--partitions", default=1000, show_default=True, type=click.IntRange(min=3))
@click.option("--recovery-gb", default=1.0, show_default=True, type=FiniteRange(0.001, 10))
@click.option("--soak-minutes", default=0.0, show_default=True, type=FiniteRange(0, 20))
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Data goes to a folder in it; absent: build/. It should be on the disk that is to be measured.",
)
@click.option("--out", default="bench-report", show_default=True, type=click.Path(path_type=Path))
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=list_rows)
def main(
    *,
    rows: str | None,
    rounds: int,
    seconds: float,
    idle_s: float,
    partitions: int,
    recovery_gb: float,
    soak_minutes: float,
    directory: Path | None,
    out: Path,
) -> None:
    """Measure Milena and its peers in rounds, in which all of them take turns."""
    chosen = chosen_rows(rows)
    base = directory or Path("build")
    base.mkdir(parents=True, exist_ok=True)
    machine = machine_of(base)
    names = [name for name in STAGES if name in {target.stage for target in chosen}]
    # Disable the garbage collector: its pauses in the client would count as time of the servers.
    gc.disable()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=base) as where,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        plan = BenchPlan(
            directory=Path(where).resolve() / "stage",
            rounds=rounds,
            seconds=seconds,
            idle_s=idle_s,
            partitions=partitions,
            recovery_bytes=int(recovery_gb * 1e9),
            soak_s=soak_minutes * 60,
            say=lambda text: click.echo(text, err=True),
        )
        stages = runner.run(run(plan, names))
    outcomes = [
        judge(target, stages[target.stage], is_disk_real=machine.is_disk_real) for target in chosen
    ]
    out.mkdir(parents=True, exist_ok=True)
    title = (
        f"{rounds} rounds of {seconds:g} s, {machine.build} nodes, Python {machine.python}, "
        f"{machine.cores} cores, {machine.file_system}"
    )
    draw(outcomes, out / "bench.png", title=title)
    draw_curves(stages, out / "bench-curves.png", title=title)
    record = json.dumps(figures(outcomes, stages, machine), indent=2) + "\n"
    (out / "bench.json").write_text(record, encoding="utf-8")
    report = f"{title}\n\n{table(outcomes)}\n\n{beside(stages)}\n\n{contender_table(stages)}\n"
    (out / "bench.txt").write_text(report, encoding="utf-8")
    click.echo(report)
    sys.exit(exit_code(outcomes))


if __name__ == "__main__":
    main()
