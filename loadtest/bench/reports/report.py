"""Report a run as tables for people, and as JSON for programs (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from loadtest.bench.measuring.samples import Quantity, Rounds, Sample, Spread
from loadtest.bench.targets import Target, TargetOutcome, TargetVerdict
from milena.commands import output

Figure = str | int | float | bool | None
Tree = Figure | Sequence["Tree"] | Mapping[str, "Tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a run."""

    cores: int
    python: str
    build: str
    """The build of the nodes: compiled or pure."""
    file_system: str
    is_disk_real: bool


_HOST_ROWS = (
    "in ...: what this host takes bounds the row, and its peer otherwise. The row of that name has the floor: it is "
    "against a bare server, which pays the same. Here the ambition alone is judged."
)


def table(outcomes: Sequence[TargetOutcome]) -> str:
    """Return a line per row with its floor and ambition; the reasons for missing rows are below the table."""
    lines = [
        (
            outcome.target.name,
            outcome.target.what,
            outcome.target.durability.value,
            "-" if outcome.spread is None else number(outcome.spread.median),
            span(outcome.spread),
            _floor(outcome.target),
            number(outcome.target.ambition),
            outcome.verdict.value,
            _both(outcome),
        )
        for outcome in outcomes
    ]
    head = ("ROW", "WHAT", "WRITES", "MEDIAN", "SPREAD", "FLOOR", "AMBITION", "", "FIGURES")
    notes = [_HOST_ROWS] if any(o.target.host_row for o in outcomes) else []
    notes += [f"{o.target.name}: {o.note}" for o in outcomes if o.note]
    return "\n".join([output.table(head, lines), *([""] if notes else []), *dict.fromkeys(notes)])


def _floor(target: Target) -> str:
    return number(target.floor) if target.host_row is None else f"in {target.host_row}"


def _both(outcome: TargetOutcome) -> str:
    if outcome.ours is None:
        return ""
    unit = outcome.target.quantity.value
    ours = number(outcome.ours.median)
    if outcome.theirs is None:
        return f"{ours} {unit}"
    return f"{ours} / {number(outcome.theirs.median)} {unit}"


def span(spread: Spread | None) -> str:
    """Return "least .. greatest", or "-"."""
    if spread is None:
        return "-"
    return f"{number(spread.least)} .. {number(spread.greatest)}"


def number(value: float | None) -> str:
    """Return a number with three significant digits, or "-"."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def contender_table(stages: Mapping[str, Rounds]) -> str:
    """Return a table of each contender's figures and CPU. A client that uses most of a core is the limit."""
    lines = []
    for stage, rounds in stages.items():
        for name in rounds.samples:
            samples = [sample for sample in rounds.samples[name] if sample is not None]
            if not samples:
                continue
            figures = {
                quantity: Spread.of(rounds.figures(name, quantity)).median
                for quantity in samples[0].figures
            }
            lines.append(
                (
                    stage,
                    name,
                    ", ".join(f"{number(value)} {q.value}" for q, value in figures.items()),
                    number(Spread.of([s.client_cpu for s in samples]).median),
                    number(Spread.of([s.servers_cpu for s in samples]).median),
                    number(_per_cpu_s(samples)),
                )
            )
    head = ("STAGE", "CONTENDER", "MEDIANS", "CLIENT CORES", "SERVERS' CORES", "UNITS/CPU S")
    return output.table(head, lines)


def beside(stages: Mapping[str, Rounds]) -> str:
    """Return the CPU use of other programs, stage by stage; if it is large, it affected the figures."""
    worst = ", ".join(f"{name} {rounds.foreign_cpu:.2g}" for name, rounds in stages.items())
    return f"Cores that what is not measured took in the worst turn: {worst}."


def _per_cpu_s(samples: Sequence[Sample]) -> float | None:
    """Return the units per CPU second of the servers; other programs on the machine hardly affect this figure."""
    values = [
        sample.figures[Quantity.RATE] / sample.servers_cpu
        for sample in samples
        if Quantity.RATE in sample.figures and sample.servers_cpu > 0
    ]
    return Spread.of(values).median if values else None


def exit_code(outcomes: Sequence[TargetOutcome]) -> int:
    """Return 1 if a row is below its floor, 2 if nothing was measured, else 0."""
    if any(outcome.verdict is TargetVerdict.BELOW for outcome in outcomes):
        return 1
    return 2 if all(outcome.verdict is TargetVerdict.ABSENT for outcome in outcomes) else 0


def figures(
    outcomes: Sequence[TargetOutcome], stages: Mapping[str, Rounds], machine: Machine
) -> dict[str, Tree]:
    """Return all results for JSON."""
    return {
        "machine": asdict(machine),
        "rows": [
            {
                **asdict(outcome.target),
                "is_less_better": outcome.target.is_less_better,
                "verdict": outcome.verdict.name.lower(),
                "note": outcome.note,
                "value": _spread(outcome.spread),
                "ours": _spread(outcome.ours),
                "theirs": _spread(outcome.theirs),
            }
            for outcome in outcomes
        ],
        "stages": {name: stage_figures(rounds) for name, rounds in stages.items()},
    }


def _spread(spread: Spread | None) -> Tree:
    return None if spread is None else asdict(spread)


def stage_figures(rounds: Rounds) -> Tree:
    """Return every sample of a stage, for JSON."""
    return {
        "samples": {
            name: [
                None
                if sample is None
                else {
                    **{quantity.value: value for quantity, value in sample.figures.items()},
                    "percentiles ms": {f"{p:g}": ms for p, ms in sample.percentiles.items()},
                    "client_cores": sample.client_cpu,
                    "servers_cores": sample.servers_cpu,
                }
                for sample in samples
            ]
            for name, samples in rounds.samples.items()
        },
        "failures": rounds.failures,
        "facts": rounds.facts,
        "foreign_cores_worst": rounds.foreign_cpu,
    }
